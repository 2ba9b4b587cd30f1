//! `lb status`.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::{
    arguments::{Format, Show},
    ask::{self, command},
    print::{self, ago, ago_seconds},
    table,
};
use crate::{
    admin::api::ConfigStatus,
    observe::{MISSING, NetworkStatus, Observer, RingStatus, SnatStatus, Status, Verdicts},
    shared::Counted,
};

/// The answer of `-o json`.
#[derive(Serialize)]
struct Object {
    #[serde(flatten)]
    status: Status,
    /// Where the configuration stands; null if no control plane says so.
    config: Option<ConfigStatus>,
    /// What became of the clients of each shared VIP, by the names of their services.
    shared: BTreeMap<String, Counted>,
}

pub(super) fn show(show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let status = Observer::open(instance)?.status()?;
    let (config, shared) = match ask::health(instance) {
        Ok(control) => (Ok(control.config), control.shared),
        Err(why) => (Err(why), BTreeMap::new()),
    };
    if show.output.format == Format::Json {
        let config = config.ok();
        return print::json(&Object {
            status,
            config,
            shared,
        });
    }
    let (name, version) = (&status.instance, status.version);
    print::line(format_args!("instance {name}, version {version}"))?;
    for line in config_words(&config, instance) {
        print::line(line)?;
    }
    for line in missing_words(&status.networks) {
        print::line(line)?;
    }
    for line in stopped_words(&status.networks) {
        print::line(line)?;
    }
    print::line("")?;
    print_networks(&status.networks)?;
    print::line("")?;
    print_limits(status.networks)?;
    print::line("")?;
    if !shared.is_empty() {
        print_shared(shared)?;
        print::line("")?;
    }
    print_verdicts(status.verdicts)?;
    print::line("")?;
    print_snat(status.snat)
}

/// Where the configuration stands, or why nobody knows.
fn config_words(config: &Result<ConfigStatus, String>, instance: &str) -> Vec<String> {
    let ConfigStatus {
        file,
        generation,
        age_seconds,
        confirm_seconds,
        stale,
    } = match config {
        Ok(config) => config,
        Err(why) => return vec![format!("configuration unknown: {why}")],
    };
    let mut lines = vec![format!(
        "configuration {}, generation {generation}, applied {} ago",
        file.display(),
        ago_seconds(*age_seconds)
    )];
    lines.extend(stale.as_ref().map(|why| format!("stale: {why}")));
    lines.extend(confirm_seconds.map(|seconds| {
        let confirm = command("confirm", instance);
        format!("confirm within {seconds} s: `{confirm}`")
    }));
    lines
}

/// Which networks have no interface.
fn missing_words(networks: &[NetworkStatus]) -> impl Iterator<Item = String> {
    let missing = networks.iter().filter(|network| network.mode == MISSING);
    missing.map(|network| {
        let NetworkStatus {
            name, interface, ..
        } = network;
        format!("missing: network {name} has no interface {interface}, and carries nothing")
    })
}

/// Which networks are closed until the next start.
fn stopped_words(networks: &[NetworkStatus]) -> impl Iterator<Item = String> {
    let stopped = networks.iter().filter(|network| network.stopped);
    stopped.map(|network| {
        format!(
            "stopped: network {} drops everything until the next `lb run` (on_stop: drop)",
            network.name
        )
    })
}

fn print_networks(networks: &[NetworkStatus]) -> Result<()> {
    table::print(
        [
            "NETWORK",
            "ROLE",
            "INTERFACE",
            "VLAN",
            "CARRIER",
            "XDP",
            "MTU",
            "MSS",
            "CELL",
        ],
        networks.iter().map(|network| {
            let cell = network.cell.as_deref();
            [
                network.name.clone(),
                network.role.clone(),
                network.interface.clone(),
                network
                    .vlan
                    .map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
                if network.carrier { "yes" } else { "no" }.to_owned(),
                network.mode.to_owned(),
                network.mtu.to_string(),
                network.mss.to_string(),
                cell.unwrap_or("none: the host's addresses").to_owned(),
            ]
        }),
    )
}

