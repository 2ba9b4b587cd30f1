//! What a backend sees of connections that XDP opens, as tcpdump captures it: the SYN of the client, and no byte twice.

use std::{collections::BTreeMap, net::SocketAddrV4, ops::Range, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    splice::{SegmentTimes, times},
    syn_cookie::offer::{self, SynOptions},
    wire::Slice,
};
use lb_tests::{
    frames::{
        packet::flags::{SYN_ACK, SYN_ONLY},
        segment::Segment,
    },
    oracle::wire::Wire,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller,
    topology::Topology,
    traffic::hello::{CAPTURED_NAME, captured_of, named},
};

use crate::proxy::{
    bind_header,
    cookies::{OFFERS, offer},
    guard,
    sni::SHARED,
};

/// Clients of each kind.
const EACH: usize = 5;
/// How often all of them are made at most.
const ATTEMPTS: usize = 4;
/// More than any segment takes.
const MOST: u16 = 9000;
/// Milliseconds in which a client says its hello, and its backend answers.
const MOMENT: u32 = 1000;
/// A client with shorter segments than others: one of the sizes that a cookie has a place for.
const SHORT_MSS: u16 = 536;
/// Bytes that a header may have: addresses, a name and an identifier.
const HEADERS: Range<u32> = 28..200;

/// A SYN: the sequence number and the options, of timestamps the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Syn {
    sequence: u32,
    mss: u16,
    has_sack: bool,
    scale: Option<u8>,
    time: Option<u32>,
}

/// A segment with data.
#[derive(Clone, Copy, Debug)]
struct Data {
    from: SocketAddrV4,
    sequence: u32,
    bytes: u32,
    window: [u8; 2],
    times: Option<SegmentTimes>,
}

/// What a capture has of connections, in the order of their numbers.
#[derive(Debug, Default)]
struct Sent {
    syns: Vec<Syn>,
    data: Vec<Data>,
}

fn sent(frames: &[Vec<u8>]) -> Result<Sent> {
    let Sent { mut syns, mut data } = Sent::default();
    for frame in frames {
        let Some(segment) = Segment::read(frame) else {
            continue;
        };
        let mut bytes = frame.clone();
        if segment.flags == SYN_ONLY {
            let options = offer::read(&Slice::new(&mut bytes), MOST);
            let SynOptions { offer, mss, time } = options.context("the options of a SYN")?;
            syns.push(Syn {
                sequence: segment.sequence,
                mss,
                has_sack: offer.has_sack,
                scale: offer.scale,
                time: time.map(|time| time.get()),
            });
        } else if segment.payload != 0 {
            data.push(Data {
                from: segment.from,
                sequence: segment.sequence,
                bytes: segment.payload,
                window: [frame[48], frame[49]],
                times: times(&Slice::new(&mut bytes)),
            });
        }
    }
    syns.sort_unstable();
    data.sort_unstable_by_key(|data| (data.sequence, data.bytes));
    Ok(Sent { syns, data })
}

/// The clocks of a backend in its SYN-ACKs, by the ends that these went to.
fn clocks(frames: &[Vec<u8>]) -> BTreeMap<SocketAddrV4, u32> {
    let clock = |frame: &Vec<u8>| {
        let segment = Segment::read(frame).filter(|segment| segment.flags == SYN_ACK)?;
        let times = times(&Slice::new(&mut frame.clone()))?;
        Some((segment.to, times.value))
    };
    frames.iter().filter_map(clock).collect()
}

/// What the client of a connection has sent, what came to its backend, and the backend's clocks.
struct Seen {
    of_client: Sent,
    of_backend: Sent,
    clocks: BTreeMap<SocketAddrV4, u32>,
}

/// Connections with hellos of one segment and of two, so many of each, of which no client repeats a segment, as one does that waits for
/// a busy machine.
fn connect(topology: &Topology) -> Result<Seen> {
    for _ in 1..ATTEMPTS {
        let seen = connect_all(topology)?;
        if seen.of_client.data.len() == 3 * EACH && seen.of_client.syns.len() == 2 * EACH {
            return Ok(seen);
        }
    }
    connect_all(topology)
}

fn connect_all(topology: &Topology) -> Result<Seen> {
    let (client, node) = (topology.client(), &topology.nodes[0]);
    let long = captured_of("like-chrome131")?.bytes;
    let hellos = [named(CAPTURED_NAME.as_bytes()), long];
    let from_client = format!("tcp and dst {}", SHARED.ip());
    let at_client = Wire::received(&topology.tenant_lan, "p-c1", &from_client, topology.dir())?;
    let at_backend = Wire::received(&node.netns, "eth0", "tcp", topology.dir())?;
    let from_backend = Wire::received(&topology.mgmt_lan, "p-n1", "tcp", topology.dir())?;
    for hello in hellos.iter().cycle().take(hellos.len() * EACH) {
        let ask = || teller::ask(SHARED, &[hello], Duration::ZERO);
        let reached = client.netns.inside(ask)??.context("an answer")?;
        ensure!(reached.starts_with('a'), "{reached}");
    }
    Ok(Seen {
        of_client: sent(&at_client.stop()?)?,
        of_backend: sent(&at_backend.stop()?)?,
        clocks: clocks(&from_backend.stop()?),
    })
}

/// Whether one time of a clock, in milliseconds, is the other one or comes in the moment behind it.
const fn follows(time: u32, before: u32) -> bool {
    time.wrapping_sub(before) <= MOMENT
}

