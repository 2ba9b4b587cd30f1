//! What is seen from outside of the product: wires, counters, the kernel, the maps as they are.

pub mod capture;
pub mod counts;
pub mod ids;
pub mod labels;
pub mod links;
pub mod map_content;
pub mod map_memory;
pub mod map_snapshot;
pub mod memory;
pub mod neighbours;
pub mod observe;
pub mod packet_accounting;
pub mod query;
pub mod raw_map;
pub mod wire;
