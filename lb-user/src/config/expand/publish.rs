//! The ways of publishing a component, by the names that a HostedCluster has for them.

use crate::config::{
    place::{At, quote},
    problem::Findings,
    schema::Component,
};

/// How a component can be reached.
#[derive(Clone, Copy)]
pub(super) enum Publish {
    LoadBalancer,
    NodePort,
    Route,
}

pub(super) fn publish(
    name: &str,
    component: &Component,
    findings: &mut Findings,
) -> Option<Publish> {
    let At { place, value } = component.publish.as_ref()?;
    let words = match (value.as_str(), name) {
        ("LoadBalancer", _) => return Some(Publish::LoadBalancer),
        ("NodePort", _) => return Some(Publish::NodePort),
        ("Route", "api") => {
            "the API cannot be a Route: kubelets reach it by its address, and send \
                             no name (SNI) to route by; expected LoadBalancer or NodePort"
                .to_owned()
        }
        ("Route", _) => return Some(Publish::Route),
        (_, "api") => format!(
            "{} is unknown; expected LoadBalancer or NodePort",
            quote(value)
        ),
        _ => format!(
            "{} is unknown; expected LoadBalancer, NodePort or Route",
            quote(value)
        ),
    };
    findings.add(place, words);
    None
}
