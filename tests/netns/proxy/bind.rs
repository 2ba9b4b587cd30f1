//! Shared VIPs whose connections XDP opens by the names in their hellos: the process has nothing to do with them.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::SocketAddrV4,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::{config::Keys, lb::Lb},
    servers::teller::{self, Teller},
    topology::Topology,
    traffic::{
        client::open_from,
        conn_pair::reset,
        hello::{CAPTURED_NAME, captured_of, named},
    },
};

use crate::{
    handoff::{connections::handed_over, opener::Opener},
    proxy::{
        cookies::{OFFERS, offer},
        guard::{self, teller as serve},
        pipe::carry,
        relayed::fast_line,
        sni::{self, PORT, ROUTES, SHARED, Site, config, reaches},
        threads::with_clients,
    },
};

/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);

fn bound() -> Keys {
    Keys::from("late_binding: always").with(ROUTES)
}

/// A name under `b.lab` that has more labels than XDP looks behind.
const DEEP: &str = "1.2.3.4.5.6.7.8.9.b.lab";

/// What XDP has made of the hellos of tenant-a.
pub(crate) fn hellos(lb: &Lb<'_>) -> Result<BTreeMap<String, u64>> {
    let status = lb.status()?;
    let network = status
        .networks
        .iter()
        .find(|network| network.name == "tenant-a");
    Ok(network.context("tenant-a")?.hellos.clone())
}

/// Ensures that XDP has opened so many connections, and left none; on a slow machine some hellos may have come twice.
pub(crate) fn ensure_all_bound(lb: &Lb<'_>, count: usize) -> Result<()> {
    let mut hellos = hellos(lb)?;
    hellos.remove("repeated");
    let wanted = BTreeMap::from([("bound".to_owned(), u64::try_from(count)?)]);
    ensure!(hellos == wanted, "{hellos:?}, not {count} bound");
    Ok(())
}

fn counted(lb: &Lb<'_>, end: &str) -> Result<u64> {
    Ok(hellos(lb)?.get(end).copied().unwrap_or_default())
}

/// Real clients reach the backends of their names, without the process; those whose names XDP does not know, by it.
#[privileged_test]
fn a_known_name_needs_no_process() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let mut lb = Lb::start(&topology, &site.config(bound()))?;
    let client = topology.client();
    let known = [
        ("a.lab", "a.lab"),
        ("C.Lab", "c.lab"),
        ("x.b.lab", "b.lab"),
        ("x.y.b.lab", "b.lab"),
    ];
    let mut count = 0;
    for version in ["-tls1_2", "-tls1_3"] {
        for (asked, name) in known {
            reaches(client, Some(asked), name, version)?;
            count += 1;
        }
    }
    let all_bound = BTreeMap::from([("bound".to_owned(), count)]);
    assert_eq!(hellos(&lb)?, all_bound, "and none is repeated");
    reaches(client, Some(DEEP), "b.lab", "-tls1_3")?;
    assert_eq!(
        (counted(&lb, "bound")?, counted(&lb, "unrouted")?),
        (count, 1)
    );
    assert_eq!(handed_over(&lb)?, 1);

    lb.kill()?;
    for (asked, name) in known {
        reaches(client, Some(asked), name, "-tls1_3")?;
    }
    lb.restart(&site.config(bound()))?;
    let known = u64::try_from(known.len())?;
    assert_eq!(counted(&lb, "bound")?, count + known);
    assert_eq!(sni::counted(&lb, "bound")?, count + known, "of the service");
    Ok(())
}

const BULK: u64 = 1 << 20;

