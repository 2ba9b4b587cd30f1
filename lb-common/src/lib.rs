//! What both sides of `lb` must agree on: the layout of every map, and every pure decision.
//!
//! The modules follow a packet: [`wire`] reads it, [`conntrack`] judges it, [`maglev`] selects for it,
//! [`nat`] rewrites it and [`verdict`] is how it ended. [`maps`] is the layout of what the data plane looks
//! up; [`client_hello`] reads what a TLS client sends first. Everything here runs unchanged in the kernel and
//! under `cargo test`.
#![cfg_attr(not(any(test, feature = "user")), no_std)]
#![warn(missing_docs)]

pub mod abi;
pub mod addr;
pub mod affinity;
pub mod arp;
pub mod batch;
pub mod client_hello;
pub mod conntrack;
pub mod contact;
pub mod csum_partial;
pub mod datagram;
pub mod discovery;
pub mod fragment;
pub mod icmp;
pub mod icmp6;
pub mod late_binding;
pub mod maglev;
pub mod maps;
pub mod mss;
pub mod nat;
mod pod;
pub mod proxy_header;
pub mod rate;
pub mod reject;
#[cfg(any(test, feature = "user"))]
pub mod rotation;
pub mod server_name;
pub mod splice;
pub mod station;
pub mod syn_cookie;
pub mod tcp_frame;
pub mod traffic;
pub mod verdict;
pub mod wire;
