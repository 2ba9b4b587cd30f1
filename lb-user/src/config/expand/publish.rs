//! The ways of publishing a component, by the names that a HostedCluster has for them.

use super::preset::PartPreset;
use crate::config::{
    place::{At, quote},
    problem::Findings,
    schema::Component,
};

/// How a component can be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Publish {
    LoadBalancer,
    NodePort,
    Route,
}

pub(super) fn publish(
    preset: &PartPreset,
    component: &Component,
    findings: &mut Findings,
) -> Option<Publish> {
    let At { place, value } = component.publish.as_ref()?;
    let words = match value.as_str() {
        "LoadBalancer" => return Some(Publish::LoadBalancer),
        "NodePort" => return Some(Publish::NodePort),
        "Route" if preset.may_be_route => return Some(Publish::Route),
        "Route" if preset.suffix == "api" => "the API cannot be a Route: kubelets reach it by its address, and send \
                                              no name (SNI) to route by; expected LoadBalancer or NodePort"
            .to_owned(),
        "Route" => format!("{} is no Route; expected LoadBalancer or NodePort", preset.suffix),
        _ if preset.may_be_route => format!(
            "{} is unknown; expected LoadBalancer, NodePort or Route",
            quote(value)
        ),
        _ => format!(
            "{} is unknown; expected LoadBalancer or NodePort",
            quote(value)
        ),
    };
    findings.add(place, words);
    None
}
