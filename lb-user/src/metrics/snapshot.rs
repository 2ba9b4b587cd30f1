//! One look at everything that is counted, as rows.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use anyhow::Result;
use lb_common::{
    conntrack::FlowState,
    maps::{MAX_NETWORKS, quota, usage},
    verdict::{
        Counters, DropReason, HELLO_ENDS, Hook, MTU_RAISED, UNREPORTED, UNRESTED, Verdict, counter,
        refusal_slot,
    },
};

use super::{
    answered::Answered,
    counts::{CountRows, HighMarks},
    process::{self, ProcessReading, ThreadTimes},
    report::ControlReport,
    rising::{Rising, Width},
    rows::{
        AnsweredRow, BackendRow, BuildRow, ClusterRow, FramesRow, HaRow, HelloRow, InstanceRow,
        InterfaceRow, NetworkRow, OutcomeRow, PoolRow, QuotaRow, ReasonRow, ReloadRow, RequestRow,
        RingRow, ServiceRow, SharedRow, SnatRow, ThreadRow,
    },
};
use crate::{
    api::ServiceStats,
    config::{self, Config, Network},
    dataplane::readings::Readings,
    model::{
        names::AppliedNames,
        registry::{Ids, Kind},
        snat::{self, SnatSlot, SnatUse},
    },
};

/// Frames of no network.
const NO_NETWORK: &str = "-";
/// The most characters of a reason; see [`reason`].
const MAX_REASON: usize = 40;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct MetricsSnapshot {
    pub(super) build: Vec<BuildRow>,
    pub(super) instance: Vec<InstanceRow>,
    pub(super) reloads: Vec<ReloadRow>,
    pub(super) clusters: Vec<ClusterRow>,
    pub(super) ha: Vec<HaRow>,
    pub(super) networks: Vec<NetworkRow>,
    pub(super) rings: Vec<RingRow>,
    pub(super) quotas: Vec<QuotaRow>,
    pub(super) frames: Vec<FramesRow>,
    pub(super) hellos: Vec<HelloRow>,
    pub(super) reasons: Vec<ReasonRow>,
    pub(super) snat: Vec<SnatRow>,
    pub(super) services: Vec<ServiceRow>,
    pub(super) pools: Vec<PoolRow>,
    pub(super) backends: Vec<BackendRow>,
    pub(super) shared: Vec<SharedRow>,
    pub(super) outcomes: Vec<OutcomeRow>,
    pub(super) requests: Vec<RequestRow>,
    pub(super) interfaces: Vec<InterfaceRow>,
    pub(super) threads: Vec<ThreadRow>,
    pub(super) answered: Vec<AnsweredRow>,
    pub(super) counts: CountRows,
}

/// What looks are made with: from one to the next, counters that may fall are followed.
pub(crate) struct Looks {
    readings: Readings,
    answered: Arc<Answered>,
    threads: ThreadTimes,
    syns: Rising<3>,
    transitions: Rising<1>,
    rings: Rising<1>,
    marks: HighMarks,
}

impl Looks {
    /// By these maps.
    pub(crate) fn new(readings: Readings, answered: Arc<Answered>) -> Self {
        Self {
            readings,
            answered,
            threads: ThreadTimes::default(),
            syns: Rising::new(Width::Bits32),
            transitions: Rising::new(Width::Bits64),
            rings: Rising::new(Width::Bits64),
            marks: HighMarks::default(),
        }
    }

    /// Looks at everything.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a look-up.
    pub(super) fn look(
        &mut self,
        report: &ControlReport,
        responds: bool,
    ) -> Result<MetricsSnapshot> {
        let begun = Instant::now();
        let AppliedNames { config, ids } = &*report.names;
        let mut snapshot = MetricsSnapshot {
            build: vec![BuildRow {
                version: env!("CARGO_PKG_VERSION"),
            }],
            reloads: reloads(report),
            clusters: clusters(report),
            ha: ha(report),
            quotas: self.quotas(config, ids),
            snat: self.snat(config, ids)?,
            services: self.services(config, ids),
            pools: pools(report),
            backends: self.backends(report),
            interfaces: interfaces(config),
            threads: self.threads.read(),
            answered: self.answered(),
            ..MetricsSnapshot::default()
        };
        self.networks(report, &mut snapshot)?;
        self.verdicts(ids, &mut snapshot)?;
        for (service, counted) in &report.status.shared {
            add_shared(service, counted, &mut snapshot);
        }
        if let Some(table) = &self.readings.counts {
            snapshot.counts = self.marks.look(table, &self.readings.flows, report);
        }
        self.syns.forget_others();
        self.transitions.forget_others();
        self.rings.forget_others();
        let read_seconds = begun.elapsed().as_secs_f64();
        snapshot.instance = vec![instance(report, responds, read_seconds)];
        Ok(snapshot)
    }

