//! The vocabulary of the tests: packets, programs, and networks in namespaces.
//!
//! `packet` and `program` are for one frame through the loaded object. Everything else is for real
//! sockets: a [`topology`] of network namespaces, real servers in it ([`peers`]), the product on
//! its host ([`lb`]), [`traffic`] through it, and what the kernel itself says about it ([`capture`],
//! [`observe`], [`ledger`]).
//!
//! Every resource is a guard that removes itself. What a killed run leaves is removed by the next
//! one ([`leftovers`]).

pub mod answers;
pub mod brief;
pub mod budget;
pub mod canonical;
pub mod capture;
pub mod cgroup;
pub mod client;
pub mod content;
pub mod counts;
pub mod cpu;
pub mod crowd;
pub mod dice;
pub mod doom;
pub mod echo;
pub mod exchange;
mod fill;
pub mod flood;
pub mod freeze;
pub mod hello;
pub mod icmp;
pub mod identity;
pub mod ids;
pub mod interrupt;
pub mod labels;
pub mod lb;
pub mod ledger;
pub mod leftovers;
pub mod links;
pub mod load;
mod loaded;
pub mod memory;
pub mod message;
pub mod neighbours;
pub mod netns;
pub mod observe;
pub mod order;
pub mod pace;
pub mod packet;
pub mod pair;
pub mod pattern;
pub mod peers;
pub mod ping;
pub mod poll;
pub mod process;
pub mod program;
pub mod query;
pub mod raw;
pub mod raw_map;
mod report;
pub mod secret;
pub mod segment;
pub mod shadow;
pub mod six;
pub mod switch;
pub mod systemd;
pub mod teller;
pub mod topology;
pub mod traffic;
pub mod trouble;
pub mod vary;
pub mod web;
pub mod wire;
