//! ARP, flows, ICMP, fragments.

pub(crate) mod arp;
pub(crate) mod forward;
pub(crate) mod fragment;
pub(crate) mod icmp;
