//! The hand-over of a connection to the data plane, which translates its sequence numbers from then on.
//!
//! `handoff` has the steps. They need a flow's port for the backend's socket (`port_lease`), the client's SYN
//! (`saved_syn`), what both sockets have agreed on (`negotiated`) and where they stand (`tcp_repair`), and what the
//! client has sent before it had a backend (`prelude`). `rebuilt` is the way back: a socket for a connection that the data
//! plane has opened.

pub(crate) mod handoff;
pub(crate) mod negotiated;
pub(crate) mod port_lease;
pub(crate) mod prelude;
pub(crate) mod rebuilt;
pub(crate) mod saved_syn;
mod tcp_repair;
