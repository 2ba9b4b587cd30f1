//! The names of all metrics, and what each one is. A new one is a line here, a field of its row in `rows.rs`, and its
//! line in `docs/metrics.md`, which a test compares with these.
//! What is counted of flows by network, service and backend is in `counts.rs`.

use prometheus_client::metrics::MetricType;

use super::rows::{
    AnsweredRow, BackendRow, BuildRow, ClusterRow, FramesRow, HaRow, HelloRow, InstanceRow,
    InterfaceRow, NetworkRow, OutcomeRow, PoolRow, QuotaRow, ReasonRow, RefusalRow, ReloadRow,
    RequestRow, RingRow, ServiceRow, SharedRow, SnatRow, ThreadRow,
};

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

/// What is the value of a sample, or none.
trait Sample {
    fn sample(self) -> Option<Value>;
}

macro_rules! samples {
    ($($Type:ty: |$value:ident| $sample:expr;)+) => {$(
        impl Sample for $Type {
            fn sample(self) -> Option<Value> {
                let $value = self;
                Some($sample)
            }
        }
    )+};
}

samples! {
    u64: |value| Value::Whole(value);
    u32: |value| Value::Whole(value.into());
    usize: |value| Value::Whole(u64::try_from(value).unwrap_or(u64::MAX));
    bool: |value| Value::Whole(value.into());
    f64: |value| Value::Real(value);
}

impl<T: Sample> Sample for Option<T> {
    fn sample(self) -> Option<Value> {
        self.and_then(T::sample)
    }
}

/// A metric of rows of one kind.
pub(super) struct Metric<R> {
    /// Its name: of a counter with `_total`, of an info with `_info` at the end.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
    /// Its value for a row, if it has one there.
    pub(super) value: fn(&R) -> Option<Value>,
}

