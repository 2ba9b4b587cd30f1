//! The control plane of `lb`.
//!
//! A change: load -> validate -> desired -> plan -> apply. [`config`] loads and validates, [`control`] does the rest,
//! and [`sources`] says where the text comes from. [`daemon`] is `lb run`, [`cli`] the command line, [`observe`] reads
//! what is live, [`reports`] joins that with what the control plane knows, [`admin`] is the socket of a running control plane, [`api`] has its messages, [`events`] is the history
//! of an instance, and [`web`] serves [`metrics`] and the page.
//!
//! [`proxy`] serves shared VIPs, with headers of [`proxy_protocol`]; [`flows`] ends flows, [`health`] checks backends.
//! [`dataplane`] is the kernel side, [`network`] and [`mod@host`] the host's, [`system`] this process's; [`model`]
//! has the words for all of them.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod admin;
pub mod api;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataplane;
pub mod events;
pub mod flows;
pub mod ha;
pub mod health;
pub mod host;
pub mod metrics;
pub mod model;
pub mod network;
pub mod observe;
pub mod proxy;
pub mod proxy_protocol;
pub mod reports;
pub mod sources;
pub mod system;
pub mod web;
