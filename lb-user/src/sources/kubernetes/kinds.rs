//! The kinds of objects that are followed.

use std::collections::BTreeMap;

use kube::core::{ApiResource, DynamicObject};

use super::{
    hypershift::{self, KnownHosted},
    known::{KnownNode, KnownObjects, KnownService, KnownSlice},
    objects,
};
use crate::config::ObjectName;

/// A kind of object.
pub(super) trait Kind {
    /// What an object is known by.
    type Key: Clone + Ord;
    /// What is known of it.
    type Value: Clone + PartialEq;
    /// In words.
    const NAME: &'static str;
    /// Where the API has it.
    const RESOURCE: GroupVersionResource;
    /// Whether an API without this kind has no such object, and that is no error.
    const IS_OPTIONAL: bool = false;

    fn key(object: &DynamicObject) -> Self::Key;

    /// # Errors
    ///
    /// When the object is not of this kind.
    fn read(object: DynamicObject) -> serde_json::Result<Self::Value>;

    /// All that are known.
    fn all(known: &mut KnownObjects) -> &mut BTreeMap<Self::Key, Self::Value>;
}

/// Where the API has the objects of a kind.
pub(super) struct GroupVersionResource {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

impl GroupVersionResource {
    pub(super) fn resource(&self) -> ApiResource {
        let Self {
            group,
            version,
            kind,
            plural,
        } = self;
        let api_version = match group.is_empty() {
            true => (*version).to_owned(),
            false => format!("{group}/{version}"),
        };
        ApiResource {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
            api_version,
            kind: (*kind).to_owned(),
            plural: (*plural).to_owned(),
        }
    }
}

const fn core(kind: &'static str, plural: &'static str) -> GroupVersionResource {
    GroupVersionResource {
        group: "",
        version: "v1",
        kind,
        plural,
    }
}

const fn slices(version: &'static str) -> GroupVersionResource {
    GroupVersionResource {
        group: "discovery.k8s.io",
        version,
        kind: "EndpointSlice",
        plural: "endpointslices",
    }
}

/// `v1/Service`.
pub(super) struct Services;

impl Kind for Services {
    type Key = ObjectName;
    type Value = KnownService;
    const NAME: &'static str = "Services";
    const RESOURCE: GroupVersionResource = core("Service", "services");

    fn key(object: &DynamicObject) -> ObjectName {
        objects::name(object)
    }

    fn read(object: DynamicObject) -> serde_json::Result<KnownService> {
        objects::service(object)
    }

    fn all(known: &mut KnownObjects) -> &mut BTreeMap<ObjectName, KnownService> {
        &mut known.services
    }
}

/// `v1/Node`.
pub(super) struct Nodes;

impl Kind for Nodes {
    type Key = String;
    type Value = KnownNode;
    const NAME: &'static str = "Nodes";
    const RESOURCE: GroupVersionResource = core("Node", "nodes");

    fn key(object: &DynamicObject) -> String {
        objects::name(object).name
    }

    fn read(object: DynamicObject) -> serde_json::Result<KnownNode> {
        objects::node(object)
    }

    fn all(known: &mut KnownObjects) -> &mut BTreeMap<String, KnownNode> {
        &mut known.nodes
    }
}

/// `hypershift.openshift.io/v1beta1/HostedCluster`.
pub(super) struct HostedClusterObjects;

impl Kind for HostedClusterObjects {
    type Key = ObjectName;
    type Value = KnownHosted;
    const NAME: &'static str = "HostedClusters";
    const RESOURCE: GroupVersionResource = GroupVersionResource {
        group: "hypershift.openshift.io",
        version: "v1beta1",
        kind: "HostedCluster",
        plural: "hostedclusters",
    };

    fn key(object: &DynamicObject) -> ObjectName {
        objects::name(object)
    }

    fn read(object: DynamicObject) -> serde_json::Result<KnownHosted> {
        hypershift::hosted_cluster(object)
    }

    fn all(known: &mut KnownObjects) -> &mut BTreeMap<ObjectName, KnownHosted> {
        &mut known.hosted_clusters
    }
}

/// `route.openshift.io/v1/Route`.
pub(super) struct Routes;

impl Kind for Routes {
    type Key = ObjectName;
    type Value = String;
    const NAME: &'static str = "Routes";
    const RESOURCE: GroupVersionResource = GroupVersionResource {
        group: "route.openshift.io",
        version: "v1",
        kind: "Route",
        plural: "routes",
    };
    const IS_OPTIONAL: bool = true;

    fn key(object: &DynamicObject) -> ObjectName {
        objects::name(object)
    }

    fn read(object: DynamicObject) -> serde_json::Result<String> {
        hypershift::route(object)
    }

    fn all(known: &mut KnownObjects) -> &mut BTreeMap<ObjectName, String> {
        &mut known.routes
    }
}

/// `discovery.k8s.io/EndpointSlice`.
pub(super) struct EndpointSlices;

impl EndpointSlices {
    /// Before Kubernetes 1.21.
    pub(super) const OLDER: GroupVersionResource = slices("v1beta1");
}

impl Kind for EndpointSlices {
    type Key = ObjectName;
    type Value = KnownSlice;
    const NAME: &'static str = "EndpointSlices";
    const RESOURCE: GroupVersionResource = slices("v1");

    fn key(object: &DynamicObject) -> ObjectName {
        objects::name(object)
    }

    fn read(object: DynamicObject) -> serde_json::Result<KnownSlice> {
        objects::slice(object)
    }

    fn all(known: &mut KnownObjects) -> &mut BTreeMap<ObjectName, KnownSlice> {
        &mut known.slices
    }
}