/// All bytes come in both directions, whatever a client and its backend agree on.
#[privileged_test]
fn every_offer_carries_all_bytes() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &Opener::Xdp.config(&topology))?;
    let line = fast_line(&topology)?;
    let (client, node) = (&topology.client().netns, &topology.nodes[0].netns);
    for offered in OFFERS {
        offer(client, offered)?;
        let carried = line.open().and_then(|pair| {
            carry(&pair.client, &pair.server, BULK)?;
            carry(&pair.server, &pair.client, BULK)
        });
        carried.with_context(|| format!("offered {offered:03b}"))?;
    }
    println!("{:?}", hellos(&lb)?);
    assert_eq!(counted(&lb, "bound")?, 8);
    // A backend that has less than the client was promised: the process has the connection.
    for option in ["tcp_timestamps", "tcp_window_scaling"] {
        client.set_sysctl(&format!("ipv4/{option}"), "1")?;
        node.set_sysctl(&format!("ipv4/{option}"), "0")?;
        let before = counted(&lb, "disagreed")?;
        let pair = line.open().with_context(|| format!("without {option}"))?;
        carry(&pair.client, &pair.server, BULK)?;
        carry(&pair.server, &pair.client, BULK)?;
        assert_eq!(counted(&lb, "disagreed")?, before + 1, "without {option}");
        node.set_sysctl(&format!("ipv4/{option}"), "1")?;
    }
    Ok(())
}

/// How long there is no process.
const DEAD: Duration = Duration::from_secs(2);

/// Clients connect while no process runs, while the next one starts, and while another one takes over from that: none fails, and
/// XDP has opened all of their connections.
#[privileged_test]
fn clients_connect_whatever_the_process_does() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let config = guard::config(&topology, "late_binding: always");
    let mut lb = Lb::start(&topology, &config)?;
    let (_before, measured) = guard::beside(topology.client(), || {
        lb.kill()?;
        thread::sleep(DEAD);
        lb.restart(&config)?;
        lb.take_over(&config)
    })?;
    let hellos = hellos(&lb)?;
    println!("{measured}, {hellos:?}");
    assert_eq!(hellos.keys().collect::<Vec<_>>(), ["bound"]);
    Ok(())
}

/// Clients that connect while the process is killed again and again, and how often it is at least.
const CLIENTS: u64 = 10_000;
const KILLS: u32 = 3;
/// How long a process runs, and how long there is none.
const ALIVE: Duration = Duration::from_millis(500);

/// A hello of one segment or of two, and back what the backend has received.
fn come_and_go() -> Result<()> {
    static HELLOS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        let long = captured_of("like-chrome131").expect("a captured hello");
        [named(CAPTURED_NAME.as_bytes()), long.bytes]
    });
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let reached = teller::ask(SHARED, &[&HELLOS[next % HELLOS.len()]], Duration::ZERO)?;
    ensure!(reached.as_deref() == Some("a"), "{reached:?}");
    Ok(())
}

/// None of ten thousand clients notices that the process is killed, is not there and begins anew, again and again: XDP alone has
/// opened their connections.
#[privileged_test]
fn ten_thousand_clients_connect_beside_kills() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start_listening(&node.netns, address, "a")?;
    let config = guard::config(&topology, "late_binding: always");
    let mut lb = Lb::start(&topology, &config)?;
    let (kills, clients) = with_clients(&topology, come_and_go, || {
        for kills in 1.. {
            lb.kill()?;
            thread::sleep(ALIVE);
            lb.restart(&config)?;
            thread::sleep(ALIVE);
            if kills >= KILLS && counted(&lb, "bound")? >= CLIENTS {
                return Ok(kills);
            }
        }
        Ok(0)
    })?;
    let hellos = hellos(&lb)?;
    println!("{clients} clients beside {kills} kills: {hellos:?}");
    let bound = hellos["bound"];
    let clients = u64::try_from(clients)?;
    ensure!(
        bound * 1000 >= clients * 999 && bound <= clients,
        "{hellos:?} of {clients}"
    );
    Ok(())
}

/// A connection from a port that has just had one is another one, also where that was not closed in peace.
#[privileged_test]
fn a_port_may_have_one_connection_after_the_other() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = serve(&topology.nodes[2], "right")?;
    let lb = Lb::start(&topology, &config(&topology, bound()))?;
    let client = topology.client();
    let from = SocketAddrV4::new(client.address, 41_000);
    for round in 0..10 {
        let stream = client.netns.inside(|| open_from(Some(from), SHARED))?;
        let mut stream = stream.with_context(|| format!("round {round}"))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(&named(b"c.lab"))?;
        let mut name = [0; 5];
        let read = stream.read_exact(&mut name);
        read.with_context(|| format!("round {round}"))?;
        assert_eq!(&name, b"right");
        reset(stream)?;
    }
    assert_eq!(counted(&lb, "bound")?, 10);
    Ok(())
}
