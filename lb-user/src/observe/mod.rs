//! What is live, read from the pins: right whether a control plane is running or not.

mod records;

use std::{collections::BTreeMap, net::Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    addr::{Be16, Be32},
    conntrack::{State, Word},
    maps::{
        MAX_NETWORKS,
        flow::{Flow, TIME_SHIFT},
        snat::PAGE,
    },
    verdict::{DropReason, Hook, Verdict},
};

use crate::{
    config::{self, Config},
    control::{
        apply::read_ids,
        desired::backend_name,
        ids::{Ids, Kind},
        snat::{self, SnatSlot},
        start,
    },
    dataplane::{
        flows::{FlowTable, coarse_now},
        maps::Maps,
        pins::Pins,
    },
    network::{
        cell,
        link::{self, XdpMode},
    },
};

pub use records::{
    BackendLine, DropLine, FlowIds, FlowLine, NetworkStatus, ServiceLine, SnatStatus, Status,
    Verdicts,
};

/// An instance as an observer sees it.
pub struct Observer {
    pins: Pins,
    maps: Maps,
    table: FlowTable,
    ids: Ids,
    config: Config,
}

impl Observer {
    /// Opens an instance.
    ///
    /// # Errors
    ///
    /// If it is not up, or its pins may not be read.
    pub fn open(instance: &str) -> Result<Self> {
        let pins = Pins::new(instance);
        ensure!(
            nix::unistd::geteuid().is_root(),
            "reading the data plane needs root"
        );
        ensure!(
            pins.exist(),
            "instance {instance} is not up (`lb run` starts it)"
        );
        let maps = Maps::open(&pins.maps())?;
        let ids = read_ids(&maps)?;
        let text = start::applied(&pins)?;
        let config = config::parse("applied.yaml", &text)
            .with_context(|| format!("the applied configuration of instance {instance}"))?;
        let table = FlowTable::open(&pins.maps())?;
        Ok(Self {
            pins,
            maps,
            table,
            ids,
            config,
        })
    }

    /// Networks, verdicts and flow ids.
    ///
    /// # Errors
    ///
    /// If a map or netlink cannot be read.
    pub fn status(&self) -> Result<Status> {
        let mut verdicts = BTreeMap::new();
        for hook in Hook::ALL {
            verdicts.insert(hook.label(), self.verdicts(hook)?);
        }
        let snat = self.snat()?;
        Ok(Status {
            instance: self.pins.instance().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            networks: self.networks()?,
            verdicts,
            flows: FlowIds::sum(snat.iter().map(|snat| snat.flows)),
            snat,
        })
    }

    /// What the VIPs listen on.
    pub fn services(&self) -> Vec<ServiceLine> {
        let lines = self.config.services.iter().flat_map(|service| {
            service.listen.iter().map(|listen| ServiceLine {
                name: service.name.clone(),
                network: service.network.clone(),
                listen: listen.to_string(),
                pool: service.pool.clone(),
            })
        });
        lines.collect()
    }

    /// Backends with the next hops that the data plane uses.
    ///
    /// # Errors
    ///
    /// If the map cannot be read.
    pub fn backends(&self) -> Result<Vec<BackendLine>> {
        let mut lines = Vec::new();
        for pool in &self.config.pools {
            for backend in &pool.backends {
                let id = self.ids.get(Kind::Backend, &backend_name(pool, backend));
                let record = id.map(|id| self.maps.backends.get(&id, 0)).transpose()?;
                let next_hop = record
                    .map(|record| record.next_hop)
                    .filter(|mac| !mac.is_none());
                lines.push(BackendLine {
                    name: backend.name.clone(),
                    pool: pool.name.clone(),
                    address: format!("{}:{}", backend.address, backend.port),
                    weight: backend.weight,
                    next_hop: next_hop.map(|mac| mac.to_string()),
                });
            }
        }
        Ok(lines)
    }

