//! What only packets of IPv4 have.

mod mtu;
mod partial;
mod policy;
mod request;
