//! A hand-over that is cut short by a kill, before each of its steps: FEATURES B15. No other connection
//! hears of it, and it is the only one that may be lost.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    fault::kill_at_step::{self, Followed, Moment},
    oracle::ids,
    poll,
    product::lb::Lb,
    servers::teller::{Teller, ask},
    topology::{Host, Topology},
    traffic::{
        client::{open, was_reset},
        conn_pair::Line,
        exchange::Exchange,
        hello::named,
    },
};
use nix::errno::Errno;

use crate::{
    flows::life::ensure_all_ids_are_free,
    handoff::opener::Opener,
    proxy::{
        relayed::{PORT, SHARED},
        sni::NAMES,
    },
};

/// Connections that live all the time.
const LIVE: usize = 10;
/// How long the client of a connection that is cut short waits for anything.
const TIMEOUT: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);
/// How long the backend's socket may stay when the client has heard all.
const LAST: Duration = Duration::from_millis(500);
/// Ports of the SNAT address, from 1024 on.
const PORTS: usize = 1024;
/// Until the numbers of both connections are known: what the other end sees a difference by. Each is before
/// that step.
const BEFORE_SPLICE: [Moment; 10] = [
    // The client's socket is made, and does not send anything yet.
    Moment::Of("connect", 0),
    Moment::Of(REPAIR, 1),
    Moment::Of(ENTER, 0),
    Moment::Of(RECEIVE, 0),
    Moment::Of("bind", 1),
    Moment::Of("connect", 1),
    // The backend's socket goes into repair mode.
    Moment::Of(REPAIR, 2),
    // The client is held, and in the index, between these two.
    Moment::Of(RECEIVE, 1),
    Moment::Of(RECEIVE, 2),
    // The client's.
    Moment::Of(REPAIR, 4),
];
/// From then on: what the other end or the data plane sees a difference by.
const FROM_SPLICE: [Moment; 8] = [
    // The splice is written, and the flow's word does not say so yet.
    Moment::Of("bpf 2 of SPLICE_NAMES", 0),
    // The backend's again, and out of it.
    Moment::Of(REPAIR, 5),
    Moment::Of(SHARE, 3),
    // The client's for its end, and its end.
    Moment::Of(REPAIR, 7),
    Moment::Of("close", 1),
    Moment::Of(LEAVE, 0),
    Moment::Of("send", 1),
    // The end of the backend's.
    Moment::Of("close", 2),
];
/// What comes from the client goes into the cell, and to its flow again.
const ENTER: &str = "bpf 2 of CELL_SOCKETS";
const LEAVE: &str = "bpf 3 of CELL_SOCKETS";
/// The hello; whether the backend has said anything; and, when the client is held, what it has said meanwhile.
const RECEIVE: &str = "receive";
/// `TCP_REPAIR` of a socket: on, then off.
const REPAIR: &str = "setsockopt 6.19";
/// `SO_REUSEADDR` of one that was: a socket that listens at its port meanwhile cannot.
const SHARE: &str = "setsockopt 1.2";
/// Longer than a port stays lent to a process that is gone (two minutes), from the last word of a backend on,
/// who gives his client up after one and says so for another one.
const LEASE: Duration = Duration::from_secs(360);

/// How a connection ended, for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// With all that it was to hear.
    Answered,
    /// By a FIN, in the middle.
    Closed,
    Reset,
    /// Not at all.
    Silent,
}

const KINDS: [Ended; 4] = [Ended::Answered, Ended::Closed, Ended::Reset, Ended::Silent];

/// B15: a kill at steps of a hand-over, whose port is free again after a while; in the short tier that is not
/// waited for.
#[privileged_test]
fn b15_a_hand_over_that_is_killed_before_its_splice_is_the_only_one() -> Result<()> {
    kill_at(BEFORE_SPLICE.into_iter(), after()).map(drop)
}

/// The same from the splice on; in the long tier at any step, too.
#[privileged_test]
fn b15_a_hand_over_that_is_killed_from_its_splice_on_is_the_only_one() -> Result<()> {
    kill_at(FROM_SPLICE.into_iter(), after())?;
    if is_long() {
        let ends = kill_at((0..).map(Moment::Step), After::Nothing)?;
        for kind in KINDS {
            ensure!(ends.contains(&kind), "{kind:?}: never");
        }
    }
    Ok(())
}

fn is_long() -> bool {
    std::env::var_os("LB_TEST_LONG").is_some()
}

fn after() -> After {
    match is_long() {
        true => After::AllPorts,
        false => After::Nothing,
    }
}

/// What is waited for after all kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    AllPorts,
}

