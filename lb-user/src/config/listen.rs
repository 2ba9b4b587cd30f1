//! What a service listens on.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

/// A VIP with port and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Listen {
    /// The VIP: a host address in a prefix of the service's network; no SNAT address,
    /// unless it is the host's own.
    pub address: IpAddr,
    /// 1 to 65535.
    pub port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            port,
            protocol,
        } = *self;
        write!(f, "{}/{protocol}", SocketAddr::new(address, port))
    }
}

/// The transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}
