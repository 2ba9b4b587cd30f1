//! Packets that another CPU sends, again and again, while those of this one are measured.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::product::{cpu, program::Port, vary_prog_run::Vary};

use super::stand::{Cost, Leg, Stand};

/// The other CPU, with a program of its own before that of a stand.
pub(super) struct Beside {
    vary: Vary,
    cpu: usize,
}

impl Beside {
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(super) fn new(stand: &mut Stand, cpu: usize) -> Result<Self> {
        let mut vary = stand.vary.another()?;
        let (program, interface) = stand.plane.at(Port::Mgmt)?;
        vary.call(program)?;
        vary.settle(interface)?;
        Ok(Self { vary, cpu })
    }

    /// Makes legs of this stand known here, too.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(super) fn learn(&mut self, stand: &Stand, legs: &[Leg]) -> Result<()> {
        // Of more than one pass the rest is the same again.
        let mut known: Vec<Range<u32>> = Vec::new();
        for (_, places) in legs.iter().filter_map(|leg| leg.packets.varied.clone()) {
            if !known.contains(&places) {
                self.vary.copy_turns(&stand.vary, places.clone())?;
                known.push(places);
            }
        }
        Ok(())
    }

    /// What a packet of `own` costs while this sends those of `other`; all of both must come to their end.
    ///
    /// # Errors
    ///
    /// When one did not, or the kernel refuses.
    pub(super) fn cost(&mut self, stand: &mut Stand, own: &[Leg], other: &[Leg]) -> Result<Cost> {
        let ingress = other.iter().map(|leg| Ok(stand.plane.at(leg.port)?.1));
        let ingress: Vec<u32> = ingress.collect::<Result<_>>()?;
        let before = stand.plane.counters();
        let is_over = AtomicBool::new(false);
        let (cost, sent) = thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(other, &ingress, &is_over));
            let cost = stand.cost_of(own);
            is_over.store(true, Ordering::Relaxed);
            let sent = sender.join();
            (
                cost,
                sent.unwrap_or_else(|_| Err(anyhow!("the thread beside it has panicked"))),
            )
        });
        let all = [own, &sent.context("on the other CPU")?].concat();
        stand.compare(&before, &all)?;
        cost
    }

    /// Sends legs, from the first again and again, until it is over: how often each packet was sent.
    fn send(&mut self, legs: &[Leg], ingress: &[u32], is_over: &AtomicBool) -> Result<Vec<Leg>> {
        cpu::bind(self.cpu)?;
        let mut sent = Vec::new();
        for (leg, ingress) in legs.iter().zip(ingress).cycle() {
            self.vary.prepare(&leg.packets)?;
            let (action, _) = self.vary.run(*ingress, leg.times)?;
            ensure!(
                action == leg.action,
                "{action:?} instead of {:?}",
                leg.action
            );
            sent.push(leg.clone());
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(sent)
    }
}
