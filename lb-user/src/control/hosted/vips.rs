//! Which VIP each hosted cluster has. A choice is kept by name: names of DNS lead to it.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::ErrorKind,
    net::IpAddr,
    path::Path,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{
    config::{Config, HostedCluster, Network, VipRange},
    system::files::change_beside,
};

/// The file, in the state folder.
const FILE: &str = "vips.json";

/// By hosted cluster, in words, the VIP that was chosen last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::control) struct VipChoices {
    chosen: BTreeMap<String, IpAddr>,
    /// Whether the active box has chosen, whatever was applied here.
    #[serde(skip)]
    is_of_active: bool,
}

/// Addresses that are no choice.
pub(super) struct Taken {
    /// Something in the file listens or is announced there.
    by_file: HashSet<IpAddr>,
    by_hosted: HashSet<IpAddr>,
}

impl Taken {
    /// What a configuration without hosted clusters has, and these.
    pub(super) fn of(config: &Config, hosted: &[HostedCluster]) -> Self {
        let services = config.services.iter();
        let vips = services.flat_map(|service| service.listen.iter().map(|one| one.address));
        let networks = config.networks.iter();
        let checks = networks.clone().flat_map(Network::all_checks_from);
        let snat = networks.flat_map(|network| network.all_snat().map(|one| one.address));
        let marker = config.ha.iter().map(|ha| ha.marker);
        let clusters = config.kubernetes.iter();
        let statuses =
            clusters.flat_map(|cluster| cluster.load_balancers.iter().map(|one| one.vip));
        let own = snat.chain(checks).chain(marker);
        Self {
            by_file: vips.chain(own).chain(statuses).collect(),
            by_hosted: hosted.iter().map(|one| one.vip).collect(),
        }
    }
}

