//! TCP connections through a contestant: our own two ends, who carries them, and what that takes.

pub(crate) mod answer;
pub(crate) mod carrier;
pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod cost;
pub(crate) mod flood;
pub(crate) mod http;
pub(crate) mod server;
pub(crate) mod several;
pub(crate) mod stand;
pub(crate) mod way;
