//! Metrics for Prometheus, by HTTP on `admin.http`: a thread of its own, which reads what is counted and changes
//! nothing.
//!
//! A request is looked at by `access` (which name, which token), answered by `exchange` (which path), from a
//! `page` that is at most a second old, whatever number of clients there is. That is `snapshot`, of what the maps
//! count ([`readings`](crate::dataplane::readings)), the control loop reports ([`report`]) and the kernel knows of the
//! process (`process`), as `rows`; `families` are their names, and `encode` the text.
//!
//! Labels are names of the configuration and words of `lb`: nothing that a client has sent.

mod access;
mod counts;
mod encode;
mod exchange;
mod families;
mod page;
mod process;
pub mod report;
mod rising;
mod rows;
mod server;
mod snapshot;

pub use self::server::{ListenState, MetricsServer, MetricsSettings};
