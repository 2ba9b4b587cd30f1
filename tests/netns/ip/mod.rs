//! What IP brings beside TCP and UDP: ICMP, narrow links, fragments, options, open checksums.

mod extension;
mod forged;
mod fragment;
mod icmp;
mod mtu;
pub(crate) mod offload;
