//! ARP, ICMP, fragments.

pub(crate) mod arp;
pub(crate) mod fragment;
pub(crate) mod icmp;
