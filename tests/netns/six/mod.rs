//! IPv6 VIPs with IPv6 backends.

mod allow;
mod datagram;
mod expiry;
mod flows;
mod given;
mod mtu;
mod resolve;
mod serve;
mod trace;
