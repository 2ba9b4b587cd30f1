//! Hellos of two segments, which XDP sends to a backend at once or one after the other, and backends that another one of the
//! pool follows: see [`bind`](crate::proxy::bind).

use std::{
    collections::BTreeMap,
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    netns::Netns,
    oracle::observe::segments_repeated,
    process,
    product::{
        config::Keys,
        lb::{Lb, binary},
    },
    servers::teller,
    topology::{Host, MGMT_NIC, TENANT_NIC, Topology},
    traffic::hello::{CAPTURED_NAME, Captured, captured, captured_of, named},
};

use crate::proxy::{
    bind::{ensure_all_bound, hellos},
    guard::{self, teller as serve},
    sni::{PORT, SHARED, config},
};

/// Most bytes in a segment here.
pub(super) const SEGMENT: usize = 1448;
/// Most bytes of a hello that the data plane reads here.
pub(super) const MOST: usize = 2 * SEGMENT;
/// How often each client connects.
const ROUNDS: u64 = 5;

/// The hellos of all captured clients, browsers among them, reach the backend with all their bytes, and those of up to two
/// segments without the process; a client repeats none, as its kernel counts.
#[privileged_test]
fn both_segments_go_to_the_backend() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    for second in ["at_once", "on_ack"] {
        let config = guard::config(&topology, "late_binding: always")
            .network("mgmt", |mgmt| mgmt.set("second_segment", second));
        let lb = Lb::start(&topology, &config)?;
        let networks = lb.status()?.networks.into_iter();
        let mgmt = networks.filter(|network| network.name == "mgmt");
        let reported: Vec<String> = mgmt.map(|mgmt| mgmt.second_segment).collect();
        assert_eq!(reported, [second]);
        let program = binary("LB_BIN", "lb")?;
        let mut status = topology.lb.command(program);
        let status = process::succeed(status.args(["status", "--instance", topology.run()]))?;
        let line = "network mgmt: backends get the second segment";
        assert_eq!(status.contains(line), second == "on_ack", "{status}");
        let client = &topology.client().netns;
        let clients: Vec<Captured> = captured()?.into_iter().filter(Captured::has_name).collect();
        let mut long = 0;
        let mut wanted = BTreeMap::new();
        let before = segments_repeated(client)?;
        for captured in &clients {
            for _ in 0..ROUNDS {
                let ask = || teller::ask(SHARED, &[&captured.bytes], Duration::ZERO);
                let reached = client.inside(ask)?;
                let reached = reached.with_context(|| captured.client.clone())?;
                ensure!(
                    reached.as_deref() == Some("a"),
                    "{}: {reached:?}",
                    captured.client
                );
            }
            let end = match captured.bytes.len() {
                // Its name has a dot at the end.
                _ if captured.client == "openssl-upper" => "unrouted",
                ..=MOST => "bound",
                _ => "unread",
            };
            *wanted.entry(end.to_owned()).or_default() += ROUNDS;
            if end == "bound" && captured.bytes.len() > SEGMENT {
                long += ROUNDS;
            }
        }
        let repeated = segments_repeated(client)? - before;
        println!("{second}: {wanted:?}, {repeated} repeated of {long}");
        assert_eq!(hellos(&lb)?, wanted);
        ensure!(long >= 4 * ROUNDS, "{long} of two segments");
        // Each would be, if its second segment was the client's to repeat.
        ensure!(repeated * 2 < long, "{repeated} segments repeated");
    }
    Ok(())
}

/// One frame out of so many meets trouble at each of four places: one of 33 is lost, as many come late, and as many twice.
const OUT_OF: u32 = 11;
/// Clients at a time then, and connections of each.
const AT_ONCE: usize = 16;
pub(super) const EACH: usize = 10;

/// Hellos of one segment and of two, three percent of all frames of which are lost, on all sides: each comes to the backend, once.
#[privileged_test]
fn hellos_arrive_where_three_percent_are_lost() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let lb = Lb::start(&topology, &guard::config(&topology, ""))?;
    let long = captured_of("like-chrome131")?.bytes;
    ensure!(long.len() > SEGMENT, "{} bytes", long.len());
    let hellos_sent = [named(CAPTURED_NAME.as_bytes()), long];
    let come = || -> Result<()> {
        for (round, hello) in hellos_sent.iter().cycle().take(EACH).enumerate() {
            let reached = teller::ask(SHARED, &[hello], Duration::ZERO);
            let reached = reached.with_context(|| format!("connection {round}"))?;
            ensure!(reached.as_deref() == Some("a"), "{round}: {reached:?}");
        }
        Ok(())
    };
    through_trouble(&topology, &lb, come)
}

/// Clients at a time, each of which makes [`EACH`] connections by this, while one of 33 frames is lost on all sides; XDP opens most.
pub(super) fn through_trouble(
    topology: &Topology,
    lb: &Lb<'_>,
    come: impl Fn() -> Result<()> + Sync,
) -> Result<()> {
    let trouble = topology.trouble(OUT_OF)?;
    at_once(&topology.client().netns, come)?;
    let made = trouble.each_ref().map(|trouble| trouble.made());
    let all = u64::try_from(AT_ONCE * EACH)?;
    let hellos = hellos(lb)?;
    println!("lost, late, doubled {made:?}; {hellos:?} of {all}");
    ensure!(
        made.as_flattened().iter().all(|count| *count > 20),
        "{made:?}"
    );
    ensure!(hellos["bound"] * 100 >= all * 80, "{hellos:?} of {all}");
    Ok(())
}

