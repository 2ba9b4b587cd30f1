//! The labs of `cargo xtask run`.

mod clusters;
pub(crate) mod one_ip;
