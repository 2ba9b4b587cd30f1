//! The shared VIP: connections that end in the cells, because what a client requests decides where they go.
//! Nothing of TLS is opened.
//!
//! ```text
//! accept (threads in each cell: accept, dial), or hellos (clients behind SYN cookies, whose sockets are made)
//!   -> admission (clients without a backend yet)
//!   -> sni: proxy_protocol::decode (the proxy's header about its client), lb_common::client_hello -> route (the pool)
//!        -> dial (a connection to one of its backends)
//!        -> splice (the header of proxy_protocol::encode first, if the pool wants one: the data plane goes on),
//!           or relay (this process does)
//!   -> passthrough: the pool is known without a question, and its backends get the header
//!   -> http: the same for each request, and connections to backends that are kept for the next one
//! ```
//!
//! A connection that has a backend is a leg: it has a flow's record, and is logged, listed, counted,
//! idle and cut as one. One that is handed over is a flow.

mod accept;
mod acceptors;
mod access_log;
mod admission;
mod client_sockets;
pub mod connections;
mod context;
pub mod dial;
mod fair_share;
mod fd_budget;
mod hellos;
mod http;
mod leg_counts;
mod listeners;
mod passthrough;
mod refused_names;
mod relay;
pub mod route;
mod snapshot;
mod sni;
mod sockets;
pub mod splice;
mod stats;
mod workers;

pub use self::{
    acceptors::{Acceptors, Accounts, NetworkSide},
    access_log::AccessLog,
    connections::Legs,
    fair_share::Shares,
    listeners::Listeners,
    snapshot::ProxyConfig,
    splice::port_lease::{PortLeases, Tables},
    stats::Counts,
};
