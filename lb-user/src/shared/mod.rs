//! The shared VIP: connections that end in the cells, because what a client asks for decides where they
//! go. Nothing of TLS is opened.
//!
//! ```text
//! front (a thread in each cell: accepts, dials) -> pending (who has no backend yet)
//!   -> sni: announced (what a proxy says of him), hello (what he says) -> routes (where that goes)
//!        -> reach (pools: who serves it; dial)
//!        -> carry (the header of proxy first, if the pool wants one): handoff (leases, repair, syn: the data
//!           plane goes on), or pump (this process does)
//!   -> plain: nothing is asked; the pool is known, and its backends are told whose connections they have
//!   -> http: the same for each request, and connections to backends that are kept for the next one
//! ```
//!
//! A connection that has a backend is a leg: it has a flow's record, and is logged, listed, counted,
//! idle and cut as one. One that is handed over is a flow.

mod agreed;
mod announced;
mod carry;
mod counts;
mod descriptors;
mod dial;
mod front;
mod handoff;
pub mod hello;
mod http;
mod info;
mod leases;
pub mod legs;
pub mod listeners;
pub mod names;
mod pending;
mod plain;
mod pools;
pub mod proxy;
mod pump;
mod reach;
mod repair;
pub mod routes;
mod said;
mod setup;
mod share;
mod sni;
mod sockets;
mod syn;

pub use self::{
    counts::{Counted, Counts, Requests},
    front::Front,
    leases::{Leases, Tables},
    legs::Legs,
    listeners::Listeners,
    setup::Setup,
    share::{Had, Shares},
};
