//! A shared VIP: short connections that begin with a ClientHello, and long ones after it.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{topology::path::Path, traffic::hello::CAPTURED_NAME};

use crate::{
    Plan,
    path::conntrack::Room,
    report::{Goal, Suite},
    suites::{
        bulk::Long,
        connections::{Short, stands},
    },
    tcp::{
        answer::HELLO,
        stand::Stand,
        way::{self, Way},
    },
};

const WAYS: [Way; 8] = [
    Way::Bare,
    Way::LbShared,
    Way::LbBound,
    Way::LbBoundTwo,
    Way::HaproxyName,
    Way::NginxName,
    Way::Lb,
    Way::Route,
];
/// Those that carry much behind the hello.
const LONG: [Way; 5] = [
    Way::LbShared,
    Way::LbBound,
    Way::HaproxyName,
    Way::NginxName,
    Way::Lb,
];
/// Bytes of an answer to a short connection: what a server's part of a handshake has.
const ANSWER: u64 = 3000;

const METHOD: &str = "As connections and bulk, but what the client says is the captured ClientHello of a real client, 517 bytes (1,758 in two segments), and \
     short answers have 3000 bytes. bare, route and lb forward the same bytes without looking at the name; the others \
     choose the backends by it. lb's own counters say that it has handed every connection of the shared VIP over to its \
     programs, and that with late binding these have opened every one.";

pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let (there, missing) = way::present(&WAYS);
    let room = Room::make();
    let paths: Vec<Path> = there.iter().map(|_| Path::build()).collect::<Result<_>>()?;
    let mut stands = stands(&there, &paths, HELLO)?;
    let short = Short::measure(&mut stands, plan, ANSWER)?;
    let bound = bound(&stands)?;
    let mut long: Vec<Stand<'_>> = stands
        .into_iter()
        .filter(|stand| LONG.contains(&stand.way))
        .collect();
    let bulk = Long::measure(&mut long, plan)?;
    let handed = handed_over(&long)?;
    drop(room);
    let mut charts = short.charts();
    charts.extend(bulk.charts("lb"));
    Ok(Suite {
        name: "sni",
        method: METHOD.to_owned(),
        charts,
        checked: vec![
            format!(
                "{} short connections to {CAPTURED_NAME}, each with the right answer; none failed",
                short.made
            ),
            format!("{} MB behind hellos, all of it right", bulk.megabytes()),
            format!("lb has handed over all {handed} connections of the shared VIP"),
            format!("with late binding XDP has opened all {bound} itself"),
        ],
        goals: vec![
            Goal::new(
                "connections per second of CPU, lb with a shared VIP / HAProxy by SNI",
                [1.0, 1.5],
                short
                    .cpu
                    .ratio(Way::LbShared.name(), Way::HaproxyName.name(), 0),
            ),
            Goal::new(
                "connections per second of CPU, lb with late binding / HAProxy by SNI",
                [1.5, 1.8],
                short
                    .cpu
                    .ratio(Way::LbBound.name(), Way::HaproxyName.name(), 0),
            ),
            Goal::new(
                "connections per second of CPU, lb with late binding / lb",
                [0.85, 1.0],
                short.cpu.ratio(Way::LbBound.name(), Way::Lb.name(), 0),
            ),
            Goal::new(
                "connections per second of CPU, lb with late binding, hellos of two segments / of one",
                [0.83, 0.9],
                short
                    .cpu
                    .ratio(Way::LbBoundTwo.name(), Way::LbBound.name(), 0),
            ),
            Goal::new(
                "half of all connections take no longer than, lb / lb with late binding",
                [0.85, 1.0],
                short.time.ratio(Way::LbBound.name(), Way::Lb.name(), 0),
            ),
            short.slowest_handshakes(Way::LbShared.name(), Way::HaproxyName.name()),
            Goal::new(
                "bulk per core, lb after a hand-over / lb, 8 streams",
                [0.95, 1.0],
                bulk.own.ratio(Way::LbShared.name(), Way::Lb.name(), 1),
            ),
        ],
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// How many connections `lb` has handed over.
///
/// # Errors
///
/// When there were others.
fn handed_over(stands: &[Stand<'_>]) -> Result<u64> {
    let shared = stands.iter().find(|stand| stand.way == Way::LbShared);
    let shared = shared.context("lb takes part")?;
    let (handed, made) = (shared.handed_over()?, shared.made);
    ensure!(
        handed == made,
        "lb has handed over {handed} connections of {made}"
    );
    Ok(handed)
}

/// How many connections XDP has opened with late binding.
///
/// # Errors
///
/// When there were others.
fn bound(stands: &[Stand<'_>]) -> Result<u64> {
    let found = stands
        .iter()
        .filter(|stand| matches!(stand.way, Way::LbBound | Way::LbBoundTwo));
    let (mut bound, mut made) = (0, 0);
    for stand in found {
        bound += stand.bound()?;
        made += stand.made;
    }
    ensure!(
        bound == made,
        "XDP has opened {bound} connections of {made}"
    );
    Ok(bound)
}
