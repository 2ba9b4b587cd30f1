//! IPv6 VIPs with IPv6 backends.

mod answer;
mod checksum;
mod clients;
mod discovery;
mod dual;
mod extension;
mod fragment;
pub(crate) mod given;
mod icmp;
mod policy;
mod request;
mod vlan;
