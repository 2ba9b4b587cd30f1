use std::net::Ipv4Addr;

use lb_common::{
    client_hello::{self, HelloVerdict},
    server_name::NameFault,
};

use super::*;

mod bytes;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// The protocols as a client offers them.
fn alpn(protocols: &[&str]) -> Alpn<'static> {
    if protocols.is_empty() {
        return Alpn::default();
    }
    let mut list = Vec::new();
    for protocol in protocols {
        list.push(u8::try_from(protocol.len()).unwrap());
        list.extend(protocol.as_bytes());
    }
    let extension = [&[0, 16][..], &long(&long(&list))].concat();
    let fixed = [&[3, 3][..], &[0; 32], &[0], &[0, 2, 0, 1], &[1, 0]].concat();
    let body = [fixed, long(&extension)].concat();
    let message = [&[1, 0][..], &long(&body)].concat();
    // It stays in the bytes.
    let stream = [&[22, 3, 1][..], &long(&message)].concat().leak();
    match client_hello::parse(stream) {
        HelloVerdict::Found(hello) => hello.alpn,
        other => panic!("{other:?}"),
    }
}

fn name(name: &str) -> ServerName {
    ServerName::read(name.as_bytes()).unwrap()
}

/// A route of `pattern`, which leads to a pool of this name.
fn route(pattern: &str, pool: &str) -> NameRoute {
    NameRoute {
        names: vec![pattern.to_owned()],
        expressions: Vec::new(),
        no_name: false,
        clusters: Vec::new(),
        proxies: Vec::new(),
        alpn: Vec::new(),
        from: Vec::new(),
        to: To::Pool(pool.to_owned()),
    }
}

fn expression(expression: &str, pool: &str) -> NameRoute {
    NameRoute {
        names: Vec::new(),
        expressions: vec![expression.to_owned()],
        ..route("", pool)
    }
}

fn speaking(route: NameRoute, protocols: &[&str]) -> NameRoute {
    let alpn = protocols.iter().map(|&protocol| protocol.to_owned());
    NameRoute {
        alpn: alpn.collect(),
        ..route
    }
}

fn from(route: NameRoute, prefix: &str) -> NameRoute {
    NameRoute {
        from: vec![prefix.parse().unwrap()],
        ..route
    }
}

/// The pool for a client that requests `asked`; `-` if the name is denied, nothing if it goes nowhere.
fn find(routes: &RouteTable, asked: &str, offered: &[&str], client: Ipv4Addr) -> Option<String> {
    let (asked, offered) = (name(asked), alpn(offered));
    match routes.way(Some(&asked), &offered, client.into(), &Otherwise::Alert) {
        RouteTarget::Pool(pool) => Some(pool.to_owned()),
        RouteTarget::Denied => Some("-".to_owned()),
        RouteTarget::Nothing => None,
        other => panic!("{other:?}"),
    }
}