    fn answered(&self) -> Vec<AnsweredRow> {
        let rows = self.answered.read().map(|(status, count)| AnsweredRow {
            code: status.as_str().to_owned(),
            count,
        });
        rows.collect()
    }

    fn networks(&mut self, report: &ControlReport, snapshot: &mut MetricsSnapshot) -> Result<()> {
        let AppliedNames { config, ids } = &*report.names;
        for network in &config.networks {
            let Some(id) = id_of(ids, Kind::Network, &network.name) else {
                continue;
            };
            let counters = self.readings.counters(Hook::Nic, id)?;
            let flows = self.readings.usage.owners().get(usage::network(id));
            snapshot
                .networks
                .push(network_row(network, report, &counters, live(flows)));
            for (protocol, is_udp) in [("tcp", false), ("udp", true)] {
                if let Some(ring) = self.readings.ring(id, is_udp)? {
                    let name = format!("{}/{protocol}", network.name);
                    let [taken] = self.rings.follow(&name, id.into(), [ring.taken]);
                    snapshot.rings.push(RingRow {
                        network: network.name.clone(),
                        protocol,
                        places: ring.places,
                        taken,
                        is_flooded: ring.is_flooded,
                    });
                }
            }
        }
        Ok(())
    }

    fn quotas(&self, config: &Config, ids: &Ids) -> Vec<QuotaRow> {
        let quotas = self.readings.usage.quotas();
        let rows = config::quotas(config).into_iter().filter_map(|of| {
            let network = id_of(ids, Kind::Network, of.network)?;
            let backends = id_of(ids, Kind::Network, of.backends)?;
            let found = quotas.get(quota::index(network, quota::bank(backends, of.ipv6)));
            Some(QuotaRow {
                network: of.network.to_owned(),
                backend_network: of.backends.to_owned(),
                family: if of.ipv6 { "ipv6" } else { "ipv4" },
                flows: usage::live(found.live),
                most: Some(found.most).filter(|most| *most != 0),
            })
        });
        rows.collect()
    }

    /// Network 0, where frames of no network are counted, and every network that has an id.
    fn verdicts(&self, ids: &Ids, snapshot: &mut MetricsSnapshot) -> Result<()> {
        let known = ids
            .of(Kind::Network)
            .filter(|(_, id)| *id < MAX_NETWORKS)
            .filter_map(|(name, id)| Some((name, u16::try_from(id).ok()?)));
        for (name, id) in [(NO_NETWORK, 0)].into_iter().chain(known) {
            for hook in Hook::ALL {
                let counters = self.readings.counters(hook, id)?;
                add_verdicts(name, hook, &counters, snapshot);
            }
        }
        Ok(())
    }

    /// Addresses that are listed with several ranges of ports are one.
    fn snat(&self, config: &Config, ids: &Ids) -> Result<Vec<SnatRow>> {
        let mut rows = BTreeMap::<_, SnatRow>::new();
        for (name, id) in ids.of(Kind::Snat) {
            let Some((network, snat)) = snat::parse_name(name) else {
                continue;
            };
            let slot = SnatSlot::new(u16::try_from(id.saturating_sub(1))?, snat, ids);
            let state = match SnatUse::of(config.network(network), &snat) {
                SnatUse::InUse => "in_use",
                SnatUse::Peer => "peer",
                SnatUse::Draining => "draining",
            };
            let used = slot.flow_ids().filter(|id| {
                let word = self.readings.flows.word(*id);
                !word.is_some_and(FlowState::claimable)
            });
            let row = rows.entry((network, snat.address, state)).or_default();
            row.network = network.to_owned();
            row.address = snat.address.to_string();
            row.state = state;
            row.ports += u64::from(snat.ports);
            row.used += used.map(|_| 1).sum::<u64>();
        }
        Ok(rows.into_values().collect())
    }