fn print_limits(networks: Vec<NetworkStatus>) -> Result<()> {
    table::print(
        [
            "NETWORK",
            "FLOWS",
            "MOST",
            "HALF-OPEN LAST",
            "UDP LAST",
            "UNRESTED",
            "UNREPORTED",
        ],
        networks.into_iter().map(|network| {
            let most = network.max_flows.map(|most| most.to_string());
            [
                network.name,
                network.flows.to_string(),
                most.unwrap_or_else(|| "-".to_owned()),
                lasts(network.half_open),
                lasts(network.udp_flows),
                network.unrested.to_string(),
                network.unreported.to_string(),
            ]
        }),
    )
}

fn print_shared(shared: BTreeMap<String, Counted>) -> Result<()> {
    table::print(
        [
            "SHARED VIP",
            "ACCEPTED",
            "ROUTED",
            "HANDED OVER",
            "COPIED",
            "REDISPATCHED",
            "ECH",
            "REFUSED",
            "REASONS",
        ],
        shared.into_iter().map(|(service, counted)| {
            let reasons = counted.copied.iter().chain(&counted.refused);
            let reasons: Vec<String> = reasons
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect();
            [
                service,
                counted.accepted.to_string(),
                counted.routed.to_string(),
                counted.handed_over.to_string(),
                counted.copied.values().sum::<u64>().to_string(),
                counted.redispatched.to_string(),
                counted.ech.to_string(),
                counted.refused.values().sum::<u64>().to_string(),
                reasons.join(", "),
            ]
        }),
    )
}

fn print_verdicts(verdicts: impl IntoIterator<Item = (&'static str, Verdicts)>) -> Result<()> {
    table::print(
        [
            "HOOK",
            "PASSED",
            "TRANSMITTED",
            "FORWARDED",
            "DELIVERED",
            "DROPPED",
            "REFUSED",
            "TOTAL",
        ],
        verdicts.into_iter().map(|(hook, count)| {
            [
                hook.to_owned(),
                count.passed.to_string(),
                count.transmitted.to_string(),
                count.forwarded.to_string(),
                count.delivered.to_string(),
                count.dropped.to_string(),
                count.refused.to_string(),
                count.total.to_string(),
            ]
        }),
    )
}

fn print_snat(snat: Vec<SnatStatus>) -> Result<()> {
    table::print(
        ["SNAT ADDRESS", "NETWORK", "PORTS", "FLOWS", "FREE", "STATE"],
        snat.into_iter().map(|snat| {
            [
                snat.address,
                snat.network,
                snat.ports,
                snat.flows.live.to_string(),
                snat.flows.free.to_string(),
                if snat.draining { "draining" } else { "in use" }.to_owned(),
            ]
        }),
    )
}

/// How long a flow keeps its place in a ring.
fn lasts(ring: RingStatus) -> String {
    match ring.lifetime_ms {
        Some(lifetime_ms) => ago(lifetime_ms),
        None if ring.taken < u64::from(ring.places) => "not full".to_owned(),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_configuration_is_said_with_what_is_wrong_with_it() {
        let config = ConfigStatus {
            file: PathBuf::from("/etc/lb/lb.yaml"),
            generation: 3,
            age_seconds: 3700,
            confirm_seconds: None,
            stale: None,
        };
        let fresh = "configuration /etc/lb/lb.yaml, generation 3, applied 1h1m ago";
        assert_eq!(config_words(&Ok(config.clone()), "main"), [fresh]);
        let stale = ConfigStatus {
            confirm_seconds: Some(12),
            stale: Some("lb.yaml:7: no network is called \"x\"".to_owned()),
            ..config
        };
        assert_eq!(
            config_words(&Ok(stale), "lab"),
            [
                fresh,
                "stale: lb.yaml:7: no network is called \"x\"",
                "confirm within 12 s: `lb confirm --instance lab`",
            ]
        );
    }

    #[test]
    fn without_a_control_plane_the_configuration_is_unknown() {
        let why = Err("no control plane runs".to_owned());
        assert_eq!(
            config_words(&why, "main"),
            ["configuration unknown: no control plane runs"]
        );
    }
}
