//! Which flows an operator means: names and addresses as the ids that flows have. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use lb_common::{conntrack::FlowState, maps::flow::Flow};

use crate::{
    api::Filter,
    flows::evict::selector::{FlowChoice, SnatPort},
    model::{
        registry::{Ids, Kind},
        snat::{self, SnatSlot},
    },
};

/// The most names that are listed as the known ones.
const MAX_NAMES_LISTED: usize = 8;

/// What `filter` means to flows that have these ids: a flow is meant if any of the choices holds.
///
/// # Errors
///
/// What is no name or address of anything that flows have, in words.
pub(crate) fn choose(filter: &Filter, ids: &Ids) -> Result<Vec<FlowChoice>, String> {
    let Filter {
        network,
        service,
        pool,
        backend,
        client,
        snat,
        all: _,
    } = filter;
    let one = |kind, name: &Option<String>| {
        let id = name.as_deref().map(|name| id(ids, kind, name));
        id.transpose()
    };
    let choice = FlowChoice {
        network: one(Kind::Network, network)?,
        service: one(Kind::Service, service)?,
        client: client.as_deref().map(prefix).transpose()?,
        ..FlowChoice::default()
    };
    let mut choices = vec![choice];
    if let Some(name) = pool {
        let ids = of_pool(name, ids)?;
        choices = with_each(&choices, &ids, |choice, id| choice.backend = Some(id));
    }
    if let Some(name) = backend {
        let ids = backends(name, ids)?;
        choices = with_each(&choices, &ids, |choice, id| choice.backend = Some(id));
    }
    if let Some(tuple) = snat {
        let ports = snat_ports(tuple, ids)?;
        choices = with_each(&choices, &ports, |choice, port| choice.snat = Some(port));
    }
    Ok(choices)
}

/// Whether a flow is meant, the one with this id and this client.
pub(crate) fn meant(choices: &[FlowChoice], id: u32, flow: &Flow, client: Option<IpAddr>) -> bool {
    choices.iter().any(|choice| choice.holds(flow, id, client))
}

/// The ids of the backend with this name, `POOL/BACKEND` or `BACKEND`: the one that is configured,
/// and those of other addresses that it had before, which still have flows.
///
/// # Errors
///
/// If there is none, or backends of several pools have the name.
pub(crate) fn backends(name: &str, ids: &Ids) -> Result<Vec<u32>, String> {
    let (pool, backend) = match name.split_once('/') {
        Some((pool, backend)) => (Some(pool), backend),
        None => (None, name),
    };
    let known = ids.of(Kind::Backend).filter_map(|(name, id)| {
        let (name, _) = name.rsplit_once('@')?;
        let (pool, backend) = name.split_once('/')?;
        Some((pool, backend, id))
    });
    let called =
        known.filter(|(of, called, _)| *called == backend && pool.is_none_or(|pool| pool == *of));
    let called: Vec<(&str, &str, u32)> = called.collect();
    let pools: BTreeSet<&str> = called.iter().map(|(pool, ..)| *pool).collect();
    if pools.is_empty() {
        return Err(format!(
            "no backend is called {name:?}; `lb backends` lists them as POOL and BACKEND"
        ));
    }
    if pools.len() > 1 {
        let names = pools.iter().map(|pool| format!("{pool}/{backend}"));
        return Err(format!(
            "backends of several pools are called {name:?}: say {}",
            names.collect::<Vec<_>>().join(" or ")
        ));
    }
    Ok(called.into_iter().map(|(.., id)| id).collect())
}

/// The ids of the backends of a pool, also of those that only finish their flows.
fn of_pool(name: &str, ids: &Ids) -> Result<Vec<u32>, String> {
    let known = ids.of(Kind::Backend);
    let known = known.filter(|(backend, _)| backend.split('/').next() == Some(name));
    let known: Vec<u32> = known.map(|(_, id)| id).collect();
    match known.is_empty() {
        true => Err(format!(
            "no pool with backends is called {name:?}; `lb backends` lists them"
        )),
        false => Ok(known),
    }
}

fn with_each<T: Copy>(
    choices: &[FlowChoice],
    ids: &[T],
    set: impl Fn(&mut FlowChoice, T),
) -> Vec<FlowChoice> {
    let all = choices.iter().flat_map(|choice| {
        ids.iter().map(|&id| {
            let mut choice = choice.clone();
            set(&mut choice, id);
            choice
        })
    });
    all.collect()
}

fn id(ids: &Ids, kind: Kind, name: &str) -> Result<u16, String> {
    let id = ids.get(kind, name).and_then(|id| u16::try_from(id).ok());
    id.ok_or_else(|| {
        let known: Vec<&str> = ids.of(kind).map(|(name, _)| name).collect();
        let few = known.iter().take(MAX_NAMES_LISTED).copied();
        let mut few: Vec<&str> = few.collect();
        if known.len() > MAX_NAMES_LISTED {
            few.push("...");
        }
        let kind = kind.label();
        match few.is_empty() {
            true => format!("no {kind} is called {name:?}; there is none"),
            false => format!("no {kind} is called {name:?}; there are {}", few.join(", ")),
        }
    })
}

