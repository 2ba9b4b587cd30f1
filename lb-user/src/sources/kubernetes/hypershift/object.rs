//! HostedClusters and Routes as the API has them, and what of them is known.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use serde::{Deserialize, Serialize};

/// Of `hypershift.openshift.io/v1beta1/HostedCluster`
/// (<https://hypershift.pages.dev/reference/api/>).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Hosted {
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    services: Vec<Published>,
    dns: Dns,
    networking: Networking,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Dns {
    base_domain: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Networking {
    api_server: ApiServerNetworking,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiServerNetworking {
    #[serde(rename = "allowedCIDRBlocks")]
    allowed_blocks: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Published {
    service: String,
    service_publishing_strategy: Strategy,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Strategy {
    r#type: String,
    #[serde(default)]
    node_port: NodePortStrategy,
    #[serde(default)]
    route: RouteStrategy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodePortStrategy {
    port: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RouteStrategy {
    hostname: String,
}

/// Of `route.openshift.io/v1/Route`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RouteObject {
    spec: RouteSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RouteSpec {
    host: String,
}

/// A HostedCluster, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sources::kubernetes) struct KnownHosted {
    /// When it was made, as a text that sorts by time.
    pub(super) created: String,
    pub(super) base_domain: String,
    /// The prefixes that may use its API; empty: all may.
    pub(super) allowed: Vec<String>,
    /// By the name that it has there.
    pub(super) parts: BTreeMap<String, KnownPublishing>,
}

/// How a part is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownPublishing {
    pub(super) strategy: String,
    /// Empty: it has none.
    pub(super) hostname: String,
    /// 0: any.
    pub(super) node_port: u16,
}

/// What a HostedCluster says here.
///
/// # Errors
///
/// When it is none.
pub(in crate::sources::kubernetes) fn hosted_cluster(
    object: DynamicObject,
) -> serde_json::Result<KnownHosted> {
    let created = object.metadata.creation_timestamp.as_ref();
    let created = created.map_or_else(String::new, |time| time.0.to_string());
    let Hosted { spec } = serde_json::from_value(object.data)?;
    let parts = spec.services.into_iter().map(|published| {
        let strategy = published.service_publishing_strategy;
        let publishing = KnownPublishing {
            strategy: strategy.r#type,
            hostname: strategy.route.hostname,
            node_port: strategy.node_port.port,
        };
        (published.service, publishing)
    });
    Ok(KnownHosted {
        created,
        base_domain: spec.dns.base_domain,
        allowed: spec.networking.api_server.allowed_blocks,
        parts: parts.collect(),
    })
}

/// The host that a Route has.
///
/// # Errors
///
/// When it is none.
pub(in crate::sources::kubernetes) fn route(object: DynamicObject) -> serde_json::Result<String> {
    let RouteObject { spec } = serde_json::from_value(object.data)?;
    Ok(spec.host)
}
