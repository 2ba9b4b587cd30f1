//! Connections of a shared VIP that are handed over to the data plane: FEATURES B15.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_common::maps::snat::{FIRST_FLOW_PORT, FIRST_LEG_PORT, FIRST_LOCAL_PORT};
use lb_tests::{
    poll,
    product::lb::Lb,
    servers::teller::{Teller, ask},
    topology::{SNAT, Site, Topology},
    traffic::{
        client::open,
        conn_pair::{Pair, reset, wait_for_reset},
        hello::named,
    },
};
use nix::sys::{signal::Signal, socket};

use crate::{
    handoff::opener::{BOUND, Opener},
    lifecycle::privileges::ALL,
    nic::cell::inside,
    proxy::{
        pipe::carry,
        relayed::{NAME, PORT, SHARED, SOON, config, fast_line, line, wait_for},
        sni::counted,
    },
};

/// Connections to a backend that speaks at once.
const SPOKEN: u64 = 300;
/// Bytes that are carried and compared at a time, as long as something happens.
const PART: u64 = 8 << 20;
/// How long a process is stopped.
const STOPPED: Duration = Duration::from_secs(5);

/// Among the [`outcomes`].
pub(crate) const HANDED_OVER: &str = "handed over";

/// How many were handed over.
pub(crate) fn handed_over(lb: &Lb<'_>) -> Result<u64> {
    counted(lb, "handed_over")
}

/// How many were copied for this reason.
pub(crate) fn copied(lb: &Lb<'_>, reason: &str) -> Result<u64> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let copied = status["shared"]["shared"]["copied"][reason].as_u64();
    Ok(copied.unwrap_or_default())
}

/// What became of all connections: copied for these reasons, `handed over`, or `bound`.
pub(crate) fn outcomes(lb: &Lb<'_>) -> Result<BTreeMap<String, u64>> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let counted = &status["shared"]["shared"];
    // Nothing is counted of a service that no client has come to.
    let copied: Option<BTreeMap<String, u64>> = serde_json::from_value(counted["copied"].clone())?;
    let mut outcomes = copied.unwrap_or_default();
    let handed_over = counted["handed_over"].as_u64().unwrap_or_default();
    outcomes.insert(HANDED_OVER.to_owned(), handed_over);
    if let Some(bound @ 1..) = counted["bound"].as_u64() {
        outcomes.insert(BOUND.to_owned(), bound);
    }
    Ok(outcomes)
}

/// Waits until no socket of the cells has a connection any more.
pub(crate) fn wait_for_no_sockets(topology: &Topology) -> Result<()> {
    wait_for_no_sockets_in(topology, &["tenant-a", "mgmt"])
}

/// The same of the cells of these networks; but for what a copied connection leaves for a minute.
pub(crate) fn wait_for_no_sockets_in(site: &Site, networks: &[&str]) -> Result<()> {
    let all = "ss -Htn state all exclude listening exclude time-wait";
    let of = |network: &&str| inside(site, network, all);
    poll::until("no socket in the cells", SOON, || {
        let sockets: String = networks.iter().map(of).collect::<Result<_>>()?;
        Ok(sockets.trim().is_empty().then_some(()))
    })
}

/// A flow like any other: listed with its name, from a flow's port, found, killed; and nothing of it is in a
/// kernel.
#[privileged_test]
fn b15_a_connection_is_handed_over_and_is_a_flow() -> Result<()> {
    a_connection_is_a_flow(Opener::Process)
}

/// The same of one that XDP opens.
#[privileged_test]
fn b15_a_bound_connection_is_a_flow() -> Result<()> {
    a_connection_is_a_flow(Opener::Xdp)
}

