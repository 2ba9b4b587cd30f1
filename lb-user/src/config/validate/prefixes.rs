//! Lists of prefixes: each one once, and none inside another where that matters.

use std::collections::HashMap;

use ipnet::IpNet;

use crate::config::{
    list::List,
    place::{At, Location},
    problem::Findings,
};

/// The prefixes with their places, each once.
pub(super) fn any_prefixes<'r>(
    list: &'r List<At<IpNet>>,
    findings: &mut Findings,
) -> Vec<(IpNet, &'r Location)> {
    let mut known = HashMap::new();
    let mut placed = Vec::new();
    for At {
        place,
        value: prefix,
    } in &list.elements
    {
        let first = *known.entry(prefix).or_insert(place);
        if first != place {
            let line = findings.line(first, place);
            findings.add(place, format!("{prefix} is already listed in {line}"));
        }
        placed.push((*prefix, place));
    }
    placed
}

/// Prefixes are disjoint or one contains the other. Sorted by first address, shortest first, each
/// one can therefore only be inside the last one that was outside of all before.
pub(super) fn check_disjoint(mut placed: Vec<(IpNet, &Location)>, findings: &mut Findings) {
    placed.sort_by_key(|(prefix, _)| (prefix.network(), prefix.prefix_len()));
    let mut cover: Option<(IpNet, &Location)> = None;
    for (prefix, place) in placed {
        match cover {
            Some((outer, outer_place)) if outer.contains(&prefix) => {
                let outer_is_first =
                    (outer_place.line, outer_place.column) < (place.line, place.column);
                let (later, at, earlier, line) = if outer_is_first {
                    (prefix, place, outer, outer_place.line)
                } else {
                    (outer, outer_place, prefix, place.line)
                };
                findings.add(at, format!("{later} overlaps {earlier} in line {line}"));
            }
            _ => cover = Some((prefix, place)),
        }
    }
}
