//! IPv6 VIPs with IPv6 backends.

mod answer;
mod blind;
mod checksum;
mod clients;
mod discovery;
mod dual;
mod extension;
mod fragment;
pub(crate) mod given;
mod icmp;
mod mss;
mod mtu;
mod partial;
mod policy;
mod reply;
mod request;
mod ring;
mod vlan;
