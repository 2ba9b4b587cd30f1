//! Shared VIPs, by SNI and by Host: routes, limits, the PROXY protocol, real clients and servers.

mod access;
pub(crate) mod bind;
mod bind_two;
mod clients;
mod cookies;
pub(crate) mod guard;
mod hosts;
mod hosts_routes;
mod limits;
mod names;
mod oracle_http;
mod oracle_http_cases;
mod oracle_sni;
mod oracle_sni_cases;
mod pending;
mod pieces;
pub(crate) mod pipe;
mod proxy_in;
mod proxy_out;
mod proxy_out_plain;
mod reach;
pub(crate) mod relayed;
mod share;
mod silence;
pub(crate) mod sni;
mod tenants;
mod threads;
