//! Shared VIPs whose SYNs are answered by cookies: the kernel of the cell gets a connection with its first bytes.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::SocketAddrV4,
    os::unix::fs::MetadataExt as _,
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow};
use lb_tests::{
    netns::Netns,
    oracle::capture::Capture,
    product::{config::Keys, lb::Lb},
    servers::teller,
    topology::{self, Topology, VIP},
    traffic::{
        client::{open, open_from},
        conn_pair::reset,
        hello::named,
    },
};
use lb_user::dataplane::{
    cookie_secret::{CookieSecret, EPOCH_TIME},
    cookies::Cookies,
    pins::Pins,
};

use crate::{
    handoff::connections::handed_over,
    nic::cell::inside,
    proxy::{
        bind::hellos,
        guard::{self, beside, teller, tellers},
        pipe::carry,
        relayed::{self, fast_line},
        sni::{ROUTES, SHARED, Site, config, reaches},
    },
};

/// A SYN-ACK by a cookie, as pcap says it: its window is that of two segments, which no kernel has.
const SYN_ACK: &str = "tcp[tcpflags] & tcp-syn != 0 and tcp[14:2] = 2920";

/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);

/// Behind the cookie comes the process.
fn always() -> Keys {
    Keys::from("syn_cookies: always, late_binding: never").with(ROUTES)
}

/// The counter of a cell's kernel with this name.
fn counted(site: &topology::Site, name: &str) -> Result<u64> {
    let counters = inside(site, "tenant-a", "nstat -asz")?;
    let line = counters.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(value
        .with_context(|| format!("no {name} in {counters}"))?
        .parse()?)
}

/// Each client gets its SYN-ACK from XDP, and its connection is a socket only from its hello on: the kernel has accepted
/// none. Behind it goes on what goes on behind an accepted one.
#[privileged_test]
fn a_client_is_answered_by_a_cookie_and_handed_over() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.config(always()))?;
    let client = topology.client();
    let filter = format!("src {VIP} and {SYN_ACK}");
    let capture = Capture::start(&client.netns, "eth0", &filter, topology.dir())?;
    let mut count = 0;
    for version in ["-tls1_2", "-tls1_3"] {
        for (asked, name) in [
            ("a.lab", "a.lab"),
            ("C.Lab", "c.lab"),
            ("x.y.b.lab", "b.lab"),
        ] {
            reaches(client, Some(asked), name, version)?;
            count += 1;
        }
    }
    assert_eq!(handed_over(&lb)?, count);
    assert_eq!(counted(&topology, "TcpPassiveOpens")?, 0);
    let answers = capture.stop()?;
    assert_eq!(answers.len(), usize::try_from(count)?, "{answers:?}");
    Ok(())
}

/// What a client's kernel offers, or not.
const OPTIONS: [&str; 3] = ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"];
/// All that it may offer, by a bit for each.
pub(crate) const OFFERS: std::ops::Range<u8> = 0..1 << OPTIONS.len();

/// Has a client's kernel offer these.
pub(crate) fn offer(client: &Netns, offered: u8) -> Result<()> {
    for (bit, option) in OPTIONS.iter().enumerate() {
        let value = offered >> bit & 1;
        client.set_sysctl(&format!("ipv4/{option}"), &value.to_string())?;
    }
    Ok(())
}

const BULK: u64 = 1 << 20;

/// All bytes come in both directions, whatever a client offers in the SYN that a cookie has answered.
#[privileged_test]
fn every_offer_carries_all_bytes() -> Result<()> {
    let topology = Topology::poc()?;
    let _lb = Lb::start(&topology, &relayed::config(&topology))?;
    let line = fast_line(&topology)?;
    let client = &topology.client().netns;
    for offered in OFFERS {
        offer(client, offered)?;
        let filter = format!("src {VIP} and {SYN_ACK}");
        let capture = Capture::start(client, "eth0", &filter, topology.dir())?;
        let carried = line.open().and_then(|pair| {
            carry(&pair.client, &pair.server, BULK)?;
            carry(&pair.server, &pair.client, BULK)
        });
        carried.with_context(|| format!("offered {offered:03b}"))?;
        assert_eq!(capture.stop()?.len(), 1, "offered {offered:03b}");
    }
    Ok(())
}

