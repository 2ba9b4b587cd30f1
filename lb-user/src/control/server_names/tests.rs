use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    slice,
};

use lb_common::{
    client_hello::{self, HelloVerdict},
    maps::{
        rule::Owner,
        server_name::OTHER_CLIENTS,
        service::{Service as Record, ServiceKey},
    },
    server_name::ServerName,
};

use super::*;
use crate::{
    config::{self, Otherwise},
    control::{
        desired::Desired,
        plan::{Current, carried_out, plan},
    },
    proxy::route::{RouteTable, RouteTarget},
};

const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  one:  { network: mgmt, backends: [\"10.32.96.105:1\"] }
  two:  { network: mgmt, backends: [\"10.32.96.105:2\"], balance: round-robin }
  head: { network: mgmt, backends: [\"10.32.96.105:3\"], proxy_protocol: v2 }
  kept: { network: mgmt, backends: [\"10.32.96.105:4\"], balance: source, source_timeout: 1m }
services:
  shared:
    network: tenant-a
    listen: [\"192.168.203.110:443/tcp\"]
    sni:
      late_binding: always
      routes:
        - { names: [a.example, \"*.a.example\", A.Other.example], pool: one }
        - { names: [b.example], pool: two }
        - { names: [d.example], pool: head }
        - { names: [e.example], pool: kept }
        - { names: [f.example], pool: one, alpn: [h2] }
        - { names: [g.example], pool: one, from: [192.168.203.0/25, 192.168.203.200/32] }
        - { names: [g.example], pool: head, from: [192.168.203.0/26] }
        - { names: [g.example], pool: two }
        - { names: [k.example, \"*.k.example\"], pool: kept, from: [192.168.203.0/26] }
        - { names: [k.example, \"*.k.example\"], pool: two, from: [192.168.203.0/24] }
        - { regex: [\"h.*\"], pool: one }
        - { no_name: true, pool: one }
";

fn found(change: impl Fn(&str) -> String) -> Option<KnownNames> {
    let config = config::parse("f", &change(CONFIG)).unwrap();
    let mut ids = Ids::new(None);
    for pool in &config.pools {
        ids.assign(Kind::Pool, &pool.name, 99).unwrap();
    }
    names(&config.services[0], 7, &config, &ids)
}

/// The pool of a key, and its flags.
fn of(names: &KnownNames, name: &str, kind: u32) -> Option<(u32, u16)> {
    let key = key(7, name.as_bytes(), kind).unwrap();
    let route = names.routes.get(&key)?;
    assert_eq!(route.mark, key.mark());
    Some((route.pool, route.flags))
}

#[test]
fn names_that_go_to_one_pool_are_the_data_planes() {
    let names = found(str::to_owned).unwrap();
    let of = |name: &str, kind| of(&names, name, kind);
    for name in ["a.example", "a.other.example"] {
        assert_eq!(of(name, 0), Some((1, 0)), "{name}");
    }
    assert_eq!(of("a.example", UNDER), Some((1, 0)));
    assert_eq!(of("b.example", 0), Some((2, 4)));
    assert_eq!(of("d.example", 0), Some((3, WITH_HEADER)));
    assert_eq!(of("e.example", 0), Some((0, 0)), "it is the process's");
}

#[test]
fn a_name_may_lead_by_the_class_of_the_client() {
    let names = found(str::to_owned).unwrap();
    let classes = [
        "192.168.203.0/24",
        "192.168.203.0/25",
        "192.168.203.0/26",
        "192.168.203.200/32",
    ];
    let prefixes: Vec<IpNet> = names.classes.keys().copied().collect();
    let wanted: BTreeSet<IpNet> = classes.iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(prefixes.into_iter().collect::<BTreeSet<_>>(), wanted);
    let of_class = |name: &str, class: &str, kind| {
        let prefix = class.parse::<IpNet>().ok();
        let class = prefix.map_or(OTHER_CLIENTS, |prefix| names.classes[&prefix]);
        of(&names, name, class | kind)
    };
    let (one, two) = (Some((1, 0)), Some((2, 4)));
    // The first route counts that is for a client, whichever is longer.
    for (class, pool) in classes
        .into_iter()
        .chain(["others"])
        .zip([two, one, one, one, two])
    {
        assert_eq!(of_class("g.example", class, 0), pool, "{class}");
    }
    // Those of a pool that the data plane cannot use are the process's, and so are those that get nothing.
    for kind in [0, UNDER] {
        let pools = classes.map(|class| of_class("k.example", class, kind));
        assert_eq!(pools, [two, two, None, two]);
        assert_eq!(of_class("k.example", "others", kind), None);
    }
    let by_class = Some((BY_CLIENT, BY_CLASS));
    for (name, kind) in [("g.example", 0), ("k.example", 0), ("k.example", UNDER)] {
        assert_eq!(of(&names, name, kind), by_class);
    }
}

#[test]
fn a_name_may_lead_by_what_the_client_offers() {
    let routes = |alpn: &str| found(|text| text.replace("alpn: [h2]", alpn)).unwrap();
    let names = routes("alpn: [h2, acme-tls/1]");
    let number = |protocol| of(&names, protocol, PROTOCOL).unwrap().0;
    let (h2, acme) = (number("h2"), number("acme-tls/1"));
    assert_eq!(of(&names, "f.example", 0), Some((BY_CLIENT, BY_PROTOCOL)));
    let offering = |offers| of(&names, "f.example", OTHER_CLIENTS | offers);
    for offers in [h2, acme, h2 | acme] {
        assert_eq!(offering(offers), Some((1, 0)), "{offers}");
    }
    assert_eq!(offering(0), None, "another name, or nothing");
    let long = "x".repeat(121);
    for unknown in ["1, 2, 3, 4, 5", "zz", &long] {
        let names = routes(&format!("alpn: [{unknown}]"));
        assert_eq!(of(&names, "f.example", 0), Some((0, 0)), "{unknown}");
        assert_eq!(of(&names, "g.example", 0), Some((BY_CLIENT, BY_CLASS)));
        assert_eq!(of(&names, "1", PROTOCOL), None);
    }
}

/// A route of the names, protocols and prefixes of these tests.
fn drawn(at: usize) -> Route {
    const NAMES: [&str; 3] = ["a.b", "*.b", "*.a.b"];
    const ALPN: [&[&str]; 3] = [&[], &["h2"], &["h2", "acme"]];
    const FROM: [&[&str]; 3] = [&[], &["10.0.0.0/8"], &["10.0.0.0/16", "11.0.0.0/8"]];
    let alpn = ALPN[at / 3 % 3].iter().map(|&protocol| protocol.to_owned());
    let from = FROM[at / 9 % 3]
        .iter()
        .map(|prefix| prefix.parse().unwrap());
    Route {
        names: vec![NAMES[at % 3].to_owned()],
        expressions: Vec::new(),
        no_name: false,
        clusters: Vec::new(),
        proxies: Vec::new(),
        alpn: alpn.collect(),
        from: from.collect(),
        to: To::Pool(["one", "two", "head", "kept"][at / 7 % 4].to_owned()),
    }
}

/// A hello with these protocols.
fn hello(protocols: &[&str]) -> Vec<u8> {
    let long = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    let short = |text: &&str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let list: Vec<u8> = protocols.iter().flat_map(short).collect();
    let extension = [&[0, 16][..], &long(&long(&list))].concat();
    let extensions = if list.is_empty() { vec![] } else { extension };
    let fixed = [&[3, 3][..], &[0; 32], &[0], &[0, 2, 0, 1], &[1, 0]].concat();
    let body = [fixed, long(&extensions)].concat();
    let message = [&[1][..], &[0], &long(&body)].concat();
    [&[22, 3, 1][..], &long(&message)].concat()
}

/// The pool that the data plane finds for a client by these names and classes, without its limits of labels and protocols; none
/// of the process's.
fn look_up(
    (names, classes): (&HashMap<NameKey, PoolRoute>, Option<&Rules>),
    name: &str,
    client: Ipv4Addr,
    offers: &[&str],
) -> Option<u32> {
    let of = |name: &str, kind| names.get(&key(7, name.as_bytes(), kind).unwrap());
    let exact = of(name, 0).map(|route| (name, 0, route));
    let mut parents = Pattern::of(name).parents();
    let (name, kind, route) = exact.or_else(|| {
        parents.find_map(|parent| Some((parent.name, UNDER, of(parent.name, UNDER)?)))
    })?;
    if route.pool != BY_CLIENT {
        return Some(route.pool).filter(|pool| *pool != 0);
    }
    let mut client_kind = OTHER_CLIENTS;
    if route.flags & BY_CLASS != 0 {
        let is_in = |prefix: &&IpNet| prefix.contains(&IpAddr::V4(client));
        let prefixes = classes?.keys().filter(is_in);
        let longest = prefixes.max_by_key(|prefix| prefix.prefix_len());
        client_kind = longest.map_or(OTHER_CLIENTS, |prefix| classes.unwrap()[prefix]);
    }
    if route.flags & BY_PROTOCOL != 0 {
        let offered = offers.iter().filter_map(|offer| of(offer, PROTOCOL));
        client_kind = offered.fold(client_kind, |all, route| all | route.pool);
    }
    Some(of(name, client_kind | kind)?.pool)
}

/// [`CONFIG`], with whose pools there are ids.
fn with_ids() -> (Config, Ids) {
    let config = config::parse("f", CONFIG).unwrap();
    let mut ids = Ids::new(None);
    for pool in &config.pools {
        ids.assign(Kind::Pool, &pool.name, 99).unwrap();
    }
    (config, ids)
}

/// The names by these routes.
fn known(config: &mut Config, ids: &Ids, routes: Vec<Route>) -> KnownNames {
    let Target::Sni(sni) = &mut config.services[0].target else {
        panic!("no routes")
    };
    sni.routes = routes;
    names(&config.services[0], 7, config, ids).unwrap()
}

/// Three routes.
fn three(drawing: usize) -> Vec<Route> {
    [drawing / 729, drawing / 27 % 27, drawing % 27]
        .map(drawn)
        .to_vec()
}

const NAMES: [&str; 4] = ["a.b", "c.b", "d.a.b", "b"];
const CLIENTS: [Ipv4Addr; 4] = [
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 1, 0, 1),
    Ipv4Addr::new(11, 0, 0, 1),
    Ipv4Addr::new(12, 0, 0, 1),
];
const OFFERS: [&[&str]; 5] = [
    &[],
    &["h2"],
    &["mqtt"],
    &["acme", "mqtt"],
    &["h2", "acme", "h2"],
];

/// A name, a client and what it offers, in all ways.
fn cases() -> impl Iterator<Item = (&'static str, Ipv4Addr, &'static [&'static str])> {
    let clients = NAMES
        .into_iter()
        .flat_map(|name| CLIENTS.map(|client| (name, client)));
    clients.flat_map(|(name, client)| OFFERS.map(|offers| (name, client, offers)))
}

/// Three routes at a time, every seventh draw of all, and clients of all kinds: each goes to the pool that the process finds for
/// it, or to the process.
#[test]
fn what_is_known_is_what_the_process_says() {
    let (mut config, ids) = with_ids();
    let hellos = OFFERS.map(|offers| (offers, hello(offers)));
    for drawing in (0..27 * 27 * 27).step_by(7) {
        let table = RouteTable::new(&three(drawing));
        let known = known(&mut config, &ids, three(drawing));
        for (name, client, offers) in cases() {
            let asked = ServerName::read(name.as_bytes()).unwrap();
            let (_, hello) = hellos.iter().find(|(known, _)| *known == offers).unwrap();
            let HelloVerdict::Found(hello) = client_hello::parse(hello) else {
                panic!("{hello:?}")
            };
            let way = table.way(Some(&asked), &hello.alpn, client.into(), &Otherwise::Close);
            let wanted = match way {
                RouteTarget::Pool(pool) if pool != "kept" => ids.get(Kind::Pool, pool),
                _ => None,
            };
            let found = look_up((&known.routes, Some(&known.classes)), name, client, offers);
            assert_eq!(
                found,
                wanted,
                "{name} {client} {offers:?} of {:?}",
                three(drawing)
            );
        }
    }
}

/// What is wanted of a service with these names.
fn desired(known: KnownNames) -> Desired {
    let mut desired = Desired {
        names: known.routes,
        ..Desired::default()
    };
    let record = Record {
        id: 7,
        ..Record::default()
    };
    desired.services.insert(ServiceKey::default(), record);
    if !known.classes.is_empty() {
        desired.rules.insert(Owner::Classes(7), known.classes);
    }
    desired
}

/// Between any two steps of a change from three routes to three others a client goes where the former or the latter lead, or to the
/// process.
#[test]
fn while_names_change_clients_go_where_old_or_new_routes_lead() {
    let (mut config, ids) = with_ids();
    let draws: Vec<usize> = (0..27 * 27 * 27).step_by(101).collect();
    for pair in draws.windows(2) {
        let [old, new] =
            [pair[0], pair[1]].map(|drawing| desired(known(&mut config, &ids, three(drawing))));
        let look = |current: &Current| -> Vec<Option<u32>> {
            let service = current.services.get(&ServiceKey::default());
            let classes = service.map_or(0, Record::client_classes);
            let known = (&current.names, current.rules.get(&classes));
            cases()
                .map(|(name, client, offers)| look_up(known, name, client, offers))
                .collect()
        };
        let mut current = carried_out(Current::default(), &plan(&Current::default(), &old));
        let before = look(&current);
        let steps = plan(&current, &new);
        let behind = look(&carried_out(current.clone(), &steps));
        for step in &steps {
            current = carried_out(current, slice::from_ref(step));
            for (at, found) in look(&current).into_iter().enumerate() {
                assert!(
                    found.is_none() || found == before[at] || found == behind[at],
                    "{:?} goes to {found:?} behind {step:?}, not to {:?} or {:?}",
                    cases().nth(at),
                    before[at],
                    behind[at]
                );
            }
        }
        assert_eq!(plan(&current, &new), []);
    }
}

#[test]
fn a_service_may_leave_them_all_to_the_process() {
    for other in [
        "late_binding: never",
        "late_binding: always\n      ech: deny",
        "late_binding: always\n      max_hello: 2047",
        "late_binding: always\n      proxy_protocol_from: [192.168.203.7/32]",
    ] {
        let change = |text: &str| text.replace("late_binding: always", other);
        assert_eq!(found(change), None, "{other}");
    }
}
