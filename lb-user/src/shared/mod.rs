//! The shared VIP: connections that end in the cells, because what a client asks for decides where they
//! go. Nothing of TLS is opened.
//!
//! ```text
//! front (a thread in each cell: accepts, dials) -> pending (who has no backend yet)
//!   -> sni: hello (what he says) -> routes (where that goes) -> reach (pools: who serves it; dial) -> pump
//!   -> http: the same for each request, and connections to backends that are kept for the next one
//! ```
//!
//! A connection that has a backend is a leg: it has a flow's record, and is logged, listed, counted,
//! idle and cut as one.

mod counts;
mod descriptors;
mod dial;
mod front;
pub mod hello;
mod http;
pub mod legs;
pub mod listeners;
pub mod names;
mod pending;
mod pools;
mod pump;
mod reach;
pub mod routes;
mod setup;
mod sni;
mod sockets;

pub use self::{
    counts::{Counted, Counts},
    front::Front,
    legs::Legs,
    listeners::Listeners,
    setup::Setup,
};
