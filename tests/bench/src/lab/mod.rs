//! On lab hosts with real NICs: lb with a configuration of one's own on this host, and on another one the generator, which
//! speaks for the clients and for the backends.
//!
//! ```text
//!  HOST --from--> tenant network --> [ lb on this host ] --> network of the backends --to--> HOST
//!    \------------------------- what to send, what came: TCP -------------------------/
//! ```

mod far;
mod line;
mod nic;
mod running;
mod target;

use std::{
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lb_user::config;
use nix::unistd::{SysconfVar, sysconf};

pub(crate) use self::far::{Far, serve};
use self::{
    line::{Answer, Ask, Line},
    running::Running,
    target::Target,
};
use crate::{
    Plan,
    measure::{Better, Rounds, Shape},
    path::contestants::lb_version,
    path::load::{LARGE, Load, SMALL},
    path::segments::Wanted,
    report::{Shown, Suite},
};

/// Flows, which one client address and one SNAT address have room for.
const FLOWS: [(u32, &str); 2] = [(1 << 10, "1k"), (MAX_FLOWS, "32k")];
const MAX_FLOWS: u32 = 1 << 15;
/// Connections that are opened at a time: no ring of any NIC is too short for them.
const STEP: u32 = 250;
/// How long connections are tried again: a frame may be lost, and many NICs have no carrier for some seconds after a
/// program was attached.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Frames by the bytes of data in them.
const SIZES: [(&str, u32); 2] = [("64 B", SMALL), ("1518 B", LARGE)];

const METHOD: &str = "The generator's host sends valid TCP segments as fast as it can and checks every one that comes out \
     of the load balancer again. Connections are opened by a handshake first. What did not arrive is reported: it was more \
     than the path carries, or than the generator's own NIC takes. CPU is what all CPUs of the load balancer's host were busy \
     with, idle ones not counted.";

/// The words for it.
#[derive(Debug, clap::Args)]
pub(crate) struct Lab {
    /// Measure lb with this configuration on this host's real interfaces; with --generator
    #[arg(long, requires = "generator")]
    config: Option<PathBuf>,
    /// Where `lb-bench generator` listens on the host that sends and receives
    #[arg(
        long,
        value_name = "HOST:PORT",
        requires = "config",
        requires = "clients"
    )]
    generator: Option<String>,
    /// A client's address for the generator: of the tenant's network, and no host's
    #[arg(long, value_name = "ADDRESS", requires = "generator")]
    clients: Option<Ipv4Addr>,
}

impl Lab {
    /// What it finds, if it was asked for.
    ///
    /// # Errors
    ///
    /// When lb does not start, or the generator's host cannot be reached or gets wrong segments.
    pub(crate) fn measure(&self, plan: Plan<'_>) -> Result<Option<Suite>> {
        let (Some(file), Some(generator), Some(clients)) =
            (&self.config, &self.generator, self.clients)
        else {
            return Ok(None);
        };
        let config = config::load(file).map_err(|problems| anyhow!("{problems}"))?;
        let target = Target::of(&config, clients, MAX_FLOWS)
            .with_context(|| format!("send to {}", file.display()))?;
        let [near, behind] = &target.interfaces;
        let gateway = nic::find(near)?.mac.bytes();
        nic::find(behind)?;
        let (far, greeting) = Line::connect(generator, plan.interrupt)?;
        let lb = Running::start(file)?;
        let mut bench = Bench {
            target,
            gateway,
            far,
            plan,
        };
        let measured = bench.measure()?;
        let suite = Suite {
            name: "lab",
            method: format!("{METHOD} Here: {}. There: {greeting}.", lb.modes()?),
            contestants: vec![Shown {
                name: "lb",
                version: lb_version()?,
                configuration: fs::read_to_string(file).context("read the configuration")?,
            }],
            ..measured
        };
        lb.end()?;
        Ok(Some(suite))
    }
}

struct Bench<'i> {
    target: Target,
    /// MAC address of the NIC that the VIP is behind.
    gateway: [u8; 6],
    far: Line<'i>,
    plan: Plan<'i>,
}

