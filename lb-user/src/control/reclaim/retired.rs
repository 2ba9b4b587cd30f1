//! Ids of what is configured no more: freed when no flow holds them, so that no late packet of an old flow is
//! ever sent to the next owner of the id.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
};

use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        addr6,
        flow::{Flow, TIME_SHIFT},
        network::AddressKey,
    },
};

use crate::{
    config::{Config, Network},
    control::{desired::Desired, plan::Current},
    flows::idle::age,
    model::{
        names::{backend_name, parse_backend},
        registry::{Ids, Kind},
        snat::{parse_name, snat_name},
    },
};

/// Ids that wait for the last flow that refers to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    networks: BTreeSet<u16>,
    services: BTreeSet<u16>,
    pools: BTreeSet<u32>,
    backends: BTreeSet<u32>,
    /// Slots of SNAT addresses whose network still exists: their flows go on.
    draining: BTreeSet<u16>,
    /// Slots of SNAT addresses whose network is gone, and their flows with it.
    gone: BTreeSet<u16>,
    /// Indexes of the labels of addresses. One that a name in the registry has stays as long as that.
    labels: BTreeSet<u32>,
    /// The VIPs: flows of other addresses have no way back any more. None: flows are not judged by it.
    vips: Option<HashSet<AddressKey>>,
}

/// How long a half-open flow may hold what is retired, in units of coarse time: about a minute, and a
/// client tries no longer than that.
const HALF_OPEN: u32 = 57_220;
const _: () = assert!(HALF_OPEN as u64 == 60_000_000_000 >> TIME_SHIFT);

/// What is to be done with an entry of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryJudgement {
    /// It refers to nothing retired.
    Keep,
    /// It is a live flow that holds retired ids.
    Holds,
    /// Its network or VIP is gone, or it never got established: the flow ends, its id is free.
    End,
    /// It is over but still translates: it must not any more.
    Forget,
}

impl Retired {
    /// The ids in `ids` that `config` does not use; `desired` has the VIPs.
    pub fn new(ids: &Ids, config: &Config, desired: &Desired) -> Self {
        let mut retired = Self {
            // What a standby holds back is not gone.
            vips: Some(desired.vips().collect()),
            ..Self::default()
        };
        for (kind, name, id) in ids.unassigned() {
            let short = u16::try_from(id).unwrap_or_default();
            let configured = |network: &str| config.network(network).is_some();
            match kind {
                Kind::Label => drop(retired.labels.insert(id)),
                Kind::Network => drop(retired.networks.insert(short)),
                Kind::Service => drop(retired.services.insert(short)),
                Kind::Pool => drop(retired.pools.insert(id)),
                Kind::Backend => drop(retired.backends.insert(id)),
                Kind::Snat => {
                    let slot = short.saturating_sub(1);
                    match parse_name(name) {
                        Some((network, _)) if configured(network) => retired.draining.insert(slot),
                        _ => retired.gone.insert(slot),
                    };
                }
            }
        }
        retired
    }

    /// The ids in `ids` that none of the maps refers to, before anything is changed, and that `config` does
    /// not have: what an earlier process has retired and not freed. A backend may be configured and in no
    /// table: it drains, or is not ready. Pools are not among them: one may be configured and unused. Flows
    /// whose VIP is gone are left to the cut that follows, which resets both ends.
    pub fn unreferenced(ids: &Ids, config: &Config, current: &Current) -> Self {
        let referred = Referred::new(current);
        let configured = configured(config);
        let mut retired = Self::default();
        let stays =
            |(kind, name, _): &(Kind, &str, u32)| configured.contains(&(*kind, (*name).to_owned()));
        for (kind, name, id) in ids.all().filter(|id| !stays(id)) {
            let short = u16::try_from(id).unwrap_or_default();
            match kind {
                Kind::Label if !referred.labels.contains(&id) => {
                    retired.labels.insert(id);
                }
                Kind::Network if !referred.networks.contains(&id) => {
                    retired.networks.insert(short);
                }
                Kind::Service if !referred.services.contains(&short) => {
                    retired.services.insert(short);
                }
                Kind::Backend if !referred.backends.contains(&id) => {
                    retired.backends.insert(id);
                }
                Kind::Snat if !referred.slots.contains(&short.saturating_sub(1)) => {
                    let network =
                        parse_name(name).and_then(|(name, _)| ids.get(Kind::Network, name));
                    let slot = short.saturating_sub(1);
                    if network.is_some_and(|network| referred.networks.contains(&network)) {
                        retired.draining.insert(slot);
                    } else {
                        retired.gone.insert(slot);
                    }
                }
                _ => {}
            }
        }
        retired
    }

