//! A full box: how long it takes to start, to plan, to reload and to be started again, and what it costs.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::memory,
    product::{
        full_box::{self, SERVED, Size},
        lb::Lb,
        order::Said,
    },
    servers::echo::EchoServer,
    topology::Topology,
    traffic::client,
};

use crate::{
    Plan,
    measure::{Better, Rounds, Shape},
    path::contestants::lb_version,
    report::{Goal, Shown, Suite},
};

/// What takes time, and how much it may take, in seconds: must, aim.
const STEPS: [(&str, [f64; 2]); 4] = [
    ("start", [5.0, 3.0]),
    ("plan", [2.0, 1.0]),
    ("reload", [2.0, 1.0]),
    ("kill -9 and start", [5.0, 3.0]),
];
/// What it may take of a CPU when nothing happens, in percent.
const IDLE: [f64; 2] = [1.0, 0.5];
const NAME: &str = "lb";

const METHOD: &str = "1,000 VIPs, 10,000 services, 250 pools of 256 backends; with --quick a tenth of the VIPs, services and \
     pools. Start: from nothing to ready. Plan and reload: of a file in which one backend of one pool is another one. Then \
     the process is killed, and started with the same file. Idle: CPU time of the process while nothing happens, the least of \
     three windows of two seconds.";

/// # Errors
///
/// When a step fails.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let size = if plan.quick { Size::TENTH } else { Size::FULL };
    let mut times = Rounds::new([NAME], STEPS.map(|(step, _)| step), Better::Less);
    let [mut idle, mut resident] =
        ["idle", "resident"].map(|cost| Rounds::new([NAME], [cost], Better::Less));
    for round in 0..plan.rounds {
        plan.interrupt.check()?;
        let turn = Turn::take(size)?;
        for (column, seconds) in turn.seconds.into_iter().enumerate() {
            times.add(round, 0, column, seconds);
        }
        idle.add(round, 0, 0, turn.idle);
        resident.add(round, 0, 0, turn.resident);
    }
    // A tenth says nothing of the goals.
    let goal = |what: &str, wanted, measured| match plan.quick {
        true => Goal::cost(what, measured),
        false => Goal::new(what, wanted, measured),
    };
    let steps = STEPS.iter().enumerate();
    let mut goals: Vec<Goal> = steps
        .map(|(column, (step, wanted))| {
            goal(&format!("{step}, s"), *wanted, times.of(NAME, column))
        })
        .collect();
    goals.push(goal("idle, % of a CPU", IDLE, idle.of(NAME, 0)));
    goals.push(Goal::cost("resident, MB", resident.of(NAME, 0)));
    Ok(Suite {
        name: "size",
        method: METHOD.to_owned(),
        charts: vec![
            times.chart("Time", "s", "step", Shape::Bars, None),
            idle.chart("Idle", "% of a CPU", "", Shape::Bars, None),
            resident.chart("Memory", "MB", "", Shape::Bars, None),
        ],
        checked: vec![format!(
            "{} rounds: a client got its answer after the start, after the reload, while no process ran and after the \
             next start; the plan named one backend, and nothing after the reload",
            plan.rounds
        )],
        goals,
        contestants: vec![Shown {
            name: NAME,
            version: lb_version()?,
            configuration: format!("{size:?}"),
        }],
        missing: Vec::new(),
    })
}

/// A box from its start to its end.
struct Turn {
    /// Of each step.
    seconds: [f64; STEPS.len()],
    /// In percent of a CPU.
    idle: f64,
    /// In MB.
    resident: f64,
}

impl Turn {
    fn take(size: Size) -> Result<Self> {
        let topology = Topology::poc()?;
        let served = full_box::served_by(&topology);
        let _server = EchoServer::start(&topology.nodes[0].netns, served, "served")?;
        let (before, after) = (size.file(&topology, 0)?, size.file(&topology, 1)?);
        let (start, mut lb) = timed(|| Lb::start(&topology, &before))?;
        ensure_served(&topology)?;
        lb.write(&after)?;
        let file = lb.file();
        let file = file.to_str().context("a path")?;
        let (plan, planned) = timed(|| lb.tell(&["plan", file]))?;
        ensure_added(&planned)?;
        let (reload, _) = timed(|| lb.tell(&["reload"])?.done())?;
        ensure!(
            lb.tell(&["plan", file])?.code == Some(0),
            "the reload left something to do"
        );
        ensure_served(&topology)?;
        let idle = full_box::idle(lb.id())?;
        let resident = memory::now(lb.id())?;
        lb.kill()?;
        ensure_served(&topology)?;
        let (again, ()) = timed(|| lb.restart(&after))?;
        ensure_served(&topology)?;
        lb.down()?;
        Ok(Self {
            seconds: [start, plan, reload, again],
            idle,
            resident: f64::from(u32::try_from(resident)?) * 1024.0 / 1e6,
        })
    }
}

/// How many seconds something took, and what came of it.
fn timed<T>(done: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let begun = Instant::now();
    let result = done()?;
    Ok((begun.elapsed().as_secs_f64(), result))
}

fn ensure_added(plan: &Said) -> Result<()> {
    let added = plan.stdout.lines();
    let added = added.filter(|line| line.ends_with(": added")).count();
    ensure!(
        (plan.code, added) == (Some(3), 1),
        "the plan of one backend says: {}{}",
        plan.stdout,
        plan.stderr
    );
    Ok(())
}

/// A client at the VIP gets the answer of its backend.
fn ensure_served(topology: &Topology) -> Result<()> {
    let client = &topology.client().netns;
    let answer = client.inside(|| client::who(None, SERVED))?;
    answer.map(drop).context("a client's connection")
}
