//! Which flows end with a change: those that the new configuration would not let in. Pure.

use std::collections::BTreeMap;

use lb_common::maps::{rule::Owner, service::Service};

use super::{desired::Desired, ended_count::EndedPart, plan::Current};
use crate::{
    control::describe::listener,
    flows::evict::selector::{EvictSelector, FlowChoice},
    model::registry::{Ids, Kind},
};

/// The flows that end, and the same by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedFlows {
    /// The flows.
    pub cut: EvictSelector,
    /// The same by reason, in the order of the words.
    pub parts: Vec<EndedPart>,
}

/// What ends when `current` becomes `desired`; `ids` has the names of both.
pub fn ends(current: &Current, desired: &Desired, ids: &Ids) -> EndedFlows {
    let mut ends = EndedFlows::default();
    ends.add_listeners(current, desired, ids);
    ends.add_legs(current, desired, ids);
    ends.add_denied(current, desired, ids);
    let mut networks: Vec<(u16, u32)> = current
        .networks
        .iter()
        .map(|(&id, network)| (id, network.sources))
        .collect();
    networks.sort_unstable();
    for (id, set) in networks {
        let (before, after) = (
            current.rules.get(&set),
            desired.rules.get(&Owner::Sources(id)),
        );
        // One that is new has no flow.
        if before.is_some()
            && let Some(after) = after.filter(|after| Some(*after) != before)
        {
            let words = format!(
                "network {}: the flows of sources that it does not have any more end",
                name(ids, Kind::Network, id)
            );
            let flows = EvictSelector {
                strangers: [(id, after.clone())].into(),
                ..EvictSelector::default()
            };
            let of = FlowChoice {
                network: Some(id),
                ..FlowChoice::default()
            };
            ends.add(words, flows, Some(of));
        }
    }
    ends
}

/// The flows that `desired` alone does not let in, whenever they came: what is cut at a start, because
/// a process may have been killed between a change and its cut.
pub fn not_admitted(desired: &Desired) -> EvictSelector {
    let rules = |owner| desired.rules.get(&owner).cloned();
    let services = desired.services.iter();
    let denied = services
        .clone()
        .filter_map(|(key, service)| Some((*key, rules(Owner::Service(service.id))?)));
    let networks = desired.networks.iter();
    let strangers = networks.filter_map(|(id, _)| Some((*id, rules(Owner::Sources(*id))?)));
    EvictSelector {
        denied: denied.collect(),
        strangers: strangers.collect(),
        open: Some(services.map(|(key, _)| *key).collect()),
        ..EvictSelector::default()
    }
}

impl EndedFlows {
    /// Listeners that are gone: their flows have no way in any more.
    fn add_listeners(&mut self, current: &Current, desired: &Desired, ids: &Ids) {
        let gone = current.services.iter();
        let gone = gone.filter(|(key, _)| !desired.services.contains_key(*key));
        let mut gone: Vec<_> = gone.collect();
        gone.sort_by_key(|(key, _)| (key.network, key.vip.raw(), key.port.raw(), key.protocol));
        for (key, service) in gone {
            let name = name(ids, Kind::Service, service.id);
            let listener = listener(key, ids);
            let words = format!("service {name}: {listener} closes, and its flows end");
            let flows = EvictSelector {
                listeners: [*key].into(),
                ..EvictSelector::default()
            };
            self.add(words, flows, Some(of_service(service.id)));
        }
    }

    /// Listeners that are not in the cell any more: packets from the clients of their legs do not reach it.
    fn add_legs(&mut self, current: &Current, desired: &Desired, ids: &Ids) {
        for (key, service) in &desired.services {
            let was = current.services.get(key);
            if was.is_some_and(Service::is_of_cell) && !service.is_of_cell() {
                let name = name(ids, Kind::Service, service.id);
                let listener = listener(key, ids);
                let words = format!(
                    "service {name}: {listener} no longer goes through the cell, and its flows that did are cut"
                );
                let flows = EvictSelector {
                    legs: [*key].into(),
                    ..EvictSelector::default()
                };
                self.add(words, flows, Some(of_service(service.id)));
            }
        }
    }