fn a_connection_is_a_flow(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    let pairs = line.open_many(3)?;
    wait_for_no_sockets(&topology)?;
    assert_eq!(opener.count(&lb)?, 3);
    let flows = lb.flows()?;
    assert_eq!(flows.len(), 3, "{flows:?}");
    for pair in &pairs {
        ensure!(*pair.snat.ip() == SNAT, "{}", pair.snat);
        let ports = FIRST_FLOW_PORT..FIRST_LEG_PORT;
        ensure!(ports.contains(&pair.snat.port()), "{}", pair.snat);
        let flow = flows.iter().find(|flow| flow.snat == pair.snat.to_string());
        let flow = flow.with_context(|| format!("no {} in {flows:?}", pair.snat))?;
        ensure!(
            flow.service == "shared" && flow.network == "tenant-a",
            "{flow:?}"
        );
        assert_eq!(flow.client, pair.client.local_addr()?.to_string());
        assert_eq!(flow.vip, SHARED.to_string());
        assert_eq!(
            flow.backend,
            format!("{}:{PORT}", topology.nodes[0].address)
        );
        assert_eq!(flow.state, "established");
    }
    let table = lb.tell(&["flows"])?.done()?;
    ensure!(table.matches(NAME).count() == 3, "{table}");
    let who = lb.who(pairs[1].snat)?;
    ensure!(who.len() == 1 && who[0].live, "{who:?}");
    let snat = pairs[1].snat.to_string();
    let said = lb.tell(&["flows", "--kill", "--snat", &snat])?.done()?;
    ensure!(said.contains("1 flows ended"), "{said}");
    pairs[1].wait_for_resets(SOON)?;
    pairs[0].talk()?;
    pairs[2].talk()?;
    wait_for(&lb, 2)?;
    drop(pairs);
    wait_for(&lb, 0)
}

/// One end closes its side and still hears; and one that is reset takes the other with it.
#[privileged_test]
fn b15_ends_close_and_reset_as_they_like() -> Result<()> {
    ends_close_and_reset(Opener::Process)
}

/// The same of connections that XDP opens.
#[privileged_test]
fn b15_ends_of_bound_connections_close_and_reset() -> Result<()> {
    ends_close_and_reset(Opener::Xdp)
}

fn ends_close_and_reset(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    for client_first in [true, false] {
        let Pair { client, server, .. } = line.open()?;
        let (first, second) = match client_first {
            true => (&client, &server),
            false => (&server, &client),
        };
        first.shutdown(Shutdown::Write)?;
        hears_the_end(second)?;
        carry(second, first, 1 << 20)?;
        second.shutdown(Shutdown::Write)?;
        hears_the_end(first)?;
        wait_for(&lb, 0)?;
    }
    let Pair { client, server, .. } = line.open()?;
    reset(server)?;
    wait_for_reset(&client, SOON)?;
    let Pair { client, server, .. } = line.open()?;
    reset(client)?;
    wait_for_reset(&server, SOON)?;
    wait_for(&lb, 0)?;
    assert_eq!(opener.count(&lb)?, 4);
    Ok(())
}

pub(crate) fn hears_the_end(mut end: &TcpStream) -> Result<()> {
    end.set_read_timeout(Some(SOON))?;
    ensure!(end.read(&mut [0])? == 0, "bytes instead of an end");
    Ok(())
}

/// Bytes that go one way until it is over.
struct Transfer<'p> {
    from: &'p TcpStream,
    to: &'p TcpStream,
    parts: AtomicU64,
    is_over: AtomicBool,
}

impl<'p> Transfer<'p> {
    fn new(from: &'p TcpStream, to: &'p TcpStream) -> Self {
        Self {
            from,
            to,
            parts: AtomicU64::default(),
            is_over: AtomicBool::default(),
        }
    }

