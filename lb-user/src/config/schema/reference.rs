//! The reference page of the configuration, `docs/configuration.md`, from the declarations.

use std::fmt::Write as _;

use super::{
    admin::{RawAdmin, RawAdminHttp},
    cluster::{Apps, Cluster, Component, Routes},
    declare::{Declared as _, DefaultValue, Key, Section},
    file::{Defaults, RawFile, RawLimits},
    ha::{RawBox, RawHa},
    health_and_drain::RawHealth,
    kubernetes::{
        RawControlPlane, RawDiscover, RawDiscovered, RawHosted, RawKubernetes, RawLoadBalancer,
    },
    log::{RawLog, RawSyslog},
    network::{RawChecksFrom, RawNetwork, RawRoute, RawSnat},
    pool::{NodesOf, RawBackend, RawGroup, RawNode, RawPool},
    service::RawService,
    shared::{RawHttp, RawNameRoute, RawSni},
    timeouts::RawTimeouts,
};
use crate::config::check::RawCheck;

const INTRODUCTION: &str = "\
# Configuration reference

Every key, by the mapping that it is in. This page is generated from the declarations in
`lb-user/src/config/schema`: `cargo xtask reference` writes it. [`config/lb.yaml`](../config/lb.yaml) is an example with
every key and the same words, and `lb check FILE` checks a file.

| Type | What is written |
|---|---|
| text, word, name, path | with or without quotes; a name is that of an entry, or of a backend |
| number, port | a whole number without quotes |
| time | whole numbers with the units d, h, m, s or ms, such as `2h10m` |
| percentage | a whole number and `%` |
| address, prefix | IPv4 or IPv6, such as `10.0.0.1` and `10.0.0.0/8`; IPv6 is for services with `pool` alone |
";

/// The sections in the order of the page, by where they are in a file.
pub(super) const SECTIONS: [(&str, &Section); 35] = [
    ("The file", RawFile::SECTION),
    ("`defaults`", Defaults::SECTION),
    ("`networks.NAME`", RawNetwork::SECTION),
    ("`networks.NAME.routes[]`", RawRoute::SECTION),
    ("`networks.NAME.snat[]`", RawSnat::SECTION),
    ("`networks.NAME.checks_from[]`", RawChecksFrom::SECTION),
    ("`nodes.NAME`", RawGroup::SECTION),
    ("`nodes.NAME.addresses[]`", RawNode::SECTION),
    ("`pools.NAME`", RawPool::SECTION),
    ("`pools.NAME.backends[]`, an address", RawBackend::SECTION),
    ("`pools.NAME.backends[]`, nodes", NodesOf::SECTION),
    (
        "`pools.NAME.backends[]`, discovered",
        RawDiscovered::SECTION,
    ),
    (
        "`pools.NAME.backends[].discover`, `kubernetes.NAME.through`",
        RawDiscover::SECTION,
    ),
    ("`pools.NAME.health`", RawHealth::SECTION),
    ("`pools.NAME.health.KIND`", RawCheck::SECTION),
    ("`services.NAME`", RawService::SECTION),
    ("`services.NAME.sni`", RawSni::SECTION),
    ("`services.NAME.http`", RawHttp::SECTION),
    (
        "`services.NAME.sni.routes[]`, `services.NAME.http.routes[]`",
        RawNameRoute::SECTION,
    ),
    ("`clusters.NAME`", Cluster::SECTION),
    (
        "`clusters.NAME.api`, `.oauth`, `.konnectivity` and the other parts",
        Component::SECTION,
    ),
    ("`clusters.NAME.discover`", RawControlPlane::SECTION),
    ("`clusters.NAME.routes`", Routes::SECTION),
    ("`clusters.NAME.apps`", Apps::SECTION),
    ("`kubernetes.NAME`", RawKubernetes::SECTION),
    (
        "`kubernetes.NAME.load_balancers[]`",
        RawLoadBalancer::SECTION,
    ),
    ("`kubernetes.NAME.hosted_clusters[]`", RawHosted::SECTION),
    ("`limits`", RawLimits::SECTION),
    ("`timeouts`", RawTimeouts::SECTION),
    ("`log`", RawLog::SECTION),
    ("`log.syslog`", RawSyslog::SECTION),
    ("`admin`", RawAdmin::SECTION),
    ("`admin.http`", RawAdminHttp::SECTION),
    ("`ha`", RawHa::SECTION),
    ("`ha.boxes.NAME`", RawBox::SECTION),
];

/// The text of the page.
pub(in crate::config) fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (title, section) in SECTIONS {
        let about = one_line(section.about);
        // Writing to a text does not fail.
        let _unused = write!(
            page,
            "\n## {title}\n\n{about}\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n"
        );
        for key in section.keys() {
            let Key { name, kind, .. } = key;
            let _unused = writeln!(
                page,
                "| `{name}` | {kind} | {} | {} |",
                default(key),
                meaning(key)
            );
        }
        let own: Vec<_> = section.keys().filter(|key| key.own).map(quoted).collect();
        if !own.is_empty() {
            let _unused = writeln!(page, "\nNot in `defaults`: {}.", own.join(", "));
        }
    }
    page
}

pub(super) fn default(key: &Key) -> String {
    match (key.required, key.unless) {
        (true, []) => "required".to_owned(),
        (true, unless) => {
            let unless: Vec<_> = unless.iter().map(|key| format!("`{key}`")).collect();
            format!("required unless there is {}", unless.join(" or "))
        }
        (false, _) => match key.default {
            DefaultValue::None => "none".to_owned(),
            DefaultValue::Value(text) => format!("`{text}`"),
            DefaultValue::Means(words) => words.to_owned(),
        },
    }
}

pub(super) fn meaning(key: &Key) -> String {
    let about = one_line(key.about);
    if key.only.is_empty() {
        return about;
    }
    let only: Vec<_> = key.only.iter().map(|form| format!("`{form}`")).collect();
    let file = if key.only == ["main"] {
        "the main file".to_owned()
    } else {
        only.join(" and ")
    };
    format!("{about} Only in {file}.")
}

fn quoted(key: &Key) -> String {
    format!("`{}`", key.name)
}

/// A comment without its line breaks.
fn one_line(comment: &str) -> String {
    comment.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::{kinds::Inside, shared::RawToPool};

    /// The sections inside of a section, at any depth, by what they are.
    fn inside(section: &'static Section, found: &mut Vec<&'static str>) {
        for key in section.keys() {
            let sections = match key.inside {
                Inside::Keys(sections) => sections,
                Inside::Names(section) => &[section][..],
            };
            for section in sections {
                if !found.contains(&section.about) {
                    found.push(section.about);
                    inside(section, found);
                }
            }
        }
    }

    #[test]
    fn each_section_is_on_the_page() {
        let mut found = vec![RawFile::SECTION.about];
        inside(RawFile::SECTION, &mut found);
        let mut listed = SECTIONS.map(|(_, section)| section.about).to_vec();
        // The keys that may have it say what it is.
        listed.push(RawToPool::SECTION.about);
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }
}
