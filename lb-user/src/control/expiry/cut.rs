//! Flows that are cut: not because of what they do, but because of what they are. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;

use crate::control::rules::Rules;

/// Which flows end at once, however busy they are; both ends are told. A flow ends if any of it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// All of these backends.
    pub backends: BTreeSet<u32>,
    /// All of these services.
    pub services: BTreeSet<u16>,
    /// Those of clients that these rules of their service deny, by the service's id. Nothing is said
    /// of a service that is not in here.
    pub denied: BTreeMap<u16, Rules>,
    /// Those of clients that these sources of their network do not have, by its id. Nothing is said of
    /// a network that is not in here.
    pub strangers: BTreeMap<u16, Rules>,
    /// Those that an operator has chosen: all of a choice must hold.
    pub chosen: Vec<Choice>,
}

/// An operator's choice; what is none holds for every flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Of clients in the network with this id.
    pub network: Option<u16>,
    /// Of the service with this id.
    pub service: Option<u16>,
    /// To the backend with this id.
    pub backend: Option<u32>,
    /// Of clients in this prefix.
    pub client: Option<Ipv4Net>,
    /// With this flow id.
    pub id: Option<u32>,
}
