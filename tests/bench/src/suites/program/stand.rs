//! The loaded programs, packets for them, and the clock.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use aya::programs::Xdp;
use lb_tests::{
    frames::packet::{Decoded, check, untagged},
    product::{
        program::{Action, DataPlane, Port},
        vary_prog_run::{Packets, Vary},
    },
};

use crate::{machine::spent, measure::Spread};

/// Where a frame is counted: hook, network and verdict.
pub(super) type Counted = (&'static str, &'static str, &'static str);

type Counters = BTreeMap<(&'static str, String, &'static str), u64>;

/// Nanoseconds for each packet.
pub(super) struct Cost {
    /// More than with a program that does nothing.
    pub(super) program: f64,
    /// With that one: the program before it, and the run itself.
    pub(super) empty: f64,
}

/// What packets are given to.
#[derive(Clone, Copy)]
enum Through<'x> {
    Lb,
    /// The program that does nothing.
    Nothing,
    Nat(&'x Xdp),
}

/// Packets that all come to the same end.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    /// Where they come in.
    pub(super) port: Port,
    pub(super) packets: Packets,
    /// How many.
    pub(super) times: u32,
    pub(super) action: Action,
    pub(super) counted: Counted,
}

/// A data plane, with a program before its own that gives it one packet after the other.
pub(super) struct Stand {
    pub(super) plane: DataPlane,
    pub(super) vary: Vary,
    /// Packets that came to the end that they must come to.
    pub(super) right: u64,
    /// Frames that were looked at, with every checksum right.
    pub(super) whole: u64,
}

impl Stand {
    /// With a table of so many turns.
    pub(super) fn new(mut plane: DataPlane, turns: u32) -> Result<Self> {
        let mut vary = Vary::load(turns)?;
        let (_, interface) = plane.at(Port::Foreign)?;
        vary.settle(interface)?;
        Ok(Self {
            plane,
            vary,
            right: 0,
            whole: 0,
        })
    }

    /// What a packet costs: the middle of what the legs say. In each of them lb and the program that does
    /// nothing come one after the other, and what interrupts one leg does not count.
    pub(super) fn cost(&mut self, legs: &[Leg]) -> Result<Cost> {
        let before = self.plane.counters();
        let cost = self.cost_of(legs)?;
        self.compare(&before, legs)?;
        Ok(cost)
    }

    /// The same; what was counted is left to the caller.
    pub(super) fn cost_of(&mut self, legs: &[Leg]) -> Result<Cost> {
        let (mut through_lb, mut empty) = (Vec::new(), Vec::new());
        for leg in legs {
            let nothing = self.seconds(leg, Through::Nothing)?;
            let lb = self.seconds(leg, Through::Lb)?;
            through_lb.push((lb - nothing) / f64::from(leg.times));
            empty.push(nothing / f64::from(leg.times));
        }
        let middle = |costs| Spread::of(costs).context("no packets");
        Ok(Cost {
            program: middle(through_lb)?.median * 1e9,
            empty: middle(empty)?.median * 1e9,
        })
    }

    /// The same through the reference NAT, in nanoseconds more than with a program that does nothing. Before, all packets go
    /// through it once with `warm`: what is in a cache is what that has left there.
    pub(super) fn cost_of_nat(&mut self, legs: &[Leg], nat: &Xdp, warm: bool) -> Result<f64> {
        if warm {
            for leg in legs {
                self.seconds(leg, Through::Nat(nat))?;
            }
        }
        let mut all = Vec::new();
        for leg in legs {
            let nothing = self.seconds(leg, Through::Nothing)?;
            let nat = self.seconds(leg, Through::Nat(nat))?;
            all.push((nat - nothing) / f64::from(leg.times));
        }
        Ok(Spread::of(all).context("no packets")?.median * 1e9)
    }

    /// Sends all packets, each of which must come to its end.
    pub(super) fn send_all(&mut self, legs: &[Leg]) -> Result<()> {
        let before = self.plane.counters();
        for leg in legs {
            self.seconds(leg, Through::Lb)?;
        }
        self.compare(&before, legs)
    }

    /// Whether each packet was counted for its end, and nothing else was.
    pub(super) fn compare(&mut self, before: &Counters, legs: &[Leg]) -> Result<()> {
        let mut moved = self.plane.counters();
        for (key, count) in &mut moved {
            *count -= before.get(key).copied().unwrap_or(0);
        }
        moved.retain(|_, count| *count > 0);
        let mut wanted = Counters::new();
        for leg in legs {
            let (hook, network, verdict) = leg.counted;
            let key = (hook, network.to_owned(), verdict);
            *wanted.entry(key).or_insert(0) += u64::from(leg.times);
        }
        ensure!(moved == wanted, "counted {moved:?} instead of {wanted:?}");
        self.right += wanted.values().sum::<u64>();
        Ok(())
    }

    /// The CPU time of the packets.
    fn seconds(&mut self, leg: &Leg, through: Through<'_>) -> Result<f64> {
        self.plane.refill_answers()?;
        self.vary.prepare(&leg.packets)?;
        let (program, ingress) = self.plane.at(leg.port)?;
        match through {
            Through::Lb => self.vary.call(program)?,
            Through::Nothing => self.vary.call_nothing()?,
            Through::Nat(nat) => self.vary.call(nat)?,
        }
        let begun = spent()?;
        let (action, frame) = self.vary.run(ingress, leg.times)?;
        let seconds = spent()? - begun;
        if let Through::Nothing = through {
            let passed = action == Action::Transmit;
            ensure!(passed, "{action:?} of the program that does nothing");
        } else {
            self.look_at(leg, action, &frame)?;
        }
        Ok(seconds)
    }

    /// Checks what became of the last packet.
    fn look_at(&mut self, leg: &Leg, action: Action, frame: &[u8]) -> Result<()> {
        ensure!(
            action == leg.action,
            "{action:?} instead of {:?} for {}",
            leg.action,
            Decoded(frame)
        );
        let (_, frame) = untagged(frame);
        // The checksum of layer 4 is over all fragments.
        let is_whole = || {
            let field = frame.get(20..22);
            field.is_some_and(|field| u16::from_be_bytes([field[0], field[1]]) & 0x3fff == 0)
        };
        let is_checked = match frame.get(12..14) {
            Some([0x08, 0x00]) => is_whole(),
            Some([0x86, 0xdd]) => true,
            _ => false,
        };
        if is_checked {
            let checked = check(&frame);
            checked.map_err(|wrong| anyhow::anyhow!("{wrong} in {}", Decoded(&frame)))?;
            self.whole += 1;
        }
        Ok(())
    }

    /// Sends one frame that must come to this end, and gives it as it left.
    pub(super) fn send(&mut self, port: Port, frame: &[u8], action: Action) -> Result<Vec<u8>> {
        let ((found, out), _) = self.plane.run(port, frame, 1);
        ensure!(found == action, "{found:?} for {}", Decoded(frame));
        Ok(out)
    }

    /// The number of a network.
    pub(super) fn network(&self, name: &str) -> Result<u16> {
        let id = self
            .plane
            .ids
            .get(lb_user::model::registry::Kind::Network, name);
        let id = id.with_context(|| format!("network {name} has no id"))?;
        Ok(u16::try_from(id)?)
    }
}