    fn carry(&self) -> Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            carry(self.from, self.to, PART)?;
            self.parts.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Waits until each has carried two more parts, of which one has begun now.
fn go_on(transfers: &[Transfer<'_>]) -> Result<()> {
    for transfer in transfers {
        let now = transfer.parts.load(Ordering::Relaxed);
        poll::until("a transfer to go on", SOON, || {
            let parts = transfer.parts.load(Ordering::Relaxed);
            Ok((parts >= now + 2).then_some(()))
        })?;
    }
    Ok(())
}

/// What a process is ordered changes nothing of a transfer in either direction; the process itself does not
/// either.
#[privileged_test]
fn b15_a_process_that_stops_or_dies_changes_nothing() -> Result<()> {
    a_process_that_dies_changes_nothing(Opener::Process)
}

/// The same of connections that XDP opens.
#[privileged_test]
fn b15_a_process_that_dies_changes_nothing_of_bound_connections() -> Result<()> {
    a_process_that_dies_changes_nothing(Opener::Xdp)
}

fn a_process_that_dies_changes_nothing(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let config = opener.config(&topology);
    let mut lb = Lb::start(&topology, &config)?;
    let there = line.open()?;
    let back = line.open()?;
    assert_eq!(opener.count(&lb)?, 2);
    let transfers = [
        Transfer::new(&there.client, &there.server),
        Transfer::new(&back.server, &back.client),
    ];
    thread::scope(|scope| {
        let loads = transfers
            .each_ref()
            .map(|transfer| scope.spawn(|| transfer.carry()));
        let happened = (|| -> Result<()> {
            go_on(&transfers)?;
            lb.process().signal(Signal::SIGSTOP)?;
            go_on(&transfers)?;
            thread::sleep(STOPPED);
            go_on(&transfers)?;
            lb.process().signal(Signal::SIGCONT)?;
            go_on(&transfers)?;
            lb.kill()?;
            go_on(&transfers)
        })();
        for transfer in &transfers {
            transfer.is_over.store(true, Ordering::Relaxed);
        }
        let mut ended = loads.into_iter().map(|load| {
            let ended = load.join();
            ended.map_err(|_| anyhow!("a transfer panicked"))?
        });
        ended.try_for_each(|ended| ended)?;
        happened
    })?;
    there.talk()?;
    back.talk()?;
    lb.restart(&config)?;
    there.talk()?;
    back.talk()?;
    wait_for(&lb, 2)?;
    drop((there, back));
    wait_for(&lb, 0)
}

/// What cannot be handed over is copied, and counted by the reason.
#[privileged_test]
fn b15_what_does_not_fit_is_copied() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config(&topology))?;
    let without_timestamps = line(&topology)?;
    let pair = without_timestamps.open()?;
    carry(&pair.client, &pair.server, 1 << 20)?;
    carry(&pair.server, &pair.client, 1 << 20)?;
    drop(pair);
    assert_eq!((handed_over(&lb)?, copied(&lb, "options")?), (0, 1));
    let client = &topology.client().netns;
    client.set_sysctl("ipv4/tcp_timestamps", "1")?;
    // Closed right behind the hello.
    let mut stream = client.inside(|| open(None, SHARED))??;
    stream.write_all(&named(NAME.as_bytes()))?;
    stream.shutdown(Shutdown::Write)?;
    poll::until("both are counted", SOON, || {
        let all = handed_over(&lb)? + copied(&lb, "client_goes_on")?;
        Ok((all == 1).then_some(()))
    })
}

