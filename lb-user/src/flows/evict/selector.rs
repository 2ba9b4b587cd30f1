//! Flows that are cut: not because of what they do, but because of what they are. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use ipnet::IpNet;
use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        event::{CUT_BACKEND, CUT_DISABLED, CUT_DRAINED, CUT_OPERATOR, CUT_POLICY},
        flow::Flow,
        rule::ALLOW,
        service::ServiceKey,
        snat::slot,
    },
};

use crate::{
    config::Protocol,
    model::{names::protocol_number, rules::Rules},
};

/// The first id of a leg: no flow of the table has one as high.
pub const FIRST_LEG: u32 = 1 << 31;

/// Which flows end at once, however busy they are, with a reset to both ends. A flow ends if any of it
/// selects it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictSelector {
    /// All of these backends, which an operator has disabled.
    pub disabled: BTreeSet<u32>,
    /// All of these, whose drain timeout is over.
    pub drained: BTreeSet<u32>,
    /// All of these, which are dead.
    pub backends: BTreeSet<u32>,
    /// Of these, which are dead, those that they have not answered: what the client repeats opens a flow to
    /// another one. No leg is among them, as each has a connection.
    pub unanswered: BTreeSet<u32>,
    /// Those of these listeners, which are gone.
    pub listeners: HashSet<ServiceKey>,
    /// The legs of these listeners, whose clients the data plane serves by itself from now on.
    pub legs: HashSet<ServiceKey>,
    /// Those of every listener that is not in here; none: this selects no flow.
    pub open: Option<HashSet<ServiceKey>>,
    /// Those of clients that these rules of their listener deny, whichever service it was when they came.
    /// An empty set of rules denies no client; where there are some, a client that none of them matches is
    /// denied. A listener that is not in here has no flow selected.
    pub denied: HashMap<ServiceKey, Rules>,
    /// Those of clients that these sources of their network do not have, by its id, in the same way.
    /// A network that is not in here has no flow selected.
    pub strangers: BTreeMap<u16, Rules>,
    /// Those that an operator has chosen: all of a choice must hold.
    pub chosen: Vec<FlowChoice>,
}

/// An operator's choice; what is none holds for every flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowChoice {
    /// Of clients in the network with this id.
    pub network: Option<u16>,
    /// Of the service with this id.
    pub service: Option<u16>,
    /// To the backend with this id.
    pub backend: Option<u32>,
    /// Of clients in this prefix.
    pub client: Option<IpNet>,
    /// With this flow id.
    pub id: Option<u32>,
    /// From this SNAT port.
    pub snat: Option<SnatPort>,
}

/// A port of the SNAT address in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnatPort {
    /// The slot.
    pub slot: u16,
    /// The port, host order.
    pub port: u16,
}

/// Why a flow is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// An operator has disabled its backend.
    Disabled,
    /// The drain timeout of its backend is over.
    Drained,
    /// Its backend is dead.
    Backend,
    /// Its service is gone, or its client may not use it any more.
    Policy,
    /// An operator has chosen it.
    Operator,
}

impl EndReason {
    /// The kind of the flow's last event.
    pub const fn event(self) -> u32 {
        match self {
            Self::Disabled => CUT_DISABLED,
            Self::Drained => CUT_DRAINED,
            Self::Backend => CUT_BACKEND,
            Self::Policy => CUT_POLICY,
            Self::Operator => CUT_OPERATOR,
        }
    }
}

impl EvictSelector {
    /// Whether it cuts nothing.
    pub fn is_empty(&self) -> bool {
        let Self {
            disabled,
            drained,
            backends,
            unanswered,
            listeners,
            legs,
            open,
            denied,
            strangers,
            chosen,
        } = self;
        disabled.is_empty()
            && drained.is_empty()
            && backends.is_empty()
            && unanswered.is_empty()
            && listeners.is_empty()
            && legs.is_empty()
            && open.is_none()
            && denied.is_empty()
            && strangers.is_empty()
            && chosen.is_empty()
    }

