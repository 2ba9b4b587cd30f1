//! The keys of how flows begin, how long they live and how they are refused: of services, and of clusters for theirs.

use std::time::Duration;

use super::{
    declare::section,
    kinds::{Flag, kinds},
    values::{parsed, time_in, word},
};
use crate::config::{duration, place::At, shared::SynCookies};

section! {
    /// How flows begin and how long they live, of a service and of a cluster.
    struct Life = "life" {
        /// How long an established connection may be idle before it is ended, 100ms to 30d, or `never`, which
        /// needs `keepalive`. Of UDP flows: how long one with a reply may be idle; not `never`.
        optional idle_timeout: TimeOrNever => "2h10m; for UDP 2m",
        /// The idle time after which both ends of a connection get a keepalive probe. The connection of an end that
        /// leaves three probes unanswered is ended. An end without any answer since the start of lb may be unable to
        /// (it drops segments without TCP timestamps): its connection ends after `idle_timeout`, or after 2h10m where
        /// that is `never`. `idle_timeout` is at least twice as long and 1s; for less than 3s, `keepalive` and 4s. Only
        /// with a tcp listener.
        optional keepalive: FlowTime => "no probes",
        /// Whether clients that may not use the service get a reset or an ICMP error instead of silence.
        optional reject: Flag = "false",
        /// When a client's SYN is answered by XDP with a SYN cookie, so that neither lb nor a backend has anything of a client
        /// that does not answer: `auto`, as long as SYNs push others out of the network's `half_open` within a second;
        /// `always`; or `never`. For tcp listeners of IPv4 with a `pool`; where lb itself accepts connections the kernel does so, and
        /// `sni` has a key of its own.
        optional syn_cookies: WhenFlooded => "`auto`",
    }
    also(keys) {
        /// Whether neither the entry nor the defaults have `keepalive`.
        without_keepalive: bool = keys.lacks("keepalive"),
    }
}

section! {
    /// How long flows may be idle that are not established, or not any more: 100ms to 30d each.
    struct RawTimeouts = "timeouts" {
        /// TCP that is not established yet. Less than a few seconds ends connections that are still being made.
        optional half_open: FlowTime = "30s",
        /// TCP that one end has closed.
        optional half_closed: FlowTime = "2m",
        /// UDP without a reply.
        optional udp: FlowTime = "30s",
    }
}

kinds! {
    WhenFlooded("word"): Option<At<SynCookies>> =
        word(&[SynCookies::Never, SynCookies::Auto, SynCookies::Always]);
    FlowTime("time"): Option<At<Duration>> = time_in(duration::RANGE);
    /// None in it: for ever.
    TimeOrNever("time"): Option<At<Option<Duration>>> = parsed(duration::parse_or_never);
}