    /// Takes out what the maps refer to: what was retired, and a change that was not completed has again. The
    /// next change that is completed decides what becomes of it.
    pub fn keep(&mut self, current: &Current, ids: &Ids) {
        let Referred {
            networks,
            slots,
            services,
            tables,
            backends,
            labels,
        } = Referred::new(current);
        self.labels.retain(|index| !labels.contains(index));
        self.networks
            .retain(|id| !networks.contains(&u32::from(*id)));
        self.services.retain(|id| !services.contains(id));
        self.pools
            .retain(|id| !ids.tables_of(*id).any(|table| tables.contains(&table)));
        self.backends.retain(|id| !backends.contains(id));
        self.draining.retain(|slot| !slots.contains(slot));
        self.gone.retain(|slot| !slots.contains(slot));
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let Self {
            networks,
            services,
            pools,
            backends,
            draining,
            gone,
            labels,
            vips: _,
        } = self;
        networks.is_empty()
            && services.is_empty()
            && pools.is_empty()
            && backends.is_empty()
            && draining.is_empty()
            && gone.is_empty()
            && labels.is_empty()
    }

    /// `now` is in the unit of the flow's `last_seen`.
    pub(super) fn judge(
        &self,
        word: FlowState,
        flow: &Flow,
        slot: u16,
        now: u32,
    ) -> EntryJudgement {
        let network_is_gone = self.networks.contains(&flow.network) || self.gone.contains(&slot);
        let refers = network_is_gone
            || self.draining.contains(&slot)
            || self.services.contains(&flow.service)
            || self.backends.contains(&flow.backend_id.into());
        // A flow of a VIP that is gone while its service stays is cut, and its ends reset, as with IPv4.
        let has_label = labels_of(flow).any(|index| self.labels.contains(&index));
        let vip = AddressKey::new(flow.vip, flow.network);
        let has_no_vip = self.vips.as_ref().is_some_and(|vips| !vips.contains(&vip));
        let ends = network_is_gone || has_no_vip;
        match word.state() {
            State::Free => EntryJudgement::Keep,
            _ if !refers && !has_label => EntryJudgement::Keep,
            State::Closed | State::Ended => EntryJudgement::Forget,
            // A socket's: its owner ends it, or its lease does.
            State::Claimed | State::Local => EntryJudgement::Holds,
            State::New | State::Replied | State::Established if refers && ends => {
                EntryJudgement::End
            }
            State::New | State::Replied if age(now, flow.last_seen) >= HALF_OPEN => {
                EntryJudgement::End
            }
            State::New | State::Replied | State::Established => EntryJudgement::Holds,
        }
    }

    /// Takes out what a live flow refers to, so that what stays can be freed.
    pub(super) fn release(&mut self, flow: &Flow, slot: u16) {
        self.networks.remove(&flow.network);
        self.services.remove(&flow.service);
        self.backends.remove(&flow.backend_id.into());
        self.draining.remove(&slot);
        self.gone.remove(&slot);
        for index in labels_of(flow) {
            self.labels.remove(&index);
        }
    }

    /// Takes out the labels of addresses that a backend or a SNAT address has which stays.
    pub(super) fn keep_labels(&mut self, ids: &Ids) {
        if self.labels.is_empty() {
            return;
        }
        let backends = ids.of(Kind::Backend);
        let backends = backends.filter(|(_, id)| !self.backends.contains(id));
        let backends = backends.filter_map(|(name, _)| Some(parse_backend(name)?.1));
        let is_free = |id: u32| {
            let slot = u16::try_from(id.saturating_sub(1)).unwrap_or_default();
            self.draining.contains(&slot) || self.gone.contains(&slot)
        };
        let snat = ids.of(Kind::Snat).filter(|(_, id)| !is_free(*id));
        let snat = snat.filter_map(|(name, _)| Some(parse_name(name)?.1.address));
        let stay = backends.chain(snat);
        let stay = stay.filter_map(|address| addr6::index(ids.stands_for(address)?));
        let stay: BTreeSet<u32> = stay.collect();
        self.labels.retain(|index| !stay.contains(index));
    }
}

