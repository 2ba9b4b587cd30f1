//! The product: the binary in a namespace, and its object without a NIC.

pub mod budget;
pub mod builds;
pub mod config;
pub mod cpu;
mod fill;
pub mod full_box;
pub mod group;
pub mod lb;
mod loaded;
pub mod order;
pub mod program;
mod report;
pub mod systemd;
pub mod vary_prog_run;