/// FEATURES B2: exact, under, and neither; one wildcard among others.
#[test]
fn whole_names() {
    let long = format!("{}x.apps.c.test", "a.".repeat(120));
    assert_eq!(long.len(), 253);
    let table = [
        ("api.c.test", Some("api.c.test")),
        ("API.C.Test", Some("api.c.test")),
        ("api.c.test.", Some("api.c.test")),
        ("x.api.c.test", None),
        ("xapi.c.test", None),
        ("api.c.test.evil.test", None),
        ("api.c", None),
        ("api", None),
        ("c.test", None),
        ("test", None),
        ("api.c.testx", None),
        ("x.apps.c.test", Some("*.apps.c.test")),
        ("X.APPS.c.test", Some("*.apps.c.test")),
        ("x.apps.c.test.", Some("*.apps.c.test")),
        ("a.b.apps.c.test", Some("*.apps.c.test")),
        ("a.b.c.d.e.apps.c.test", Some("*.apps.c.test")),
        ("apps.c.test", None),
        ("apps.c.test.", None),
        ("xapps.c.test", None),
        ("x.xapps.c.test", None),
        ("x.apps.c.test.evil.test", None),
        ("x.apps.c.evil.test", None),
        ("x.apps.c", None),
        ("apps.c.test.apps.c.test", Some("*.apps.c.test")),
        ("console.apps.c.test", Some("console.apps.c.test")),
        ("x.console.apps.c.test", Some("*.apps.c.test")),
        ("in.apps.c.test", Some("*.apps.c.test")),
        ("x.in.apps.c.test", Some("*.in.apps.c.test")),
        ("x.y.in.apps.c.test", Some("*.in.apps.c.test")),
        ("_x-1.apps.c.test", Some("*.apps.c.test")),
        (&long, Some("*.apps.c.test")),
        ("x.d", Some("*.d")),
        ("d", None),
    ];
    let patterns = [
        "api.c.test",
        "*.apps.c.test",
        "console.apps.c.test",
        "*.in.apps.c.test",
        "*.d",
    ];
    let routes = RouteTable::new(&patterns.map(|pattern| route(pattern, pattern)));
    for (asked, to) in table {
        assert_eq!(find(&routes, asked, &[], CLIENT).as_deref(), to, "{asked}");
    }
    // Whatever it is under: 255 bytes are no name, though each label is one.
    let longer = format!("a.{long}");
    assert_eq!(longer.len(), 255);
    let read = ServerName::read(longer.as_bytes());
    assert_eq!(read, Err(NameFault::Long));
}

/// FEATURES B9.
#[test]
fn a_protocol_that_is_not_offered_leaves_the_name_to_others() {
    let routes = RouteTable::new(&[
        speaking(route("a.test", "acme"), &["acme-tls/1"]),
        speaking(route("*.test", "h2 under"), &["h2", "h3"]),
        route("*.test", "under"),
        speaking(route("b.test", "h2 b"), &["h2"]),
        speaking(route("b.test", "http b"), &["http/1.1"]),
        route("b.test", "b"),
    ]);
    let find = |asked, offered: &[&str]| find(&routes, asked, offered, CLIENT);
    assert_eq!(find("a.test", &["acme-tls/1"]).as_deref(), Some("acme"));
    assert_eq!(
        find("a.test", &["h2", "acme-tls/1"]).as_deref(),
        Some("acme")
    );
    assert_eq!(find("a.test", &["acme-tls/11"]).as_deref(), Some("under"));
    assert_eq!(
        find("a.test", &["http/1.1", "h3"]).as_deref(),
        Some("h2 under")
    );
    assert_eq!(find("a.test", &[]).as_deref(), Some("under"));
    // The first that is written, whatever the client would like better.
    assert_eq!(find("b.test", &["http/1.1", "h2"]).as_deref(), Some("h2 b"));
    assert_eq!(find("b.test", &["http/1.1"]).as_deref(), Some("http b"));
    assert_eq!(find("b.test", &["x"]).as_deref(), Some("b"));
}

/// FEATURES B10: name and tenant must agree.
#[test]
fn a_name_of_others_is_denied_and_no_wildcard_gives_it() {
    let routes = RouteTable::new(&[
        from(route("api.test", "a"), "10.0.1.0/24"),
        from(route("api.test", "b"), "10.0.2.0/24"),
        from(speaking(route("h2.test", "h2"), &["h2"]), "10.0.1.0/24"),
        route("*.test", "all"),
    ]);
    let ask = |asked, offered: &[&str], third| {
        find(&routes, asked, offered, Ipv4Addr::new(10, 0, third, 9))
    };
    assert_eq!(ask("api.test", &[], 1).as_deref(), Some("a"));
    assert_eq!(ask("api.test", &[], 2).as_deref(), Some("b"));
    assert_eq!(ask("api.test", &[], 3).as_deref(), Some("-"));
    assert_eq!(ask("h2.test", &["h2"], 1).as_deref(), Some("h2"));
    assert_eq!(ask("h2.test", &["h2"], 2).as_deref(), Some("-"));
    // Whatever the client offers.
    assert_eq!(ask("h2.test", &[], 2).as_deref(), Some("-"));
    assert_eq!(ask("h2.test", &[], 1).as_deref(), Some("all"));
    assert_eq!(ask("x.test", &[], 3).as_deref(), Some("all"));
}