    /// Adds what a later order cuts. Its rules replace those of the same service or network, and its
    /// open listeners those of before: they are the ones that hold now.
    pub fn merge(&mut self, later: Self) {
        let Self {
            disabled,
            drained,
            backends,
            unanswered,
            listeners,
            legs,
            open,
            denied,
            strangers,
            chosen,
        } = later;
        self.disabled.extend(disabled);
        self.drained.extend(drained);
        self.backends.extend(backends);
        self.unanswered.extend(unanswered);
        self.listeners.extend(listeners);
        self.legs.extend(legs);
        self.open = open.or_else(|| self.open.take());
        self.denied.extend(denied);
        self.strangers.extend(strangers);
        self.chosen.extend(chosen);
    }

    /// Why a flow, the one with this id and this client, is cut; none if it is not. What it is decides, and of
    /// its state whether it is [unanswered](Self::unanswered). Of several reasons the first in the order of [`EndReason`]. A client that is not known is
    /// none that any rules allow.
    pub fn holds(&self, flow: &Flow, id: u32, client: Option<IpAddr>) -> Option<EndReason> {
        let denies = |rules: Option<&Rules>| rules.is_some_and(|rules| denies(rules, client));
        for (backends, why) in [
            (&self.disabled, EndReason::Disabled),
            (&self.drained, EndReason::Drained),
            (&self.backends, EndReason::Backend),
        ] {
            if backends.contains(&flow.backend_id.into()) {
                return Some(why);
            }
        }
        if id < FIRST_LEG
            && is_unanswered(flow)
            && self.unanswered.contains(&flow.backend_id.into())
        {
            return Some(EndReason::Backend);
        }
        let listener = listener(flow);
        let is_closed = |open: &HashSet<ServiceKey>| !open.contains(&listener);
        if self.listeners.contains(&listener)
            || id >= FIRST_LEG && self.legs.contains(&listener)
            || self.open.as_ref().is_some_and(is_closed)
            || denies(self.denied.get(&listener))
            || denies(self.strangers.get(&flow.network))
        {
            return Some(EndReason::Policy);
        }
        let chosen = self
            .chosen
            .iter()
            .any(|choice| choice.holds(flow, id, client));
        chosen.then_some(EndReason::Operator)
    }
}

impl FlowChoice {
    /// Whether it is for this flow, the one with this id and this client.
    pub fn holds(&self, flow: &Flow, flow_id: u32, its_client: Option<IpAddr>) -> bool {
        fn is<T: PartialEq>(chosen: Option<&T>, value: &T) -> bool {
            chosen.is_none_or(|chosen| chosen == value)
        }
        let Self {
            network,
            service,
            backend,
            client,
            id,
            snat,
        } = self;
        let its_port = || SnatPort {
            slot: u16::try_from(slot(flow_id)).unwrap_or(u16::MAX),
            port: flow.snat_port.get(),
        };
        is(network.as_ref(), &flow.network)
            && is(service.as_ref(), &flow.service)
            && is(backend.as_ref(), &flow.backend_id.into())
            && is(id.as_ref(), &flow_id)
            && snat.is_none_or(|snat| snat == its_port())
            && client.is_none_or(|prefix| its_client.is_some_and(|its| prefix.contains(&its)))
    }
}

/// Whether its backend has not answered yet.
const fn is_unanswered(flow: &Flow) -> bool {
    matches!(FlowState::from_raw(flow.word).state(), State::New)
}

/// Where the flow's client came in.
fn listener(flow: &Flow) -> ServiceKey {
    let protocol = match FlowState::from_raw(flow.word).is_udp() {
        true => Protocol::Udp,
        false => Protocol::Tcp,
    };
    ServiceKey {
        vip: flow.vip,
        port: flow.vip_port,
        network: flow.network,
        protocol: u32::from(protocol_number(protocol)),
    }
}

/// Whether `rules` deny a client, as the data plane would if it came only now.
fn denies(rules: &Rules, client: Option<IpAddr>) -> bool {
    let says = client.and_then(|client| longest(rules, client));
    !rules.is_empty() && says != Some(ALLOW)
}

