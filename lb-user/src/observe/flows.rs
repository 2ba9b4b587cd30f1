//! `lb flows` and `lb who`: the flows, live or closed.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Result, bail};
use lb_common::{
    addr::Be16,
    conntrack::{FlowState, State},
    maps::flow::Flow,
};

use super::{Observer, WhoLine};
use crate::{
    api::{Filter, FlowLine},
    dataplane::{flows::coarse_now, labels::Labels, spilled::SpilledFlows},
    flows::{
        evict::selector::FlowChoice,
        filter::{choose, meant, protocol},
        idle::{self, Policy},
        log::clock::millis_since,
    },
    model::{names::AppliedNames, registry::Kind, snat::SnatSlot},
};

impl Observer {
    /// What `filter` means here.
    ///
    /// # Errors
    ///
    /// As `flows::filter::choose`.
    pub fn choose(&self, filter: &Filter) -> Result<Vec<FlowChoice>, String> {
        choose(filter, self.ids())
    }

    /// The live flows that one of the choices is of, in order of their ids.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    pub fn flows(&self, choices: &[FlowChoice]) -> Result<Vec<FlowLine>> {
        let names = FlowNames::new(self)?;
        let mut lines = Vec::new();
        for (_, slot) in self.snat_slots()? {
            for id in slot.flow_ids() {
                // One that changes while it is read is ending or beginning.
                let Some((word, flow)) = self.table.flow(id).filter(|(word, _)| is_live(*word))
                else {
                    continue;
                };
                let client = self.labels.client(id, &flow);
                if meant(choices, id, &flow, client) {
                    let line = names.line(&slot, client, id, word, &flow);
                    let name = self.maps.splices.name(id, word);
                    lines.push(FlowLine { name, ..line });
                }
            }
        }
        Ok(lines)
    }

    /// The flow that has the SNAT port `tuple`, or else had it last. There can be one in each
    /// network that has the address.
    ///
    /// # Errors
    ///
    /// If it is no SNAT port of any network, or a map cannot be read.
    pub fn who(&self, tuple: SocketAddr) -> Result<Vec<WhoLine>> {
        let slots = self.snat_slots()?;
        let ids = slots.iter();
        let ids = ids.filter(|(_, slot)| slot.has(tuple));
        let ids = ids.filter_map(|(_, slot)| {
            let id = self.maps.snat_ports.flow_id(&slot.address(), tuple.port());
            Some((slot, id?))
        });
        let ids: Vec<(&SnatSlot, u32)> = ids.collect();
        if ids.is_empty() {
            let known = slots.iter().map(|(network, slot)| {
                format!("{} ports {} ({network})", slot.snat.address, slot.range())
            });
            let known: Vec<String> = known.collect();
            bail!(
                "{tuple} is not a SNAT port of instance {}; it has {}",
                self.pins.instance(),
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            );
        }
        let names = FlowNames::new(self)?;
        let mut lines = Vec::new();
        for (slot, id) in ids {
            let Some((word, flow)) = self.table.flow(id) else {
                continue;
            };
            let live = is_live(word);
            // A connection that has a socket's port is among the legs.
            if word.has_flow() && !word.is_local() {
                let client = self.labels.client(id, &flow);
                let line = names.line(slot, client, id, word, &flow);
                let name = self.maps.splices.name(id, word);
                let flow = FlowLine { name, ..line };
                lines.push(WhoLine { live, flow });
            }
        }
        Ok(lines)
    }
}

/// What ids mean, for many flows.
struct FlowNames<'o> {
    networks: HashMap<u32, &'o str>,
    services: HashMap<u32, &'o str>,
    labels: &'o Labels,
    spilled: SpilledFlows,
    policy: Policy,
    now: u32,
}

impl<'o> FlowNames<'o> {
    fn new(observer: &'o Observer) -> Result<Self> {
        let Observer {
            pins,
            names,
            labels,
            ..
        } = observer;
        let AppliedNames { config, ids } = &**names;
        let by_id = |kind| ids.of(kind).map(|(name, id)| (id, name)).collect();
        Ok(Self {
            networks: by_id(Kind::Network),
            services: by_id(Kind::Service),
            labels,
            spilled: SpilledFlows::open(&pins.maps())?,
            policy: Policy::new(config, ids),
            now: coarse_now()?,
        })
    }