/// FEATURES B6: by prefix, and by the service's `no_name` where no route is for a client.
#[test]
fn who_asks_for_no_name_goes_by_where_he_comes_from() {
    let no_name = |pool: &str| NameRoute {
        names: Vec::new(),
        no_name: true,
        ..route("", pool)
    };
    let mut written = vec![
        from(speaking(no_name("h2 a"), &["h2"]), "10.0.1.0/24"),
        from(no_name("a"), "10.0.1.0/24"),
        from(no_name("b"), "10.0.2.0/23"),
        from(no_name("later"), "10.0.2.0/24"),
        speaking(no_name("acme"), &["acme-tls/1"]),
        route("*.test", "named"),
    ];
    let ask = |routes: &[NameRoute], offered: &[&str], third, otherwise: &Otherwise| {
        let (routes, client) = (RouteTable::new(routes), Ipv4Addr::new(10, 0, third, 9));
        format!(
            "{:?}",
            routes.way(None, &alpn(offered), client.into(), otherwise)
        )
    };
    let pool = |pool| format!("{:?}", RouteTarget::Pool(pool));
    for (offered, third, to) in [
        (&[][..], 1, pool("a")),
        (&["h2"], 1, pool("h2 a")),
        (&["acme-tls/1"], 1, pool("a")),
        (&["acme-tls/1", "h2"], 1, pool("h2 a")),
        (&["h2"], 2, pool("b")),
        (&[], 3, pool("b")),
        (&["acme-tls/1"], 4, pool("acme")),
        (&["h2"], 4, format!("{:?}", RouteTarget::Nothing)),
        (&[], 4, format!("{:?}", RouteTarget::Nothing)),
    ] {
        let found = ask(&written, offered, third, &Otherwise::Alert);
        assert_eq!(found, to, "{offered:?} from {third}");
    }
    let close = format!("{:?}", RouteTarget::Close);
    assert_eq!(ask(&written, &[], 4, &Otherwise::Close), close);
    let rest = Otherwise::Pool("rest".to_owned());
    assert_eq!(ask(&written, &[], 4, &rest), pool("rest"));
    assert_eq!(ask(&written, &[], 1, &rest), pool("a"));
    written.push(no_name("all"));
    assert_eq!(ask(&written, &[], 4, &rest), pool("all"));
    // It is no route for names.
    let routes = RouteTable::new(&written);
    assert_eq!(
        find(&routes, "a.test", &[], CLIENT).as_deref(),
        Some("named")
    );
    assert_eq!(find(&routes, "a", &[], CLIENT), None);
}

#[test]
fn expressions_come_last_and_match_whole_names() {
    let routes = RouteTable::new(&[
        expression(r"api\.[a-z]+\.test|old", "one"),
        expression(r"API\.C-[0-9]\.test", "two"),
        expression(r"(?m)^x$", "lines"),
        speaking(expression(r"a|ab", "short"), &["h2"]),
        speaking(expression(r"[^.]+", "any"), &["h2"]),
        route("api.b.test", "name"),
        route("*.under.test", "under"),
    ]);
    for (asked, to) in [
        ("api.a.test", Some("one")),
        ("Api.A.Test.", Some("one")),
        ("api.b.test", Some("name")),
        ("api.under.test", Some("under")),
        ("old", Some("one")),
        ("older", None),
        ("bold", None),
        ("api.a.test.evil.test", None),
        ("x.api.a.test", None),
        ("xapi.a.test", None),
        ("api.a.testx", None),
        ("api.c-1.test", Some("two")),
        ("api.c-11.test", None),
        ("x", Some("lines")),
        ("y", None),
    ] {
        assert_eq!(find(&routes, asked, &[], CLIENT).as_deref(), to, "{asked}");
    }
    for (asked, to) in [("ab", Some("short")), ("abc", Some("any")), ("ab.c", None)] {
        assert_eq!(
            find(&routes, asked, &["h2"], CLIENT).as_deref(),
            to,
            "{asked}"
        );
    }
}