/// Indexes of the labels that a flow has.
fn labels_of(flow: &Flow) -> impl Iterator<Item = u32> + use<> {
    [flow.vip, flow.backend]
        .into_iter()
        .filter_map(addr6::index)
}

/// What the maps refer to.
struct Referred {
    networks: BTreeSet<u32>,
    slots: BTreeSet<u16>,
    services: BTreeSet<u16>,
    tables: BTreeSet<u32>,
    backends: BTreeSet<u32>,
    labels: BTreeSet<u32>,
}

impl Referred {
    fn new(current: &Current) -> Self {
        let mapped: BTreeSet<u32> = current.network_ids.values().copied().collect();
        let networks = current.networks.iter();
        let networks = networks.filter(|(id, _)| mapped.contains(&u32::from(**id)));
        let slots = networks.flat_map(|(_, network)| {
            let slots: Vec<u8> = network.slots().collect();
            slots.into_iter().map(u16::from)
        });
        let addresses = current.addresses.keys().map(|key| key.address);
        let vips = current.services.keys().map(|key| key.vip);
        let backends = current.backends.values().map(|backend| backend.address);
        let snat = current.snat.values().copied();
        let labels = addresses.chain(vips).chain(backends).chain(snat);
        let services = current.services.values();
        let tables = services.clone().filter(|service| !service.is_of_cell());
        Self {
            slots: slots.collect(),
            services: services.map(|service| service.id).collect(),
            tables: tables.map(|service| service.pool).collect(),
            backends: current.serving(),
            networks: mapped,
            labels: labels.filter_map(addr6::index).collect(),
        }
    }
}

/// The names in the registry of all that a configuration has, but for pools.
fn configured(config: &Config) -> BTreeSet<(Kind, String)> {
    let mut names = BTreeSet::new();
    for network in &config.networks {
        names.insert((Kind::Network, network.name.clone()));
        let snat = network.all_snat();
        names.extend(snat.map(|snat| (Kind::Snat, snat_name(&network.name, snat))));
    }
    for pool in &config.pools {
        let backends = pool.backends.iter();
        names.extend(backends.map(|one| (Kind::Backend, backend_name(pool, one))));
    }
    let services = config.services.iter();
    names.extend(services.map(|service| (Kind::Service, service.name.clone())));
    names.extend(addresses(config).filter_map(|address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some((Kind::Label, address.to_string())),
    }));
    names
}

/// The addresses that records have, but for those of the cells themselves.
fn addresses(config: &Config) -> impl Iterator<Item = IpAddr> {
    let snat = config.networks.iter().flat_map(Network::all_snat);
    let listen = config.services.iter().flat_map(|service| &service.listen);
    let backends = config.pools.iter().flat_map(|pool| &pool.backends);
    let snat = snat.map(|snat| snat.address);
    let listen = listen.map(|listen| listen.address);
    let checks = config.networks.iter().flat_map(|one| &one.checks_from);
    snat.chain(checks.copied())
        .chain(listen)
        .chain(backends.map(|one| one.address))
}

impl Retired {
    /// Kind, name and id of everything in it; networks behind the others, because SNAT addresses name theirs,
    /// and labels last, because all of them have some.
    pub(super) fn names(&self, ids: &Ids) -> Vec<(Kind, String, u32)> {
        let contains = |kind: Kind, id: u32| {
            let short = u16::try_from(id).unwrap_or_default();
            match kind {
                Kind::Label => self.labels.contains(&id),
                Kind::Network => self.networks.contains(&short),
                Kind::Service => self.services.contains(&short),
                Kind::Pool => self.pools.contains(&id),
                Kind::Backend => self.backends.contains(&id),
                Kind::Snat => {
                    let slot = short.wrapping_sub(1);
                    self.draining.contains(&slot) || self.gone.contains(&slot)
                }
            }
        };
        let mut names: Vec<_> = ids
            .all()
            .filter(|&(kind, _, id)| contains(kind, id))
            .map(|(kind, name, id)| (kind, name.to_owned(), id))
            .collect();
        names.sort_by_key(|(kind, _, _)| match kind {
            Kind::Label => 2,
            Kind::Network => 1,
            _ => 0,
        });
        names
    }

