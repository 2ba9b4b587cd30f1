//! This process: what it may do ([`privileges`]), how many descriptors it may have (`fd_limit`), and what a panic
//! ends ([`panics`]).

pub(crate) mod fd_limit;
pub mod files;
pub mod panics;
pub mod privileges;
pub mod systemd;
