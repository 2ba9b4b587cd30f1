//! What is noted: clients of shared VIPs, drops, events; and SNAT addresses.

use std::collections::BTreeMap;

use super::{Table, TopRow, none};
use crate::{
    api::Severity,
    cli::{
        color::Standing,
        top::numbers::{count, rate},
    },
    model::ago::{ago, ago_seconds},
    reports::overview::Overview,
};

const SHARED: [&str; 8] = [
    "SHARED VIP",
    "NETWORK",
    "CLIENTS",
    "ROUTED",
    "BOUND",
    "HANDED OVER",
    "REFUSED",
    "WHY, OR THE NAME",
];
const DROPS: [&str; 7] = [
    "NETWORK",
    "REASON",
    "DROPPED",
    "REFUSED",
    "/S",
    "AGO",
    "LAST PACKET",
];
const EVENTS: [&str; 5] = ["TIME", "KIND", "OBJECT", "EVENT", "BY"];
const SNAT: [&str; 6] = ["SNAT ADDRESS", "NETWORK", "PORTS", "FLOWS", "FREE", "STATE"];

/// A row for each shared VIP, and one for each name that it has refused.
pub(super) fn shared(overview: &Overview) -> Table {
    let mut rows = Vec::new();
    for (name, counted) in &overview.status.shared {
        let mut services = overview.services.iter().map(|service| &service.line);
        let network = services.find(|line| line.name == *name);
        let network = network.map_or("-", |line| line.network.as_str());
        let refused: u64 = counted.refused.values().sum();
        rows.push(TopRow::of(
            network,
            Standing::Good,
            [
                name.clone(),
                network.to_owned(),
                count(counted.accepted),
                count(counted.routed),
                count(counted.bound),
                count(counted.handed_over),
                count(refused),
                reasons(&counted.refused),
            ],
        ));
        for refused in overview.names.iter().filter(|one| one.service == *name) {
            let asked = refused.name.clone().unwrap_or_else(none);
            let age = ago_seconds(refused.age_seconds);
            rows.push(TopRow::of(
                &refused.network,
                Standing::Doubtful,
                [
                    format!("  {name}"),
                    refused.network.clone(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    count(refused.count),
                    format!("{}: {asked}, {} {age} ago", refused.reason, refused.client),
                ],
            ));
        }
    }
    (&SHARED, rows)
}

fn reasons(counted: &BTreeMap<String, u64>) -> String {
    let reasons: Vec<String> = counted
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    reasons.join(", ")
}

pub(super) fn drops(overview: &Overview) -> Table {
    let seconds = overview
        .rates
        .as_ref()
        .map(|rates| rates.seconds.as_millis());
    let rows = overview.drops.iter().map(|line| {
        let new = line.since_last.zip(seconds.filter(|millis| *millis > 0));
        let new = new.map(|(new, millis)| new as f64 * 1000.0 / millis as f64);
        let standing = match new {
            Some(new) if new > 0.0 => Standing::Doubtful,
            _ => Standing::Good,
        };
        let last = line.samples.first();
        let packet = last.map(|sample| {
            let packet = &sample.packet;
            format!("{} {}", packet.protocol, packet.ends())
        });
        TopRow::of(
            &line.network,
            standing,
            [
                line.network.clone(),
                line.reason.to_owned(),
                count(line.dropped),
                count(line.refused),
                new.map_or_else(none, rate),
                last.map_or_else(none, |sample| ago(sample.age_seconds.as_millis())),
                packet.unwrap_or_else(none),
            ],
        )
    });
    (&DROPS, rows.collect())
}

/// The newest first.
pub(super) fn events(overview: &Overview) -> Table {
    let rows = overview.events.iter().rev().map(|event| {
        let standing = match event.severity {
            Severity::Error => Standing::Bad,
            Severity::Warning => Standing::Doubtful,
            Severity::Notice => Standing::Good,
        };
        let by = event.by.clone();
        TopRow::of_many(
            Vec::new(),
            standing,
            [
                event.time.clone(),
                event.kind.clone(),
                event.object.clone(),
                event.words.clone(),
                by.unwrap_or_default(),
            ],
        )
    });
    (&EVENTS, rows.collect())
}

/// Their networks are those of backends, which serve clients of others.
pub(super) fn snat(overview: &Overview) -> Table {
    let rows = overview.status.status.snat.iter().map(|snat| {
        let standing = match (snat.flows.free, snat.state()) {
            (0, "in use") => Standing::Bad,
            (_, "draining") => Standing::Doubtful,
            _ => Standing::Good,
        };
        TopRow::of_many(
            Vec::new(),
            standing,
            [
                snat.address.clone(),
                snat.network.clone(),
                format!("{}-{}", snat.first_port, snat.last_port),
                snat.flows.live.to_string(),
                snat.free(),
                snat.state().to_owned(),
            ],
        )
    });
    (&SNAT, rows.collect())
}
