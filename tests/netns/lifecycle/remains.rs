//! What a process leaves to the one that controls the data plane next, after a crash and in an upgrade.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::{
        counts::Counts,
        query::{BackendHealth, Drop as DropCount},
    },
    product::{config::Config, lb::Lb},
    topology::Topology,
};

use crate::{
    flows::life::send_without_service,
    health::verdicts::{Site, at_endpoints},
};

/// Where the namespaces of cells are kept.
const CELLS: &str = "/run/netns";
/// Datagrams to where no service listens, in [`disturb`].
pub(crate) const WITHOUT_SERVICE: usize = 5;

/// A configuration with three nodes that are asked, which takes a hundred good answers to come back.
pub(crate) fn config(site: &Site<'_>) -> Config {
    let times = "interval: 1s, timeout: 500ms, fast_interval: 500ms, rise: 100, fall: 2";
    site.config(at_endpoints(times), "")
}

/// Drains the last of the three nodes, gives the first another weight, and has something dropped. The one
/// between is dead already: so the first is the only one that new connections go to, whose name is
/// returned.
pub(crate) fn disturb(lb: &Lb<'_>, topology: &Topology) -> Result<String> {
    let [first, _, last] = [0, 1, 2].map(|node| topology.nodes[node].name);
    lb.tell(&["backend", "drain", last])?.done()?;
    lb.tell(&["backend", "weight", first, "9"])?.done()?;
    send_without_service(topology, WITHOUT_SERVICE)?;
    Ok(first.to_owned())
}

/// What it leaves.
pub(crate) struct Remains<'t> {
    topology: &'t Topology,
    maps: BTreeSet<String>,
    health: Vec<BackendHealth>,
    /// Held, so that no other namespace gets the number of one that goes.
    cells: BTreeMap<String, File>,
    counts: Counts,
    drops: Vec<DropCount>,
}

impl<'t> Remains<'t> {
    /// What is there now.
    pub(crate) fn of(lb: &Lb<'_>, topology: &'t Topology) -> Result<Self> {
        Ok(Self {
            topology,
            maps: lb.maps()?,
            health: health(lb)?,
            cells: cells(topology)?,
            counts: Counts::of(topology.run())?,
            drops: lb.drops()?,
        })
    }

    /// Cells are the same, and what a configuration decides in the maps, ids included; nothing counts anew.
    /// No process is needed for this.
    pub(crate) fn ensure_kept(&mut self, lb: &Lb<'_>) -> Result<()> {
        ensure_same_cells(&self.cells, &cells(self.topology)?)?;
        let maps = lb.maps()?;
        ensure!(
            maps == self.maps,
            "the maps: {:#?}",
            maps.symmetric_difference(&self.maps).collect::<Vec<_>>()
        );
        let counts = Counts::of(self.topology.run())?;
        counts.ensure_not_less(&self.counts)?;
        self.counts = counts;
        let drops = lb.drops()?;
        ensure_drops_go_on(&self.drops, &drops)?;
        self.drops = drops;
        Ok(())
    }

    /// So is what checks have found and what the operator has said, and only that decides who is asked.
    pub(crate) fn ensure_known(&mut self, lb: &Lb<'_>) -> Result<()> {
        let health = health(lb)?;
        ensure!(health == self.health, "{health:#?}, not {:#?}", self.health);
        self.ensure_kept(lb)
    }

    /// What was counted when it was looked at last.
    pub(crate) const fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Verdicts and shares; how often a verdict changed, each process counts for itself.
fn health(lb: &Lb<'_>) -> Result<Vec<BackendHealth>> {
    let mut health = lb.health()?;
    health.iter_mut().for_each(|one| one.transitions = 0);
    Ok(health)
}

/// The namespaces of the cells, by their names.
fn cells(topology: &Topology) -> Result<BTreeMap<String, File>> {
    let prefix = format!("lb.{}.", topology.run());
    let mut cells = BTreeMap::new();
    for entry in fs::read_dir(CELLS).context("list the namespaces")? {
        let entry = entry.context("list the namespaces")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&prefix) {
            cells.insert(name, File::open(entry.path()).context("open a cell")?);
        }
    }
    ensure!(cells.len() == 2, "two cells, not {cells:?}");
    Ok(cells)
}

fn ensure_same_cells(before: &BTreeMap<String, File>, now: &BTreeMap<String, File>) -> Result<()> {
    let numbers = |cells: &BTreeMap<String, File>| -> Result<Vec<(String, u64)>> {
        let numbers = cells.iter().map(|(name, file)| {
            let number = file.metadata().context("look at a cell")?.ino();
            Ok((name.clone(), number))
        });
        numbers.collect()
    };
    let (before, now) = (numbers(before)?, numbers(now)?);
    ensure!(now == before, "other cells: {now:?}, not {before:?}");
    Ok(())
}

/// What `lb drops` said before it says still, with no smaller numbers.
fn ensure_drops_go_on(before: &[DropCount], now: &[DropCount]) -> Result<()> {
    for old in before {
        let key = |drop: &DropCount| [&drop.hook, &drop.network, &drop.reason].map(String::clone);
        let new = now.iter().find(|drop| key(drop) == key(old));
        let goes_on = |new: &DropCount| new.dropped >= old.dropped && new.refused >= old.refused;
        ensure!(new.is_some_and(goes_on), "{old:?}, then {new:?}");
    }
    Ok(())
}
