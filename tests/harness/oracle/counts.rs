//! What the data plane of an instance has counted, which goes on over every control plane.

use std::{collections::BTreeMap, iter};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    maps::half_open::{self, HEAD},
    verdict::{
        DropReason, HELLO_ENDS, Hook, MTU_RAISED, UNREPORTED, UNRESTED, Verdict, counter,
        refusal_slot,
    },
};
use lb_user::{
    control::apply::read_ids,
    dataplane::{maps::Maps, pins::Pins},
    model::registry::Kind,
};

/// Counts by what was counted: `nic tenant-a dropped no_service`, `nic tenant-a total`.
#[derive(Clone, Debug)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Each verdict, each reason and the total, of each network at each hook; and the places that were
    /// taken of its rings.
    ///
    /// # Errors
    ///
    /// When the instance is not up.
    pub fn of(instance: &str) -> Result<Self> {
        let maps = Maps::open(&Pins::new(instance).maps())?;
        let ids = read_ids(&maps)?;
        let mut counts = Self(BTreeMap::new());
        for (network, id) in iter::once(("-", 0)).chain(ids.of(Kind::Network)) {
            let id = u16::try_from(id)?;
            for hook in Hook::ALL {
                counts.add_hook(&maps, (network, id), hook)?;
            }
            for (name, udp) in [("half_open", false), ("udp_flows", true)] {
                let ring = maps.ring(half_open::index(id, udp))?.unwrap_or_default();
                let taken = ring.get(usize::try_from(HEAD)?).copied();
                counts.add(format!("{network} {name}"), taken.unwrap_or_default());
            }
        }
        Ok(counts)
    }

    fn add_hook(&mut self, maps: &Maps, (network, id): (&str, u16), hook: Hook) -> Result<()> {
        let place = format!("{} {network}", hook.label());
        let counters = maps.counters(hook, id)?;
        let mut total = 0;
        for (name, slot) in verdicts() {
            let count = counter(&counters, slot);
            total += count;
            self.add(format!("{place} {name}"), count);
        }
        self.add(format!("{place} total"), total);
        for (name, slot) in [
            ("unrested", UNRESTED),
            ("unreported", UNREPORTED),
            ("icmp_floor", MTU_RAISED),
        ]
        .into_iter()
        .chain(HELLO_ENDS.map(|(slot, end)| (end, slot)))
        {
            self.add(format!("{place} {name}"), counter(&counters, slot));
        }
        Ok(())
    }

    fn add(&mut self, name: String, count: u64) {
        self.0.insert(name, count);
    }

    /// One of them.
    ///
    /// # Errors
    ///
    /// When nothing has this name.
    pub fn get(&self, name: &str) -> Result<u64> {
        let count = self.0.get(name).copied();
        count.with_context(|| format!("nothing counts {name}"))
    }

    /// Fails if one of them is gone, or less than it was.
    ///
    /// # Errors
    ///
    /// With all of these.
    pub fn ensure_not_less(&self, before: &Self) -> Result<()> {
        let less: Vec<String> = before
            .0
            .iter()
            .map(|(name, before)| (name, before, self.0.get(name)))
            .filter(|(_, before, now)| now.is_none_or(|now| now < before))
            .map(|(name, before, now)| format!("{name}: {before}, then {now:?}"))
            .collect();
        ensure!(less.is_empty(), "counts have gone back: {less:#?}");
        Ok(())
    }
}

/// What may become of a packet, each with the slot of its counter.
fn verdicts() -> impl Iterator<Item = (String, u32)> {
    let verdicts = [
        ("passed", Verdict::Passed),
        ("transmitted", Verdict::Transmitted),
        ("forwarded", Verdict::Forwarded),
        ("delivered", Verdict::Delivered),
        ("returned", Verdict::Returned),
        ("consumed", Verdict::Consumed),
    ];
    let verdicts = verdicts.map(|(name, verdict)| (name.to_owned(), verdict.slot()));
    let reasons = DropReason::ALL.iter().flat_map(|&reason| {
        let (label, number) = (reason.label(), reason as u32);
        [("dropped", false), ("refused", true)]
            .map(|(what, answered)| (format!("{what} {label}"), refusal_slot(number, answered)))
    });
    verdicts.into_iter().chain(reasons)
}