/// The rule of the longest prefix that has `client`; none where there is none.
///
/// Prefixes are sorted by family and address, shorter ones first. So the last one that is not behind `client` is
/// the longest, or it ends before `client`: then what has `client` has both of them, and is no longer
/// than what they have in common. Each step makes that shorter.
fn longest(rules: &Rules, client: IpAddr) -> Option<u32> {
    let mut last = IpNet::from(client);
    loop {
        let (prefix, verdict) = rules.range(..=last).next_back()?;
        if prefix.contains(&client) {
            return Some(*verdict);
        }
        last = IpNet::new(client, common(prefix.addr(), client)?)
            .ok()?
            .trunc();
    }
}

/// How many bits two addresses begin with alike; none if they are of two families.
fn common(one: IpAddr, other: IpAddr) -> Option<u8> {
    let bits = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return None,
    };
    u8::try_from(bits).ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use lb_common::{
        addr::{Be16, Be32},
        maps::{addr6::label, rule::DENY},
    };

    use super::*;
    use crate::flows::idle::words::*;

    const ID: u32 = 1030;
    const SNAT: SnatPort = SnatPort {
        slot: 0,
        port: 2005,
    };

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn rules<const N: usize>(rules: [(&str, u32); N]) -> Rules {
        rules.map(|(prefix, says)| (net(prefix), says)).into()
    }

    /// The flow's listener, in this network.
    fn at(network: u16) -> ServiceKey {
        ServiceKey {
            network,
            ..listener(&flow())
        }
    }

    fn flow() -> Flow {
        Flow {
            network: 2,
            service: 5,
            backend_id: 7,
            snat_port: Be16::new(SNAT.port),
            vip: Ipv4Addr::new(10, 9, 9, 9).into(),
            ..Flow::default()
        }
    }

    fn client(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn why(cut: &EvictSelector) -> Option<EndReason> {
        cut.holds(&flow(), ID, client("10.1.2.3"))
    }

    #[test]
    fn a_reason_has_its_own_event() {
        assert_eq!(EndReason::Backend.event(), CUT_BACKEND);
        assert_eq!(EndReason::Disabled.event(), CUT_DISABLED);
        assert_eq!(EndReason::Drained.event(), CUT_DRAINED);
        assert_eq!(EndReason::Policy.event(), CUT_POLICY);
        assert_eq!(EndReason::Operator.event(), CUT_OPERATOR);
    }

    #[test]
    fn an_empty_cut_holds_for_no_flow_and_an_empty_choice_for_every_one() {
        assert!(EvictSelector::default().is_empty());
        assert_eq!(why(&EvictSelector::default()), None);
        let all = EvictSelector {
            chosen: vec![FlowChoice::default()],
            ..EvictSelector::default()
        };
        assert_eq!(why(&all), Some(EndReason::Operator));
        assert!(!all.is_empty());
    }

    #[test]
    fn a_backend_or_a_listener_is_cut_as_a_whole() {
        let backends = |backends: &[u32]| EvictSelector {
            backends: backends.iter().copied().collect(),
            ..EvictSelector::default()
        };
        let listeners = |change: fn(&mut ServiceKey)| {
            let mut key = listener(&flow());
            change(&mut key);
            EvictSelector {
                listeners: [key].into(),
                ..EvictSelector::default()
            }
        };
        assert_eq!(why(&backends(&[3, 7])), Some(EndReason::Backend));
        assert_eq!(why(&backends(&[2, 5, ID])), None);
        assert_eq!(why(&listeners(|_| {})), Some(EndReason::Policy));
        assert_eq!(why(&listeners(|key| key.protocol = 17)), None);
        assert_eq!(why(&listeners(|key| key.network += 1)), None);
        assert_eq!(why(&listeners(|key| key.vip = Be32::new(7))), None);
        assert_eq!(why(&listeners(|key| key.port = Be16::new(9))), None);
    }

    #[test]
    fn what_a_dead_backend_has_answered_goes_on_and_the_rest_ends() {
        let cut = EvictSelector {
            unanswered: [3, 7].into(),
            ..EvictSelector::default()
        };
        assert!(!cut.is_empty());
        let of = |word: FlowState, backend_id| Flow {
            word: word.raw(),
            backend_id,
            ..flow()
        };
        for (word, why) in [
            (new(), Some(EndReason::Backend)),
            (new().expiring(), Some(EndReason::Backend)),
            (udp(false), Some(EndReason::Backend)),
            (replied(), None),
            (established(), None),
            (half_closed(), None),
            (udp(true), None),
            (new().close(), None),
        ] {
            assert_eq!(cut.holds(&of(word, 7), ID, None), why, "{word:?}");
            assert_eq!(cut.holds(&of(word, 2), ID, None), None);
            assert_eq!(cut.holds(&of(word, 7), FIRST_LEG, None), None, "a leg");
        }
    }

    /// Also where it is dead as well: orders that wait are merged.
    #[test]
    fn what_an_operator_does_to_a_backend_is_no_death() {
        let ours = || BTreeSet::from([3, 7]);
        let mut cut = EvictSelector {
            backends: ours(),
            ..EvictSelector::default()
        };
        assert_eq!(why(&cut), Some(EndReason::Backend));
        cut.merge(EvictSelector {
            drained: ours(),
            ..EvictSelector::default()
        });
        assert_eq!(why(&cut), Some(EndReason::Drained));
        cut.merge(EvictSelector {
            disabled: ours(),
            ..EvictSelector::default()
        });
        assert_eq!(why(&cut), Some(EndReason::Disabled));
        let other = EvictSelector {
            disabled: BTreeSet::from([2]),
            drained: BTreeSet::from([5]),
            ..EvictSelector::default()
        };
        assert_eq!(why(&other), None);
        assert!(!other.is_empty());
    }

    #[test]
    fn what_is_not_open_is_closed_and_nothing_open_is_all() {
        let open = |open: Option<HashSet<ServiceKey>>| EvictSelector {
            open,
            ..EvictSelector::default()
        };
        assert_eq!(why(&open(None)), None);
        assert_eq!(why(&open(Some([at(2), at(5)].into()))), None);
        assert_eq!(why(&open(Some([at(5)].into()))), Some(EndReason::Policy));
        assert_eq!(why(&open(Some(HashSet::new()))), Some(EndReason::Policy));
        assert!(!open(Some(HashSet::new())).is_empty());
    }

    #[test]
    fn rules_are_those_of_the_flows_own_listener_or_network() {
        let deny = rules([("10.0.0.0/8", DENY)]);
        let denied = |network| EvictSelector {
            denied: [(at(network), deny.clone())].into(),
            ..EvictSelector::default()
        };
        let strangers = |network| EvictSelector {
            strangers: [(network, deny.clone())].into(),
            ..EvictSelector::default()
        };
        assert_eq!(why(&denied(2)), Some(EndReason::Policy));
        assert_eq!(why(&denied(5)), None);
        assert_eq!(why(&strangers(2)), Some(EndReason::Policy));
        assert_eq!(why(&strangers(5)), None);
    }

    #[test]
    fn the_longest_match_decides_and_no_match_denies_unless_there_are_no_rules() {
        let is_cut = |rules: Rules| {
            let cut = EvictSelector {
                denied: [(at(2), rules)].into(),
                ..EvictSelector::default()
            };
            assert!(!cut.is_empty());
            why(&cut).is_some()
        };
        assert!(!is_cut(rules([])));
        assert!(is_cut(rules([("10.2.0.0/16", ALLOW)])));
        assert!(!is_cut(rules([("0.0.0.0/0", ALLOW)])));
        assert!(!is_cut(rules([
            ("10.1.0.0/16", ALLOW),
            ("10.0.0.0/8", DENY)
        ])));
        assert!(is_cut(rules([
            ("10.1.0.0/16", DENY),
            ("10.0.0.0/8", ALLOW)
        ])));
        assert!(is_cut(rules([
            ("10.1.0.0/16", ALLOW),
            ("10.1.2.3/32", DENY),
            ("10.1.2.0/24", ALLOW)
        ])));
        // Behind it, and beside it within what both have in common.
        assert!(!is_cut(rules([
            ("10.1.0.0/16", ALLOW),
            ("10.1.2.0/31", DENY),
            ("10.1.1.0/24", DENY),
            ("10.1.2.4/30", DENY)
        ])));
    }

    #[test]
    fn a_client_of_ipv6_is_judged_by_the_prefixes_of_ipv6() {
        let vip = Be32::new(label(3).get());
        let flow = Flow { vip, ..flow() };
        let key = listener(&flow);
        assert_eq!(key.vip, label(3), "the label is the VIP");
        let is_cut = |rules: Rules, its: Option<IpAddr>| {
            let denied = EvictSelector {
                denied: [(key, rules.clone())].into(),
                ..EvictSelector::default()
            };
            let strangers = EvictSelector {
                strangers: [(flow.network, rules)].into(),
                ..EvictSelector::default()
            };
            let both = [denied, strangers].map(|cut| cut.holds(&flow, ID, its).is_some());
            assert_eq!(both[0], both[1]);
            both[0]
        };
        let of_both = || {
            rules([
                ("0.0.0.0/0", ALLOW),
                ("255.255.255.255/32", ALLOW),
                ("fd00::/16", ALLOW),
                ("fd00:1::/32", DENY),
                ("fd00:1:2::/48", ALLOW),
                ("fd00:1:2::5/128", DENY),
            ])
        };
        for (its, wanted) in [
            ("fd00:2::1", false),
            ("fd00:1::1", true),
            ("fd00:1:2::4", false),
            ("fd00:1:2::5", true),
            ("fd00:1:2::6", false),
            ("2001:db8::1", true),
            ("::", true),
            ("10.1.2.3", false),
        ] {
            assert_eq!(is_cut(of_both(), client(its)), wanted, "{its}");
        }
        assert!(is_cut(of_both(), None), "its client is not known");
        assert!(!is_cut(rules([]), None));
        assert!(is_cut(rules([("0.0.0.0/0", ALLOW)]), client("fd00::1")));
        assert!(is_cut(rules([("::/0", ALLOW)]), client("10.1.2.3")));
        assert!(!is_cut(rules([("::/0", ALLOW)]), client("fd00::1")));
    }

    #[test]
    fn a_choice_of_clients_is_of_their_family() {
        let of = |prefix: &str| FlowChoice {
            client: Some(net(prefix)),
            ..FlowChoice::default()
        };
        let holds = |prefix: &str, its: &str| of(prefix).holds(&flow(), ID, client(its));
        assert!(holds("fd00::/16", "fd00::7") && holds("fd00::7/128", "fd00::7"));
        assert!(!holds("fd00::/16", "fd01::7") && !holds("::/0", "10.0.0.1"));
        assert!(!holds("0.0.0.0/0", "fd00::7"));
        assert!(!of("::/0").holds(&flow(), ID, None));
        assert!(FlowChoice::default().holds(&flow(), ID, None));
    }

    /// Against a search of all of them.
    #[test]
    fn the_longest_match_is_that_of_a_plain_search() {
        let mut random = 7u32;
        let mut below = |end: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % end
        };
        let mut matched = 0;
        for _ in 0..20_000 {
            // Few bits, so that prefixes nest and meet.
            let mut address = || -> IpAddr {
                let [first, middle, last] = [below(16), below(4), below(8)];
                if below(2) == 0 {
                    return Ipv4Addr::from_bits(first << 28 | middle << 14 | last).into();
                }
                let upper = u128::from(first) << 124 | u128::from(middle) << 62;
                Ipv6Addr::from_bits(upper | u128::from(last)).into()
            };
            let (client, addresses) = (address(), [(); 12].map(|()| address()));
            let rules: Rules = addresses
                .into_iter()
                .map(|address| {
                    let most = if address.is_ipv6() { 128 } else { 32 };
                    let length = u8::try_from(below(most + 1)).unwrap();
                    (IpNet::new(address, length).unwrap().trunc(), below(3))
                })
                .collect();
            let having = rules.iter().filter(|(prefix, _)| prefix.contains(&client));
            let wanted = having.max_by_key(|(prefix, _)| prefix.prefix_len());
            assert_eq!(longest(&rules, client), wanted.map(|(_, says)| *says));
            matched += u32::from(wanted.is_some());
        }
        assert!((3_000..19_000).contains(&matched), "{matched}");
    }

    #[test]
    fn all_of_a_choice_must_hold_and_one_choice_is_enough() {
        let whole = FlowChoice {
            network: Some(2),
            service: Some(5),
            backend: Some(7),
            client: Some(net("10.1.2.0/24")),
            id: Some(ID),
            snat: Some(SNAT),
        };
        assert!(whole.holds(&flow(), ID, client("10.1.2.3")));
        assert!(!whole.holds(&flow(), ID, None));
        let others = [
            FlowChoice {
                network: Some(3),
                ..whole.clone()
            },
            FlowChoice {
                service: Some(2),
                ..whole.clone()
            },
            FlowChoice {
                backend: Some(5),
                ..whole.clone()
            },
            FlowChoice {
                client: Some(net("10.9.9.9/32")),
                ..whole.clone()
            },
            FlowChoice {
                id: Some(7),
                ..whole.clone()
            },
            FlowChoice {
                snat: Some(SnatPort { slot: 1, ..SNAT }),
                ..whole.clone()
            },
            FlowChoice {
                snat: Some(SnatPort { port: 1025, ..SNAT }),
                ..whole.clone()
            },
        ];
        let mut cut = EvictSelector {
            chosen: others.to_vec(),
            ..EvictSelector::default()
        };
        assert_eq!(why(&cut), None);
        cut.chosen.push(whole);
        assert_eq!(why(&cut), Some(EndReason::Operator));
    }

    #[test]
    fn what_is_merged_cuts_both_and_later_rules_count() {
        let gone = |network| ServiceKey {
            network,
            ..ServiceKey::default()
        };
        let mut cut = EvictSelector {
            disabled: [21].into(),
            drained: [31].into(),
            backends: [1].into(),
            unanswered: [41].into(),
            listeners: [gone(2)].into(),
            legs: [gone(1)].into(),
            open: Some([at(1)].into()),
            denied: [
                (at(5), rules([("10.0.0.0/8", DENY)])),
                (at(6), rules([("10.0.0.0/8", DENY)])),
            ]
            .into(),
            strangers: [(3, rules([("10.0.0.0/8", DENY)]))].into(),
            chosen: vec![FlowChoice::default()],
        };
        let one = FlowChoice {
            id: Some(ID),
            ..FlowChoice::default()
        };
        cut.merge(EvictSelector {
            disabled: [22].into(),
            drained: [32].into(),
            backends: [11].into(),
            unanswered: [42].into(),
            listeners: [gone(12)].into(),
            legs: [gone(11)].into(),
            open: None,
            denied: [(at(5), rules([("10.0.0.0/8", ALLOW)]))].into(),
            strangers: [(4, rules([]))].into(),
            chosen: vec![one.clone()],
        });
        let wanted = EvictSelector {
            disabled: [21, 22].into(),
            drained: [31, 32].into(),
            backends: [1, 11].into(),
            unanswered: [41, 42].into(),
            listeners: [gone(2), gone(12)].into(),
            legs: [gone(1), gone(11)].into(),
            open: Some([at(1)].into()),
            denied: [
                (at(5), rules([("10.0.0.0/8", ALLOW)])),
                (at(6), rules([("10.0.0.0/8", DENY)])),
            ]
            .into(),
            strangers: [(3, rules([("10.0.0.0/8", DENY)])), (4, rules([]))].into(),
            chosen: vec![FlowChoice::default(), one],
        };
        assert_eq!(cut, wanted);
        cut.merge(EvictSelector {
            open: Some([at(4)].into()),
            ..EvictSelector::default()
        });
        assert_eq!(cut.open, Some([at(4)].into()));
    }
}
