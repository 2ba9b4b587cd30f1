//! From a pool to a connection with one of its backends.
//!
//! `candidates` are the backends of a pool in the order of the client's hash, `select` takes the first that
//! answers, and `connect` dials it in the client's thread, by one of the `spare_sockets` that a thread in the cell of
//! the backends has made; `dialers` has what that takes of each network.

pub(crate) mod candidates;
pub(crate) mod connect;
pub(crate) mod dialers;
pub(crate) mod select;
mod spare_sockets;
