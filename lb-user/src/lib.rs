//! The control plane of `lb`.
//!
//! A change: load -> validate -> desired -> plan -> apply. [`config`] loads and validates,
//! [`control`] does the rest; [`dataplane`] is the kernel side, [`network`] and [`mod@host`] the
//! host's, [`observe`] reads what is live, and [`cli`] is the command line.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod cli;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod host;
pub mod network;
pub mod observe;
