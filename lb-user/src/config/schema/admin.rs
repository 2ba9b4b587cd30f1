//! The keys of how operators and monitoring reach the control plane.

use std::net::SocketAddr;

use super::{
    declare::section,
    kinds::{File, Flag, Name, Whole, kinds},
    values::{all_checked, parsed},
};
use crate::config::{
    address,
    list::List,
    place::{At, Location, quote},
    problem::Findings,
};

section! {
    /// How operators and monitoring reach the control plane.
    struct RawAdmin = "admin" {
        /// A group of `/etc/group`, by name or number, whose members may look over the admin socket, and change nothing.
        optional group: Name,
        /// Metrics for Prometheus, and the page, by HTTP. It changes nothing: GET and HEAD are all that is answered.
        optional http: Whole<RawAdminHttp> => "no listener",
    }
}

section! {
    /// Metrics for Prometheus and the page by HTTP, on the host itself: `/`, `/metrics`, and `/healthz`.
    struct RawAdminHttp = "admin.http" {
        /// The address and port, such as `127.0.0.1:9180`. The address is a loopback one, or one that the host has on
        /// the network of management. One that clients may reach is refused: any (`0.0.0.0`, `[::]`), or one in a
        /// prefix or the sources of a network that is not `mgmt`, or of its interface. `lb` has no
        /// privilege for ports below `net.ipv4.ip_unprivileged_port_start`, which is 1024.
        required listen: EndpointOfHost,
        /// Names that requests may have in `Host`, beside the address of `listen`; of a loopback address also
        /// `localhost`. Requests with another name are refused, so that no page of a browser can read what is here.
        optional hosts: HostNames,
        /// The file, by its path from the root, of which the first line is the token that requests must have
        /// (`Authorization: Bearer TOKEN`): 16 to 256 characters without spaces. No other user may read it. Required if
        /// `listen` is not a loopback address. A new token is read with each reload.
        optional token_file: File => "none; without it any process of the host may read",
        /// Whether `listen` may be an address that clients may reach.
        optional allow_tenant: Flag = "false",
    }
}

/// The most characters of a name in `Host`.
const MAX_HOST: usize = 253;

kinds! {
    EndpointOfHost("address and port"): Option<At<SocketAddr>> = parsed(address::endpoint_of_host);
    HostNames("list of names"): List<At<String>> = all_checked(check_host);
}

/// Whether requests can have such a name: that of a host or an address, without a port.
fn check_host(text: &str, place: &Location, findings: &mut Findings) {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if text.is_empty() || text.len() > MAX_HOST || !text.bytes().all(is_name) {
        let words = format!(
            "{} is no name of a host; expected one such as lb-1.example.com, without a port",
            quote(text)
        );
        findings.add(place, words);
    }
}
