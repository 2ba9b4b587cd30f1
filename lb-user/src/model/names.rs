//! Names of the registry and of what is applied, and numbers of protocols.

use std::net::IpAddr;

use super::registry::Ids;
use crate::config::{self, Config, Protocol};

/// The names of what is applied.
#[derive(Clone, Debug)]
pub struct AppliedNames {
    /// The configuration.
    pub config: Config,
    /// The ids of everything in it.
    pub ids: Ids,
}

/// The registry's name of a backend: in another network or under another address it is another
/// backend, because its flows cannot follow it there; under another port it is the same.
pub fn backend_name(pool: &config::Pool, backend: &config::Backend) -> String {
    let address = backend.address.to_string();
    [
        &pool.name,
        "/",
        &backend.name,
        "@",
        &pool.network,
        "/",
        &address,
    ]
    .concat()
}

/// Network and address in the registry's name of a backend.
pub(crate) fn parse_backend(name: &str) -> Option<(&str, IpAddr)> {
    let (_, place) = name.rsplit_once('@')?;
    let (network, address) = place.split_once('/')?;
    Some((network, address.parse().ok()?))
}

/// What people call the backend with this name in the registry: its pool and its own name.
pub(crate) fn shown_backend(name: &str) -> &str {
    name.rsplit_once('@').map_or(name, |(shown, _)| shown)
}

/// The IP protocol number.
pub const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}