    fn services(&self, config: &Config, ids: &Ids) -> Vec<ServiceRow> {
        let owners = self.readings.usage.owners();
        let rows = config.services.iter().map(|service| {
            let id = id_of(ids, Kind::Service, &service.name);
            ServiceRow {
                service: service.name.clone(),
                network: service.network.clone(),
                flows: live(id.and_then(|id| owners.get(usage::service(id)))),
                max_flows: service.max_flows,
            }
        });
        rows.collect()
    }

    /// Those that are configured: others may have had the same name.
    fn backends(&mut self, report: &ControlReport) -> Vec<BackendRow> {
        let configured = report.status.backends.iter().filter(|one| !one.retired);
        let mut rows = Vec::with_capacity(report.status.backends.len());
        let mut key = String::new();
        for backend in configured {
            key.clear();
            key.extend([&backend.pool, "/", &backend.name]);
            let answers = self.readings.answers.as_ref();
            let syns = answers.map(|answers| {
                let counted = answers.get(backend.id);
                let raw = [counted.unanswered, counted.refused, counted.redispatched];
                self.syns.follow(&key, backend.id, raw.map(u64::from))
            });
            let [transitions] = self
                .transitions
                .follow(&key, backend.id, [backend.transitions]);
            rows.push(BackendRow {
                pool: backend.pool.clone(),
                backend: backend.name.clone(),
                up: backend.is_up(),
                is_out: backend.is_out(),
                effective_weight: backend.effective_weight,
                flows: live(self.readings.usage.backends().get(backend.id)),
                transitions,
                check_ms: backend.last.as_ref().map(|last| last.took_ms),
                syns,
            });
        }
        rows
    }
}

fn instance(report: &ControlReport, control_responds: bool, read_seconds: f64) -> InstanceRow {
    let ControlReport {
        status, waiting, ..
    } = report;
    InstanceRow {
        control_responds,
        generation: status.config.generation,
        config_age_seconds: status.config.age_seconds,
        is_stale: status.config.stale.is_some(),
        is_unconfirmed: status.config.confirm_seconds.is_some(),
        first_checks: waiting.first_checks,
        cuts: waiting.cuts,
        drains: waiting.drains,
        unmended: status.wrong.len(),
        retired_backends: status.backends.iter().filter(|one| one.retired).count(),
        read_seconds,
        process: ProcessReading::now(),
    }
}

fn reloads(report: &ControlReport) -> Vec<ReloadRow> {
    let counts = report.reloads;
    let rows = [
        ("applied", counts.applied),
        ("refused", counts.refused),
        ("rolled_back", counts.rolled_back),
    ];
    let rows = rows.map(|(result, count)| ReloadRow { result, count });
    rows.into()
}

fn ha(report: &ControlReport) -> Vec<HaRow> {
    let rows = report.ha.iter().map(|status| HaRow {
        peer: status.peer.clone(),
        status: status.clone(),
    });
    rows.collect()
}

fn clusters(report: &ControlReport) -> Vec<ClusterRow> {
    let clusters = report.status.kubernetes.iter();
    let rows = clusters.map(|(name, cluster)| ClusterRow {
        cluster: name.clone(),
        age_seconds: cluster.age_seconds,
    });
    rows.collect()
}

fn network_row(
    network: &Network,
    report: &ControlReport,
    counters: &Counters,
    flows: u32,
) -> NetworkRow {
    let interface = report.status.interfaces.get(&network.name);
    let divided = report.status.divided.get(&network.name);
    NetworkRow {
        network: network.name.clone(),
        flows,
        max_flows: network.max_flows,
        carrier: interface.map(|interface| interface.carrier),
        native: interface.map(|interface| interface.mode == "native"),
        unreachable: interface.map_or(0, |interface| interface.unreachable.len()),
        unrested: counter(counters, UNRESTED),
        unreported: counter(counters, UNREPORTED),
        mtu_raised: counter(counters, MTU_RAISED),
        descriptors: divided.map(|divided| divided.descriptors),
        flow_ports: divided.map(|divided| divided.flow_ports),
        leg_ports: divided.map(|divided| divided.leg_ports),
    }
}

