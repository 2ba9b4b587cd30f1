//! Ends of a shared VIP that say nothing: those that have vanished (FEATURES A8), and clients that do not
//! say what they want (RELIABILITY 12).

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{Host, Topology},
    traffic::{
        client::open,
        conn_pair::{Pair, wait_for_reset},
        hello::captured_of,
    },
};

use crate::{
    flows::keepalive::FOUND,
    proxy::{
        guard::{beside, config, tellers},
        relayed,
        sni::{SHARED, counted_refusal},
    },
};

/// What a thing may take longer than it has to.
const SLACK: Duration = Duration::from_secs(1);
/// Keys of a service whose legs are for ever while both ends answer.
const KEPT: &str = "idle_timeout: never, keepalive: 1s,";
/// In which the last acknowledgment has come: an end that has bytes to deliver does not ask.
const SETTLED: Duration = Duration::from_millis(500);

#[privileged_test]
fn a8_a_backend_that_vanishes_is_found_and_its_client_reset() -> Result<()> {
    vanishes(|topology| &topology.nodes[0], |pair| &pair.client)
}

#[privileged_test]
fn a8_a_client_that_vanishes_is_found_and_its_backend_reset() -> Result<()> {
    vanishes(Topology::client, |pair| &pair.server)
}

/// An idle leg stays while both ends answer; once one has vanished, the other is reset in time.
fn vanishes(gone: fn(&Topology) -> &Host, told: fn(&Pair) -> &TcpStream) -> Result<()> {
    let topology = Topology::poc()?;
    let line = relayed::line(&topology)?;
    let lb = Lb::start(&topology, &relayed::config_with(&topology, KEPT))?;
    let pair = line.open()?;
    let [soonest, latest] = FOUND;
    // Long enough for an end that does not answer.
    thread::sleep(2 * soonest);
    pair.talk()?;
    thread::sleep(SETTLED);

    let cut = Instant::now();
    gone(&topology).netns.ip_batch("link set eth0 down\n")?;

    wait_for_reset(told(&pair), latest)?;
    let found = cut.elapsed();
    ensure!((soonest - SETTLED..latest).contains(&found), "{found:?}");
    relayed::wait_for(&lb, 0)
}

/// How long a hello may take here, and how many say nothing, and how many a part of it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
const EACH: usize = 100;
/// Bytes of a hello before its name.
const PART: usize = 60;

/// RELIABILITY 12: a client that sends one byte, or 60 bytes of a hello and then nothing, is closed when its time is
/// over, and no other client is slow for it.
#[privileged_test]
fn r12_who_holds_back_is_closed_in_time() -> Result<()> {
    are_closed_in_time("hello_timeout: 1s", 1)
}

/// The same for clients that send nothing, where the kernel accepts them.
#[privileged_test]
fn r12_who_sends_nothing_is_closed_in_time() -> Result<()> {
    are_closed_in_time("hello_timeout: 1s, syn_cookies: never", 0)
}

/// Clients of a service with these keys send a part of a hello, every second one of as few bytes.
fn are_closed_in_time(keys: &'static str, few: usize) -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, keys))?;
    let [holding, other] = &topology.clients[..] else {
        bail!("there are two clients");
    };
    let hello = captured_of("curl-h2")?.bytes;
    let hold = || hold(holding.address, [&hello[..PART], &hello[..few]]);
    let (closed, measured) = beside(other, || holding.netns.inside(hold)?)?;
    println!("{measured} beside {} who hold back", closed.len());
    for after in &closed {
        ensure!(
            (HELLO_TIMEOUT..HELLO_TIMEOUT + SLACK).contains(after),
            "closed after {after:?}"
        );
    }
    assert_eq!(counted_refusal(&lb, "timeout")?, u64::try_from(2 * EACH)?);
    measured.ensure_quick()
}

/// Opens connections that send these parts in turns; how long each was there until it was closed, with
/// no byte and no reset.
fn hold(from: Ipv4Addr, parts: [&[u8]; 2]) -> Result<Vec<Duration>> {
    let mut all = Vec::new();
    for number in 0..2 * EACH {
        let start = Instant::now();
        let mut stream = open(Some(from), SHARED)?;
        stream.write_all(parts[number % 2])?;
        all.push((start, stream));
    }
    let closed = all.into_iter().map(|(start, mut stream)| {
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        ensure!(said.is_empty(), "{said:?} was said");
        Ok(start.elapsed())
    });
    closed.collect()
}