/// Declares the metrics of a row: `gauge NAME "HELP" = |row| VALUE;`. A value that is an `Option` may be absent.
macro_rules! metrics {
    ($(#[doc = $about:literal])* $ROWS:ident: $Row:ty { $($kind:ident $name:literal $help:literal = |$row:ident| $value:expr;)+ }) => {
        $(#[doc = $about])*
        pub(super) const $ROWS: &[Metric<$Row>] = &[$(Metric {
            name: $name,
            kind: metrics!(@$kind),
            help: $help,
            value: |$row: &$Row| ($value).sample(),
        }),+];
    };
    (@gauge) => { MetricType::Gauge };
    (@counter) => { MetricType::Counter };
    (@info) => { MetricType::Info };
}

metrics! {
    BUILD: BuildRow {
        info "lb_build_info" "The version of this process." = |_row| 1_u64;
    }
}

metrics! {
    INSTANCE: InstanceRow {
        gauge "lb_control_responds" "Whether the control plane answers; what it reports is older otherwise." = |row| row.control_responds;
        gauge "lb_config_generation" "Number of the applied configuration, 1 at the start of the process." = |row| row.generation;
        gauge "lb_config_age_seconds" "Since the configuration was applied." = |row| row.config_age_seconds;
        gauge "lb_config_last_reload_success" "Whether the file is what is applied." = |row| !row.is_stale;
        gauge "lb_config_unconfirmed" "Whether the configuration is taken back unless it is confirmed." = |row| row.is_unconfirmed;
        gauge "lb_first_checks_pending" "Backends whose first check has not ended." = |row| row.first_checks;
        gauge "lb_cuts_pending" "Cuts of flows that are not complete." = |row| row.cuts;
        gauge "lb_drains_pending" "Backends that drain until a time." = |row| row.drains;
        gauge "lb_unmended" "What something has taken away or changed, and could not be mended yet." = |row| row.unmended;
        gauge "lb_retired_backends" "Backends that are configured no more, and finish their flows." = |row| row.retired_backends;
        gauge "lb_metrics_read_seconds" "How long it took to read what these metrics are of." = |row| row.read_seconds;
        counter "process_cpu_seconds_total" "CPU time of the process." = |row| row.process.cpu_seconds;
        gauge "process_resident_memory_bytes" "Memory of the process." = |row| row.process.resident_bytes;
        gauge "process_virtual_memory_bytes" "Addresses of the process." = |row| row.process.virtual_bytes;
        gauge "process_open_fds" "Open descriptors." = |row| row.process.open_fds;
        gauge "process_max_fds" "The most descriptors that may be open." = |row| row.process.max_fds;
        gauge "process_start_time_seconds" "When the process began, since 1970." = |row| row.process.start_seconds;
        gauge "process_threads" "Threads of the process." = |row| row.process.threads;
    }
}

metrics! {
    RELOADS: ReloadRow {
        counter "lb_config_reloads_total" "Reloads since the process began, by what became of them." = |row| row.count;
    }
}

metrics! {
    CLUSTERS: ClusterRow {
        gauge "lb_kubernetes_age_seconds" "How old what is known of a cluster of Kubernetes may be: 0 while its API answers." = |row| row.age_seconds;
    }
}

metrics! {
    HA: HaRow {
        gauge "lb_ha_active" "Whether this box has the marker address, and so serves." = |row| row.status.active;
        gauge "lb_ha_carried_networks" "Networks that this box carries: their links have carriers, and a next hop answers if they have backends." = |row| u64::from(row.status.carried);
        gauge "lb_ha_connections" "Connections to backends that the process carries for shared VIPs: they end with this box." = |row| row.status.connections;
        counter "lb_ha_lost_connections_total" "Connections that the process of the peer carried, and that ended with it or when it left the service to this box." = |row| row.status.lost_connections;
        gauge "lb_ha_backends_down_at_peer_alone" "Backends that the checks of the peer find down, and those of this box find up; 0 while the peer is not heard." = |row| row.status.down_only_there.len();
        gauge "lb_ha_sending_complete" "Whether the peer has got all flows of this box since its session began." = |row| row.status.sending.session.complete;
        gauge "lb_ha_receiving_complete" "Whether this box has got all flows of its peer since its session began." = |row| row.status.receiving.session.complete;
        counter "lb_ha_flows_sent_total" "Flows that the peer was sent in its session, each as often as it was." = |row| row.status.sending.flows;
        counter "lb_ha_flows_received_total" "Flows of the peer that stand ready, each as often as it came in this session." = |row| row.status.receiving.ready;
        counter "lb_ha_flows_unknown_total" "Flows of the peer that refer to what this box does not have." = |row| row.status.receiving.unknown;
        gauge "lb_ha_flows_waiting" "Flows of the peer that wait for room, or for an entry that a CPU changes." = |row| row.status.receiving.waiting;
    }
}

metrics! {
    NETWORKS: NetworkRow {
        gauge "lb_network_flows" "Flows of the network's clients in full use." = |row| row.flows;
        gauge "lb_network_max_flows" "The most that they may have, if there is a limit." = |row| row.max_flows;
        gauge "lb_network_carrier" "Whether the interface has a carrier." = |row| row.carrier;
        gauge "lb_network_native" "Whether the programs run in the driver (native XDP)." = |row| row.native;
        gauge "lb_network_unreachable_backends" "Backends of the network whose next hop does not answer." = |row| row.unreachable;
        counter "lb_network_unrested_flows_total" "Flows with a SNAT port whose last connection may still rest at the backend." = |row| row.unrested;
        counter "lb_flow_log_lost_total" "Beginnings and ends of flows that are missing in the flow log." = |row| row.unreported;
        counter "lb_icmp_mtu_raised_total" "ICMP errors whose MTU was raised before they went to a backend." = |row| row.mtu_raised;
        gauge "lb_shared_descriptors" "Sockets of shared VIPs for the network's clients." = |row| row.descriptors;
        gauge "lb_shared_flow_ports" "Ports of flows that these sockets have, or had a moment ago." = |row| row.flow_ports;
        gauge "lb_shared_leg_ports" "Ports of their connections that are never handed over." = |row| row.leg_ports;
    }
}

metrics! {
    RINGS: RingRow {
        gauge "lb_ring_places" "Places for half-open TCP flows, or UDP flows, of the network's clients." = |row| row.places;
        counter "lb_ring_taken_total" "Flows that took a place; each takes that of the oldest." = |row| row.taken;
        gauge "lb_ring_flooded" "Whether SYNs are answered by cookies because flows left their places within a second." = |row| row.is_flooded;
    }
}

metrics! {
    QUOTAS: QuotaRow {
        gauge "lb_quota_flows" "Flows of a network's clients on the SNAT ports of a network." = |row| row.flows;
        gauge "lb_quota_max_flows" "The most that there may be, if there is a limit." = |row| row.most;
    }
}

metrics! {
    FRAMES: FramesRow {
        counter "lb_frames_total" "Frames that a hook has seen, by verdict." = |row| row.count;
    }
}

metrics! {
    HELLOS: HelloRow {
        counter "lb_hellos_total" "ClientHellos to shared VIPs with late_binding, by what XDP made of them." = |row| row.count;
    }
}

/// A reason that has none yet has no sample.
fn some(count: u64) -> Option<u64> {
    (count > 0).then_some(count)
}

metrics! {
    REASONS: ReasonRow {
        counter "lb_drops_total" "Dropped frames, by reason." = |row| some(row.dropped);
        counter "lb_answers_total" "Frames that were answered with a reset or an ICMP error, by reason." = |row| some(row.answered);
    }
}

metrics! {
    SNAT: SnatRow {
        gauge "lb_snat_ports" "Ports of a SNAT address for flows." = |row| row.ports;
        gauge "lb_snat_ports_used" "Those of them that flows have." = |row| row.used;
    }
}

metrics! {
    SERVICES: ServiceRow {
        gauge "lb_service_flows" "Flows of a service in full use." = |row| row.flows;
        gauge "lb_service_max_flows" "The most that it may have, if there is a limit." = |row| row.max_flows;
    }
}

metrics! {
    POOLS: PoolRow {
        gauge "lb_pool_backends" "Backends of a pool, without those that stand by." = |row| row.of;
        gauge "lb_pool_backends_up" "Those of them that take new flows." = |row| row.up;
        gauge "lb_pool_service_down" "Whether all backends of the pool fail together, and answer." = |row| row.service_down;
    }
}

metrics! {
    BACKENDS: BackendRow {
        gauge "lb_backend_up" "Whether a backend takes new flows." = |row| row.up;
        gauge "lb_backend_out" "Whether the operator has taken it out." = |row| row.is_out;
        gauge "lb_backend_weight" "Its weight as checks, ramp and operator leave it." = |row| f64::from(row.effective_weight) / 100.0;
        gauge "lb_backend_flows" "Its flows in full use." = |row| row.flows;
        counter "lb_backend_check_transitions_total" "How often the verdict of its checks changed." = |row| row.transitions;
        gauge "lb_backend_check_seconds" "How long its latest check took." = |row| row.check_ms.map(milliseconds);
        counter "lb_backend_unanswered_syns_total" "SYNs that were repeated because it had not answered." = |row| row.syns.map(|[count, ..]| count);
        counter "lb_backend_refused_syns_total" "SYNs that it refused by a RST." = |row| row.syns.map(|[_, count, _]| count);
        counter "lb_backend_redispatched_connections_total" "Connections that went on to another backend for that." = |row| row.syns.map(|[.., count]| count);
    }
}

/// In seconds.
#[expect(clippy::cast_precision_loss, reason = "no check takes that long")]
fn milliseconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

metrics! {
    SHARED: SharedRow {
        counter "lb_shared_accepted_total" "Connections that a shared VIP has accepted." = |row| row.accepted;
        counter "lb_shared_routed_total" "Those that were taken to a backend, or had a request that was." = |row| row.routed;
        counter "lb_shared_redispatched_total" "Those, or requests, that were taken to another backend than the first." = |row| row.redispatched;
        counter "lb_shared_encrypted_hellos_total" "ClientHellos with an encrypted one in them." = |row| row.ech;
        counter "lb_shared_requests_routed_total" "Requests that a backend has answered." = |row| row.requests_routed;
    }
}

metrics! {
    OUTCOMES: OutcomeRow {
        counter "lb_shared_connections_total" "Connections of a shared VIP that were handed over, copied or refused, and why." = |row| row.count;
    }
}

metrics! {
    REQUESTS: RequestRow {
        counter "lb_shared_requests_refused_total" "Requests to a shared VIP that were refused, by reason." = |row| row.refused;
    }
}

metrics! {
    INTERFACES: InterfaceRow {
        counter "lb_interface_receive_errors_total" "Frames that the driver could not receive." = |row| row.receive_errors;
        counter "lb_interface_receive_drops_total" "Received frames that the driver or the kernel dropped." = |row| row.receive_drops;
        counter "lb_interface_transmit_errors_total" "Frames that the driver could not send." = |row| row.transmit_errors;
        counter "lb_interface_transmit_drops_total" "Frames that the driver or the kernel dropped instead of sending them." = |row| row.transmit_drops;
    }
}

metrics! {
    THREADS: ThreadRow {
        counter "lb_thread_cpu_seconds_total" "CPU time of the threads with a name, since the process began." = |row| row.cpu_seconds;
    }
}

metrics! {
    ANSWERED: AnsweredRow {
        counter "lb_http_answers_total" "Answers of this port, by their status." = |row| row.count;
    }
}

metrics! {
    REFUSALS: RefusalRow {
        counter "lb_service_refused_total" "Packets to a service that opened no flow, by reason." = |row| row.count;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::counts::{BACKEND_COUNTS, NETWORK_COUNTS, SERVICE_COUNTS, TIMES},
        *,
    };

    const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md"));

    /// Every name and its type.
    fn names() -> Vec<(&'static str, &'static str)> {
        fn of<R>(metrics: &'static [Metric<R>]) -> Vec<(&'static str, &'static str)> {
            let names = metrics
                .iter()
                .map(|metric| (metric.name, metric.kind.as_str()));
            names.collect()
        }
        [
            of(BUILD),
            of(INSTANCE),
            of(RELOADS),
            of(CLUSTERS),
            of(HA),
            of(NETWORKS),
            of(RINGS),
            of(QUOTAS),
            of(FRAMES),
            of(HELLOS),
            of(REASONS),
            of(SNAT),
            of(SERVICES),
            of(POOLS),
            of(BACKENDS),
            of(SHARED),
            of(OUTCOMES),
            of(REQUESTS),
            of(INTERFACES),
            of(THREADS),
            of(ANSWERED),
            of(NETWORK_COUNTS),
            of(SERVICE_COUNTS),
            of(BACKEND_COUNTS),
            of(REFUSALS),
            TIMES
                .iter()
                .map(|times| (times.name, "histogram"))
                .collect(),
        ]
        .concat()
    }

    #[test]
    fn the_page_has_each_metric_and_no_other() {
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
        let rows = rows.filter_map(|row| {
            let mut cells = row.split(" | ");
            Some((cells.next()?.strip_suffix('`')?, cells.next()?))
        });
        let of_page: Vec<_> = rows
            .filter(|(name, _)| name.starts_with("lb_") || name.starts_with("process_"))
            .collect();
        assert_eq!(of_page, names());
    }

    #[test]
    fn names_are_unique_and_say_what_they_are() {
        let mut names = names();
        for (name, kind) in &names {
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
            assert!(!name.contains("_ms") && !name.contains("percent"), "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
