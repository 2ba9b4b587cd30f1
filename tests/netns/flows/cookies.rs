//! Services with a pool whose SYNs are answered by cookies: a flow begins with the ACK of its client.

use std::{
    io::{ErrorKind, Read as _},
    net::SocketAddrV4,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use lb_tests::{
    oracle::capture::Capture,
    product::{config::Config, lb::Lb},
    servers::teller::{self, Teller},
    topology::{ECHO, ECHO_NODE_PORT, Topology, VIP},
    traffic::{
        client::{open, was_reset},
        conn_pair::Pair,
    },
};

use crate::{
    flows::life::{config, ensure_all_ids_are_free, line},
    proxy::{
        cookies::{OFFERS, offer},
        pipe::carry,
        threads::with_clients,
    },
};

const NAME: &str = "node";
/// A SYN-ACK by a cookie, as pcap says it: its window is that of two segments, which no kernel has.
const SYN_ACK: &str = "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn|tcp-ack and tcp[14:2] = 2920";
/// The SYN of a flow at its backend.
const SYN: &str = "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn";

/// The TCP service of the first node, with this `syn_cookies`.
pub(crate) fn behind(cookies: &str) -> Config {
    config().service("echo-a", |echo| echo.set("syn_cookies", cookies))
}

/// A server that speaks first.
fn banner(topology: &Topology) -> Result<Teller> {
    let node = &topology.nodes[0];
    node.netns.keep_flows_on_a_cpu("eth0")?;
    let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    Teller::start(&node.netns, address, NAME)
}

/// A client that waits for it.
fn listen() -> Result<()> {
    let reached = teller::ask(ECHO, &[], Duration::ZERO)?;
    ensure!(reached.as_deref() == Some(NAME), "{reached:?}");
    Ok(())
}

/// A client that speaks first, of one that speaks at once as well.
fn talk() -> Result<()> {
    let said: &[&[u8]] = &[b"first ", b"second"];
    let reached = teller::ask(ECHO, said, Duration::ZERO)?;
    ensure!(reached.as_deref() == Some(NAME), "{reached:?}");
    Ok(())
}

/// Whichever end speaks first: each client has a SYN-ACK by a cookie, and the backend one SYN of its own for it.
#[privileged_test]
fn both_ends_may_speak_first() -> Result<()> {
    const EACH: usize = 50;
    let topology = Topology::poc()?;
    let _teller = banner(&topology)?;
    let lb = Lb::start(&topology, &behind("always"))?;
    let (client, node) = (&topology.client().netns, &topology.nodes[0]);
    let answers = format!("src {VIP} and {SYN_ACK}");
    let answers = Capture::start(client, "eth0", &answers, topology.dir())?;
    let syns = format!("dst {} and {SYN}", node.address);
    let syns = Capture::start(&node.netns, "eth0", &syns, topology.dir())?;
    client.inside(|| -> Result<()> {
        for number in 0..EACH {
            listen().with_context(|| format!("listener {number}"))?;
            talk().with_context(|| format!("speaker {number}"))?;
        }
        Ok(())
    })??;
    assert_eq!(answers.stop()?.len(), 2 * EACH);
    assert_eq!(syns.stop()?.len(), 2 * EACH);
    ensure_all_ids_are_free(&topology, &lb)
}

/// Clients at a time, and connections of each.
const AT_ONCE: usize = 16;
const EACH: usize = 63;
/// One frame out of so many meets trouble at each of two places: one of 33 is lost, as many come late, and as many twice.
const OUT_OF: u32 = 11;

/// A server that speaks first, three percent of whose frames are lost on its side: each of a thousand clients hears it. What of
/// theirs is lost the data plane and the process repeat, and what of the backend's, the backend.
#[privileged_test]
fn banners_come_where_three_percent_are_lost() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = banner(&topology)?;
    let lb = Lb::start(&topology, &behind("always"))?;
    let trouble = topology.trouble_of_nodes(OUT_OF)?;
    let times = Mutex::new(Vec::new());
    let come = || -> Result<()> {
        for number in 0..EACH {
            let begun = Instant::now();
            listen().with_context(|| format!("client {number}, after {:?}", begun.elapsed()))?;
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            times.push(begun.elapsed());
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| topology.client().netns.inside(come)?))
            .collect();
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(())
    })?;
    drop(trouble);
    let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    let late = times.iter().filter(|time| **time > Duration::from_secs(1));
    println!(
        "{} of {} heard it, {} after more than a second, the last after {:.1?}",
        times.len(),
        AT_ONCE * EACH,
        late.count(),
        times.last().context("a client")?
    );
    assert_eq!(times.len(), AT_ONCE * EACH);
    drop(lb);
    Ok(())
}

