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
        snat::{FLOWS_PER_ADDRESS, PAGE, base},
    },
    verdict::{DropReason, Hook, Verdict},
};
use nix::time::{ClockId, clock_gettime};

use crate::{
    config::{self, Config},
    control::{
        apply::read_ids,
        desired::backend_name,
        ids::{Ids, Kind},
        start,
    },
    dataplane::{maps::Maps, pins::Pins},
    network::{
        cell,
        link::{self, XdpMode},
    },
};

pub use records::{
    BackendLine, DropLine, FlowIds, FlowLine, NetworkStatus, ServiceLine, Status, Verdicts,
};

/// An instance as an observer sees it.
pub struct Observer {
    pins: Pins,
    maps: Maps,
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
        Ok(Self {
            pins,
            maps,
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
        Ok(Status {
            instance: self.pins.instance().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            networks: self.networks()?,
            verdicts,
            flows: self.flow_ids()?,
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
                let id = self
                    .ids
                    .get(Kind::Backend, &backend_name(&pool.name, backend));
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
        self.each_flow(|id, flow| {
            if let Some(state) = live_state(Word::from_raw(flow.word)) {
                lines.push(self.flow_line(id, flow, state)?);
            }
            Ok(())
        })?;
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
                    mode: match link.and_then(|link| link.xdp) {
                        Some(XdpMode::Native) => "native",
                        Some(XdpMode::Generic) => "generic",
                        None => "detached",
                    },
                    cell: cell::name(self.pins.instance(), &network.name),
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

    fn flow_ids(&self) -> Result<FlowIds> {
        let mut ids = FlowIds::default();
        self.each_flow(|_, flow| {
            ids.capacity += 1;
            if Word::from_raw(flow.word).claimable() {
                ids.free += 1;
            } else {
                ids.live += 1;
            }
            Ok(())
        })?;
        Ok(ids)
    }

    /// Calls `work` with every entry of every SNAT address.
    fn each_flow(&self, mut work: impl FnMut(u32, &Flow) -> Result<()>) -> Result<()> {
        for (_, id) in self.ids.of(Kind::Snat) {
            let first = base(u16::try_from(id - 1)?);
            for id in first..first + u32::from(FLOWS_PER_ADDRESS) {
                work(id, &self.maps.flows.get(&id, 0)?)?;
            }
        }
        Ok(())
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
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the monotonic clock")?;
    let ns = u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?;
    let ticks = u32::try_from(ns >> TIME_SHIFT & u64::from(u32::MAX))?;
    Ok((u64::from(ticks.wrapping_sub(last_seen)) << TIME_SHIFT) / 1_000_000_000)
}
