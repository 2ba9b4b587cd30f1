//! The port of `admin.http`: metrics and the page, from a thread of its own, which reads what there is and changes nothing.
//!
//! A request is looked at by `access` (which name, which token) and answered by `exchange` (which path).

mod access;
mod exchange;
mod server;

pub use self::server::{ListenState, WebServer, WebSettings};