/// Connections of each client at a busy NIC.
const BUSY: usize = 100;

/// A NIC that receives many frames at a time sends copies and other frames in one go, and loses none of them: a client that repeats its
/// hello has waited for 200 ms.
#[privileged_test]
fn a_busy_nic_loses_no_hello() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let lb = Lb::start(&topology, &guard::config(&topology, ""))?;
    for nic in [TENANT_NIC, MGMT_NIC] {
        topology.lb.thread_napi(nic)?;
    }
    let hello = named(CAPTURED_NAME.as_bytes());
    let client = &topology.client().netns;
    let before = segments_repeated(client)?;
    let come = || -> Result<()> {
        for round in 0..BUSY {
            let reached = teller::ask(SHARED, &[&hello], Duration::ZERO);
            let reached = reached.with_context(|| format!("connection {round}"))?;
            ensure!(reached.as_deref() == Some("a"), "{round}: {reached:?}");
        }
        Ok(())
    };
    at_once(client, come)?;
    let all = u64::try_from(AT_ONCE * BUSY)?;
    let repeated = segments_repeated(client)? - before;
    println!("{repeated} segments repeated, {:?} of {all}", hellos(&lb)?);
    ensure_all_bound(&lb, AT_ONCE * BUSY)?;
    // Without its own queue for copies 50 to 60 are.
    ensure!(
        repeated * 100 < all,
        "{repeated} segments repeated of {all}"
    );
    Ok(())
}

/// Clients at a time.
fn at_once(client: &Netns, come: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let come = &come;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| client.inside(come)?))
            .collect();
        let mut ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a client panicked"))?
        });
        ended.try_for_each(|ended| ended)
    })
}

/// Most clients that come, one after the other; each goes to one of two backends, by lot.
const CLIENTS: usize = 40;

/// Clients of the names of a pool of which one backend does not serve, until their times are enough.
fn with_one(
    topology: &Topology,
    lost: &Host,
    serving: &Host,
    enough: impl Fn(&[Duration]) -> bool,
) -> Result<Vec<Duration>> {
    let _teller = serve(serving, "right")?;
    let at = |host: &Host| SocketAddrV4::new(host.address, PORT);
    let routes =
        Keys::from("late_binding: always").with("routes: [{ names: [both.lab], pool: both }]");
    let config = config(topology, routes).mgmt_pool("both", [at(lost), at(serving)]);
    let lb = Lb::start(topology, &config)?;
    let hello = named(b"both.lab");
    let mut times = Vec::new();
    while times.len() < CLIENTS && !enough(&times) {
        let begun = Instant::now();
        let ask = || teller::ask(SHARED, &[&hello], Duration::ZERO);
        let found = topology.client().netns.inside(ask)??;
        ensure!(found.as_deref() == Some("right"), "{found:?}");
        times.push(begun.elapsed());
    }
    let bound = u64::try_from(times.len())?;
    assert_eq!(hellos(&lb)?, BTreeMap::from([("bound".to_owned(), bound)]));
    println!("{times:?}");
    Ok(times)
}

/// A backend that refuses: XDP goes on to the other one of the pool.
#[privileged_test]
fn a_refused_client_reaches_another_backend() -> Result<()> {
    let topology = Topology::poc()?;
    let [_, refusing, serving, ..] = &topology.nodes[..] else {
        anyhow::bail!("nodes")
    };
    with_one(&topology, refusing, serving, |_| false)?;
    let refused = refusing.netns.run("nstat -asz TcpOutRsts")?;
    let refused = refused.lines().find(|line| line.starts_with("TcpOutRsts"));
    let refused = refused.and_then(|line| line.split_whitespace().nth(1));
    ensure!(refused.context("a count")? != "0", "no backend has refused");
    Ok(())
}

/// A backend that is silent: when a client repeats its hello for the second time, it goes to the other one.
#[privileged_test]
fn a_client_of_a_silent_backend_reaches_another_one() -> Result<()> {
    let topology = Topology::poc()?;
    let [_, silent, serving, ..] = &topology.nodes[..] else {
        anyhow::bail!("nodes")
    };
    let rules = [
        "nft add table ip deaf".to_owned(),
        "nft add chain ip deaf in { type filter hook input priority 0 ; }".to_owned(),
        format!("nft add rule ip deaf in tcp dport {PORT} counter drop"),
    ];
    for rule in rules {
        silent.netns.run(&rule)?;
    }
    let met = |times: &[Duration]| {
        let late = |time: &&Duration| **time > Duration::from_millis(500);
        times.iter().filter(late).count()
    };
    let times = with_one(&topology, silent, serving, |times| met(times) == 2)?;
    ensure!(met(&times) == 2, "{times:?}: two meet the silent one");
    Ok(())
}
