//! The tree as typed values, each with its place: the keys that exist, and what kind each one is.
//!
//! Unknown keys, missing keys, wrong types and values that no key of their kind can have are problems
//! of this stage, and what `defaults` say is filled in here. Whether a value fits the others is the
//! business of `expand` and `validate`. A value that is `None`, or a list that is not whole, was either
//! not written or is already reported.
//!
//! Every section is declared once (`declare.rs`), and its struct, its reader, its part of the reference
//! and the comments of the example follow from that.
//!
//! A text may be written with or without quotes, and is never taken for anything else: `no` and
//! `1.10` are texts where a text is expected. A number must be written without quotes.

mod admin;
mod cluster;
pub(super) mod declare;
mod example;
mod file;
mod ha;
mod health_and_drain;
pub(super) mod kinds;
mod kubernetes;
mod log;
pub(super) mod mapping;
mod network;
mod pool;
mod reader;
mod reference;
mod selection;
mod service;
mod shared;
mod timeouts;
pub(super) mod values;

pub(super) use self::{
    admin::{RawAdmin, RawAdminHttp},
    cluster::{Apps, Cluster, Component, Routes},
    example::explained,
    file::{RawFile, RawLimits, read, read_included},
    ha::{RawBox, RawHa},
    health_and_drain::{Care, RawHealth},
    kinds::AnyOrPrefixes,
    kubernetes::{
        RawControlPlane, RawDiscover, RawDiscovered, RawHosted, RawKubernetes, RawLoadBalancer,
    },
    log::RawLog,
    network::{RawChecksFrom, RawNetwork, RawRoute, RawSnat},
    pool::{LiteralPool, Member, NodesOf, RawBackend, RawGroup, RawNode, RawPool},
    reference::reference,
    selection::Selection,
    service::RawService,
    shared::{RawHttp, RawNameRoute, RawOtherwise, RawSni},
    timeouts::RawTimeouts,
};
