//! From a pool to a connection with one of its backends.
//!
//! `candidates` are the backends of a pool in the order of the client's hash, `select` takes the first that
//! answers, and `connect` dials it in the cell of its network.

pub(crate) mod candidates;
pub(crate) mod connect;
pub(crate) mod select;
