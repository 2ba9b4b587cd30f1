//! The sweep over the flow table that frees retired ids which no flow holds any more.

use std::{net::IpAddr, path::Path};

use anyhow::Result;
use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        addr6,
        backend::Backend,
        counts,
        event::{FlowEvent, REMOVED},
        flow::Flow,
        network::{AddressKey, Network},
        snat::SnatPage,
    },
};

use super::retired::{EntryJudgement, Retired};
use crate::{
    control::apply::Live,
    dataplane::{
        counts::CountTable,
        flows::{FlowOwners, FlowTable, UsageTable, coarse_now},
        labels::Labels,
        maps::Maps,
    },
    flows::log::Reporter,
    model::{
        maglev::MaglevTable,
        registry::{Ids, Kind},
        snat::{SnatFlowId, SnatSlot, parse_name},
    },
    proxy::Legs,
};

/// A SNAT address that is free again: its cell need not answer for it any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreedSnat {
    /// Name of its network.
    pub network: String,
    /// The address.
    pub address: IpAddr,
    /// What its record had, if it had one.
    pub key: Option<AddressKey>,
}

/// The slots of a SNAT address: each network that has it has one.
fn slots_of(address: IpAddr, ids: &Ids) -> impl Iterator<Item = u16> {
    let snat = ids.of(Kind::Snat);
    snat.filter_map(move |(name, id)| {
        let (_, snat) = parse_name(name)?;
        let slot = u16::try_from(id).ok()?.checked_sub(1)?;
        (snat.address == address).then_some(slot)
    })
}

/// What a sweep works on beside the maps.
pub struct Sweeper {
    table: FlowTable,
    usage: UsageTable,
    labels: Labels,
    reporter: Reporter,
}

impl Live {
    /// Frees every retired id that no flow holds any more, and takes it out of `retired`. To be
    /// called when no new flow can come to them: after the plan that retired them.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a change of a map.
    pub fn sweep(
        &mut self,
        sweeper: &Sweeper,
        ids: &mut Ids,
        retired: &mut Retired,
        legs: &Legs,
    ) -> Result<Vec<FreedSnat>> {
        let mut free = retired.clone();
        for leg in legs.all() {
            for slot in slots_of((*leg.snat.ip()).into(), ids) {
                free.release(&leg.flow(), slot);
            }
        }
        let now = coarse_now()?;
        for (name, id) in ids.of(Kind::Snat) {
            let Some((_, snat)) = parse_name(name) else {
                continue;
            };
            let slot = SnatSlot::new(u16::try_from(id - 1)?, snat, ids);
            for id in slot.flow_ids() {
                let id = SnatFlowId { id, slot: &slot };
                sweeper.visit(&mut self.maps, retired, &mut free, id, now)?;
            }
        }
        free.keep_labels(ids);
        let mut freed = Vec::new();
        for (kind, name, id) in free.names(ids) {
            if let Some(snat) = self.free(kind, &name, id, ids)? {
                freed.push(snat);
            }
            self.forget_id(kind, &name)?;
            ids.free(kind, &name);
            tracing::info!(name, id, "{} is free again: no flow holds it", kind.label());
        }
        retired.subtract(&free);
        Ok(freed)
    }

    /// Changes what is counted, if it is.
    fn clear_counts(&self, clear: impl FnOnce(&CountTable)) {
        if let Some(counts) = &self.maps.counts {
            clear(counts);
        }
    }

    /// Clears the record behind an id.
    fn free(&mut self, kind: Kind, name: &str, id: u32, ids: &Ids) -> Result<Option<FreedSnat>> {
        match kind {
            Kind::Network => {
                self.maps.networks.set(id, &Network::default(), 0)?;
                let id = u16::try_from(id)?;
                self.maps.clear_counters(id)?;
                self.clear_counts(|counts| counts.clear(counts::network(id)));
            }
            Kind::Backend => {
                self.maps.backends.set(id, &Backend::default(), 0)?;
                self.clear_counts(|counts| counts.clear(counts::backend(id)));
            }
            Kind::Pool => {
                for number in ids.tables_of(id) {
                    let table = self.maps.maglev(number)?;
                    if table.is_some_and(|table| !table.is_empty()) {
                        self.set_tables(&[(number, MaglevTable::default())].into())?;
                    }
                }
            }
            Kind::Service => {
                let id = u16::try_from(id)?;
                self.clear_counts(|counts| counts.clear_service(id));
            }
            // Its record is its name.
            Kind::Label => {}
            Kind::Snat => {
                self.set_pages(u16::try_from(id - 1)?, &SnatPage::default())?;
                let Some((network, snat)) = parse_name(name) else {
                    return Ok(None);
                };
                let id = ids.get(Kind::Network, network);
                let key = match id.zip(ids.stands_for(snat.address)) {
                    Some((id, address)) => Some(AddressKey::new(address, u16::try_from(id)?)),
                    None => None,
                };
                if let Some(key) = &key {
                    self.close_doors(key);
                    // Of a network that is gone, the plan has removed the address already.
                    let _gone = self.maps.addresses.remove(key);
                }
                return Ok(Some(FreedSnat {
                    network: network.to_owned(),
                    address: snat.address,
                    key,
                }));
            }
        }
        Ok(None)
    }
}

impl Sweeper {
    /// Maps the tables that are pinned in `folder`; flows that are ended go to `reporter`.
    ///
    /// # Errors
    ///
    /// If a pin is missing.
    pub fn open(folder: &Path, reporter: Reporter) -> Result<Self> {
        Ok(Self {
            table: FlowTable::open(folder)?,
            usage: UsageTable::open(folder)?,
            labels: Labels::open(folder)?,
            reporter,
        })
    }