/// Kills a hand-over at each of these moments; how the connections ended.
fn kill_at(moments: impl Iterator<Item = Moment>, after: After) -> Result<Vec<Ended>> {
    let topology = Topology::poc()?;
    let [client, live, node] = [topology.client(), &topology.nodes[0], &topology.nodes[1]];
    let line = Line::new(client, SHARED, live, PORT)?.saying(named(NAMES[0].as_bytes()));
    let _teller =
        Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), NAMES[1])?;
    // A hello that did not get there leaves a flow of which neither end hears any more.
    let config = Opener::Process
        .names(&topology)
        .network("mgmt", |mgmt| mgmt.snat_ports(1024, 2047))
        .service("shared", |shared| shared.set("idle_timeout", "30s"))
        .set("timeouts.half_closed", "2s");
    let mut lb = Lb::start(&topology, &config)?;
    let exchanges = line.open_many(LIVE)?.into_iter().map(Exchange::start);
    let exchanges: Vec<Exchange> = exchanges.collect::<Result<_>>()?;

    let mut ends = Vec::new();
    for moment in moments {
        let (followed, ended) = one(&topology, &mut lb, moment)?;
        let said = || format!("before {moment:?}, {:?}: {ended:?}", followed.killed);
        if followed.killed.is_none() {
            println!("{} steps: {:#?}", followed.steps.len(), followed.steps);
            let is_last = matches!(moment, Moment::Step(_));
            ensure!(is_last, "never killed {}", said());
            assert_eq!(ended, Ended::Answered);
            break;
        }
        println!("killed {}", said());
        exchanges
            .iter()
            .try_for_each(Exchange::goes_on)
            .with_context(said)?;
        ensure_is_told(&followed, ended).with_context(said)?;
        lb.restart(&config)?;
        let who = ask_in(client).with_context(said)?;
        ensure!(who.as_deref() == Some(NAMES[1]), "{}; {who:?}", said());
        no_port_is_lost(&topology).with_context(said)?;
        ends.push(ended);
    }
    let count = |wanted| ends.iter().filter(|ended| **ended == wanted).count();
    println!(
        "{} kills: {:?}",
        ends.len(),
        KINDS.map(|kind| (kind, count(kind)))
    );
    for exchange in exchanges {
        let bytes = exchange.end()?;
        ensure!(bytes > 1 << 20, "{bytes} bytes");
    }
    if after == After::AllPorts {
        // Ports that are lent are no flows, but live.
        let gone = poll::until("no flow any more, and no port that is lent", LEASE, || {
            let is_over = lb.flows()?.is_empty() && lb.status()?.flows.live == 0;
            Ok(is_over.then_some(()))
        });
        gone.with_context(|| format!("{:?}", lb.flows()))?;
        ensure_all_ids_are_free(&topology, &lb)?;
    }
    Ok(ends)
}

/// One connection, and the process killed before this step of it.
fn one(topology: &Topology, lb: &mut Lb<'_>, moment: Moment) -> Result<(Followed, Ended)> {
    let doom = kill_at_step::kill_in_hand_over(topology.run(), lb.process().id(), moment)?;
    let ended = topology.client().netns.inside(talk)??;
    // What remains to be done after the last byte.
    let begun = Instant::now();
    while !doom.is_over() && begun.elapsed() < LAST {
        thread::sleep(Duration::from_millis(5));
    }
    let followed = doom.end()?;
    if followed.killed.is_some() {
        lb.process().wait_for_end(SOON)?;
    }
    Ok((followed, ended))
}

/// Says a hello and hears what there is to hear; other bytes are an error.
fn talk() -> Result<Ended> {
    let hello = named(NAMES[1].as_bytes());
    let name = [NAMES[1].as_bytes(), &[0xff]].concat();
    let expected = [&name[..], &hello].concat();
    let mut stream = match open(None, SHARED) {
        Err(error) if is_refused(&error) || was_reset(&error) => return Ok(Ended::Reset),
        stream => stream?,
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    let is_reset = |kind| matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    if let Err(error) = stream.write_all(&hello) {
        ensure!(is_reset(error.kind()), "send: {error}");
        return Ok(Ended::Reset);
    }
    let mut heard = Vec::new();
    let mut bytes = [0; 1024];
    let ended = loop {
        match stream.read(&mut bytes) {
            Ok(0) if heard == expected => break Ended::Answered,
            Ok(0) => break Ended::Closed,
            Ok(read) => {
                heard.extend_from_slice(&bytes[..read]);
                if heard == name {
                    stream.shutdown(Shutdown::Write)?;
                }
            }
            Err(error) if is_reset(error.kind()) => break Ended::Reset,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break Ended::Silent,
            Err(error) => return Err(anyhow!(error).context("hear")),
        }
    };
    ensure!(expected.starts_with(&heard), "heard {heard:?}");
    Ok(ended)
}

fn is_refused(error: &anyhow::Error) -> bool {
    error.downcast_ref() == Some(&Errno::ECONNREFUSED)
}

/// As soon as the connection is the data plane's, the kernel does not end it: and when the backend has been
/// sent the hello, it lives.
fn ensure_is_told(followed: &Followed, ended: Ended) -> Result<()> {
    // A hello may come in several parts: what is received behind the connect is no part of it.
    let steps = followed.steps.iter().skip_while(|step| *step != ENTER);
    let mut steps = steps.skip_while(|step| *step != "connect");
    let is_held = steps.any(|step| step == RECEIVE);
    let is_sent = steps.any(|step| step == "send");
    match (is_held, is_sent) {
        (_, true) => ensure!(ended == Ended::Answered, "sent, and lost"),
        (true, _) => ensure!(ended == Ended::Silent, "a word of the kernel"),
        _ => ensure!(ended != Ended::Answered, "answered by which server"),
    }
    Ok(())
}

/// No connection takes part in this any more.
fn ask_in(client: &Host) -> Result<Option<String>> {
    let hello = named(NAMES[1].as_bytes());
    client
        .netns
        .inside(|| ask(SHARED, &[&hello], Duration::ZERO))?
}

/// Each flow id is in the queue, and once, or a flow has it.
fn no_port_is_lost(topology: &Topology) -> Result<()> {
    let counted = || ids::counted(topology.run());
    let all = poll::until("the ids of all flows", SOON, || {
        let is_whole = |count: &[usize; 2]| *count == [PORTS, 0];
        Ok(counted()?.iter().all(is_whole).then_some(()))
    });
    all.with_context(|| format!("{:?}", counted()))
}