    /// Listeners whose rules are others now.
    fn add_denied(&mut self, current: &Current, desired: &Desired, ids: &Ids) {
        let mut denied: BTreeMap<&str, (EvictSelector, u16)> = BTreeMap::new();
        for (key, service) in &desired.services {
            let Some(was) = current.services.get(key) else {
                continue;
            };
            let before = current.rules.get(&was.rules);
            let after = desired.rules.get(&Owner::Service(service.id));
            if let Some(after) = after.filter(|after| Some(*after) != before) {
                let name = name(ids, Kind::Service, service.id);
                let (flows, _) = denied
                    .entry(name)
                    .or_insert_with(|| (EvictSelector::default(), was.id));
                flows.denied.insert(*key, after.clone());
            }
        }
        for (name, (flows, service)) in denied {
            let words =
                format!("service {name}: the flows of clients that it does not allow any more end");
            self.add(words, flows, Some(of_service(service)));
        }
    }

    /// Adds flows that end for one reason; they are some `of` others.
    fn add(&mut self, words: String, flows: EvictSelector, of: Option<FlowChoice>) {
        self.cut.merge(flows.clone());
        self.parts.push(EndedPart { words, flows, of });
    }
}

/// All flows of a service.
fn of_service(service: u16) -> FlowChoice {
    FlowChoice {
        service: Some(service),
        ..FlowChoice::default()
    }
}

