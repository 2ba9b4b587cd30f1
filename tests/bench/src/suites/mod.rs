//! What is measured.

pub(crate) mod bulk;
pub(crate) mod connections;
pub(crate) mod cpus;
pub(crate) mod flood;
pub(crate) mod flood4;
pub(crate) mod packets;
pub(crate) mod program;
pub(crate) mod size;
pub(crate) mod sni;
pub(crate) mod threads;
