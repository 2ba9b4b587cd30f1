//! What differs between the backends that pools had and those that clusters have now.

use std::net::SocketAddr;

use crate::config::{Backend, Config, HostedCluster, Pool};

/// How many backends an event names.
const MAX_NAMED: usize = 8;

/// In words for an event, of the pools that both have.
pub(super) fn words(before: &Config, after: &Config) -> String {
    let pools = after
        .pools
        .iter()
        .filter_map(|pool| Some((before.pool(&pool.name)?, pool)));
    let mut all = hosted(before, after);
    all.extend(pools.flat_map(|(before, after)| lines(before, after)));
    let lines = all;
    let named = lines.iter().take(MAX_NAMED).map(String::as_str);
    let named = named.collect::<Vec<_>>().join("; ");
    match lines.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

/// The hosted clusters that come and go, or that are published in another way.
fn hosted(before: &Config, after: &Config) -> Vec<String> {
    let find = |config: &Config, wanted: &HostedCluster| {
        let mut all = config.hosted.iter();
        all.find(|one| (&one.hub, &one.name) == (&wanted.hub, &wanted.name))
            .cloned()
    };
    let gone = before.hosted.iter();
    let gone = gone.filter(|one| find(after, one).is_none());
    let gone = gone.map(|one| format!("{one}: removed"));
    let now = after
        .hosted
        .iter()
        .filter_map(|one| match find(before, one) {
            None => Some(format!("{one}: added at {}", one.vip)),
            Some(old) => (old != *one).then(|| format!("{one}: published in another way")),
        });
    gone.chain(now).collect()
}

fn lines(before: &Pool, after: &Pool) -> Vec<String> {
    let only_in = |one: &Pool, other: &Pool| -> Vec<Backend> {
        let is_new = |backend: &&Backend| !other.backends.contains(backend);
        one.backends.iter().filter(is_new).cloned().collect()
    };
    let at = |backend: &Backend| SocketAddr::new(backend.address, backend.port);
    let mut lines = Vec::new();
    let mut gone = only_in(before, after);
    for backend in only_in(after, before) {
        let (name, address) = (&backend.name, at(&backend));
        let place = gone.iter().position(|one| one.name == *name);
        lines.push(match place.map(|place| gone.remove(place)) {
            Some(old) => format!("{name} from {} to {address}", at(&old)),
            None => format!("{name} at {address} added"),
        });
    }
    lines.extend(
        gone.iter()
            .map(|one| format!("{} at {} removed", one.name, at(one))),
    );
    let pool = &after.name;
    lines
        .iter()
        .map(|line| format!("pool {pool}: {line}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(backends: &[&str]) -> Config {
        let backends = backends.join(", ");
        let text = format!(
            "{{ version: 1, networks: {{ mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/8], snat: [10.9.9.9] }} }}, \
             pools: {{ kas: {{ network: mgmt, backends: [{backends}] }} }} }}"
        );
        crate::config::parse("lb.yaml", &text).unwrap()
    }

    #[test]
    fn backends_come_go_and_move() {
        let before = config(&[
            "{ address: \"10.0.0.1:30918\", name: n1 }",
            "{ address: \"10.0.0.2:30918\", name: n2 }",
            "{ address: \"10.0.0.4:30918\", name: n4 }",
        ]);
        let after = config(&[
            "{ address: \"10.0.0.1:31000\", name: n1 }",
            "{ address: \"10.0.0.3:31000\", name: n3 }",
            "{ address: \"10.0.0.4:30918\", name: n4 }",
        ]);
        assert_eq!(
            words(&before, &after),
            "pool kas: n1 from 10.0.0.1:30918 to 10.0.0.1:31000; pool kas: n3 at 10.0.0.3:31000 added; pool kas: n2 at \
             10.0.0.2:30918 removed"
        );
        assert_eq!(words(&after, &after), "");
    }

    #[test]
    fn only_so_many_are_named() {
        let all: Vec<String> = (1..=10).map(|n| format!("\"10.0.0.{n}:30918\"")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let words = words(&config(&all[..1]), &config(&all));
        assert!(words.ends_with("added; and 1 more"), "{words}");
    }
}
