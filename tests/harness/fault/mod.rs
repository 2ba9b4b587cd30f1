//! What goes wrong on purpose: kills, stops, losses, little memory, full tables.

pub mod cgroup;
pub mod crowd;
pub mod interrupt;
pub mod kill_at_step;
pub mod netem;
pub mod stop_thread;
