//! The control plane of `lb`.
//!
//! A change: load -> validate -> desired -> plan -> apply. [`config`] loads and validates,
//! [`control`] does the rest; [`dataplane`] is the kernel side, [`network`] and [`mod@host`] the
//! host's, [`health`] checks backends, [`observe`] reads what is live, [`admin`] is the socket of a
//! running control plane, [`supervisor`] is who starts it again, [`panics`] says what a
//! panic ends, [`cli`] is the command line, and [`privileges`] says what each may.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod admin;
pub mod api;
pub mod cli;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod flows;
pub mod health;
pub mod host;
mod limits;
pub mod model;
pub mod network;
pub mod observe;
pub mod panics;
pub mod privileges;
pub mod proxy;
pub mod proxy_protocol;
pub mod supervisor;
