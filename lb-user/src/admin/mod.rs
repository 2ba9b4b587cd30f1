//! The admin socket: what a running control plane can be asked and told, on this host only.

pub mod api;
