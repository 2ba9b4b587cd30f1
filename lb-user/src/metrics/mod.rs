//! Metrics for Prometheus: what is counted, read and not changed.
//!
//! A `scrape` is at most a second old, whatever number of clients there is: `snapshot`, of what the maps count
//! ([`readings`](crate::dataplane::readings)), the control loop reports ([`report`]) and the kernel knows of the process
//! (`process`), as `rows`; `families` are their names, and `encode` the text.
//!
//! Labels are names of the configuration and words of `lb`: nothing that a client has sent.

pub(crate) mod answered;
mod counts;
pub(crate) mod encode;
mod families;
mod process;
pub mod report;
mod rising;
mod rows;
pub(crate) mod scrape;
pub(crate) mod snapshot;
