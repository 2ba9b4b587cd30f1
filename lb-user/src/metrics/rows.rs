//! What is counted, an object each, with the labels that it has: names of the configuration, and words of `lb`.

use lb_common::maps::counts::{BUCKETS, Record};
use prometheus_client::encoding::EncodeLabelSet;

use super::process::ProcessReading;
use crate::api::ha::HaStatus;

/// An object with labels, which are the same for all that is counted of it.
pub(super) trait Row {
    /// Its labels.
    type Labels<'r>: EncodeLabelSet
    where
        Self: 'r;

    /// Its labels; none of the one object that there is.
    fn labels(&self) -> Option<Self::Labels<'_>>;
}

/// Declares a row: its labels, and what is counted of it.
macro_rules! row {
    (
        $(#[doc = $about:literal])*
        struct $Row:ident { $($label:ident: $Label:ty),+ } $({ $($(#[doc = $what:literal])* $value:ident: $Value:ty,)+ })?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(super) struct $Row {
            $(pub(super) $label: $Label,)+
            $($($(#[doc = $what])* pub(super) $value: $Value,)+)?
        }

        impl Row for $Row {
            type Labels<'r> = [(&'static str, &'r str); [$(stringify!($label)),+].len()];

            fn labels(&self) -> Option<Self::Labels<'_>> {
                Some([$((stringify!($label), self.$label.as_ref())),+])
            }
        }
    };
}

row! {
    /// This version.
    struct BuildRow { version: &'static str }
}

/// The instance and its process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct InstanceRow {
    pub(super) control_responds: bool,
    pub(super) generation: u64,
    pub(super) config_age_seconds: u64,
    pub(super) is_stale: bool,
    pub(super) is_unconfirmed: bool,
    pub(super) first_checks: usize,
    pub(super) cuts: usize,
    pub(super) drains: usize,
    pub(super) unmended: usize,
    pub(super) retired_backends: usize,
    /// How long this look took.
    pub(super) read_seconds: f64,
    pub(super) process: ProcessReading,
}

impl Row for InstanceRow {
    type Labels<'r> = [(&'static str, &'static str); 0];

    fn labels(&self) -> Option<Self::Labels<'_>> {
        None
    }
}

row! {
    /// The other box.
    struct HaRow { peer: String } {
        status: HaStatus,
    }
}

row! {
    /// What became of changes.
    struct ReloadRow { result: &'static str } {
        count: u64,
    }
}

row! {
    /// A cluster of Kubernetes.
    struct ClusterRow { cluster: String } {
        age_seconds: u64,
    }
}

row! {
    /// A network.
    struct NetworkRow { network: String } {
        flows: u32,
        max_flows: Option<u32>,
        /// None where the control plane does not report the interface.
        carrier: Option<bool>,
        /// As for `carrier`.
        native: Option<bool>,
        unreachable: usize,
        unrested: u64,
        unreported: u64,
        mtu_raised: u64,
        descriptors: Option<usize>,
        flow_ports: Option<usize>,
        leg_ports: Option<usize>,
    }
}

row! {
    /// A ring of a network.
    struct RingRow { network: String, protocol: &'static str } {
        places: u64,
        taken: u64,
        is_flooded: bool,
    }
}

row! {
    /// What the clients of a network have of the SNAT ports of a network.
    struct QuotaRow { network: String, backend_network: String, family: &'static str } {
        flows: u32,
        most: Option<u32>,
    }
}

row! {
    /// Frames with a verdict.
    struct FramesRow { network: String, hook: &'static str, verdict: &'static str } {
        count: u64,
    }
}

row! {
    /// Hellos to shared VIPs with `late_binding`.
    struct HelloRow { network: String, end: &'static str } {
        count: u64,
    }
}

row! {
    /// Frames that were not served, for a reason.
    struct ReasonRow { network: String, hook: &'static str, reason: &'static str } {
        dropped: u64,
        answered: u64,
    }
}

row! {
    /// A SNAT address.
    struct SnatRow { network: String, address: String, state: &'static str } {
        ports: u64,
        used: u64,
    }
}

row! {
    /// A service.
    struct ServiceRow { service: String, network: String } {
        flows: u32,
        max_flows: Option<u32>,
    }
}

row! {
    /// A pool.
    struct PoolRow { pool: String, network: String } {
        up: usize,
        of: usize,
        service_down: bool,
    }
}

row! {
    /// A backend of a pool.
    struct BackendRow { pool: String, backend: String } {
        up: bool,
        is_out: bool,
        /// In hundredths.
        effective_weight: u32,
        flows: u32,
        transitions: u64,
        check_ms: Option<u64>,
        /// None of an older data plane, which does not count them.
        syns: Option<[u64; 3]>,
    }
}

row! {
    /// A shared VIP.
    struct SharedRow { service: String } {
        accepted: u64,
        routed: u64,
        redispatched: u64,
        ech: u64,
        requests_routed: u64,
    }
}

row! {
    /// Connections of a shared VIP by what became of them, and why.
    struct OutcomeRow { service: String, outcome: &'static str, reason: String } {
        count: u64,
    }
}

row! {
    /// Requests to a shared VIP that were refused.
    struct RequestRow { service: String, reason: String } {
        refused: u64,
    }
}

row! {
    /// An interface of a network.
    struct InterfaceRow { interface: String } {
        receive_errors: u64,
        receive_drops: u64,
        transmit_errors: u64,
        transmit_drops: u64,
    }
}

row! {
    /// Threads of a name.
    struct ThreadRow { thread: String } {
        cpu_seconds: f64,
    }
}

row! {
    /// Answers of this port.
    struct AnsweredRow { code: String } {
        count: u64,
    }
}

row! {
    /// What is counted of a network's clients.
    struct NetworkCounts { network: String } {
        counts: Record,
    }
}

row! {
    /// What is counted of a service.
    struct ServiceCounts { service: String, network: String } {
        counts: Record,
    }
}

row! {
    /// What is counted of a backend.
    struct BackendCounts { pool: String, backend: String } {
        counts: Record,
    }
}

row! {
    /// Packets to a service that were refused for a reason.
    struct RefusalRow { service: String, network: String, reason: &'static str } {
        count: u64,
    }
}

row! {
    /// How long the backends of a service take.
    struct TimesRow { service: String, network: String } {
        connect: TimesOf,
        first_byte: TimesOf,
    }
}

/// Times by the bucket of [`lb_common::maps::counts::bucket`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TimesOf {
    pub(super) buckets: [u64; BUCKETS as usize],
    /// The sum of all, in microseconds.
    pub(super) us: u64,
}
