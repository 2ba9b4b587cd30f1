//! The PROXY protocol, version 2 (<https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt>): [`encode`]
//! writes the header that a backend gets, `decode` reads that of a proxy in front. Pure.

pub(crate) mod decode;
pub mod encode;

use std::net::SocketAddr;

/// Where a client's connection comes from and where it goes, as a header has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}
