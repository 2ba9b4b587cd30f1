//! The kernel side as userspace sees it: the object, its pins, its maps, its links.
//!
//! Only this module knows aya.

pub mod affinities;
pub mod attach;
pub mod backend_answers;
mod batch;
pub mod cell_sockets;
pub mod cookie_secret;
pub mod cookies;
pub mod counted;
pub mod counts;
pub mod doors;
pub mod egress;
pub mod events;
pub mod flow_copy;
pub mod flow_lines;
pub mod flows;
pub mod footprint;
pub mod grace;
pub mod hellos;
pub mod ids;
pub mod ipv6;
pub mod labels;
mod map_of_maps;
mod mapped;
pub mod maps;
pub mod object;
pub mod peers;
pub mod pins;
pub mod quotas;
pub mod readings;
pub mod replicas;
pub mod snat_ports;
pub mod spilled;
pub mod splices;
#[cfg(test)]
mod stress;
pub mod version;
pub mod vip_offers;
