//! The layout of every map: keys, values, sizes. `declarations` lists the maps, with what writes and reads them.
//!
//! Ids are allocated once by name (see [`registry`]) and are stable over restarts. Zero is "none"
//! for every id, so a zeroed record never points anywhere.

pub mod addr6;
pub mod backend;
pub mod backend_answers;
pub mod cell_peer;
pub mod cell_socket;
pub mod cookies;
pub mod counts;
#[cfg(feature = "user")]
pub mod declarations;
pub mod door;
pub mod drop_sample;
pub mod event;
pub mod flow;
pub mod flow_line;
pub mod fragment;
pub mod half_open;
pub mod hello;
pub mod network;
pub mod pending;
pub mod quota;
pub mod registry;
pub mod rule;
pub mod server_name;
pub mod service;
pub mod snat;
pub mod splice;
pub mod table;
pub mod usage;
pub mod vip_offer;

/// Networks, including the reserved id 0.
pub const MAX_NETWORKS: u32 = 256;
/// Services, one per listening VIP:port, that a data plane has room for.
pub const MAX_SERVICES: u32 = 65_535;
/// Backends that it has room for.
pub const MAX_BACKENDS: u32 = 65_535;
/// Pools, each with two Maglev tables, that it has room for.
pub const MAX_POOLS: u32 = 4096;
/// Services that a configuration may have, unless `limits.services` says otherwise.
pub const DEFAULT_SERVICES: u32 = 16_384;
/// Backends, unless `limits.backends` says otherwise.
pub const DEFAULT_BACKENDS: u32 = 32_768;
/// Pools, unless `limits.pools` says otherwise.
pub const DEFAULT_POOLS: u32 = 2048;
/// Connections that are handed over at a time, unless `limits.handed_over` says otherwise.
pub const DEFAULT_HANDED_OVER: u32 = 65_536;
/// Most SNAT addresses that `limits.snat_addresses` may be.
pub const MAX_SNAT_ADDRESSES: u32 = 128;
/// Names of all kinds with an id.
pub const MAX_NAMES: u32 =
    MAX_NETWORKS + MAX_SERVICES + MAX_BACKENDS + MAX_POOLS + MAX_SNAT_ADDRESSES;
/// Names of shared VIPs that the data plane knows, of all services together; memory is taken as they are used.
pub const MAX_SERVER_NAMES: u32 = 1 << 16;
/// NICs of backends that a frame may be copied to, twice.
pub const MAX_CLONE_NICS: u32 = 8;
/// Copies that are made of it at most: behind those for the NICs comes the frame itself.
pub const MAX_CLONES: u32 = 2 * MAX_CLONE_NICS;
/// VIPs, SNAT addresses and link-local ones of cells together.
pub const MAX_ADDRESSES: u32 = 4096;
/// IPv6 addresses with a label: a VIP, SNAT address or backend has one at most, and so has each cell.
pub const MAX_LABELS: u32 = MAX_ADDRESSES + MAX_NETWORKS + MAX_BACKENDS;
/// Prefixes in all rule sets together; memory is taken as they are used.
pub const MAX_RULES: u32 = 1 << 17;
