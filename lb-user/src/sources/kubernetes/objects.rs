//! Objects of the API, as far as they are read here. What a field says that is absent is what the API's documentation says
//! of its absence; what a later version adds is not looked at.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use serde::Deserialize;

use super::known::{KnownNode, KnownPort, KnownService, KnownSlice};
use crate::config::ObjectName;

/// The label of a node that external load balancers leave out, whatever its value
/// (<https://kubernetes.io/docs/reference/labels-annotations-taints/>).
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The label of an EndpointSlice that names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Where an endpoint of `discovery.k8s.io/v1beta1` names its node.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Of `v1/Service`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Service {
    spec: ServiceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceSpec {
    ports: Vec<Port>,
    external_traffic_policy: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    #[serde(default)]
    name: String,
    port: u16,
    #[serde(default)]
    node_port: u16,
}

/// Of `v1/Node`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    addresses: Vec<NodeAddress>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct NodeAddress {
    r#type: String,
    address: String,
}

#[derive(Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

/// Of `discovery.k8s.io/v1/EndpointSlice`, and of `v1beta1`, which has the node of an endpoint elsewhere.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EndpointSlice {
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    conditions: EndpointConditions,
    node_name: Option<String>,
    topology: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EndpointConditions {
    ready: Option<bool>,
}

/// Namespace and name; a Node has no namespace.
pub(super) fn name(object: &DynamicObject) -> ObjectName {
    let metadata = &object.metadata;
    ObjectName {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// What a Service says here.
///
/// # Errors
///
/// When it is none.
pub(super) fn service(object: DynamicObject) -> serde_json::Result<KnownService> {
    let Service { spec } = serde_json::from_value(object.data)?;
    let ports = spec.ports.into_iter().map(|port| KnownPort {
        name: port.name,
        number: port.port,
        node_port: port.node_port,
    });
    Ok(KnownService {
        ports: ports.collect(),
        is_local: spec.external_traffic_policy == "Local",
    })
}

/// What a Node says here.
///
/// # Errors
///
/// When it is none.
pub(super) fn node(object: DynamicObject) -> serde_json::Result<KnownNode> {
    let labels = object.metadata.labels.unwrap_or_default();
    let Node { spec, status } = serde_json::from_value(object.data)?;
    let is_ready = |one: &Condition| one.r#type == "Ready" && one.status == "True";
    let addresses = status.addresses.iter();
    let internal = addresses.filter(|address| address.r#type == "InternalIP");
    Ok(KnownNode {
        addresses: internal
            .filter_map(|address| address.address.parse().ok())
            .collect(),
        takes: status.conditions.iter().any(is_ready)
            && !spec.unschedulable
            && !labels.contains_key(EXCLUDED),
    })
}

/// What an EndpointSlice says here.
///
/// # Errors
///
/// When it is none.
pub(super) fn slice(object: DynamicObject) -> serde_json::Result<KnownSlice> {
    let ObjectName { namespace, .. } = name(&object);
    let mut labels = object.metadata.labels.unwrap_or_default();
    let EndpointSlice { endpoints } = serde_json::from_value(object.data)?;
    // Not ready is only what says so.
    let ready = |endpoint: &Endpoint| endpoint.conditions.ready != Some(false);
    let endpoints = endpoints.unwrap_or_default().into_iter().filter(ready);
    let nodes: BTreeSet<String> = endpoints
        .filter_map(|endpoint| {
            let hostname = endpoint.topology.and_then(|mut all| all.remove(HOSTNAME));
            endpoint.node_name.or(hostname)
        })
        .collect();
    let service = labels.remove(SERVICE_NAME);
    Ok(KnownSlice {
        service: service.map(|name| ObjectName { namespace, name }),
        nodes,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn kas(spec: &Value) -> DynamicObject {
        object(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "kube-apiserver", "namespace": "clusters-tenant-a", "labels": { "a": "b" } },
            "spec": spec,
            "status": { "loadBalancer": {} },
        }))
    }

    #[test]
    fn a_service_has_ports_and_a_policy() {
        let ports = json!([
            { "name": "https", "port": 6443, "targetPort": "client", "nodePort": 30918, "protocol": "TCP" },
            { "port": 9090 },
        ]);
        let object = kas(
            &json!({ "type": "LoadBalancer", "ports": ports, "externalTrafficPolicy": "Local" }),
        );
        assert_eq!(
            name(&object).to_string(),
            "clusters-tenant-a/kube-apiserver"
        );
        let port = |name: &str, number, node_port| KnownPort {
            name: name.to_owned(),
            number,
            node_port,
        };
        let wanted = KnownService {
            ports: vec![port("https", 6443, 30_918), port("", 9090, 0)],
            is_local: true,
        };
        assert_eq!(service(object).unwrap(), wanted);
        let headless = kas(&json!({ "type": "ExternalName", "externalName": "example.com" }));
        assert!(service(headless).unwrap().ports.is_empty());
        assert!(service(kas(&json!({ "ports": [{ "port": 70000 }] }))).is_err());
        assert!(service(kas(&json!({ "ports": "none" }))).is_err());
    }

    fn worker(spec: &Value, labels: &Value, ready: &str) -> DynamicObject {
        object(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": "n1", "labels": labels },
            "spec": spec,
            "status": {
                "addresses": [
                    { "type": "Hostname", "address": "n1" },
                    { "type": "ExternalIP", "address": "203.0.113.1" },
                    { "type": "InternalIP", "address": "10.32.96.105" },
                    { "type": "InternalIP", "address": "fd00::105" },
                    { "type": "InternalIP", "address": "n1.example.com" },
                ],
                "conditions": [
                    { "type": "MemoryPressure", "status": "False" },
                    { "type": "Ready", "status": ready },
                ],
            },
        }))
    }

    #[test]
    fn a_node_takes_connections_when_it_is_ready_schedulable_and_not_excluded() {
        let none = json!({});
        let good = node(worker(&none, &none, "True")).unwrap();
        let addresses: Vec<String> = good.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.32.96.105", "fd00::105"]);
        assert!(good.takes);
        let excluded = json!({ EXCLUDED: "" });
        for object in [
            worker(&none, &none, "False"),
            worker(&none, &none, "Unknown"),
            worker(&json!({ "unschedulable": true }), &none, "True"),
            worker(&none, &excluded, "True"),
            object(json!({ "metadata": { "name": "n1" } })),
        ] {
            assert!(!node(object).unwrap().takes);
        }
    }

    #[test]
    fn a_slice_of_either_version_has_the_nodes_with_ready_endpoints() {
        let endpoints = json!([
            { "addresses": ["10.0.0.1"], "conditions": { "ready": true }, "nodeName": "n1" },
            { "addresses": ["10.0.0.2"], "conditions": {}, "topology": { HOSTNAME: "n2" } },
            { "addresses": ["10.0.0.3"], "conditions": { "ready": false, "terminating": true }, "nodeName": "n3" },
            { "addresses": ["10.0.0.4"] },
        ]);
        let of = |labels: &Value, endpoints: &Value| {
            slice(object(json!({
                "metadata": { "name": "kas-abc", "namespace": "a", "labels": labels },
                "addressType": "IPv4",
                "endpoints": endpoints,
            })))
        };
        let labels = json!({ SERVICE_NAME: "kas" });
        let known = of(&labels, &endpoints).unwrap();
        assert_eq!(known.service.unwrap().to_string(), "a/kas");
        assert!(known.nodes.iter().eq(["n1", "n2"]));
        assert!(of(&labels, &Value::Null).unwrap().nodes.is_empty());
        assert_eq!(of(&json!({}), &endpoints).unwrap().service, None);
    }
}
