//! What is observed and what a control plane reports, for tests.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    backends::BackendReport,
    health::Summary,
    overview::Overview,
    rates::{FlowRate, FlowRates},
    services::ServiceReport,
    status::StatusReport,
};
use crate::{
    api::{BackendHealth, ConfigStatus, ControlStatus, LastCheck, RefusedName},
    config::SecondSegment,
    health::{CheckOutcome, HealthVerdict},
    model::seconds::Seconds,
    observe::{BackendLine, FlowIds, NetworkStatus, RingStatus, ServiceLine, SnatStatus, Status},
};

/// A backend `b` that is checked, and has its whole weight.
pub(crate) fn backend(id: u32, pool: &str, verdict: HealthVerdict) -> BackendHealth {
    BackendHealth {
        id,
        pool: pool.to_owned(),
        name: "b".to_owned(),
        checked: true,
        verdict,
        effective_weight: 100,
        overridden: None,
        last: None,
        since_seconds: None,
        transitions: 0,
        drain_seconds: None,
        retired: false,
        backup: false,
        unresponsive: false,
        service_down: false,
    }
}

/// A control plane with these backends and nothing to report of the rest.
pub(crate) fn control(backends: Vec<BackendHealth>) -> ControlStatus {
    let config = ConfigStatus {
        file: PathBuf::from("/etc/lb/lb.yaml"),
        generation: 1,
        age_seconds: 0,
        confirm_seconds: None,
        stale: None,
        staleness: None,
    };
    ControlStatus {
        config,
        backends,
        shared: BTreeMap::new(),
        divided: BTreeMap::new(),
        wrong: BTreeMap::new(),
        kubernetes: BTreeMap::new(),
        namespace: 0,
        interfaces: BTreeMap::new(),
    }
}

/// The backend `b` of the pool `p`, as the data plane has it.
pub(crate) fn line(id: Option<u32>) -> BackendLine {
    BackendLine {
        id,
        name: "b".to_owned(),
        pool: "p".to_owned(),
        address: "10.0.0.2:80".to_owned(),
        weight: 1,
        share: 33.4,
        next_hop: None,
        syns: None,
        counts: None,
    }
}

/// A check that was good.
pub(crate) fn last() -> LastCheck {
    LastCheck {
        outcome: CheckOutcome::Good("200 OK".to_owned()),
        took_ms: 3,
        age_ms: 2100,
    }
}

/// A network that carries.
pub(crate) fn network(name: &str) -> NetworkStatus {
    NetworkStatus {
        name: name.to_owned(),
        role: "tenant".to_owned(),
        interface: "eth0".to_owned(),
        vlan: None,
        carrier: true,
        mode: "native",
        peer_without_program: false,
        stopped: false,
        mtu: 1500,
        mss: 1460,
        cell: None,
        flows: 0,
        max_flows: None,
        counts: None,
        quotas: Vec::new(),
        half_open: RingStatus::default(),
        udp_flows: RingStatus::default(),
        unrested: 0,
        unreported: 0,
        hellos: BTreeMap::new(),
        second_segment: SecondSegment::AtOnce,
        icmp_floor: 0,
    }
}

/// A service of this network with so many of two backends up.
fn service(name: &str, network: &str, up: usize) -> ServiceReport {
    ServiceReport {
        line: ServiceLine {
            name: name.to_owned(),
            network: network.to_owned(),
            listen: "192.168.203.110:6443/tcp".to_owned(),
            pools: vec![format!("pool-{name}")],
            flows: 3,
            counts: None,
        },
        backends_up: Some(up),
        backends: Some(2),
        pools_down: Vec::new(),
    }
}

/// A backend of the pool of this service.
fn reported(service: &str, state: &str) -> BackendReport {
    BackendReport {
        line: BackendLine {
            name: format!("node-of-{service}"),
            pool: format!("pool-{service}"),
            ..line(Some(1))
        },
        state: state.to_owned(),
        health: None,
    }
}

/// Two tenants, a shared VIP that has refused a name, and rates of one service.
pub(crate) fn overview() -> Overview {
    let networks = ["blue", "red"].map(|name| NetworkStatus {
        vlan: Some(7),
        flows: 3,
        ..network(name)
    });
    let networks = Vec::from(networks);
    let backends = vec![backend(1, "p", HealthVerdict::Up)];
    let health = Summary::new(&networks, ["p"], &Ok(control(backends)));
    let rate = FlowRate {
        flows: 250.0,
        bytes_request: 125_000.0,
        ..FlowRate::default()
    };
    Overview {
        time: "2026-01-02T03:04:05Z".to_owned(),
        status: StatusReport {
            health,
            status: Status {
                instance: "main".to_owned(),
                lb_version: "1.2.3",
                networks,
                verdicts: Default::default(),
                snat: vec![SnatStatus {
                    network: "mgmt".to_owned(),
                    address: "10.32.96.50".to_owned(),
                    first_port: 1024,
                    last_port: 65535,
                    draining: false,
                    peer: false,
                    flows: FlowIds::default(),
                }],
                flows: FlowIds::default(),
            },
            config: None,
            wrong: Default::default(),
            kubernetes: Default::default(),
            shared: [("shop".to_owned(), Default::default())].into(),
            divided: Default::default(),
            is_elsewhere: false,
        },
        services: vec![service("api", "blue", 2), service("shop", "red", 1)],
        backends: vec![reported("api", "up"), reported("shop", "dead")],
        drops: Vec::new(),
        names: vec![RefusedName {
            service: "shop".to_owned(),
            network: "red".to_owned(),
            name: Some("a\u{1b}[2Jb".to_owned()),
            reason: "no_match".to_owned(),
            count: 4,
            client: "192.168.7.8".to_owned(),
            age_seconds: 2,
        }],
        events: Vec::new(),
        rates: Some(FlowRates {
            seconds: Seconds::from_millis(1000),
            services: [("api".to_owned(), rate)].into(),
            ..FlowRates::default()
        }),
    }
}
