//! The text of a small snapshot, exactly.

use super::{
    super::{
        process::ProcessReading,
        rows::{BackendRow, BuildRow, InstanceRow, NetworkRow, OutcomeRow, ReasonRow, ThreadRow},
    },
    *,
};

fn small() -> MetricsSnapshot {
    MetricsSnapshot {
        build: vec![BuildRow { version: "1.2.3" }],
        networks: vec![NetworkRow {
            network: "tenant-a".to_owned(),
            flows: 7,
            max_flows: Some(100),
            unreported: 3,
            ..NetworkRow::default()
        }],
        reasons: vec![ReasonRow {
            network: "-".to_owned(),
            hook: "nic",
            reason: "no_service",
            dropped: 5,
            answered: 0,
        }],
        backends: vec![
            BackendRow {
                pool: "kas-a".to_owned(),
                backend: "10.32.96.105:30918".to_owned(),
                up: true,
                effective_weight: 250,
                flows: 2,
                check_ms: Some(15),
                syns: Some([1, 2, 3]),
                ..BackendRow::default()
            },
            BackendRow {
                pool: "kas-a".to_owned(),
                backend: "a\"b\\c\nd".to_owned(),
                ..BackendRow::default()
            },
        ],
        outcomes: vec![OutcomeRow {
            service: "web".to_owned(),
            outcome: "copied",
            reason: "requests".to_owned(),
            count: 9,
        }],
        ..MetricsSnapshot::default()
    }
}

const SMALL: &str = r#"# HELP lb_build_info The version of this process.
# TYPE lb_build_info gauge
lb_build_info{version="1.2.3"} 1
# HELP lb_network_flows Flows of the network's clients in full use.
# TYPE lb_network_flows gauge
lb_network_flows{network="tenant-a"} 7
# HELP lb_network_max_flows The most that they may have, if there is a limit.
# TYPE lb_network_max_flows gauge
lb_network_max_flows{network="tenant-a"} 100
# HELP lb_network_unreachable_backends Backends of the network whose next hop does not answer.
# TYPE lb_network_unreachable_backends gauge
lb_network_unreachable_backends{network="tenant-a"} 0
# HELP lb_network_unrested_flows_total Flows with a SNAT port whose last connection may still rest at the backend.
# TYPE lb_network_unrested_flows_total counter
lb_network_unrested_flows_total{network="tenant-a"} 0
# HELP lb_flow_log_lost_total Beginnings and ends of flows that are missing in the flow log.
# TYPE lb_flow_log_lost_total counter
lb_flow_log_lost_total{network="tenant-a"} 3
# HELP lb_icmp_mtu_raised_total ICMP errors whose MTU was raised before they went to a backend.
# TYPE lb_icmp_mtu_raised_total counter
lb_icmp_mtu_raised_total{network="tenant-a"} 0
# HELP lb_drops_total Dropped frames, by reason.
# TYPE lb_drops_total counter
lb_drops_total{network="-",hook="nic",reason="no_service"} 5
# HELP lb_backend_up Whether a backend takes new flows.
# TYPE lb_backend_up gauge
lb_backend_up{pool="kas-a",backend="10.32.96.105:30918"} 1
lb_backend_up{pool="kas-a",backend="a\"b\\c\nd"} 0
# HELP lb_backend_out Whether the operator has taken it out.
# TYPE lb_backend_out gauge
lb_backend_out{pool="kas-a",backend="10.32.96.105:30918"} 0
lb_backend_out{pool="kas-a",backend="a\"b\\c\nd"} 0
# HELP lb_backend_weight Its weight as checks, ramp and operator leave it.
# TYPE lb_backend_weight gauge
lb_backend_weight{pool="kas-a",backend="10.32.96.105:30918"} 2.5
lb_backend_weight{pool="kas-a",backend="a\"b\\c\nd"} 0.0
# HELP lb_backend_flows Its flows in full use.
# TYPE lb_backend_flows gauge
lb_backend_flows{pool="kas-a",backend="10.32.96.105:30918"} 2
lb_backend_flows{pool="kas-a",backend="a\"b\\c\nd"} 0
# HELP lb_backend_check_transitions_total How often the verdict of its checks changed.
# TYPE lb_backend_check_transitions_total counter
lb_backend_check_transitions_total{pool="kas-a",backend="10.32.96.105:30918"} 0
lb_backend_check_transitions_total{pool="kas-a",backend="a\"b\\c\nd"} 0
# HELP lb_backend_check_seconds How long its latest check took.
# TYPE lb_backend_check_seconds gauge
lb_backend_check_seconds{pool="kas-a",backend="10.32.96.105:30918"} 0.015
# HELP lb_backend_unanswered_syns_total SYNs that were repeated because it had not answered.
# TYPE lb_backend_unanswered_syns_total counter
lb_backend_unanswered_syns_total{pool="kas-a",backend="10.32.96.105:30918"} 1
# HELP lb_backend_refused_syns_total SYNs that it refused by a RST.
# TYPE lb_backend_refused_syns_total counter
lb_backend_refused_syns_total{pool="kas-a",backend="10.32.96.105:30918"} 2
# HELP lb_backend_redispatched_connections_total Connections that went on to another backend for that.
# TYPE lb_backend_redispatched_connections_total counter
lb_backend_redispatched_connections_total{pool="kas-a",backend="10.32.96.105:30918"} 3
# HELP lb_shared_connections_total Connections of a shared VIP that were handed over, copied or refused, and why.
# TYPE lb_shared_connections_total counter
lb_shared_connections_total{service="web",outcome="copied",reason="requests"} 9
"#;

#[test]
fn a_snapshot_is_this_text() {
    let text = TextFormat::Prometheus.text(small(), 0).unwrap();
    assert_eq!(text, SMALL);
}

#[test]
fn open_metrics_has_counters_without_their_suffix_and_an_end() {
    let snapshot = MetricsSnapshot {
        instance: vec![InstanceRow {
            process: ProcessReading {
                cpu_seconds: 1.5,
                ..ProcessReading::default()
            },
            ..InstanceRow::default()
        }],
        threads: vec![ThreadRow {
            thread: "metrics".to_owned(),
            cpu_seconds: 0.25,
        }],
        ..small()
    };
    let text = TextFormat::OpenMetrics.text(snapshot, 0).unwrap();
    for piece in [
        "# TYPE lb_build info\n",
        "lb_build_info{version=\"1.2.3\"} 1\n",
        "# TYPE lb_drops counter\n",
        "lb_drops_total{network=\"-\",hook=\"nic\",reason=\"no_service\"} 5\n",
        "# TYPE process_cpu_seconds counter\n",
        "process_cpu_seconds_total 1.5\n",
        "lb_thread_cpu_seconds_total{thread=\"metrics\"} 0.25\n",
    ] {
        assert!(text.contains(piece), "{piece}: {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn the_format_is_the_one_that_is_accepted() {
    let wanted = |accepted: &[&str]| TextFormat::wanted(accepted.iter().copied());
    assert_eq!(wanted(&[]), TextFormat::Prometheus);
    assert_eq!(wanted(&["*/*"]), TextFormat::Prometheus);
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
    assert_eq!(wanted(&[prometheus]), TextFormat::OpenMetrics);
}