/// Some routes and some names of few labels, so that they often meet. A route is the result of a scan of all
/// of them, and a client that is routed has requested a whole name of the route.
#[test]
fn as_by_the_model() {
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    let mut ends = [0; 3];
    for _ in 0..2_000 {
        let routes: Vec<NameRoute> = (0..chance.below(12)).map(|_| chance.route()).collect();
        let compiled = RouteTable::new(&routes);
        for _ in 0..20 {
            let (asked, third) = (chance.name().to_ascii_lowercase(), chance.below(3));
            let client = Ipv4Addr::new(10, 0, u8::try_from(third).unwrap(), 9);
            let offered: &[&str] = [&[][..], &["h2"], &["x", "h2"], &["y"]][chance.below(4)];
            let found = find(&compiled, &asked, offered, client);
            let expected = scan(&routes, &asked, offered, client);
            assert_eq!(found.as_deref(), expected, "{asked}");
            ends[match expected {
                Some("-") => 1,
                Some(pattern) => {
                    match pattern.strip_prefix('*') {
                        Some(end) => assert!(asked.ends_with(end) && asked.len() > end.len()),
                        None => assert_eq!(pattern, asked),
                    }
                    0
                }
                None => 2,
            }] += 1;
        }
    }
    assert!(ends.iter().all(|end| *end > 1_500), "{ends:?}");
}

/// The first of the most exact routes that this client can take, as [`find`] has it.
fn scan<'r>(
    routes: &'r [NameRoute],
    asked: &str,
    offered: &[&str],
    client: Ipv4Addr,
) -> Option<&'r str> {
    let labels: Vec<_> = asked.split('.').collect();
    let is_name = |route: &&NameRoute| {
        let wanted: Vec<_> = route.names[0].split('.').collect();
        match wanted.split_first() {
            Some((&"*", under)) => labels.len() > under.len() && labels.ends_with(under),
            _ => labels == wanted,
        }
    };
    let speaks = |route: &&&NameRoute| {
        let mut alpn = route.alpn.iter();
        route.alpn.is_empty() || alpn.any(|one| offered.contains(&one.as_str()))
    };
    let is_for = |route: &&NameRoute| {
        route.from.is_empty()
            || route
                .from
                .iter()
                .any(|prefix| prefix.contains(&IpAddr::V4(client)))
    };
    let exactness = |route: &&NameRoute| {
        let pattern = &route.names[0];
        (pattern.starts_with('*'), usize::MAX - pattern.len())
    };
    let mut matching: Vec<&NameRoute> = routes.iter().filter(is_name).collect();
    matching.sort_by_key(exactness);
    for best in matching.chunk_by(|one, other| exactness(one) == exactness(other)) {
        let spoken: Vec<&&NameRoute> = best.iter().filter(speaks).collect();
        if !best.iter().any(is_for) {
            return Some("-");
        }
        if !spoken.is_empty() {
            let found = spoken.into_iter().find(|route| is_for(route));
            // Each leads to a pool that is called like its only name.
            return Some(found.map_or("-", |route| &route.names[0]));
        }
    }
    None
}

