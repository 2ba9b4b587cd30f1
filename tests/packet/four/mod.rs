//! What only packets of IPv4 have.

mod fragment;
mod icmp;
mod mtu;
mod partial;
mod policy;
mod request;
