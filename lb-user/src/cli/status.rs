//! `lb status`.

use std::collections::BTreeMap;

use anyhow::Result;
use lb_common::maps::MAX_CLONE_NICS;

use super::{
    arguments::{Format, Show},
    ask::{self, command},
    color, observed, print, table,
};
use crate::{
    api::{ClusterStatus, ConfigStatus, ServiceStats, ShareUse},
    config::SecondSegment,
    model::ago::{ago, ago_seconds},
    observe::{NetworkStatus, RingStatus, SnatStatus, Verdicts},
    reports::status::StatusReport,
};

pub(super) fn show(show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let observer = observed::open(instance)?;
    let mut control = ask::health(instance);
    let report = StatusReport::new(&observer, &mut control)?;
    if show.output.format == Format::Json {
        return print::report(&report);
    }
    let StatusReport {
        health,
        status,
        kubernetes,
        shared,
        divided,
        is_elsewhere,
        ..
    } = report;
    for line in health.lines() {
        print::line(color::line(&line))?;
    }
    let (name, version) = (&status.instance, status.lb_version);
    print::line(format_args!("instance {name}, version {version}"))?;
    let config = control.map(|control| control.config);
    for line in config_words(&config, instance) {
        print::line(color::line(&line))?;
    }
    for line in cluster_words(&kubernetes) {
        print::line(color::line(&line))?;
    }
    if is_elsewhere {
        print::line(ELSEWHERE)?;
    }
    for line in stopped_words(&status.networks) {
        print::line(line)?;
    }
    for line in peer_words(&status.networks) {
        print::line(line)?;
    }
    for line in second_segment_words(&status.networks, &status.snat) {
        print::line(line)?;
    }
    for line in flood_words(&status.networks) {
        print::line(line)?;
    }
    print::line("")?;
    print_networks(&status.networks)?;
    print::line("")?;
    print_quotas(&status.networks)?;
    print_limits(status.networks)?;
    print::line("")?;
    if !shared.is_empty() {
        print_shared(&shared)?;
        print::line("")?;
        print_requests(shared)?;
    }
    if !divided.is_empty() {
        print_divided(divided)?;
        print::line("")?;
    }
    print_verdicts(status.verdicts)?;
    print::line("")?;
    print_snat(status.snat)
}

/// The line where the interfaces are in another network namespace.
const ELSEWHERE: &str =
    "interfaces as the control plane sees them: this command runs in another network namespace";

/// Where the configuration stands, or why that is not known.
fn config_words(config: &Result<ConfigStatus, String>, instance: &str) -> Vec<String> {
    let ConfigStatus {
        file,
        generation,
        age_seconds,
        confirm_seconds,
        stale,
        staleness: _,
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
        format!("confirm within {}: `{confirm}`", ago_seconds(seconds))
    }));
    lines
}