/// Xorshift: the same numbers in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn name(&mut self) -> String {
        let labels: Vec<_> = (0..=self.below(4))
            .map(|_| ["a", "B", "ab", "a-b"][self.below(4)])
            .collect();
        labels.join(".")
    }

    fn route(&mut self) -> NameRoute {
        let star = ["", "*."][self.below(2)];
        let pattern = format!("{star}{}", self.name().to_ascii_lowercase());
        self.limited(route(&pattern, &pattern))
    }

    /// For some protocols only, or some clients, or for all.
    fn limited(&mut self, mut made: NameRoute) -> NameRoute {
        if let Some(protocol) = [None, Some("h2"), Some("x")][self.below(3)] {
            made = speaking(made, &[protocol]);
        }
        if let Some(prefix) = [None, Some("10.0.0.0/24"), Some("10.0.1.0/24")][self.below(3)] {
            made = from(made, prefix);
        }
        made
    }
}

/// A client that a proxy announces as of a cluster goes by that, whatever name it requests.
#[test]
fn clusters_come_before_names() {
    let of = |cluster: &str, pool: &str| NameRoute {
        names: Vec::new(),
        clusters: vec![cluster.to_owned()],
        ..route("", pool)
    };
    let routes = RouteTable::new(&[
        route("a.test", "by-name"),
        from(of("a", "far"), "10.9.0.0/16"),
        speaking(of("a", "h2"), &["h2"]),
        of("a", "a"),
        of("b", "b"),
    ]);
    let find = |cluster: &str, offered: &[&str], client: IpAddr| {
        let proxy = "10.5.0.1".parse().unwrap();
        let way = routes.of_cluster(cluster.as_bytes(), proxy, &alpn(offered), client);
        way.map(|way| match way {
            RouteTarget::Pool(pool) => pool.to_owned(),
            other => panic!("{other:?}"),
        })
    };
    let found = |cluster, offered: &[&str], client: &str| {
        find(cluster, offered, client.parse().unwrap()).unwrap_or_default()
    };
    assert_eq!(found("a", &[], "10.0.1.1"), "a");
    assert_eq!(found("a", &["h2"], "10.0.1.1"), "h2");
    assert_eq!(found("a", &["h2"], "10.9.1.1"), "far");
    // Prefixes are of IPv4.
    assert_eq!(found("a", &[], "2001:db8::1"), "a");
    assert_eq!(found("b", &[], "10.0.1.1"), "b");
    for unknown in ["", "A", "ab", "a.test"] {
        assert_eq!(found(unknown, &[], "10.0.1.1"), "", "{unknown}");
    }
}

/// A node of one cluster cannot announce a client of another.
#[test]
fn a_cluster_is_named_by_its_own_proxies() {
    let of = |cluster: &str, proxies: &[&str]| NameRoute {
        names: Vec::new(),
        clusters: vec![cluster.to_owned()],
        proxies: proxies
            .iter()
            .map(|prefix| prefix.parse().unwrap())
            .collect(),
        ..route("", cluster)
    };
    let routes = RouteTable::new(&[
        of("a", &["10.5.1.0/24"]),
        of("b", &["10.5.2.0/24", "10.5.3.1/32"]),
        of("c", &[]),
    ]);
    for (proxy, ways) in [
        ("10.5.1.9", [true, false, true]),
        ("10.5.2.9", [false, true, true]),
        ("10.5.3.1", [false, true, true]),
        ("10.5.3.2", [false, false, true]),
    ] {
        for (cluster, may) in ["a", "b", "c"].into_iter().zip(ways) {
            let proxy: IpAddr = proxy.parse().unwrap();
            // Whatever address it announces.
            let client = "10.5.2.9".parse().unwrap();
            let way = routes.of_cluster(cluster.as_bytes(), proxy, &alpn(&[]), client);
            let wanted = if may {
                RouteTarget::Pool(cluster)
            } else {
                RouteTarget::Denied
            };
            assert_eq!(way, Some(wanted), "{proxy} {cluster}");
        }
    }
}
