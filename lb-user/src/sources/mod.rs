//! Where a configuration comes from, and whether it has changed there since.

pub(crate) mod file;