impl Bench<'_> {
    /// Charts, and what was checked.
    fn measure(&mut self) -> Result<Suite> {
        let columns = || FLOWS.iter().map(|(_, name)| *name);
        let names = || SIZES.iter().map(|(name, _)| *name);
        let mut delivered = Rounds::new(names(), columns(), Better::More);
        let mut lost = Rounds::new(names(), columns(), Better::Less);
        let mut cpu = Rounds::new(names(), columns(), Better::Less);
        let (mut open, mut right) = (0, 0);
        for (column, &(flows, _)) in FLOWS.iter().enumerate() {
            self.open(open, flows)?;
            open = flows;
            for round in 0..self.plan.rounds {
                for (place, (_, data)) in SIZES.into_iter().enumerate() {
                    let load = Load {
                        segments: if self.plan.quick { 100_000 } else { 20_000_000 },
                        ..Load::each(0, flows, Some(data))
                    };
                    let before = busy()?;
                    let answer = self.send(load, 0)?;
                    let busy = busy()? - before;
                    let [came, ..] = answer.came.good();
                    ensure!(came > 0, "none of {} segments has arrived", load.segments);
                    right += came;
                    let (came, sent) = (f64::from(u32::try_from(came)?), f64::from(load.segments));
                    delivered.add(round, place, column, came / answer.seconds / 1e6);
                    lost.add(round, place, column, 100.0 * (1.0 - came / sent));
                    cpu.add(round, place, column, 1e9 * busy / came);
                }
            }
        }
        let chart = |rounds: &Rounds, title: &str, unit| {
            rounds.chart(title, unit, "flows", Shape::Bars, None)
        };
        Ok(Suite {
            charts: vec![
                chart(&delivered, "Delivered", "million segments a second"),
                chart(&lost, "Lost, of what was made", "%"),
                chart(&cpu, "CPU of the load balancer's host", "ns for a segment"),
            ],
            checked: vec![format!("{right} segments that arrived, each of them right")],
            ..Suite::default()
        })
    }

    /// Opens connections until there are `to`.
    fn open(&mut self, from: u32, to: u32) -> Result<()> {
        let step = STEP.min(self.target.half_open);
        let mut first = from;
        while first < to {
            let flows = step.min(to - first);
            let begun = Instant::now();
            while let Some(why) = self.shake_hands(first, flows)? {
                ensure!(
                    begun.elapsed() < TIMEOUT,
                    "connections {first} to {}: {why}",
                    first + flows
                );
            }
            first += flows;
        }
        Ok(())
    }

    /// Opens these connections and sends a segment over each, or says what kept it from that.
    fn shake_hands(&mut self, first: u32, flows: u32) -> Result<Option<String>> {
        let all = u64::from(flows);
        let [_, opening, answers] = self.send(Load::each(first, flows, None), 1)?.came.good();
        if opening == 0 {
            let clients = self.target.clients;
            return Ok(Some(format!(
                "none reaches a backend: does the configuration let {clients} in, is lb's NIC in one network with --from, \
                 has --to the backends' addresses, and does the driver of --from send for XDP (ndo_xdp_xmit)?"
            )));
        }
        if answers == 0 {
            return Ok(Some(
                "no answer of a backend comes back: does the driver of --to send for XDP (ndo_xdp_xmit)?"
                    .to_owned(),
            ));
        }
        let [right, ..] = self
            .send(Load::each(first, flows, Some(SMALL)), 0)?
            .came
            .good();
        Ok((answers < all || right < all).then(|| {
            format!("of {all} only {opening} reach a backend, {answers} are answered, and {right} carry data")
        }))
    }

    fn send(&mut self, load: Load, answers: u32) -> Result<Answer> {
        let (stream, wanted) = self.target.ends(load);
        let answer = self.far.ask(&Ask {
            stream,
            wanted: Wanted { answers, ..wanted },
            segments: load.segments,
            length: load.length(),
            gateway: self.gateway,
        })?;
        if let Some((what, count)) = answer.came.wrong().next() {
            bail!("{count} {what} of {} segments", load.segments);
        }
        Ok(answer)
    }
}

/// What all CPUs have been busy with, in seconds.
fn busy() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("read what the CPUs do")?;
    let line = text.lines().next().context("a line")?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // user, nice, system; then idle and waiting; then both kinds of interrupts.
    let [user, nice, system, _, _, hard, soft, ..] = ticks[..] else {
        bail!("{line}: too few figures")
    };
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("ticks of a second")?;
    Ok((user + nice + system + hard + soft) / f64::from(i32::try_from(per_second)?))
}
