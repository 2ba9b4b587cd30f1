//! Two counts of the same packets: the verdicts of the product and the drivers' own counters.

use std::{fmt, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    oracle::{
        observe,
        query::{Drop as DropCount, Hooks, Verdicts},
    },
    poll,
    product::lb::Lb,
    topology::{MGMT_NIC, Site, TENANT_NIC},
};

/// First letters of the outer ends of cells in the host's namespace.
const CELL_LINKS: &str = "lbc";
/// A network that says nothing for this long is taken for quiet.
const QUIET: Duration = Duration::from_millis(250);
/// How long traffic may take to come to rest.
const QUIET_TIMEOUT: Duration = Duration::from_secs(60);

/// Both counts at one quiet moment. Counters only grow, so tests compare two ledgers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ledger {
    /// Verdicts per hook.
    pub verdicts: Hooks,
    /// Packets dropped with a reason at NICs and at cells.
    pub reasons: [u64; 2],
    /// Packets refused with a reason at NICs and at cells.
    pub refusals: [u64; 2],
    /// Packets received by the NICs, as their drivers count.
    pub nic_rx: u64,
    /// Packets received by the outer ends of the cells.
    pub cell_rx: u64,
}

impl Ledger {
    /// Reads both counts at a moment when neither moves.
    ///
    /// # Errors
    ///
    /// When traffic does not come to rest.
    pub fn read(site: &Site, lb: &Lb<'_>) -> Result<Self> {
        let mut last = Self::read_once(site, lb)?;
        poll::until("quiet networks", QUIET_TIMEOUT, || {
            thread::sleep(QUIET);
            let now = Self::read_once(site, lb)?;
            let is_quiet = now == last;
            last = now;
            Ok(is_quiet.then(|| last.clone()))
        })
    }

    /// Compares what happened since `earlier`: each hook's verdicts add up to the packets that its
    /// drivers received, and its drops and refusals to those with a reason.
    ///
    /// # Errors
    ///
    /// With both counts where they differ.
    pub fn ensure_balanced_since(&self, earlier: &Self) -> Result<()> {
        let nic = Hook {
            name: "nic",
            verdicts: [self.verdicts.nic, earlier.verdicts.nic],
            received: self.nic_rx - earlier.nic_rx,
            reasons: self.reasons[0] - earlier.reasons[0],
            refusals: self.refusals[0] - earlier.refusals[0],
        };
        let cell = Hook {
            name: "cell",
            verdicts: [self.verdicts.cell, earlier.verdicts.cell],
            received: self.cell_rx - earlier.cell_rx,
            reasons: self.reasons[1] - earlier.reasons[1],
            refusals: self.refusals[1] - earlier.refusals[1],
        };
        nic.ensure_balanced()?;
        cell.ensure_balanced()
    }

    fn read_once(site: &Site, lb: &Lb<'_>) -> Result<Self> {
        let verdicts = lb.status()?.verdicts;
        let drops = lb.drops()?;
        let links = observe::links(&site.lb)?;
        let sum = |hook: &str, count: fn(&DropCount) -> u64| {
            let of_hook = drops.iter().filter(|drop| drop.hook == hook);
            of_hook.map(count).sum()
        };
        let both = |count| [sum("nic", count), sum("cell", count)];
        let received = |wanted: &dyn Fn(&str) -> bool| {
            links
                .iter()
                .filter(|link| wanted(&link.name))
                .map(|link| link.rx_packets)
                .sum()
        };
        Ok(Self {
            verdicts,
            reasons: both(|drop| drop.dropped),
            refusals: both(|drop| drop.refused),
            nic_rx: received(&|name| name == TENANT_NIC || name == MGMT_NIC),
            cell_rx: received(&|name| name.starts_with(CELL_LINKS)),
        })
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verdicts,
            reasons,
            refusals,
            nic_rx,
            cell_rx,
        } = self;
        write!(f, "NICs {nic_rx} = {}, ", verdicts.nic.total)?;
        write!(
            f,
            "cells {cell_rx} = {}, dropped {reasons:?}, refused {refusals:?}",
            verdicts.cell.total
        )
    }
}

/// What one hook counted between two moments.
struct Hook {
    name: &'static str,
    verdicts: [Verdicts; 2],
    received: u64,
    reasons: u64,
    refusals: u64,
}

impl Hook {
    fn ensure_balanced(&self) -> Result<()> {
        let Self {
            name,
            verdicts: [now, then],
            received,
            reasons,
            refusals,
        } = self;
        for verdicts in [now, then] {
            let sum = verdicts.sum();
            ensure!(
                sum == verdicts.total,
                "{name}: verdicts {sum}, total {}",
                verdicts.total
            );
        }
        let counted = now
            .total
            .checked_sub(then.total)
            .context("a total went backwards")?;
        ensure!(
            counted == *received,
            "{name}: verdicts {counted}, drivers {received}\nnow {now:?}\nthen {then:?}",
        );
        let dropped = now.dropped - then.dropped;
        ensure!(
            dropped == *reasons,
            "{name}: dropped {dropped}, with a reason {reasons}"
        );
        let refused = now.refused - then.refused;
        ensure!(
            refused == *refusals,
            "{name}: refused {refused}, with a reason {refusals}"
        );
        Ok(())
    }
}
