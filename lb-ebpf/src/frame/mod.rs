//! The bytes of a frame in XDP: its outer VLAN tag, and the options of its IP header.

pub(crate) mod ip_options;
pub(crate) mod vlan;
pub(crate) mod xdp;