/// How long a key is that of new cookies here; it is good for as long again.
const EPOCH: Duration = Duration::from_millis(500);
const EPOCHS: u32 = 6;

/// Keys are turned while clients connect, and none of them is refused.
#[privileged_test]
fn keys_are_turned_while_clients_connect() -> Result<()> {
    keys_are_turned("late_binding: never").map(drop)
}

/// The same while XDP opens their connections.
#[privileged_test]
fn keys_are_turned_while_clients_are_bound() -> Result<()> {
    let hellos = keys_are_turned("late_binding: always")?;
    assert_eq!(hellos.keys().collect::<Vec<_>>(), ["bound"], "{hellos:?}");
    Ok(())
}

/// With these keys of `sni`; what the hellos were counted as.
fn keys_are_turned(keys: &str) -> Result<BTreeMap<String, u64>> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let lb = Lb::start(&topology, &guard::config(&topology, keys))?;
    // The process has its own epochs meanwhile, so that keys change even more often.
    let secret = CookieSecret::new(b"of another group");
    let keys = Cookies::open(&Pins::new(topology.run()).maps(), secret)?;
    let (_, measured) = beside(topology.client(), || {
        for epoch in 0..EPOCHS {
            keys.follow(SystemTime::now() + epoch * EPOCH_TIME);
            thread::sleep(EPOCH);
        }
        Ok(())
    })?;
    let hellos = hellos(&lb)?;
    println!("{measured} while keys were turned: {hellos:?}");
    Ok(hellos)
}

/// What clients have sent, and the keys of their numbers, are read by root alone.
#[privileged_test]
fn pins_of_hellos_and_keys_are_roots_alone() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config(&topology, always()))?;
    let maps = Pins::new(topology.run()).maps();
    for _ in 0..2 {
        for map in ["HELLOS", "HELLO_SLOTS", "COOKIES", "SPLICE_NAMES"] {
            let pin = fs::metadata(maps.join(map)).context(map)?;
            assert_eq!((pin.uid(), pin.mode() & 0o777), (0, 0o600), "{map}");
        }
        lb.take_over(&config(&topology, always()))?;
    }
    Ok(())
}

/// While no process runs, the kernel has no socket for a client, and XDP answers it all the same: it waits for the next
/// process, which serves it.
#[privileged_test]
fn a_client_waits_for_the_next_process() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = teller(&topology.nodes[2], "right")?;
    let config = config(&topology, always());
    let mut lb = Lb::start(&topology, &config)?;
    let client = topology.client();
    let hello = named(b"c.lab");
    let ask = || {
        client
            .netns
            .inside(|| teller::ask(SHARED, &[&hello], Duration::ZERO))?
    };
    assert_eq!(ask()?.as_deref(), Some("right"));
    lb.kill()?;
    // A listener that died with its process would refuse it.
    let early = client.netns.inside(|| open(None, SHARED))??;
    thread::scope(|scope| {
        let early = scope.spawn(|| teller::ask_on(early, &[&hello], Duration::ZERO));
        lb.restart(&config)?;
        let found = early.join().map_err(|_| anyhow!("the client panicked"))?;
        assert_eq!(found?.as_deref(), Some("right"));
        assert_eq!(ask()?.as_deref(), Some("right"));
        Ok(())
    })
}

/// A connection from a port that has just had one is another one.
#[privileged_test]
fn a_port_may_have_one_connection_after_the_other() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = teller(&topology.nodes[2], "right")?;
    let lb = Lb::start(&topology, &config(&topology, always()))?;
    let client = topology.client();
    let from = SocketAddrV4::new(client.address, 41_000);
    let hello = named(b"c.lab");
    for round in 0..10 {
        let stream = client.netns.inside(|| open_from(Some(from), SHARED))?;
        let mut stream = stream.with_context(|| format!("round {round}"))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(&hello)?;
        let mut name = [0; 5];
        stream
            .read_exact(&mut name)
            .with_context(|| format!("round {round}; drops: {}", lb.drops_in_a_line()))?;
        assert_eq!(&name, b"right");
        // Of a socket that closes in peace the port is not free for a minute.
        reset(stream)?;
    }
    Ok(())
}