    pub(super) fn subtract(&mut self, freed: &Self) {
        self.networks.retain(|id| !freed.networks.contains(id));
        self.services.retain(|id| !freed.services.contains(id));
        self.pools.retain(|id| !freed.pools.contains(id));
        self.backends.retain(|id| !freed.backends.contains(id));
        self.draining.retain(|slot| !freed.draining.contains(slot));
        self.gone.retain(|slot| !freed.gone.contains(slot));
        self.labels.retain(|index| !freed.labels.contains(index));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lb_common::maps::{
        network::{Network, NetworkKey},
        service::{Service, ServiceKey},
    };

    use super::*;

    fn retired() -> Retired {
        Retired {
            networks: BTreeSet::from([2]),
            services: BTreeSet::from([20]),
            pools: BTreeSet::from([30]),
            backends: BTreeSet::from([40]),
            draining: BTreeSet::from([5]),
            gone: BTreeSet::from([6]),
            labels: BTreeSet::from([7]),
            vips: Some(HashSet::from([1, 2].map(|network| AddressKey {
                network,
                ..AddressKey::default()
            }))),
        }
    }

    fn flow(network: u16, service: u16, backend_id: u16) -> Flow {
        Flow {
            network,
            service,
            backend_id,
            ..Flow::default()
        }
    }

    #[test]
    fn only_flows_of_what_is_gone_are_ended() {
        let live = FlowState::default().claim(false).publish();
        let judge = |word, flow: Flow, slot| retired().judge(word, &flow, slot, 1000);
        assert_eq!(judge(live, flow(1, 10, 11), 0), EntryJudgement::Keep);
        assert_eq!(
            judge(live, flow(2, 10, 11), 0),
            EntryJudgement::End,
            "its clients' network"
        );
        assert_eq!(
            judge(live, flow(1, 10, 11), 6),
            EntryJudgement::End,
            "its backends' network"
        );
        for held in [
            (flow(1, 20, 11), 0),
            (flow(1, 10, 40), 0),
            (flow(1, 10, 11), 5),
        ] {
            assert_eq!(judge(live, held.0, held.1), EntryJudgement::Holds);
            assert_eq!(judge(live.close(), held.0, held.1), EntryJudgement::Forget);
            assert_eq!(judge(live.forget(), held.0, held.1), EntryJudgement::Keep);
        }
        let without_vip = Flow {
            vip: Ipv4Addr::new(192, 168, 203, 111).into(),
            ..flow(1, 20, 11)
        };
        assert_eq!(judge(live, without_vip, 0), EntryJudgement::End);
        let at_a_start = Retired {
            vips: None,
            ..retired()
        };
        assert_eq!(
            at_a_start.judge(live, &without_vip, 0, 1000),
            EntryJudgement::Holds,
            "it is cut with a reset"
        );
        let half_open = |now| retired().judge(live, &flow(1, 20, 11), 0, now);
        assert_eq!(half_open(HALF_OPEN - 1), EntryJudgement::Holds);
        assert_eq!(half_open(HALF_OPEN), EntryJudgement::End);
        let claimed = FlowState::default().claim(false);
        assert_eq!(judge(claimed, flow(2, 10, 11), 0), EntryJudgement::Holds);
    }

    #[test]
    fn a_label_is_free_when_no_flow_and_no_name_has_its_address() {
        let live = FlowState::default().claim(false).publish();
        let of_6 = |vip, backend| Flow {
            vip: addr6::label(vip),
            backend: addr6::label(backend),
            ..flow(1, 10, 11)
        };
        let judge = |word, flow: Flow| retired().judge(word, &flow, 0, 1000);
        assert_eq!(judge(live, of_6(8, 9)), EntryJudgement::Keep);
        for held in [of_6(7, 9), of_6(8, 7)] {
            assert_eq!(
                judge(live, held),
                EntryJudgement::Holds,
                "it is cut with a reset"
            );
            assert_eq!(judge(live.close(), held), EntryJudgement::Forget);
            let mut free = retired();
            free.release(&held, 0);
            assert_eq!(free.labels, BTreeSet::new());
        }
        let mut ids = Ids::default();
        for index in 1..=4 {
            ids.insert(Kind::Label, &format!("fd00::{index}"), index);
        }
        ids.insert(Kind::Backend, "p/a@mgmt/fd00::1", 40);
        ids.insert(Kind::Backend, "p/b@mgmt/fd00::2", 41);
        ids.insert(Kind::Snat, "mgmt/[fd00::3]:1024-57343", 6);
        ids.insert(Kind::Snat, "mgmt/[fd00::4]:1024-57343", 9);
        let mut free = Retired {
            labels: (1..=4).collect(),
            ..retired()
        };
        free.keep_labels(&ids);
        assert_eq!(free.labels, BTreeSet::from([1, 3]), "who stays keeps it");
        let kinds: Vec<_> = free
            .names(&ids)
            .into_iter()
            .map(|(kind, ..)| kind)
            .collect();
        let expected = [Kind::Backend, Kind::Snat, Kind::Label, Kind::Label];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn what_a_flow_holds_is_not_freed() {
        let mut free = retired();
        free.release(&flow(1, 20, 40), 5);
        assert_eq!(
            free,
            Retired {
                services: BTreeSet::new(),
                backends: BTreeSet::new(),
                draining: BTreeSet::new(),
                ..retired()
            }
        );
        let mut waiting = retired();
        waiting.subtract(&free);
        assert!(!waiting.is_empty() && waiting.networks.is_empty() && waiting.gone.is_empty());
        assert_eq!(waiting.draining, BTreeSet::from([5]));
    }

    #[test]
    fn what_half_a_change_has_again_is_not_freed() {
        let ids = Ids::new(Some(256));
        let service = Service {
            id: 20,
            pool: 30 + 256,
            ..Service::default()
        };
        let mut snat_slots = [[0; 16]; 8];
        snat_slots[0][0] = 5;
        let network = Network {
            snat_count: 1,
            snat_slots,
            ..Network::default()
        };
        let current = Current {
            networks: [(2, network)].into(),
            network_ids: [(NetworkKey::default(), 2)].into(),
            services: [(ServiceKey::default(), service)].into(),
            tables: [(286, [40].into())].into(),
            ..Current::default()
        };
        let mut waiting = retired();
        waiting.keep(&current, &ids);
        let gone = Retired {
            gone: BTreeSet::from([6]),
            labels: BTreeSet::from([7]),
            vips: retired().vips,
            ..Retired::default()
        };
        assert_eq!(waiting, gone);
        let mut waiting = retired();
        waiting.keep(&Current::default(), &ids);
        assert_eq!(waiting, retired());
    }

    #[test]
    fn a_removed_address_drains_and_that_of_a_removed_network_is_gone() {
        let mut ids = Ids::default();
        ids.insert(Kind::Network, "mgmt", 1);
        ids.insert(Kind::Network, "old", 2);
        ids.insert(Kind::Snat, "mgmt/10.32.96.50:1024-57343", 1);
        ids.insert(Kind::Snat, "mgmt/10.32.96.51:1024-57343", 2);
        ids.insert(Kind::Snat, "old/10.0.0.9:1024-57343", 3);
        let text = "
version: 1
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
";
        let config = crate::config::parse("test.yaml", text).unwrap();
        ids.assign(Kind::Network, "mgmt", 9).unwrap();
        ids.assign(Kind::Snat, "mgmt/10.32.96.50:1024-57343", 9)
            .unwrap();
        let retired = Retired::new(&ids, &config, &Desired::default());
        assert_eq!(retired.networks, BTreeSet::from([2]));
        assert_eq!(retired.draining, BTreeSet::from([1]));
        assert_eq!(retired.gone, BTreeSet::from([2]));
        let kinds: Vec<_> = retired
            .names(&ids)
            .into_iter()
            .map(|(kind, _, _)| kind)
            .collect();
        assert_eq!(
            kinds,
            [Kind::Snat, Kind::Snat, Kind::Network],
            "a network goes last"
        );
    }

    #[test]
    fn a_vip_that_a_standby_holds_back_is_not_gone() {
        let text = crate::control::desired::tests::two_boxes("a");
        let config = crate::config::parse("test.yaml", &text).unwrap();
        let mut ids = Ids::default();
        let active = crate::control::desired::tests::build(&text, &mut ids);
        let mut standby = active.clone();
        standby.take_role(crate::model::ha_role::HaRole::Standby);
        assert!(standby.addresses.len() < active.addresses.len());
        let [active, standby] = [active, standby].map(|one| Retired::new(&ids, &config, &one));
        assert_eq!(active, standby);
        assert!(standby.is_empty() && standby.vips.is_some_and(|vips| vips.len() == 1));
    }

    #[test]
    fn an_address_of_the_other_box_neither_drains_nor_is_free() {
        let text = crate::control::desired::tests::two_boxes("a");
        let config = crate::config::parse("test.yaml", &text).unwrap();
        let mut ids = Ids::default();
        let desired = crate::control::desired::tests::build(&text, &mut ids);
        let retired = Retired::new(&ids, &config, &desired);
        assert!(retired.is_empty(), "{retired:?}");
        let current = crate::control::plan::carried_out(
            Current::default(),
            &crate::control::plan::plan(&Current::default(), &desired),
        );
        let retired = Retired::unreferenced(&ids, &config, &current);
        assert!(retired.is_empty(), "{retired:?}");
        // Of a file without it, it drains.
        let alone = crate::control::desired::tests::CONFIG;
        ids.begin();
        let desired = crate::control::desired::tests::build(alone, &mut ids);
        let config = crate::config::parse("test.yaml", alone).unwrap();
        let retired = Retired::new(&ids, &config, &desired);
        assert_eq!(retired.draining, BTreeSet::from([1]));
    }

    #[test]
    fn only_what_no_map_refers_to_is_free_at_a_start() {
        let mut ids = Ids::default();
        for (name, id) in [("mgmt", 1), ("old", 2)] {
            ids.insert(Kind::Network, name, id);
        }
        ids.insert(Kind::Service, "api", 1);
        ids.insert(Kind::Service, "gone", 2);
        ids.insert(Kind::Backend, "p/a@mgmt/10.0.0.1", 1);
        ids.insert(Kind::Backend, "p/b@mgmt/10.0.0.2", 2);
        ids.insert(Kind::Snat, "mgmt/10.0.0.8:1024-57343", 1);
        ids.insert(Kind::Snat, "mgmt/10.0.0.9:1024-57343", 2);
        ids.insert(Kind::Snat, "old/10.9.0.9:1024-57343", 3);
        let mut snat_slots = [[0; 16]; 8];
        snat_slots[0][0] = 0;
        let network = Network {
            snat_count: 1,
            snat_slots,
            ..Network::default()
        };
        let service = Service {
            id: 1,
            ..Service::default()
        };
        let current = Current {
            networks: [(1, network), (2, network)].into(),
            network_ids: [(NetworkKey::default(), 1)].into(),
            services: [(ServiceKey::default(), service)].into(),
            tables: [(1, [1, 1, 1].into())].into(),
            ..Current::default()
        };
        let text = "
version: 1
networks: { mgmt: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.8] } }
";
        let mut config = crate::config::parse("test.yaml", text).unwrap();
        let retired = Retired::unreferenced(&ids, &config, &current);
        let expected = Retired {
            networks: BTreeSet::from([2]),
            services: BTreeSet::from([2]),
            backends: BTreeSet::from([2]),
            draining: BTreeSet::from([1]),
            gone: BTreeSet::from([2]),
            ..Retired::default()
        };
        assert_eq!(retired, expected);

        // What is in no map, and configured: a backend that drains, and addresses that come back.
        let text = "
version: 1
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.8, 10.0.0.9] }
  old:  { role: mgmt, interface: eth2, prefixes: [10.9.0.0/24], snat: [10.9.0.9] }
pools:
  p: { network: mgmt, backends: [{ name: b, address: \"10.0.0.2:1\" }] }
services:
  gone: { network: old, listen: [\"10.9.0.5:1/tcp\"], pool: p }
";
        config = crate::config::parse("test.yaml", text).unwrap();
        let retired = Retired::unreferenced(&ids, &config, &current);
        assert_eq!(retired, Retired::default());
    }
}