fn pools(report: &ControlReport) -> Vec<PoolRow> {
    let counts = report.status.pools();
    let down = report.status.services_down();
    let rows = report.names.config.pools.iter().map(|pool| {
        let count = counts.get(pool.name.as_str()).copied().unwrap_or_default();
        PoolRow {
            pool: pool.name.clone(),
            network: pool.network.clone(),
            up: count.up,
            of: count.of,
            service_down: down.contains(pool.name.as_str()),
        }
    });
    rows.collect()
}

fn interfaces(config: &Config) -> Vec<InterfaceRow> {
    let names = config.networks.iter();
    let names: Vec<&str> = names.map(|network| network.interface.as_str()).collect();
    process::interfaces(&names)
}

/// The verdicts of a hook and a network, in the words of `lb status`.
fn add_verdicts(network: &str, hook: Hook, counters: &Counters, snapshot: &mut MetricsSnapshot) {
    let count = |verdict: Verdict| counter(counters, verdict.slot());
    let (mut dropped, mut refused) = (0, 0);
    for &reason in DropReason::ALL {
        let row = ReasonRow {
            network: network.to_owned(),
            hook: hook.label(),
            reason: reason.label(),
            dropped: count(Verdict::Dropped(reason)),
            answered: counter(counters, refusal_slot(reason as u32, true)),
        };
        dropped += row.dropped;
        refused += row.answered;
        if row.dropped + row.answered > 0 {
            snapshot.reasons.push(row);
        }
    }
    let transmitted = count(Verdict::Transmitted) + count(Verdict::Returned);
    let verdicts = [
        ("passed", count(Verdict::Passed)),
        ("transmitted", transmitted),
        ("forwarded", count(Verdict::Forwarded)),
        ("delivered", count(Verdict::Delivered)),
        ("consumed", count(Verdict::Consumed)),
        ("dropped", dropped),
        ("refused", refused),
    ];
    let rows = verdicts.map(|(verdict, count)| FramesRow {
        network: network.to_owned(),
        hook: hook.label(),
        verdict,
        count,
    });
    snapshot.frames.extend(rows);
    let hellos = HELLO_ENDS.map(|(slot, end)| HelloRow {
        network: network.to_owned(),
        end,
        count: counter(counters, slot),
    });
    let hellos = hellos.into_iter().filter(|row| row.count > 0);
    snapshot.hellos.extend(hellos);
}

/// What became of the clients of a shared VIP. The names that they requested are no labels.
fn add_shared(service: &str, counted: &ServiceStats, snapshot: &mut MetricsSnapshot) {
    let service = || service.to_owned();
    snapshot.shared.push(SharedRow {
        service: service(),
        accepted: counted.accepted,
        routed: counted.routed,
        redispatched: counted.redispatched,
        ech: counted.ech,
        requests_routed: counted.requests.routed,
    });
    let outcome = |outcome, (why, count): (&String, &u64)| OutcomeRow {
        service: service(),
        outcome,
        reason: reason(why),
        count: *count,
    };
    snapshot.outcomes.push(OutcomeRow {
        service: service(),
        outcome: "bound",
        reason: String::new(),
        count: counted.bound,
    });
    snapshot.outcomes.push(OutcomeRow {
        service: service(),
        outcome: "handed_over",
        reason: String::new(),
        count: counted.handed_over,
    });
    let copied = counted.copied.iter().map(|one| outcome("copied", one));
    snapshot.outcomes.extend(copied);
    let refused = counted.refused.iter().map(|one| outcome("refused", one));
    snapshot.outcomes.extend(refused);
    let requests = counted.requests.refused.iter();
    let requests = requests.map(|(why, refused)| RequestRow {
        service: service(),
        reason: reason(why),
        refused: *refused,
    });
    snapshot.requests.extend(requests);
}

/// A reason is a word of `lb`, with underscores; whatever is none is not let into a label.
fn reason(word: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_reason = word.len() <= MAX_REASON && word.bytes().all(is_word);
    if is_reason { word } else { "other" }.to_owned()
}

pub(super) fn id_of(ids: &Ids, kind: Kind, name: &str) -> Option<u16> {
    ids.get(kind, name).and_then(|id| u16::try_from(id).ok())
}

/// Flows in full use; none where there is no such count.
fn live(count: Option<u32>) -> u32 {
    usage::live(count.unwrap_or_default())
}

#[cfg(test)]
mod tests;