/// A client that is known to be copied takes no port from flows: one that has not what its backend agreed on with
/// the client before it, and one that has closed its side. Backends see the ports of legs.
#[privileged_test]
fn b15_who_is_known_to_be_copied_takes_no_port_of_a_flow() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config(&topology))?;
    let without_timestamps = line(&topology)?;
    let pairs = without_timestamps.open_many(4)?;
    let of_flows = FIRST_FLOW_PORT..FIRST_LEG_PORT;
    let of_legs = FIRST_LEG_PORT..FIRST_LOCAL_PORT;
    // Of the first one it was not known.
    for (pair, ports) in pairs.iter().zip([&of_flows, &of_legs, &of_legs, &of_legs]) {
        ensure!(ports.contains(&pair.snat.port()), "{}", pair.snat);
    }
    assert_eq!(copied(&lb, "options")?, 4);
    drop(pairs);

    let client = &topology.client().netns;
    client.set_sysctl("ipv4/tcp_timestamps", "1")?;
    let pair = without_timestamps.open()?;
    ensure!(of_flows.contains(&pair.snat.port()), "{}", pair.snat);
    assert_eq!(handed_over(&lb)?, 1);
    drop(pair);

    drop(without_timestamps);
    let node = &topology.nodes[0];
    let listener = node
        .netns
        .inside(|| TcpListener::bind((node.address, PORT)))??;
    let ends = || -> Result<()> {
        for part in [1, 20] {
            let _client = client.inside(|| end_beside_hello(part))??;
            let (mut server, from) = listener.accept()?;
            ensure!(of_legs.contains(&from.port()), "{from}");
            let mut received = Vec::new();
            server.set_read_timeout(Some(SOON))?;
            server.read_to_end(&mut received)?;
            assert_eq!(received, named(NAME.as_bytes()));
        }
        Ok(())
    };
    // The end is there before the hello is whole, so it is known.
    ends()?;
    assert_eq!(copied(&lb, "client_goes_on")?, 2);
    let never =
        config(&topology).service("shared", |shared| shared.set("sni.syn_cookies", "never"));
    lb.reload(&never)?;
    ends()?;
    assert_eq!(copied(&lb, "client_goes_on")?, 4);
    Ok(())
}

/// A client whose last `part` bytes of the hello and whose end are one segment.
fn end_beside_hello(part: usize) -> Result<TcpStream> {
    let mut stream = open(None, SHARED)?;
    let hello = named(NAME.as_bytes());
    let (first, rest) = hello.split_at(hello.len() - part);
    stream.write_all(first)?;
    thread::sleep(Duration::from_millis(20));
    socket::sendmsg::<()>(
        stream.as_raw_fd(),
        &[std::io::IoSlice::new(rest)],
        &[],
        socket::MsgFlags::from_bits_retain(nix::libc::MSG_MORE),
        None,
    )?;
    stream.shutdown(Shutdown::Write)?;
    Ok(stream)
}

/// A backend that speaks at once says nothing twice and loses nothing, whether it is before the hand-over, in
/// it or after it.
#[privileged_test]
fn b15_a_backend_may_speak_at_any_moment() -> Result<()> {
    a_backend_may_speak(Opener::Process)
}

/// The same where XDP opens the connection: it may speak with its SYN-ACK at the earliest.
#[privileged_test]
fn b15_a_backend_of_a_bound_connection_may_speak_at_any_moment() -> Result<()> {
    a_backend_may_speak(Opener::Xdp)
}

fn a_backend_may_speak(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let _teller = Teller::start(&node.netns, SocketAddrV4::new(node.address, PORT), "node")?;
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    let hello = named(NAME.as_bytes());
    topology.client().netns.inside(|| {
        for round in 0..SPOKEN {
            let who = ask(SHARED, &[&hello], Duration::ZERO);
            let who = who.with_context(|| format!("connection {round}"))?;
            ensure!(
                who.as_deref() == Some("node"),
                "connection {round}: {who:?}"
            );
        }
        Ok(())
    })??;
    let (opened, spoke) = (opener.count(&lb)?, copied(&lb, "backend_spoke")?);
    println!(
        "{opened} of {SPOKEN} {}, {spoke} spoke before",
        opener.outcome()
    );
    assert_eq!(opened + spoke, SPOKEN);
    ensure!(opener == Opener::Process || spoke == 0, "{spoke} spoke");
    Ok(())
}

/// A process that has nothing but the least privileges hands over as well.
#[privileged_test]
fn b15_the_least_privileges_are_enough() -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let lb = Lb::start_unprivileged(&topology, &config(&topology), ALL)?;
    let pair = line.open()?;
    wait_for_no_sockets(&topology)?;
    assert_eq!(handed_over(&lb)?, 1);
    pair.talk()
}