    /// Live flows, in order of their ids.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    pub fn flows(&self) -> Result<Vec<FlowLine>> {
        let mut lines = Vec::new();
        for (_, slot) in self.snat_slots()? {
            for id in slot.flow_ids() {
                // One that changes while it is read is ending or beginning.
                let flow = self.table.flow(id);
                let state = flow.and_then(|(word, flow)| Some((live_state(word)?, flow)));
                if let Some((state, flow)) = state {
                    lines.push(self.flow_line(id, &flow, state)?);
                }
            }
        }
        Ok(lines)
    }

    /// Counted drops, without the reasons that have none.
    ///
    /// # Errors
    ///
    /// If the counters cannot be read.
    pub fn drops(&self) -> Result<Vec<DropLine>> {
        let mut lines = Vec::new();
        for hook in Hook::ALL {
            for network in self.counted_networks() {
                for &reason in DropReason::ALL {
                    let slot = Verdict::Dropped(reason).slot();
                    let packets = self.maps.counter(hook, network, slot)?;
                    if packets > 0 {
                        lines.push(DropLine {
                            hook: hook.label(),
                            network: self.name(Kind::Network, u32::from(network)),
                            reason: reason.label(),
                            packets,
                            help: reason.help(),
                        });
                    }
                }
            }
        }
        Ok(lines)
    }

    fn networks(&self) -> Result<Vec<NetworkStatus>> {
        link::with_netlink(async |handle| {
            let mut networks = Vec::new();
            for network in &self.config.networks {
                let link = link::find(&handle, &network.interface).await?;
                networks.push(NetworkStatus {
                    name: network.name.clone(),
                    role: network.role.to_string(),
                    interface: network.interface.clone(),
                    vlan: network.vlan,
                    mode: match link.and_then(|link| link.xdp) {
                        Some(XdpMode::Native) => "native",
                        Some(XdpMode::Generic) => "generic",
                        None => "detached",
                    },
                    cell: (!network.host).then(|| cell::name(self.pins.instance(), &network.name)),
                });
            }
            Ok(networks)
        })
    }

    fn verdicts(&self, hook: Hook) -> Result<Verdicts> {
        let mut sum = Verdicts::default();
        for network in self.counted_networks() {
            let count = |verdict: Verdict| self.maps.counter(hook, network, verdict.slot());
            sum.passed += count(Verdict::Passed)?;
            sum.transmitted += count(Verdict::Transmitted)?;
            sum.forwarded += count(Verdict::Forwarded)?;
            sum.delivered += count(Verdict::Delivered)?;
            for &reason in DropReason::ALL {
                sum.dropped += count(Verdict::Dropped(reason))?;
            }
        }
        sum.total = sum.passed + sum.transmitted + sum.forwarded + sum.delivered + sum.dropped;
        Ok(sum)
    }

    /// Network 0, where frames of no network are counted, and every network that has an id.
    fn counted_networks(&self) -> impl Iterator<Item = u16> {
        let ids = self.ids.of(Kind::Network).map(|(_, id)| id);
        std::iter::once(0)
            .chain(ids)
            .filter(|&id| id < MAX_NETWORKS)
            .filter_map(|id| u16::try_from(id).ok())
    }

    fn snat(&self) -> Result<Vec<SnatStatus>> {
        let mut all = Vec::new();
        for (name, slot) in self.snat_slots()? {
            let configured = self.config.network(name);
            let mut flows = FlowIds {
                capacity: slot.snat.ports.into(),
                ..FlowIds::default()
            };
            for id in slot.flow_ids() {
                if self.table.word(id).is_some_and(Word::claimable) {
                    flows.free += 1;
                } else {
                    flows.live += 1;
                }
            }
            all.push(SnatStatus {
                network: name.to_owned(),
                address: slot.snat.address.to_string(),
                ports: slot.range(),
                draining: configured.is_none_or(|network| !network.snat.contains(&slot.snat)),
                flows,
            });
        }
        Ok(all)
    }

    /// Every SNAT address that has a slot, with its network's name.
    fn snat_slots(&self) -> Result<Vec<(&str, SnatSlot)>> {
        let mut slots = Vec::new();
        for (name, id) in self.ids.of(Kind::Snat) {
            if let Some((network, snat)) = snat::parse_name(name) {
                slots.push((network, SnatSlot::new(u16::try_from(id - 1)?, snat)));
            }
        }
        Ok(slots)
    }

    fn flow_line(&self, id: u32, flow: &Flow, state: &'static str) -> Result<FlowLine> {
        let page = self.maps.snat_pages.get(&(id / PAGE), 0)?;
        Ok(FlowLine {
            network: self.name(Kind::Network, u32::from(flow.network)),
            service: self.name(Kind::Service, u32::from(flow.service)),
            protocol: if Word::from_raw(flow.word).is_udp() {
                "udp"
            } else {
                "tcp"
            },
            client: endpoint(flow.client, flow.client_port),
            vip: endpoint(flow.vip, flow.vip_port),
            snat: endpoint(page.address, Be16::new(page.port(id))),
            backend: endpoint(flow.backend, flow.backend_port),
            state,
            bytes_request: flow.bytes_request,
            bytes_reply: flow.bytes_reply,
            idle_seconds: idle_seconds(flow.last_seen)?,
        })
    }

    fn name(&self, kind: Kind, id: u32) -> String {
        self.ids.name(kind, id).unwrap_or("-").to_owned()
    }
}

/// The word for a live flow's state; `None` for one that is not live.
const fn live_state(word: Word) -> Option<&'static str> {
    match word.state() {
        State::New => Some("new"),
        State::Replied => Some("replied"),
        State::Established => Some("established"),
        State::Free | State::Claimed | State::Closed => None,
    }
}

fn endpoint(address: Be32, port: Be16) -> String {
    format!("{}:{}", Ipv4Addr::from(address), port.get())
}

/// Seconds since `last_seen`, right over the wrap of its 32 bits.
fn idle_seconds(last_seen: u32) -> Result<u64> {
    let ticks = coarse_now()?;
    Ok((u64::from(ticks.wrapping_sub(last_seen)) << TIME_SHIFT) / 1_000_000_000)
}
