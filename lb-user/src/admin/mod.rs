//! The admin socket: requests to a running control plane, on this host only.
//!
//! HTTP/1.1 over a unix socket: `POST /v1/request` with a [`Request`](crate::api::Request) as JSON, answered
//! with an [`Answer`](crate::api::Answer); one request for each connection. The [`server`] hands requests to
//! the control loop, which carries them out; the [`client`] is the command line's end. Root and the user of the
//! process may request everything, members of the [`read_group`] what changes nothing.

pub mod client;
pub(crate) mod connections;
mod exchange;
mod peer_groups;
pub mod read_group;
pub mod server;

#[cfg(test)]
mod tests;

/// The one path that there is.
const PATH: &str = "/v1/request";