    /// Judges one entry and carries the judgement out.
    fn visit(
        &self,
        maps: &mut Maps,
        retired: &Retired,
        free: &mut Retired,
        flow_id: SnatFlowId<'_>,
        now: u32,
    ) -> Result<()> {
        let SnatFlowId { id, slot } = flow_id;
        let unused = |word: FlowState| matches!(word.state(), State::Free);
        if self.table.word(id).is_none_or(unused) {
            return Ok(());
        }
        // An entry that changes while it is read is claimed by a new flow, which holds nothing retired.
        let Some((word, flow)) = self.table.flow(id) else {
            return Ok(());
        };
        let judgement = retired.judge(word, &flow, slot.slot, now);
        match judgement {
            EntryJudgement::Keep => {}
            EntryJudgement::Holds => free.release(&flow, slot.slot),
            EntryJudgement::End | EntryJudgement::Forget => {
                // First: afterwards the id may be another flow's, with the same key. If that happens
                // all the same, the flow's first reply puts the key back.
                forget_key(maps, word, &flow, id)?;
                if !self.table.swap(id, word, word.forget()) {
                    // It was claimed, or has moved on: the next sweep sees what it is.
                    free.release(&flow, slot.slot);
                    return Ok(());
                }
                if let Some(counts) = &maps.counts {
                    counts.hand_in(word.end(), &flow);
                }
                if judgement == EntryJudgement::End {
                    self.ended(flow_id, word, flow)?;
                    if addr6::index(flow.vip).is_some() {
                        // The reader of its end may have to look up what its labels stand for.
                        free.release(&flow, slot.slot);
                    }
                    if let Some(mut queue) = maps.free_ids(slot.slot)? {
                        queue.push(id)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives back what a flow held that was live until now, but for its id: that goes last.
    fn ended(&self, flow_id: SnatFlowId<'_>, word: FlowState, flow: Flow) -> Result<()> {
        let SnatFlowId { id, slot } = flow_id;
        if word.in_use() {
            self.usage.count(id, &FlowOwners::from(&flow), -1);
        }
        let port = flow.snat_port.get().into();
        self.reporter.report(FlowEvent {
            flow: Flow {
                word: word.raw(),
                ..flow
            },
            id,
            kind: REMOVED,
            snat: slot.record,
            port,
            time: coarse_now()?,
            client: self.labels.client6(id, &flow).unwrap_or_default(),
            ..FlowEvent::default()
        });
        Ok(())
    }
}

/// Takes an entry that will be free out of the request index.
fn forget_key(maps: &mut Maps, word: FlowState, flow: &Flow, id: u32) -> Result<()> {
    let key = flow.key(word.is_udp());
    maps.flow_lines.remove(&key, id)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use lb_common::{
        addr::Be16,
        maps::{quota, snat::base, usage},
    };

    use super::*;
    use crate::{config::Snat, flows::log::channel};

    #[test]
    fn the_end_of_a_flow_gives_its_budget_back_and_is_reported() {
        let (reporter, mut reports) = channel();
        let (network, service) = (usage::network(3), usage::service(9));
        let sweeper = Sweeper {
            table: FlowTable::anonymous(1),
            usage: UsageTable::anonymous(service + 2),
            labels: Labels::anonymous(base(1) + 8),
            reporter,
        };
        for index in 0..service + 2 {
            sweeper.usage.owners().add(index, 5);
            sweeper.usage.backends().add(index, 5);
        }
        let quotas = sweeper.usage.quotas();
        quotas.set_bank(1, 70).unwrap();
        let quota = quota::index(3, 70);
        quotas.add(quota, 5);
        let snat = Snat {
            address: IpAddr::from([10, 0, 0, 4]),
            first_port: 20_000,
            ports: 100,
        };
        let half_open = FlowState::default().claim(false).publish();
        let word = FlowState::from_raw(half_open.raw() & !7 | State::Established as u32);
        let client: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let flow = Flow {
            client: sweeper.labels.put_client(base(1) + 7, "2001:db8::9"),
            vip: sweeper.labels.give("fd00::110"),
            client_port: Be16::new(40_000),
            network: 3,
            service: 9,
            backend_id: 70,
            snat_port: Be16::new(20_007),
            ..Flow::default()
        };
        let id = base(1) + 7;
        let slot = &SnatSlot::new(1, snat, &Ids::default());
        let before = coarse_now().unwrap();
        sweeper.ended(SnatFlowId { id, slot }, word, flow).unwrap();
        let after = coarse_now().unwrap();

        for index in 0..service + 2 {
            let wanted = if [network, service].contains(&index) {
                4
            } else {
                5
            };
            assert_eq!(sweeper.usage.owners().get(index), Some(wanted), "{index}");
            let wanted = if index == 70 { 4 } else { 5 };
            assert_eq!(sweeper.usage.backends().get(index), Some(wanted), "{index}");
        }
        assert_eq!(quotas.get(quota).live, 4);
        let event = reports.take().unwrap().event;
        assert!((before..=after).contains(&event.time));
        let wanted = FlowEvent {
            flow: Flow {
                word: word.raw(),
                ..flow
            },
            id,
            kind: REMOVED,
            snat: Ipv4Addr::new(10, 0, 0, 4).into(),
            port: 20_007,
            time: event.time,
            client: client.into(),
            ..FlowEvent::default()
        };
        assert_eq!(event, wanted);
        assert!(reports.take().is_none());

        sweeper
            .ended(SnatFlowId { id, slot }, half_open, flow)
            .unwrap();
        assert_eq!(
            sweeper.usage.owners().get(network),
            Some(4),
            "it did not count"
        );
    }
}
