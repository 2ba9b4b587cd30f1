//! What clients send: connections, floods, bulk data, hellos, and the programs that people use.

pub mod client;
pub mod conn_pair;
pub mod dialer;
pub mod exchange;
pub mod flood;
pub mod hello;
pub mod load;
pub mod pace;
pub mod pattern;
pub mod ping;
pub mod post_quantum;
pub mod programs;
pub mod secret;
pub mod shadow;
pub mod short_conns;
pub mod talks;