    fn line(
        &self,
        slot: &SnatSlot,
        client: Option<IpAddr>,
        id: u32,
        word: FlowState,
        flow: &Flow,
    ) -> FlowLine {
        let network = self.networks.get(&flow.network.into()).copied();
        let service = self.services.get(&flow.service.into()).copied();
        let idle_ms = millis_since(flow.last_seen, self.now);
        let most = self.policy.timeout(word, flow.service).map(idle::duration);
        let most_ms = most.map(|most| u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
        let left_ms = most_ms.map(|most_ms| most_ms.saturating_sub(idle_ms));
        let snat = SocketAddr::new(slot.snat.address, flow.snat_port.get());
        let [bytes_request, bytes_reply] = self.spilled.bytes(id, flow);
        FlowLine {
            network: network.unwrap_or(UNKNOWN).to_owned(),
            service: service.unwrap_or(UNKNOWN).to_owned(),
            protocol: protocol(word).into(),
            client: endpoint(client, flow.client_port),
            vip: endpoint(self.labels.address(flow.vip), flow.vip_port),
            snat: snat.to_string(),
            backend: endpoint(self.labels.address(flow.backend), flow.backend_port),
            state: state(word).into(),
            name: None,
            bytes_request,
            bytes_reply,
            idle_seconds: idle_ms / 1000,
            expires_in_seconds: left_ms.map(|left_ms| left_ms.div_ceil(1000)),
        }
    }
}

/// The name of an id that is not known.
const UNKNOWN: &str = "-";

pub(super) const fn is_live(word: FlowState) -> bool {
    matches!(
        word.state(),
        State::New | State::Replied | State::Established
    )
}

/// The word for a flow's state.
const fn state(word: FlowState) -> &'static str {
    match word.state() {
        State::New => "new",
        State::Replied => "replied",
        State::Established if word.is_half_closed() => "half_closed",
        State::Established => "established",
        State::Closed => "closed",
        State::Ended => "ended",
        State::Free | State::Claimed | State::Local => "none",
    }
}

/// Address and port in words.
pub(super) fn endpoint(address: Option<IpAddr>, port: Be16) -> String {
    match address {
        Some(address) => SocketAddr::new(address, port.get()).to_string(),
        None => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use lb_common::maps::snat::base;

    use super::*;
    use crate::model::registry::Ids;

    #[test]
    fn a_line_says_when_the_flow_ends() {
        const FILE: &str = "
version: 1
networks:
  n: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.1] }
pools:
  p: { network: n, backends: [] }
services:
  s: { network: n, listen: [\"10.0.0.3:80/tcp\"], pool: p, idle_timeout: 1h }
  never: { network: n, listen: [\"10.0.0.4:80/tcp\"], pool: p, idle_timeout: never, keepalive: 1s }
";
        let config = crate::config::parse("f", FILE).unwrap();
        let mut ids = Ids::default();
        for (id, service) in (1..).zip(&config.services) {
            ids.insert(Kind::Service, &service.name, id);
        }
        let labels = Labels::anonymous(base(0) + 9);
        let names = FlowNames {
            labels: &labels,
            spilled: SpilledFlows::none(),
            networks: HashMap::from([(1, "n")]),
            services: ids.of(Kind::Service).map(|(name, id)| (id, name)).collect(),
            policy: Policy::new(&config, &ids),
            now: 10_000,
        };
        let slot = SnatSlot::new(0, config.networks[0].snat[0], &ids);
        let line = |word: FlowState, service: u16, last_seen: u32| {
            let flow = Flow {
                network: 1,
                service,
                last_seen,
                snat_port: Be16::new(1029),
                ..Flow::default()
            };
            let line = names.line(&slot, None, base(0) + 5, word, &flow);
            assert_eq!(
                (line.network.as_str(), line.snat.as_str()),
                ("n", "10.0.0.1:1029")
            );
            (line.service, line.idle_seconds, line.expires_in_seconds)
        };
        let new = FlowState::default().claim(false).publish();
        let established = FlowState::from_raw(new.raw() & !7 | State::Established as u32);
        assert_eq!(line(established, 1, 0), ("s".to_owned(), 10, Some(3590)));
        assert_eq!(
            line(established, 1, 10_000),
            ("s".to_owned(), 0, Some(3600))
        );
        assert_eq!(line(established, 2, 0), ("never".to_owned(), 10, None));
        assert_eq!(line(established, 3, 0), ("-".to_owned(), 10, Some(7790)));
        assert_eq!(line(new, 2, 0), ("never".to_owned(), 10, Some(20)));
        let long_ago = 10_000u32.wrapping_sub(100_000);
        assert_eq!(line(new, 1, long_ago), ("s".to_owned(), 104, Some(0)));
        assert_eq!(line(new.close(), 1, 0), ("s".to_owned(), 10, None));
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets_where_a_port_follows() {
        let address = |text: &str| Some(text.parse().unwrap());
        let shown = |address| endpoint(address, Be16::new(80));
        assert_eq!(shown(address("fd00::1")), "[fd00::1]:80");
        assert_eq!(shown(address("10.0.0.1")), "10.0.0.1:80");
        assert_eq!(shown(None), "-");
    }

    #[test]
    fn states_have_names() {
        let claimed = FlowState::default().claim(false);
        assert!(!is_live(claimed) && !is_live(FlowState::default()));
        assert_eq!(state(claimed.publish()), "new");
        assert!(is_live(claimed.publish()));
        let closed = claimed.publish().close();
        assert_eq!((state(closed), is_live(closed)), ("closed", false));
        assert_eq!(protocol(closed), "tcp");
        assert_eq!(protocol(FlowState::default().claim(true)), "udp");
    }
}