fn name(ids: &Ids, kind: Kind, id: u16) -> &str {
    ids.name(kind, u32::from(id)).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lb_common::{
        addr::Be16,
        maps::{flow::Flow, rule::ALLOW, service::ServiceKey},
    };

    use super::{
        super::{
            desired::tests::{BOTH, CONFIG, build},
            plan::{carried_out, plan},
        },
        *,
    };
    use crate::{
        flows::evict::selector::{EndReason, FIRST_LEG},
        model::rules::Rules,
    };

    const ALLOWED: &str = ", allow: [192.168.203.50/32] }";

    /// What ends when one configuration follows another.
    fn between(before: &str, after: &str) -> EndedFlows {
        let mut ids = Ids::default();
        let first = build(before, &mut ids);
        let current = carried_out(Current::default(), &plan(&Current::default(), &first));
        let next = build(after, &mut ids);
        ends(&current, &next, &ids)
    }

    /// What ends, and the words of its parts, which have no others.
    fn in_words(ended: EndedFlows) -> (EvictSelector, Vec<String>) {
        let mut all = EvictSelector::default();
        for part in &ended.parts {
            all.merge(part.flows.clone());
            assert!(part.of.is_some(), "{part:?}");
        }
        assert_eq!(all, ended.cut);
        let words = ended.parts.into_iter().map(|part| part.words);
        (ended.cut, words.collect())
    }

    fn listener_of(protocol: u32) -> ServiceKey {
        ServiceKey {
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            port: Be16::new(6443),
            network: 2,
            protocol,
        }
    }

    fn allowing() -> String {
        CONFIG.replace("pool: kas-a }", &format!("pool: kas-a{ALLOWED}"))
    }

    #[test]
    fn what_stays_ends_nothing() {
        let more = CONFIG.replace("weight: 3", "weight: 4");
        for (before, after) in [
            (CONFIG, CONFIG),
            (CONFIG, &more),
            (&allowing(), &allowing()),
            // Every client that the network lets in was denied before.
            (&allowing(), CONFIG),
        ] {
            assert_eq!(
                between(before, after),
                EndedFlows::default(),
                "{before} {after}"
            );
        }
    }

    #[test]
    fn a_listener_that_is_gone_takes_its_flows_along() {
        let without = CONFIG.replace(", \"192.168.203.110:6443/udp\"", "");
        let (cut, words) = in_words(between(CONFIG, &without));
        let gone = listener_of(17);
        let wanted = EvictSelector {
            listeners: [gone].into(),
            ..EvictSelector::default()
        };
        assert_eq!(cut, wanted);
        assert_eq!(
            words,
            ["service api-a: 192.168.203.110:6443/udp closes, and its flows end"]
        );
        let moved = CONFIG.replace("203.110:", "203.111:");
        assert_eq!(between(CONFIG, &moved).cut.listeners.len(), 2);
        let renamed = CONFIG.replace("api-a:", "api-z:");
        assert_eq!(
            between(CONFIG, &renamed),
            EndedFlows::default(),
            "it goes on"
        );
        let stricter = allowing().replace("api-a:", "api-z:");
        assert_eq!(between(CONFIG, &stricter).cut.denied.len(), 2);
    }

    #[test]
    fn legs_end_where_nobody_looks_at_names_any_more() {
        let tcp = CONFIG.replace(", \"192.168.203.110:6443/udp\"", "");
        let by_name = tcp.replace(
            "pool: kas-a }",
            "sni: { routes: [{ names: [a.lab], pool: kas-a }] } }",
        );
        let by_host = by_name.replace("sni:", "http:");
        assert_eq!(between(&by_name, &by_host), EndedFlows::default());
        assert_eq!(
            between(&tcp, &by_name),
            EndedFlows::default(),
            "flows go on"
        );
        let (cut, words) = in_words(between(&by_name, &tcp));
        let wanted = EvictSelector {
            legs: [listener_of(6)].into(),
            ..EvictSelector::default()
        };
        assert_eq!(cut, wanted);
        assert_eq!(
            words,
            [
                "service api-a: 192.168.203.110:6443/tcp no longer goes through the cell, and its flows that \
                 did are cut"
            ]
        );
        let flow = Flow {
            network: 2,
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            vip_port: Be16::new(6443),
            ..Flow::default()
        };
        assert_eq!(cut.holds(&flow, FIRST_LEG, None), Some(EndReason::Policy));
        assert_eq!(cut.holds(&flow, FIRST_LEG - 1, None), None);
    }

    /// As where names decide: what the data plane has goes on, and what is copied ends.
    #[test]
    fn legs_end_where_backends_are_told_no_more() {
        let tcp = CONFIG.replace(", \"192.168.203.110:6443/udp\"", "");
        let told = tcp.replace("kas-a: { network", "kas-a: { proxy_protocol: v2, network");
        assert_eq!(between(&tcp, &told), EndedFlows::default());
        let (cut, words) = in_words(between(&told, &tcp));
        assert_eq!((cut.legs, words.len()), ([listener_of(6)].into(), 1));
    }

    #[test]
    fn whoever_is_not_let_in_any_more_ends() {
        let (cut, words) = in_words(between(CONFIG, &allowing()));
        let only: Rules = [("192.168.203.50/32".parse().unwrap(), ALLOW)].into();
        let wanted = EvictSelector {
            denied: [6, 17]
                .map(|protocol| (listener_of(protocol), only.clone()))
                .into(),
            ..EvictSelector::default()
        };
        assert_eq!(cut, wanted);
        assert_eq!(
            words,
            ["service api-a: the flows of clients that it does not allow any more end"]
        );

        let fewer = CONFIG.replace(
            "[192.168.203.0/24] }",
            "[192.168.203.0/24], sources: [192.168.203.0/25] }",
        );
        let (cut, words) = in_words(between(CONFIG, &fewer));
        assert_eq!(cut.strangers.keys().copied().collect::<Vec<_>>(), [2]);
        assert!(cut.strangers[&2].contains_key(&"192.168.203.0/25".parse().unwrap()));
        assert_eq!((cut.denied.len(), cut.listeners.len()), (0, 0));
        assert_eq!(
            words,
            ["network tenant-a: the flows of sources that it does not have any more end"]
        );
    }

    #[test]
    fn flows_of_ipv6_end_for_the_same_reasons() {
        assert_eq!(between(BOTH, BOTH), EndedFlows::default());
        let moved = BOTH.replace("[fd00:203::110]", "[fd00:203::111]");
        let (cut, words) = in_words(between(BOTH, &moved));
        assert_eq!((cut.listeners.len(), cut.denied.len()), (1, 0));
        assert_eq!(
            words,
            ["service api-6: [fd00:203::110]:6443/tcp closes, and its flows end"]
        );
        let stricter = BOTH.replace("allow: [fd00:203::/64]", "allow: [fd00:203::50/128]");
        let (cut, words) = in_words(between(BOTH, &stricter));
        let only: Rules = [("fd00:203::50/128".parse().unwrap(), ALLOW)].into();
        assert_eq!(cut.denied.values().collect::<Vec<_>>(), [&only]);
        assert_eq!(
            words,
            ["service api-6: the flows of clients that it does not allow any more end"]
        );
    }

    #[test]
    fn a_start_cuts_clients_of_ipv6_that_it_would_not_let_in() {
        let mut ids = Ids::default();
        let cut = not_admitted(&build(BOTH, &mut ids));
        let stricter = BOTH.replace("allow: [fd00:203::/64]", "allow: [fd00:203::50/128]");
        let stricter = not_admitted(&build(&stricter, &mut ids));
        let flow = Flow {
            network: 2,
            vip: ids.stands_for("fd00:203::110".parse().unwrap()).unwrap(),
            vip_port: Be16::new(6443),
            // They are not policy's.
            service: 99,
            backend_id: 99,
            ..Flow::default()
        };
        let why =
            |cut: &EvictSelector, client: &str| cut.holds(&flow, 1, Some(client.parse().unwrap()));
        for client in ["fd00:203::50", "fd00:203::51"] {
            assert_eq!(why(&cut, client), None, "{client}");
        }
        assert_eq!(why(&cut, "fd00:204::50"), Some(EndReason::Policy));
        assert_eq!(why(&stricter, "fd00:203::50"), None);
        assert_eq!(why(&stricter, "fd00:203::51"), Some(EndReason::Policy));
        assert_eq!(cut.holds(&flow, 1, None), Some(EndReason::Policy));
    }

    /// By [`not_admitted`], why a flow of this client to this VIP's TCP listener is cut.
    fn at_a_start(config: &str, network: u16, client: &str, vip: &str) -> Option<EndReason> {
        let cut = not_admitted(&build(config, &mut Ids::default()));
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap().into();
        let flow = Flow {
            network,
            vip: address(vip),
            vip_port: Be16::new(6443),
            // They are not policy's.
            service: 99,
            backend_id: 99,
            ..Flow::default()
        };
        cut.holds(&flow, 1, Some(client.parse().unwrap()))
    }

    #[test]
    fn a_start_cuts_whoever_it_would_not_let_in() {
        let vip = "192.168.203.110";
        let [one, other, stranger] = ["192.168.203.50", "192.168.203.51", "10.1.2.3"];
        for (config, network, client, vip, why) in [
            (CONFIG, 2, one, vip, None),
            (CONFIG, 2, other, vip, None),
            (CONFIG, 2, stranger, vip, Some(EndReason::Policy)),
            (CONFIG, 2, one, "192.168.203.111", Some(EndReason::Policy)),
            (CONFIG, 3, one, vip, Some(EndReason::Policy)),
            (&allowing(), 2, one, vip, None),
            (&allowing(), 2, other, vip, Some(EndReason::Policy)),
        ] {
            assert_eq!(
                at_a_start(config, network, client, vip),
                why,
                "{client} {vip}"
            );
        }
    }
}