/// A prefix, or an address as one.
fn prefix(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>();
    let address = address.map(|address| IpNet::from(address.to_canonical()));
    let prefix = address.or_else(|_| text.parse::<IpNet>().map(canonical));
    prefix.map(|prefix| prefix.trunc()).map_err(|_| {
        format!("{text:?} is neither an address nor a prefix such as 10.0.0.0/24 or fd00:1::/64")
    })
}

/// A prefix of addresses that stand for IPv4 ones is one of those.
fn canonical(prefix: IpNet) -> IpNet {
    let mapped = prefix.addr().to_canonical();
    let length = prefix.prefix_len().checked_sub(96);
    match (prefix.addr(), mapped, length) {
        (IpAddr::V6(_), IpAddr::V4(_), Some(length)) => {
            IpNet::new(mapped, length).unwrap_or(prefix)
        }
        _ => prefix,
    }
}

/// The SNAT ports that are meant: one in each network that has the address.
fn snat_ports(tuple: &str, ids: &Ids) -> Result<Vec<SnatPort>, String> {
    let parsed: SocketAddr = tuple.parse().map_err(|_| {
        format!("{tuple:?} is not a SNAT address and port such as 10.0.0.1:2000 or [fd00::1]:2000")
    })?;
    let slots = ids.of(Kind::Snat).filter_map(|(name, id)| {
        let slot = u16::try_from(id.checked_sub(1)?).ok()?;
        let (_, snat) = snat::parse_name(name)?;
        Some(SnatSlot::new(slot, snat, ids))
    });
    let slots = slots.filter(|slot| slot.has(parsed));
    let port = |slot: SnatSlot| SnatPort {
        slot: slot.slot,
        port: parsed.port(),
    };
    let found: Vec<SnatPort> = slots.map(port).collect();
    if found.is_empty() {
        return Err(format!(
            "{tuple} is no SNAT port; `lb status` lists SNAT addresses and their ports"
        ));
    }
    Ok(found)
}

/// The name of a flow's protocol.
pub(crate) const fn protocol(word: FlowState) -> &'static str {
    if word.is_udp() { "udp" } else { "tcp" }
}

#[cfg(test)]
mod tests {
    use lb_common::{addr::Be16, maps::snat::base};

    use super::*;

