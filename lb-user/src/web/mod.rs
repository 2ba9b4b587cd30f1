//! The port of `admin.http`: metrics and the page, from a thread of its own, which reads what there is and changes nothing.
//!
//! A request is looked at by `access` (which name, which token) and answered by `exchange` (which path): with what
//! [`metrics`](crate::metrics) has, with one of the `files` of the page, or with `overviews`, once or `live`.

mod access;
mod exchange;
mod files;
mod live;
mod overviews;
mod server;

pub use self::server::{ListenState, WebServer, WebSettings};
