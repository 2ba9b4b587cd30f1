//! From the bytes of a client to where it goes: what is read and what is routed fit together.

use super::*;

/// What a route is for.
enum Pattern {
    /// This name.
    Exact(String),
    /// All names under it.
    Under(String),
    /// Names under it with one label more, by an expression.
    OneMore(String),
    /// This name or that one, by an expression that would be found in longer names as well.
    Either(String, String),
    /// Clients that request none.
    NoName,
}

impl Pattern {
    fn random(chance: &mut Chance) -> Self {
        let [one, other] = [(); 2].map(|()| chance.name().to_ascii_lowercase());
        match chance.below(6) {
            0 | 1 => Self::Exact(one),
            2 => Self::Under(one),
            3 => Self::OneMore(one),
            4 => Self::Either(one, other),
            _ => Self::NoName,
        }
    }

    /// Whether it is for the whole of the requested name.
    fn matches(&self, asked: Option<&str>) -> bool {
        let Some(asked) = asked else {
            return matches!(self, Self::NoName);
        };
        let above = |name: &str| asked.strip_suffix(name)?.strip_suffix('.');
        match self {
            Self::Exact(name) => asked == name,
            Self::Under(name) => above(name).is_some(),
            Self::OneMore(name) => above(name).is_some_and(|label| !label.contains('.')),
            Self::Either(one, other) => asked == one || asked == other,
            Self::NoName => false,
        }
    }

    /// A name that it is written with.
    fn name(&self) -> &str {
        match self {
            Self::Exact(name) | Self::Under(name) | Self::OneMore(name) => name,
            Self::Either(_, name) => name,
            Self::NoName => "a",
        }
    }

    /// What comes first: less of this. Expressions come in the order in which they are written.
    fn rank(&self, written: usize) -> (usize, usize) {
        match self {
            Self::Exact(_) | Self::NoName => (0, 0),
            Self::Under(name) => (1, usize::MAX - name.len()),
            Self::OneMore(_) | Self::Either(..) => (2, written),
        }
    }

    /// Where it is counted.
    const fn index(&self) -> usize {
        match self {
            Self::Exact(_) => 0,
            Self::Under(_) => 1,
            Self::OneMore(_) => 2,
            Self::Either(..) => 3,
            Self::NoName => 4,
        }
    }

    fn route(&self, pool: &str) -> NameRoute {
        let dots = |name: &str| name.replace('.', r"\.");
        match self {
            Self::Exact(name) => route(name, pool),
            Self::Under(name) => route(&format!("*.{name}"), pool),
            Self::OneMore(name) => expression(&format!(r"[^.]+\.{}", dots(name)), pool),
            Self::Either(one, other) => expression(&format!("{}|{}", dots(one), dots(other)), pool),
            Self::NoName => NameRoute {
                names: Vec::new(),
                no_name: true,
                ..route("", pool)
            },
        }
    }
}

/// What a client sends, as it stands on the wire: extensions in any order, and records of any length.
fn hello(chance: &mut Chance, name: Option<&str>, protocols: &[&str]) -> Vec<u8> {
    let mut extensions = vec![[&[0x0a, 0x0a][..], &long(&[])].concat()];
    let mut add = |kind: [u8; 2], data: &[u8]| {
        let at = chance.below(extensions.len() + 1);
        extensions.insert(at, [&kind[..], &long(data)].concat());
    };
    if let Some(name) = name {
        add([0, 0], &long(&[&[0][..], &long(name.as_bytes())].concat()));
    }
    if !protocols.is_empty() {
        let short = |protocol: &&str| {
            [
                &[u8::try_from(protocol.len()).unwrap()],
                protocol.as_bytes(),
            ]
            .concat()
        };
        add(
            [0, 16],
            &long(&protocols.iter().flat_map(short).collect::<Vec<u8>>()),
        );
    }
    let fixed = [&[3, 3][..], &[0; 32], &[0], &[0, 2, 0, 1], &[1, 0]].concat();
    let body = [fixed, long(&extensions.concat())].concat();
    let message = [&[1, 0][..], &long(&body)].concat();
    let (mut stream, mut rest) = (Vec::new(), &message[..]);
    while !rest.is_empty() {
        let most = [5, 40, 400][chance.below(3)];
        let (part, after) = rest.split_at((1 + chance.below(most)).min(rest.len()));
        stream.extend([&[22, 3, 1][..], &long(part)].concat());
        rest = after;
    }
    stream
}

