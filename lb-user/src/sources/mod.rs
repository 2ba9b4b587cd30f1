//! Where a configuration comes from, and whether it has changed there since: a `file`, and what clusters of `kubernetes`
//! have for it, which says what backends of pools and hosted clusters are.

pub(crate) mod file;
pub(crate) mod kubernetes;