    fn ids() -> Ids {
        let mut ids = Ids::default();
        for (kind, name, id) in [
            (Kind::Network, "mgmt", 1),
            (Kind::Network, "tenant-a", 2),
            (Kind::Service, "api", 1),
            (Kind::Backend, "p/a@mgmt/10.0.0.2", 1),
            (Kind::Backend, "q/a@mgmt/10.0.0.3", 2),
            (Kind::Backend, "q/b@mgmt/10.0.0.4", 3),
            (Kind::Backend, "q/b@mgmt/10.0.0.5", 4),
            (Kind::Backend, "q/10.0.0.6:80@mgmt/10.0.0.6", 5),
            (Kind::Snat, "mgmt/10.0.0.1:2000-2009", 1),
            (Kind::Snat, "tenant-a/10.0.0.1:2005-2009", 2),
            (Kind::Snat, "mgmt/[fd00::1]:2000-2009", 3),
        ] {
            ids.insert(kind, name, id);
        }
        ids
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_prefix_that_stands_for_ipv4_ones_is_one_of_those() {
        let read = |text: &str| prefix(text).map(|prefix| prefix.to_string());
        assert_eq!(read("::ffff:10.1.2.3/104"), Ok("10.0.0.0/8".to_owned()));
        assert_eq!(read("::ffff:10.1.2.3"), Ok("10.1.2.3/32".to_owned()));
        assert_eq!(read("::ffff:0:0/95"), Ok("::fffe:0:0/95".to_owned()));
        assert_eq!(read("fd00::1/64"), Ok("fd00::/64".to_owned()));
    }

    #[test]
    fn without_a_filter_every_flow_is_meant() {
        let choices = choose(&Filter::default(), &ids()).unwrap();
        assert_eq!(choices, [FlowChoice::default()]);
        assert!(meant(&choices, 7, &Flow::default(), None));
    }

    #[test]
    fn all_that_is_said_must_hold() {
        let flow = Flow {
            network: 2,
            service: 1,
            backend_id: 1,
            snat_port: Be16::new(2003),
            ..Flow::default()
        };
        let id = base(0) + 3;
        let filter = Filter {
            network: some("tenant-a"),
            service: some("api"),
            pool: None,
            backend: some("p/a"),
            client: some("10.9.0.0/16"),
            snat: some("10.0.0.1:2003"),
            all: false,
        };
        let choices = choose(&filter, &ids()).unwrap();
        let its = Some(IpAddr::from([10, 9, 8, 7]));
        assert!(meant(&choices, id, &flow, its));
        let others = [
            Flow { network: 1, ..flow },
            Flow { service: 2, ..flow },
            Flow {
                backend_id: 2,
                ..flow
            },
            Flow {
                snat_port: Be16::new(2004),
                ..flow
            },
        ];
        for other in others {
            assert!(!meant(&choices, id, &other, its), "{other:?}");
        }
        assert!(!meant(&choices, base(1) + 3, &flow, its));
        for another in [None, Some(IpAddr::from([10, 8, 8, 7]))] {
            assert!(!meant(&choices, id, &flow, another));
        }
    }

    #[test]
    fn a_backend_is_named_with_its_pool_or_alone() {
        let ids = ids();
        assert_eq!(backends("p/a", &ids), Ok(vec![1]));
        assert_eq!(backends("q/a", &ids), Ok(vec![2]));
        assert_eq!(backends("b", &ids), Ok(vec![3, 4]), "it had two addresses");
        assert_eq!(backends("q/10.0.0.6:80", &ids), Ok(vec![5]));
        let words = backends("a", &ids).unwrap_err();
        assert!(words.ends_with("say p/a or q/a"), "{words}");
        for name in ["c", "p/b", "", "q/", "/b", "q/b@mgmt"] {
            let words = backends(name, &ids).unwrap_err();
            assert!(words.starts_with("no backend is called"), "{name}: {words}");
        }
    }

    #[test]
    fn a_pool_means_each_of_its_backends() {
        let of = |pool| Filter {
            pool: some(pool),
            ..Filter::default()
        };
        let choices = choose(&of("q"), &ids()).unwrap();
        for (backend_id, is_meant) in [(1, false), (2, true), (3, true), (4, true), (5, true)] {
            let flow = Flow {
                backend_id,
                ..Flow::default()
            };
            assert_eq!(meant(&choices, 7, &flow, None), is_meant, "{backend_id}");
        }
        let words = choose(&of("r"), &ids()).unwrap_err();
        assert!(
            words.starts_with("no pool with backends is called"),
            "{words}"
        );
    }

    #[test]
    fn one_name_may_mean_flows_with_several_ids() {
        let filter = Filter {
            backend: some("b"),
            snat: some("10.0.0.1:2005"),
            ..Filter::default()
        };
        let choices = choose(&filter, &ids()).unwrap();
        let meant: Vec<_> = choices.iter().map(|one| (one.backend, one.snat)).collect();
        let port = |slot| Some(SnatPort { slot, port: 2005 });
        assert_eq!(
            meant,
            [
                (Some(3), port(0)),
                (Some(3), port(1)),
                (Some(4), port(0)),
                (Some(4), port(1)),
            ]
        );
    }

    #[test]
    fn a_snat_port_of_ipv6_stands_in_brackets() {
        let port = SnatPort {
            slot: 2,
            port: 2003,
        };
        assert_eq!(snat_ports("[fd00::1]:2003", &ids()), Ok(vec![port]));
        for text in ["fd00::1:2003", "[fd00::2]:2003", "[fd00::1]:2010"] {
            assert!(snat_ports(text, &ids()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_client_is_an_address_or_a_prefix() {
        assert_eq!(prefix("10.0.0.7").unwrap().to_string(), "10.0.0.7/32");
        assert_eq!(prefix("10.0.0.7/24").unwrap().to_string(), "10.0.0.0/24");
        assert_eq!(prefix("fd00::7").unwrap().to_string(), "fd00::7/128");
        assert_eq!(prefix("fd00:1::7/64").unwrap().to_string(), "fd00:1::/64");
        assert_eq!(
            prefix("::ffff:10.0.0.7").unwrap().to_string(),
            "10.0.0.7/32"
        );
        for text in ["", "10.0.0", "10.0.0.0/33", "fd00::/129", "[fd00::1]", "a"] {
            assert!(prefix(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_nothing_is_called_is_refused() {
        let refused = |filter: Filter| choose(&filter, &ids()).unwrap_err();
        let words = refused(Filter {
            network: some("mgnt"),
            ..Filter::default()
        });
        assert_eq!(
            words,
            "no network is called \"mgnt\"; there are mgmt, tenant-a"
        );
        let words = refused(Filter {
            service: some("x"),
            ..Filter::default()
        });
        assert_eq!(words, "no service is called \"x\"; there are api");
        for (snat, words) in [
            ("10.0.0.1", "is not a SNAT address and port"),
            ("10.0.0.1:2010", "is no SNAT port"),
            ("10.0.0.2:2000", "is no SNAT port"),
        ] {
            let refused = refused(Filter {
                snat: some(snat),
                ..Filter::default()
            });
            assert!(refused.contains(words), "{refused}");
        }
    }
}