impl VipChoices {
    /// What is in a state folder; nothing where that cannot be read, which is logged.
    pub(in crate::control) fn load(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::default(),
            text => text,
        };
        let read = text
            .context("read it")
            .and_then(|text| serde_json::from_slice(&text).context("read it as JSON"));
        read.unwrap_or_else(|error| {
            tracing::error!(
                "{}: {error:#}; hosted clusters keep the VIPs that were applied last, and others get new ones",
                path.display()
            );
            Self::default()
        })
    }

    /// Writes it into a state folder, whole or not at all.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the one before stays.
    pub(in crate::control) fn save(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).context("write VIPs of hosted clusters as JSON")?;
        let path = folder.join(FILE);
        match change_beside(&path, &text)? {
            Some(beside) => beside.put(&path),
            None => Ok(()),
        }
    }

    /// All of them.
    pub(in crate::control) const fn all(&self) -> &BTreeMap<String, IpAddr> {
        &self.chosen
    }

    /// The active box has chosen these: a hosted cluster that only this box knows has another one. Whether any is new.
    pub(in crate::control) fn take_in(&mut self, theirs: &BTreeMap<String, IpAddr>) -> bool {
        let before = self.chosen.clone();
        let vips: HashSet<&IpAddr> = theirs.values().collect();
        self.chosen.retain(|_, vip| !vips.contains(vip));
        self.chosen.extend(theirs.clone());
        self.is_of_active = true;
        self.chosen != before
    }

    /// The VIP of a hosted cluster: the one that it `had`, or was chosen for it before; else the first one of the ranges that
    /// nothing has; else that of a hosted cluster that is no more.
    pub(super) fn choose(
        &mut self,
        cluster: &str,
        had: Option<IpAddr>,
        ranges: &[VipRange],
        taken: &mut Taken,
    ) -> Option<IpAddr> {
        let is_in = |vip: &IpAddr| {
            let mut ranges = ranges.iter();
            ranges.any(|range| {
                (range.first..=range.last).contains(vip) && range.first.is_ipv4() == vip.is_ipv4()
            })
        };
        let chosen = self.chosen.get(cluster).copied();
        let before = had.filter(|_| !self.is_of_active).or(chosen);
        let before = before.filter(|vip| is_in(vip) && !taken.by_hosted.contains(vip));
        let vip = before.or_else(|| self.free(cluster, ranges, taken))?;
        taken.by_hosted.insert(vip);
        self.chosen.insert(cluster.to_owned(), vip);
        Some(vip)
    }

    fn free(&mut self, cluster: &str, ranges: &[VipRange], taken: &Taken) -> Option<IpAddr> {
        // One that is written alone is meant, whatever else is there at other ports.
        let addresses = ranges.iter().flat_map(|range| {
            let is_alone = range.first == range.last;
            let is_free = move |vip: &IpAddr| is_alone || !taken.by_file.contains(vip);
            range.addresses().filter(is_free)
        });
        let mut free = addresses.filter(|vip| !taken.by_hosted.contains(vip));
        let is_reserved = |vip: &IpAddr| {
            let mut others = self.chosen.iter().filter(|(name, _)| *name != cluster);
            others.any(|(_, chosen)| chosen == vip)
        };
        let first = free.clone().find(|vip| !is_reserved(vip));
        let vip = first.or_else(|| free.next())?;
        self.chosen.retain(|_, chosen| *chosen != vip);
        Some(vip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vip(last: u8) -> IpAddr {
        IpAddr::from([192, 168, 203, last])
    }

    fn range(first: u8, last: u8) -> VipRange {
        VipRange {
            first: vip(first),
            last: vip(last),
        }
    }

    fn taken(by_file: &[u8]) -> Taken {
        Taken {
            by_file: by_file.iter().map(|last| vip(*last)).collect(),
            by_hosted: HashSet::new(),
        }
    }

    #[test]
    fn each_name_keeps_the_first_address_that_was_free() {
        let mut choices = VipChoices::default();
        let ranges = [range(120, 123)];
        let mut now = taken(&[121]);
        assert_eq!(choices.choose("a", None, &ranges, &mut now), Some(vip(120)));
        assert_eq!(choices.choose("b", None, &ranges, &mut now), Some(vip(122)));
        // Though an earlier one is free now.
        let mut now = taken(&[]);
        assert_eq!(choices.choose("b", None, &ranges, &mut now), Some(vip(122)));
        assert_eq!(choices.choose("c", None, &ranges, &mut now), Some(vip(121)));
        // What runs has what it has.
        let mut now = taken(&[]);
        assert_eq!(
            choices.choose("b", Some(vip(123)), &ranges, &mut now),
            Some(vip(123))
        );
        // Another range is another choice.
        assert_eq!(
            choices.choose("b", Some(vip(123)), &[range(130, 130)], &mut now),
            Some(vip(130))
        );
    }

    #[test]
    fn an_address_of_one_that_is_gone_is_taken_last() {
        let mut choices = VipChoices::default();
        let ranges = [range(120, 121)];
        let choose = |choices: &mut VipChoices, names: &[&str]| -> Vec<Option<IpAddr>> {
            let mut now = taken(&[]);
            let all = names.iter();
            all.map(|name| choices.choose(name, None, &ranges, &mut now))
                .collect()
        };
        assert_eq!(choose(&mut choices, &["a"]), [Some(vip(120))]);
        assert_eq!(choose(&mut choices, &["b"]), [Some(vip(121))]);
        assert_eq!(
            choose(&mut choices, &["b", "c"]),
            [Some(vip(121)), Some(vip(120))]
        );
        assert_eq!(
            choose(&mut choices, &["b", "c", "a"]),
            [Some(vip(121)), Some(vip(120)), None]
        );
        assert_eq!(
            choose(&mut choices, &["a", "b"]),
            [Some(vip(120)), Some(vip(121))]
        );
    }

    /// One that only this box knows makes way, and what it had does not count.
    #[test]
    fn a_standby_chooses_as_the_active_box_does() {
        let mut choices = VipChoices::default();
        let ranges = [range(120, 129)];
        let choose = |choices: &mut VipChoices| {
            let mut now = taken(&[]);
            ["a", "b", "c"].map(|name| {
                let had = choices.all().get(name).copied();
                choices.choose(name, had.or_else(|| Some(vip(120))), &ranges, &mut now)
            })
        };
        let first = choose(&mut choices);
        assert_eq!(first, [120, 121, 122].map(|last| Some(vip(last))));
        let theirs = [("b", 120), ("c", 125)].map(|(name, last)| (name.to_owned(), vip(last)));
        let theirs = BTreeMap::from(theirs);
        assert!(choices.take_in(&theirs));
        let after = choose(&mut choices);
        assert_eq!(after, [121, 120, 125].map(|last| Some(vip(last))));
        assert!(!choices.take_in(&theirs), "all are there");
        assert_eq!(choose(&mut choices), after);
    }

    #[test]
    fn a_single_address_is_shared_with_the_file_and_choices_are_read_again() {
        let mut choices = VipChoices::default();
        let mut now = taken(&[120]);
        assert_eq!(
            choices.choose("a", None, &[range(120, 120)], &mut now),
            Some(vip(120))
        );
        assert_eq!(
            choices.choose("b", None, &[range(120, 120)], &mut now),
            None
        );
        let folder = tempfile::tempdir().unwrap();
        choices.save(folder.path()).unwrap();
        assert_eq!(VipChoices::load(folder.path()), choices);
        assert_eq!(
            VipChoices::load(&folder.path().join("none")),
            VipChoices::default()
        );
    }
}