/// Which clusters of Kubernetes are followed, and how old what is known of them may be.
fn cluster_words(clusters: &BTreeMap<String, ClusterStatus>) -> impl Iterator<Item = String> {
    clusters.iter().map(|(name, cluster)| match &cluster.unanswered {
        None => format!("cluster {name} of Kubernetes: followed"),
        Some(why) => format!(
            "stale: cluster {name} of Kubernetes has not answered for {}, and its backends stay as they were: {why}",
            ago_seconds(cluster.age_seconds)
        ),
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

/// Which networks have a veth for a NIC whose other end does not take what is sent back.
fn peer_words(networks: &[NetworkStatus]) -> impl Iterator<Item = String> {
    let lone = networks
        .iter()
        .filter(|network| network.peer_without_program);
    lone.map(|network| {
        let NetworkStatus {
            name, interface, ..
        } = network;
        format!(
            "hint: network {name}: interface {interface} is a veth whose other end has no XDP program, so answers and \
             one-arm traffic are late there or lost; attach one to it that passes everything"
        )
    })
}

/// Which networks of backends get the second segment of a ClientHello a round trip after the first one. In generic mode XDP sends
/// them none.
fn second_segment_words(networks: &[NetworkStatus], snat: &[SnatStatus]) -> Vec<String> {
    let late = networks.iter().filter(|network| {
        let has_backends = snat
            .iter()
            .any(|snat| snat.network == network.name && !snat.draining);
        has_backends && network.mode == "native" && network.second_segment == SecondSegment::OnAck
    });
    let words = late.map(|network| {
        let name = &network.name;
        format!(
            "network {name}: backends get the second segment of a ClientHello when they have acknowledged the first one \
             (second_segment: on_ack, or beyond the first {MAX_CLONE_NICS} interfaces of backends)"
        )
    });
    words.collect()
}

/// Which networks have a flood of SYNs.
fn flood_words(networks: &[NetworkStatus]) -> impl Iterator<Item = String> + '_ {
    let flooded = networks.iter().filter(|network| network.half_open.flooded);
    flooded.map(|network| {
        format!(
            "network {}: a flood of SYNs, which are answered by cookies (syn_cookies: auto of its services)",
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

/// What the networks have of SNAT ports that others use too; nothing where none do.
fn print_quotas(networks: &[NetworkStatus]) -> Result<()> {
    let all = networks.iter().flat_map(|network| {
        let quotas = network.quotas.iter().filter(|quota| quota.networks > 1);
        quotas.map(move |quota| (network, quota))
    });
    let rows: Vec<_> = all
        .map(|(network, quota)| {
            let family = if quota.ipv6 { "IPv6" } else { "IPv4" };
            let most = quota.most.map(|most| most.to_string());
            [
                network.name.clone(),
                format!("{} {family}", quota.backends),
                quota.ports.to_string(),
                quota.networks.to_string(),
                quota.flows.to_string(),
                most.unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let header = [
        "NETWORK",
        "SNAT PORTS OF",
        "PORTS",
        "SHARED BY",
        "FLOWS",
        "MOST",
    ];
    table::print(header, rows)?;
    print::line("")
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
            "ICMP FLOOR",
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
                network.icmp_floor.to_string(),
            ]
        }),
    )
}

const SHARED: [&str; 11] = [
    "SHARED VIP",
    "BOUND",
    "CONNECTIONS",
    "ROUTED",
    "HANDED OVER",
    "COPIED",
    "REDISPATCHED",
    "ECH",
    "REFUSED",
    "WHY COPIED",
    "WHY REFUSED",
];
const REQUESTS: [&str; 4] = ["REQUESTS TO", "ROUTED", "REFUSED", "WHY REFUSED"];

/// Connections.
fn print_shared(shared: &BTreeMap<String, ServiceStats>) -> Result<()> {
    table::print(
        SHARED,
        shared
            .iter()
            .map(|(service, counted)| shared_row(service, counted)),
    )
}

fn shared_row(service: &str, counted: &ServiceStats) -> [String; SHARED.len()] {
    [
        service.to_owned(),
        counted.bound.to_string(),
        counted.accepted.to_string(),
        counted.routed.to_string(),
        counted.handed_over.to_string(),
        sum(&counted.copied),
        counted.redispatched.to_string(),
        counted.ech.to_string(),
        sum(&counted.refused),
        reasons(&counted.copied),
        reasons(&counted.refused),
    ]
}

/// Requests, where there are any.
fn print_requests(shared: BTreeMap<String, ServiceStats>) -> Result<()> {
    let rows = shared.into_iter();
    let rows = rows.filter_map(|(service, counted)| requests_row(service, counted));
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    table::print(REQUESTS, rows)?;
    print::line("")
}

fn requests_row(service: String, counted: ServiceStats) -> Option<[String; REQUESTS.len()]> {
    let requests = counted.requests;
    (!requests.is_empty()).then(|| {
        [
            service,
            requests.routed.to_string(),
            sum(&requests.refused),
            reasons(&requests.refused),
        ]
    })
}

fn sum(counted: &BTreeMap<String, u64>) -> String {
    counted.values().sum::<u64>().to_string()
}

/// Each reason and how often it was.
fn reasons(counted: &BTreeMap<String, u64>) -> String {
    let reasons = counted.iter();
    let reasons: Vec<String> = reasons
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    match reasons.is_empty() {
        true => "-".to_owned(),
        false => reasons.join(", "),
    }
}

fn print_divided(divided: BTreeMap<String, ShareUse>) -> Result<()> {
    table::print(
        ["CLIENTS OF", "DESCRIPTORS", "PORTS OF FLOWS", "OTHER PORTS"],
        divided.into_iter().map(|(network, had)| {
            [
                network,
                had.descriptors.to_string(),
                had.flow_ports.to_string(),
                had.leg_ports.to_string(),
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
            "CONSUMED",
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
                count.consumed.to_string(),
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
                snat.address.clone(),
                snat.network.clone(),
                format!("{}-{}", snat.first_port, snat.last_port),
                snat.flows.live.to_string(),
                snat.free(),
                snat.state().to_owned(),
            ]
        }),
    )
}

/// How long a flow keeps its place in a ring.
fn lasts(ring: RingStatus) -> String {
    match ring.lifetime_seconds {
        Some(lifetime) => ago(lifetime.as_millis()),
        None if ring.taken < u64::from(ring.places) => "not full".to_owned(),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::reports::samples;

    #[test]
    fn the_configuration_is_said_with_what_is_wrong_with_it() {
        let config = ConfigStatus {
            file: PathBuf::from("/etc/lb/lb.yaml"),
            generation: 3,
            age_seconds: 3700,
            confirm_seconds: None,
            stale: None,
            staleness: None,
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
                "confirm within 12s: `lb confirm --instance lab`",
            ]
        );
    }

    #[test]
    fn a_network_whose_backends_get_second_segments_late_is_named() {
        let status = samples::overview().status.status;
        let network = |second_segment, mode| NetworkStatus {
            second_segment,
            mode,
            ..samples::network("mgmt")
        };
        for (second, mode, lines) in [
            (SecondSegment::OnAck, "native", 1),
            (SecondSegment::OnAck, "generic", 0),
            (SecondSegment::AtOnce, "native", 0),
        ] {
            let networks = [network(second, mode), samples::network("tenant-a")];
            let found = second_segment_words(&networks, &status.snat);
            assert_eq!(found.len(), lines, "{second:?} {mode}");
            assert!(found.iter().all(|line| line.starts_with("network mgmt: ")));
        }
    }

    #[test]
    fn a_flood_has_a_line() {
        let mut networks = [samples::network("mgmt"), samples::network("tenant-a")];
        assert_eq!(flood_words(&networks).count(), 0);
        networks[1].half_open.flooded = true;
        let lines: Vec<String> = flood_words(&networks).collect();
        assert!(matches!(&lines[..], [line] if line.starts_with("network tenant-a: ")));
    }

    #[test]
    fn refusals_and_copies_are_apart_and_so_are_connections_and_requests() {
        let mut counted = ServiceStats {
            accepted: 9,
            routed: 5,
            bound: 4,
            ..ServiceStats::default()
        };
        counted.copy("requests");
        counted.refuse("timeout");
        counted.refuse("timeout");
        let service = "s".to_owned();
        let row = shared_row(&service, &counted);
        let expected = [
            "s",
            "4",
            "9",
            "5",
            "0",
            "1",
            "0",
            "0",
            "2",
            "requests 1",
            "timeout 2",
        ];
        assert_eq!(row, expected);
        assert_eq!(requests_row(service.clone(), counted.clone()), None);
        counted.requests.routed = 7;
        assert_eq!(
            requests_row(service.clone(), counted.clone()).unwrap(),
            ["s", "7", "0", "-"]
        );
        counted.refuse_request("no_match");
        counted.refuse_request("bad_request");
        assert_eq!(
            requests_row(service, counted).unwrap(),
            ["s", "7", "2", "bad_request 1, no_match 1"]
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
