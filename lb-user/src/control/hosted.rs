//! The hosted clusters that hubs have, in the configuration that wants them.

mod vips;

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::Value;

use self::vips::Taken;
pub(super) use self::vips::VipChoices;
use crate::{
    config::{self, Backend, Config, HostedCluster, HostedClusters, KubernetesCluster, Pool},
    sources::kubernetes::FoundHosted,
};

/// A configuration with hosted clusters, and what is to be known of them.
#[derive(Debug)]
pub(super) struct WithHosted {
    pub(super) config: Config,
    /// The VIPs of all that have been there.
    pub(super) vips: VipChoices,
    /// What was left out, a line each.
    pub(super) refused: BTreeSet<String>,
    /// Hosted clusters that stay though their hub has them no more, a line each.
    pub(super) held: BTreeSet<String>,
}

/// Puts the hosted clusters that `found` has of a hub into a configuration: those that it has now, or, where nothing is known
/// of the hub, those of the configuration `before`. One that is gone stays as long as a backend of it `serves`.
pub(super) fn with_hosted(
    config: &Config,
    before: &Config,
    vips: &VipChoices,
    found: impl Fn(&KubernetesCluster) -> Option<Vec<FoundHosted>>,
    serves: impl Fn(&Pool, &Backend) -> bool,
) -> WithHosted {
    let mut all = WithHosted {
        config: config.without_hosted(),
        vips: vips.clone(),
        refused: BTreeSet::new(),
        held: BTreeSet::new(),
    };
    let mut found_now = Vec::new();
    let mut wanted = Vec::new();
    for hub in &config.kubernetes {
        let mut known: Vec<&HostedCluster> = (before.hosted.iter())
            .filter(|one| one.hub == hub.name && selected(hub, one).is_some())
            .collect();
        if let Some(now) = found(hub) {
            known.retain(|one| now.iter().all(|found| found.name != one.name));
            known.retain(|one| stays(one, before, &serves));
            let held = known
                .iter()
                .map(|one| format!("{one}: it is gone there; it stays until its checks fail"));
            all.held.extend(held);
            found_now.extend(now.into_iter().map(|one| (hub, one)));
        }
        wanted.extend(known.into_iter().cloned());
    }
    found_now.sort_by(|(_, one), (_, other)| {
        (&one.created, &one.name).cmp(&(&other.created, &other.name))
    });
    let mut taken = Taken::of(&all.config, &wanted);
    for (hub, found) in found_now {
        let choice = choose(&mut all, hub, &found, before, &mut taken);
        wanted.extend(choice);
    }
    wanted.sort_by(|one, other| (&one.created, &one.name).cmp(&(&other.created, &other.name)));
    all.put(before, wanted);
    all
}

/// The entry for a hosted cluster.
fn selected<'h>(hub: &'h KubernetesCluster, one: &HostedCluster) -> Option<&'h HostedClusters> {
    let mut all = hub.hosted_clusters.iter();
    all.find(|entry| entry.of.has(&one.name))
}

/// Whether one that is gone has a backend that serves.
fn stays(gone: &HostedCluster, before: &Config, serves: impl Fn(&Pool, &Backend) -> bool) -> bool {
    let pools = before.pools.iter();
    let mut pools = pools.filter(|pool| gone.has(pool.hosted.as_ref()));
    pools.any(|pool| pool.backends.iter().any(|backend| serves(pool, backend)))
}

/// A hosted cluster with the VIP that it has.
fn choose(
    all: &mut WithHosted,
    hub: &KubernetesCluster,
    found: &FoundHosted,
    before: &Config,
    taken: &mut Taken,
) -> Option<HostedCluster> {
    let of = (hub.hosted_clusters.iter()).find(|entry| entry.of.has(&found.name))?;
    let mut one = HostedCluster {
        hub: hub.name.clone(),
        name: found.name.clone(),
        created: found.created.clone(),
        vip: IpAddr::from([0; 4]),
        load_balancers: found.load_balancers(),
        entry: Value::Null,
    };
    let lines = found.refused.iter().map(|words| format!("{one}: {words}"));
    all.refused.extend(lines);
    let had = before
        .hosted
        .iter()
        .find(|had| had.to_string() == one.to_string());
    let Some(vip) = all
        .vips
        .choose(&one.to_string(), had.map(|had| had.vip), &of.vips, taken)
    else {
        let ranges: Vec<String> = of.vips.iter().map(ToString::to_string).collect();
        all.refused
            .insert(format!("{one}: no VIP is left of {}", ranges.join(", ")));
        return None;
    };
    one.vip = vip;
    one.entry = found.entry(&hub.name, of, vip, all.config.cluster_defaults.as_ref());
    if let Some(had) = had.filter(|had| had.vip == vip) {
        keep_waiting(&mut one.entry, &had.entry, &found.waiting);
    }
    Some(one)
}

/// A part whose Service or Route is away for a moment, or that is published in an unknown way now, stays as it was.
fn keep_waiting(entry: &mut Value, had: &Value, waiting: &[&str]) {
    for part in waiting {
        if had[part].is_object() {
            entry[part] = had[part].clone();
            if entry["routes"].is_null() && had["routes"].is_object() {
                entry["routes"] = had["routes"].clone();
            }
        }
    }
}

impl WithHosted {
    /// Writes the hosted clusters out, unless they are those of `before`.
    fn put(&mut self, before: &Config, wanted: Vec<HostedCluster>) {
        if wanted.is_empty() {
            return;
        }
        let is_same = before.literal() == self.config.literal();
        if is_same && before.hosted == wanted {
            return self.take_from(before);
        }
        match config::with_hosted(&self.config, &before.hosted, wanted) {
            Ok((config, refused)) => {
                self.config = config;
                self.refused.extend(refused);
            }
            Err(words) => {
                self.refused.insert(format!("all HostedClusters: {words}"));
                if is_same {
                    self.take_from(before);
                }
            }
        }
    }

    /// Takes the hosted clusters of a configuration that is the same but for discovered backends.
    fn take_from(&mut self, before: &Config) {
        let pools = before.pools.iter().filter(|pool| pool.hosted.is_some());
        let services = before.services.iter();
        let services = services.filter(|service| service.hosted.is_some());
        self.config.pools.extend(pools.cloned());
        self.config.services.extend(services.cloned());
        self.config.hosted.clone_from(&before.hosted);
    }
}

#[cfg(test)]
mod tests;
