//! What is counted, with what comes a second: networks, services, backends.

use std::collections::BTreeSet;

use super::{Table, TopRow, none};
use crate::{
    cli::{
        color::Standing,
        top::{
            numbers::{bits, count, rate, time},
            state::TopState,
        },
    },
    health::CheckOutcome,
    model::ago::ago,
    reports::{backends::HealthReport, rates::FlowRate, services::ServiceReport},
};

const NETWORKS: [&str; 11] = [
    "NETWORK",
    "ROLE",
    "INTERFACE",
    "CARRIER",
    "XDP",
    "FLOWS",
    "NEW/S",
    "IN BIT/S",
    "OUT BIT/S",
    "DROPPED/S",
    "NEW FLOWS",
];
const SERVICES: [&str; 11] = [
    "SERVICE",
    "NETWORK",
    "LISTEN",
    "UP",
    "FLOWS",
    "NEW/S",
    "IN BIT/S",
    "OUT BIT/S",
    "FAILED/S",
    "CONNECT",
    "NEW FLOWS",
];
const BACKENDS: [&str; 9] = [
    "POOL",
    "BACKEND",
    "STATE",
    "SHARE",
    "NEW/S",
    "IN BIT/S",
    "OUT BIT/S",
    "FAILED",
    "LAST CHECK",
];

/// What came of it; without rates nothing is known yet.
fn cells(found: Option<&FlowRate>) -> [String; 3] {
    match found {
        Some(found) => [
            rate(found.flows),
            bits(found.bytes_request),
            bits(found.bytes_reply),
        ],
        None => [none(), none(), none()],
    }
}

pub(super) fn networks(state: &TopState) -> Table {
    let rates = state.overview.rates.as_ref().map(|rates| &rates.networks);
    let networks = state.overview.status.status.networks.iter();
    let rows = networks.map(|network| {
        let name = &network.name;
        let found = rates.and_then(|rates| rates.get(name));
        let [new, from, to] = cells(found);
        let standing = match network.carrier && !network.stopped {
            true => Standing::Good,
            false => Standing::Bad,
        };
        let most = network
            .max_flows
            .map(|most| format!("/{}", count(most.into())));
        let vlan = network.vlan.map(|vlan| format!(".{vlan}"));
        TopRow::of(
            name,
            standing,
            [
                name.clone(),
                network.role.clone(),
                format!("{}{}", network.interface, vlan.unwrap_or_default()),
                if network.carrier { "yes" } else { "no" }.to_owned(),
                network.mode.to_owned(),
                format!(
                    "{}{}",
                    count(network.flows.into()),
                    most.unwrap_or_default()
                ),
                new,
                from,
                to,
                found.map_or_else(none, |found| rate(found.dropped)),
                state.history.network(name),
            ],
        )
    });
    (&NETWORKS, rows.collect())
}

pub(super) fn services(state: &TopState) -> Table {
    let rates = state.overview.rates.as_ref().map(|rates| &rates.services);
    let rows = state.overview.services.iter().map(|service| {
        let line = &service.line;
        let found = rates.and_then(|rates| rates.get(&line.name));
        let [new, from, to] = cells(found);
        let connect = found.and_then(|found| found.connect_seconds);
        TopRow::of(
            &line.network,
            of_service(service),
            [
                line.name.clone(),
                line.network.clone(),
                line.listen.clone(),
                match (service.backends_up, service.backends) {
                    (Some(up), Some(of)) => format!("{up}/{of}"),
                    _ => none(),
                },
                count(line.flows.into()),
                new,
                from,
                to,
                found.map_or_else(none, |found| rate(found.failed)),
                connect.map_or_else(none, time),
                state.history.service(&line.name),
            ],
        )
    });
    (&SERVICES, rows.collect())
}

fn of_service(service: &ServiceReport) -> Standing {
    match (service.backends_up, service.backends) {
        (Some(0), _) => Standing::Bad,
        (Some(up), Some(of)) if up == of => Standing::Good,
        _ => Standing::Doubtful,
    }
}

pub(super) fn backends(state: &TopState) -> Table {
    let overview = &state.overview;
    let rates = overview.rates.as_ref().map(|rates| &rates.backends);
    let rows = overview.backends.iter().map(|backend| {
        let line = &backend.line;
        let found = rates.and_then(|rates| rates.get(&format!("{}/{}", line.pool, line.name)));
        let [new, from, to] = cells(found);
        let failed = line.counts.map(|counts| count(counts.failed));
        let services = overview.services.iter().map(|service| &service.line);
        let services = services.filter(|service| service.pools.contains(&line.pool));
        let networks: BTreeSet<String> = services.map(|service| service.network.clone()).collect();
        let standing = Standing::worst(&backend.state);
        TopRow::of_many(
            networks.into_iter().collect(),
            standing.unwrap_or(Standing::Good),
            [
                line.pool.clone(),
                line.name.clone(),
                backend.state.clone(),
                format!("{:.0} %", line.share),
                new,
                from,
                to,
                failed.unwrap_or_else(none),
                backend
                    .health
                    .as_ref()
                    .and_then(last_check)
                    .unwrap_or_else(none),
            ],
        )
    });
    (&BACKENDS, rows.collect())
}

fn last_check(health: &HealthReport) -> Option<String> {
    let last = health.last.as_ref()?;
    let (CheckOutcome::Good(words) | CheckOutcome::NotReady(words) | CheckOutcome::Dead(words)) =
        &last.outcome;
    let age = ago(last.age_seconds.as_millis());
    Some(format!("{words}, {age} ago"))
}