/// The name that a client requests: one of those that are written, or one that has a part of it, or none.
fn ask(chance: &mut Chance, written: &[Pattern]) -> Option<String> {
    let [front, back] = [
        ["", "", "a.", "B.", "ab.a.", "a"],
        ["", "", "", ".", ".a", "b"],
    ];
    let pattern = written.get(chance.below(written.len() + 3));
    let name = pattern.map_or_else(|| chance.name(), |pattern| pattern.name().to_owned());
    let asked = format!("{}{name}{}", front[chance.below(6)], back[chance.below(6)]);
    (chance.below(5) > 0).then_some(asked)
}

/// Where the bytes lead is the model's result for the name that was put into them: no client gets to a pool
/// but by the whole of the name that it has sent, or by having sent none.
#[test]
fn who_is_routed_has_sent_the_whole_name() {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    // Exact, under, the two expressions, no name; denied; nowhere.
    let mut ends = [0; 7];
    for _ in 0..1_500 {
        let written: Vec<Pattern> = (0..chance.below(12))
            .map(|_| Pattern::random(&mut chance))
            .collect();
        let routes: Vec<NameRoute> = written
            .iter()
            .enumerate()
            .map(|(number, pattern)| chance.limited(pattern.route(&number.to_string())))
            .collect();
        let compiled = RouteTable::new(&routes);
        for _ in 0..15 {
            let asked = ask(&mut chance, &written);
            let client = Ipv4Addr::new(10, 0, u8::try_from(chance.below(3)).unwrap(), 9);
            let offered: &[&str] = [&[][..], &["h2"], &["x", "h2"], &["y"]][chance.below(4)];

            let stream = hello(&mut chance, asked.as_deref(), offered);
            let HelloVerdict::Found(read) = client_hello::parse(&stream) else {
                panic!("{asked:?}: {:?}", client_hello::parse(&stream));
            };
            let way = compiled.way(
                read.name.as_ref(),
                &read.alpn,
                client.into(),
                &Otherwise::Alert,
            );

            let asked = asked.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
            let expected = model(&written, &routes, asked.as_deref(), offered, client);
            let end = match (way, expected) {
                (RouteTarget::Pool(pool), Some(Some(number))) => {
                    assert_eq!(pool, number.to_string(), "{asked:?}");
                    let pattern = &written[number];
                    assert!(pattern.matches(asked.as_deref()), "{asked:?}");
                    pattern.index()
                }
                (RouteTarget::Denied, Some(None)) => 5,
                (RouteTarget::Nothing, None) => 6,
                other => panic!("{asked:?}: {other:?}"),
            };
            ends[end] += 1;
        }
    }
    assert!(ends.iter().all(|end| *end > 100), "{ends:?}");
}

/// The number of the route; none in it: the name is for others. None: there is no route.
fn model(
    written: &[Pattern],
    routes: &[NameRoute],
    asked: Option<&str>,
    offered: &[&str],
    client: Ipv4Addr,
) -> Option<Option<usize>> {
    let matches = |number: &usize| written[*number].matches(asked);
    let speaks = |number: &usize| {
        let mut alpn = routes[*number].alpn.iter();
        routes[*number].alpn.is_empty() || alpn.any(|one| offered.contains(&&one[..]))
    };
    let is_for = |number: &usize| {
        let mut from = routes[*number].from.iter();
        routes[*number].from.is_empty() || from.any(|prefix| prefix.contains(&IpAddr::V4(client)))
    };
    let mut matching: Vec<usize> = (0..written.len()).filter(matches).collect();
    if asked.is_none() {
        // A client that a route is not for goes on to the next.
        let mut fitting = matching.into_iter().filter(speaks);
        return fitting.find(is_for).map(Some);
    }
    let rank = |number: &usize| written[*number].rank(*number);
    matching.sort_by_key(rank);
    let groups = matching.chunk_by(|one, other| rank(one) == rank(other));
    let decides = |best: &&[usize]| best.iter().any(speaks) || !best.iter().any(is_for);
    let best = groups.into_iter().find(decides)?;
    let mut spoken = best.iter().copied().filter(speaks);
    Some(spoken.find(is_for))
}