const BULK: u64 = 1 << 20;

/// All bytes come in both directions, whatever a client offers and a backend takes.
#[privileged_test]
fn every_offer_carries_all_bytes() -> Result<()> {
    let topology = Topology::poc()?;
    let _lb = Lb::start(&topology, &behind("always"))?;
    let line = line(&topology)?;
    let (client, node) = (&topology.client().netns, &topology.nodes[0].netns);
    let both_ways = |pair: &Pair| {
        carry(&pair.client, &pair.server, BULK)?;
        carry(&pair.server, &pair.client, BULK)
    };
    for offered in OFFERS {
        offer(client, offered)?;
        let carried = line.open().and_then(|pair| both_ways(&pair));
        carried.with_context(|| format!("offered {offered:03b}"))?;
    }
    // A backend that has less than its client was promised: that client is reset, and no later one.
    for option in ["tcp_timestamps", "tcp_window_scaling"] {
        node.set_sysctl(&format!("ipv4/{option}"), "0")?;
        is_reset(&topology, SOON).with_context(|| format!("without {option}"))?;
        for _ in 0..3 {
            let pair = line.open();
            both_ways(&pair.with_context(|| format!("without {option}"))?)?;
        }
    }
    Ok(())
}

/// Cookies come and go while clients connect: no client notices.
#[privileged_test]
fn cookies_come_and_go_beside_clients() -> Result<()> {
    const CLIENTS: usize = 1000;
    let topology = Topology::poc()?;
    let _teller = banner(&topology)?;
    let lb = Lb::start(&topology, &behind("never"))?;
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let come = || {
        let turn = DONE.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(2) {
            listen()
        } else {
            talk()
        }
    };
    let (reloads, clients) = with_clients(&topology, come, || {
        for reloads in 0.. {
            if DONE.load(Ordering::Relaxed) > CLIENTS && reloads > 6 {
                return Ok(reloads);
            }
            for cookies in ["always", "auto", "always", "never"] {
                lb.reload(&behind(cookies))?;
            }
        }
        Ok(0)
    })?;
    println!("{clients} clients beside {} reloads", 4 * reloads);
    ensure_all_ids_are_free(&topology, &lb)
}

/// The process is taken over from, killed, and not there for a while: no client notices.
#[privileged_test]
fn clients_connect_whatever_the_process_does() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = banner(&topology)?;
    let config = behind("always");
    let mut lb = Lb::start(&topology, &config)?;
    let (_before, clients) = with_clients(&topology, listen, || {
        let mut before = Vec::new();
        for _ in 0..3 {
            before.push(lb.take_over(&config)?);
            lb.kill()?;
            thread::sleep(Duration::from_secs(1));
            lb.restart(&config)?;
        }
        Ok(before)
    })?;
    println!("{clients} clients");
    ensure!(clients > 100, "{clients} clients");
    ensure_all_ids_are_free(&topology, &lb)
}

/// A backend that refuses: its client is reset, at once.
#[privileged_test]
fn a_client_without_a_backend_is_reset() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &behind("always"))?;
    is_reset(&topology, SOON)?;
    let _teller = banner(&topology)?;
    topology.client().netns.inside(listen)??;
    ensure_all_ids_are_free(&topology, &lb)
}

/// A backend that is silent: its client is reset when the flow has waited for as long as a half-open one may.
#[privileged_test]
fn a_client_of_a_silent_backend_is_reset() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0].netns;
    for rule in [
        "nft add table ip deaf".to_owned(),
        "nft add chain ip deaf in { type filter hook input priority 0 ; }".to_owned(),
        format!("nft add rule ip deaf in tcp dport {ECHO_NODE_PORT} drop"),
    ] {
        node.run(&rule)?;
    }
    let lb = Lb::start(&topology, &behind("always").set("timeouts.half_open", "2s"))?;
    is_reset(&topology, Duration::from_secs(6))?;
    ensure_all_ids_are_free(&topology, &lb)
}

/// A client that connects and is reset within this time.
fn is_reset(topology: &Topology, limit: Duration) -> Result<()> {
    let begun = Instant::now();
    // Its kernel may have the reset before it can say that it is connected.
    let end = topology.client().netns.inside(|| match open(None, ECHO) {
        Err(error) if was_reset(&error) => Ok(ErrorKind::ConnectionReset),
        stream => {
            let read = stream?.read(&mut [0]);
            Ok::<_, Error>(read.err().context("it goes on")?.kind())
        }
    })??;
    assert_eq!(end, ErrorKind::ConnectionReset);
    ensure!(begun.elapsed() < limit, "after {:?}", begun.elapsed());
    Ok(())
}

/// Without anything lost, on a machine that is busy.
const SOON: Duration = Duration::from_secs(3);