impl Seen {
    /// The bytes of the header in front of each hello, by the number of its SYN: by so many that is less than its client's.
    fn headers(&self) -> Result<BTreeMap<u32, u32>> {
        let [of_client, of_backend] = [&self.of_client.syns, &self.of_backend.syns];
        assert_eq!([of_client.len(), of_backend.len()], [2 * EACH; 2]);
        let pairs = of_client.iter().zip(of_backend);
        let header = |(client, backend): (&Syn, &Syn)| {
            let bytes = client.sequence.wrapping_sub(backend.sequence);
            ensure!(
                bytes == 0 || HEADERS.contains(&bytes),
                "{client:?}: {backend:?}"
            );
            Ok((backend.sequence, bytes))
        };
        pairs.map(header).collect()
    }

    /// The SYNs offer what those of the client do, with the clock of its hello.
    fn ensure_syns(&self, headers: &BTreeMap<u32, u32>) -> Result<()> {
        let [of_client, of_backend] = [&self.of_client, &self.of_backend];
        for (client, backend) in of_client.syns.iter().zip(&of_backend.syns) {
            let offered = |syn: &Syn| (syn.mss, syn.has_sack, syn.scale, syn.time.is_some());
            assert_eq!(offered(backend), offered(client));
            let behind = headers[&backend.sequence] + 1;
            let first = backend.sequence.wrapping_add(behind);
            let first = of_client.data.iter().find(|data| data.sequence == first);
            let said = first.context("a hello")?.times.map(|times| times.value);
            match (backend.time, said) {
                (Some(time), Some(said)) => ensure!(follows(time, said), "{backend:?}: {said}"),
                times => assert_eq!(times, (None, None), "{backend:?}"),
            }
        }
        Ok(())
    }

    /// Each byte came once, with the client's window, at the client's time, and behind the backend's; in front of a connection's
    /// first one its header.
    fn ensure_data(&self, headers: &BTreeMap<u32, u32>) -> Result<()> {
        let Self {
            of_client,
            of_backend,
            clocks,
        } = self;
        let is_header = |data: &Data| {
            let bytes = headers.get(&data.sequence.wrapping_sub(1));
            bytes.is_some_and(|bytes| *bytes == data.bytes)
        };
        let (found, others): (Vec<&Data>, Vec<&Data>) =
            of_backend.data.iter().partition(|data| !is_header(data));
        let with_header = headers.values().filter(|bytes| **bytes != 0).count();
        assert_eq!(others.len(), with_header, "{others:?}");
        let numbers = |data: &Data| (data.sequence, data.bytes, data.window);
        assert_eq!(
            found.iter().map(|data| numbers(data)).collect::<Vec<_>>(),
            of_client.data.iter().map(numbers).collect::<Vec<_>>()
        );
        for (found, said) in found.into_iter().zip(&of_client.data) {
            match (found.times, said.times) {
                (Some(times), Some(said)) => {
                    ensure!(follows(times.value, said.value), "{found:?}: {said:?}");
                    let clock = clocks.get(&found.from).context("a SYN-ACK")?;
                    ensure!(follows(times.echo, *clock), "{found:?}: {clock}");
                }
                (times, said) => ensure!(times.is_none() && said.is_none(), "{found:?}"),
            }
        }
        Ok(())
    }

    /// All of it; each hello behind a header, or none.
    fn ensure(&self, with_headers: bool) -> Result<()> {
        let headers = self.headers()?;
        let found = headers.values().all(|bytes| (*bytes != 0) == with_headers);
        ensure!(found, "{headers:?}");
        self.ensure_syns(&headers)?;
        self.ensure_data(&headers)
    }
}

fn sends(topology: &Topology, second: &str) -> Config {
    guard::config(topology, Keys::default())
        .network("mgmt", |mgmt| mgmt.set("second_segment", second))
}

/// Whatever a client offers: the backend gets its number, its options and its bytes, each once, by its clock.
#[privileged_test]
fn a_backend_sees_the_client_and_nothing_twice() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    for second in ["at_once", "on_ack"] {
        let lb = Lb::start(&topology, &sends(&topology, second))?;
        for offered in OFFERS {
            offer(&topology.client().netns, offered)?;
            let seen = connect(&topology)?;
            seen.ensure(false)
                .with_context(|| format!("{second}, offered {offered:03b}"))?;
        }
        lb.down()?;
    }
    Ok(())
}

/// A client that takes shorter segments than others: its backend hears of it.
#[privileged_test]
fn a_backend_sees_how_short_the_segments_of_a_client_are() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let _lb = Lb::start(&topology, &sends(&topology, "at_once"))?;
    let client = topology.client();
    client.netns.run(&format!(
        "ip route change 192.168.203.0/24 dev eth0 proto kernel scope link src {} advmss {SHORT_MSS}",
        client.address
    ))?;
    let seen = connect(&topology)?;
    let sizes: Vec<u16> = seen.of_backend.syns.iter().map(|syn| syn.mss).collect();
    assert_eq!(sizes, [SHORT_MSS; 2 * EACH]);
    seen.ensure(false)
}

/// In front of the client's bytes is a header, once, in numbers of its own.
#[privileged_test]
fn a_backend_sees_a_header_and_nothing_twice() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = bind_header::teller(&topology.nodes[0])?;
    for second in ["at_once", "on_ack"] {
        let lb = Lb::start(&topology, &bind_header::config(&topology, second))?;
        let seen = connect(&topology)?;
        seen.ensure(true).with_context(|| second.to_owned())?;
        lb.down()?;
    }
    Ok(())
}
