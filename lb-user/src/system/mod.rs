//! This process: what it may do ([`privileges`]), how many descriptors it may have (`fd_limit`), and what a panic
//! ends ([`panics`]); [`output`] is what it prints.

pub(crate) mod fd_limit;
pub mod files;
pub mod output;
pub mod panics;
pub mod privileges;
pub mod systemd;
