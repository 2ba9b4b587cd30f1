//! The keys of a service.

use super::{
    declare::section,
    kinds::{All, Clients, Flows, Name, Whole, kinds},
    reader::list_not_empty,
    shared::{RawHttp, RawSni},
    timeouts::Life,
    values::parsed,
};
use crate::config::{
    address,
    list::List,
    listen::Listen,
    place::{At, Location},
    problem::Findings,
    yaml::Node,
};

section! {
    /// What the clients of a network can reach.
    struct RawService = "service" {
        /// The network that the clients are on.
        required network: Name,
        /// The pool that gets the flows.
        required[unless(sni, http)] pool: Name,
        /// The clients that may use it: prefixes of any length. The longest prefix of `allow` and `deny` that has the
        /// client decides.
        optional allow: Clients => "the network's `sources`",
        /// The clients that may not use it.
        optional deny: Clients,
        /// Keys that clusters have, too.
        optional life: All<Life>,
        /// The maximum number of established connections and answered UDP flows, 1 or more.
        optional max_flows: Flows => "no limit",
        /// The VIPs, such as `192.168.203.120:6443/tcp` or `[fd00::1]:53/udp`; at least one, and of the family of the
        /// backends: each family has a service and a pool of its own.
        required[own] listen: Listeners,
        /// Instead of `pool`: routes by the name in the TLS ClientHello; nothing is decrypted. Only with tcp
        /// listeners.
        optional[own] sni: Whole<RawSni>,
        /// Instead of `pool`: routes by the Host of each HTTP request. Only with tcp listeners.
        optional[own] http: Whole<RawHttp>,
    }
}

kinds! {
    Listeners("list of `VIP:PORT/tcp` or `/udp`"): List<At<Listen>> = listeners;
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a reader")]
fn listeners(node: &Node, place: Location, findings: &mut Findings) -> Option<List<At<Listen>>> {
    list_not_empty(node, &place, findings, parsed(address::listen))
}
