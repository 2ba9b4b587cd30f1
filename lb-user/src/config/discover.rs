//! Backends that a cluster of Kubernetes knows: where its API is, and which service a pool wants of it.

use std::{fmt, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{hosted::HostedClusters, number::number, place::quote};

/// The most characters of the name of an object (RFC 1123 subdomain; namespaces and Services have at most 63).
const MAX_OBJECT_NAME: usize = 253;
/// The most characters of the name of a port (IANA_SVC_NAME).
const MAX_PORT_NAME: usize = 63;

/// A cluster of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesCluster {
    /// Unique; lower-case letters, digits and `-`.
    pub name: String,
    /// With what it is asked.
    #[serde(flatten)]
    pub credentials: Credentials,
    /// Whether its Secrets may be the credentials of others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets: bool,
    /// The port of a Service of another cluster at whose nodes the API is reached; none: the server of the kubeconfig is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<ServicePort>,
    /// The Services that get VIPs into their status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancers: Vec<LoadBalancer>,
    /// The hosted clusters that it has, and that become `clusters`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosted_clusters: Vec<HostedClusters>,
}

/// Where a kubeconfig is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Credentials {
    /// A file, by its absolute path.
    #[serde(rename = "kubeconfig")]
    File(PathBuf),
    /// A Secret of the cluster through which the API is reached.
    #[serde(rename = "secret")]
    Secret(ObjectName),
}

/// A VIP in the status of a Service of type LoadBalancer. One Service may have several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancer {
    /// The Service.
    pub service: ObjectName,
    /// A VIP that a service of the file listens at.
    pub vip: IpAddr,
}

/// The nodes at whose port a service of a cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discover {
    /// The cluster of the service and its port.
    #[serde(rename = "discover")]
    pub of: ServicePort,
    /// As of a backend.
    pub weight: u16,
    /// As of a backend.
    #[serde(default)]
    pub backup: bool,
}

/// A port of a service of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServicePort {
    /// The name of a [`KubernetesCluster`].
    pub cluster: String,
    /// The service.
    pub service: ObjectName,
    /// Its port.
    pub port: PortOfService,
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cluster,
            service,
            port,
        } = self;
        write!(f, "port {port} of service {service} of {cluster}")
    }
}

/// The name of an object, as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectName {
    /// Of the object.
    pub namespace: String,
    /// Unique in the namespace for its kind.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl From<ObjectName> for String {
    fn from(name: ObjectName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for ObjectName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        service_name(&text)
    }
}

/// Which port of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortOfService {
    /// The number that its clients in the cluster use.
    Number(u16),
    /// The name.
    Name(String),
}

impl fmt::Display for PortOfService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Reads the name of a Service.
pub(super) fn service_name(text: &str) -> Result<ObjectName, String> {
    object_name(text, "service", "clusters-tenant-a/kube-apiserver")
}

/// Reads the name of a Secret.
pub(super) fn secret_name(text: &str) -> Result<ObjectName, String> {
    object_name(text, "secret", "clusters/tenant-a-admin-kubeconfig")
}

fn object_name(text: &str, kind: &str, example: &str) -> Result<ObjectName, String> {
    let both = text.split_once('/');
    match both.filter(|(namespace, name)| is_label(namespace) && is_object(name)) {
        Some((namespace, name)) => Ok(ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        None => Err(format!(
            "{} is not a {kind}; expected NAMESPACE/NAME, such as {example}",
            quote(text)
        )),
    }
}

/// Reads the name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    match is_label(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{} is not a namespace; expected one such as clusters-tenant-a",
            quote(text)
        )),
    }
}

/// Reads the name or the number of a port.
pub(super) fn port_of_service(text: &str) -> Result<PortOfService, String> {
    if let Some(number) = number(text) {
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        return port
            .map(PortOfService::Number)
            .ok_or_else(|| format!("{number} is not a port; expected 1 to {}", u16::MAX));
    }
    if text.len() > MAX_PORT_NAME || !is_label(text) {
        return Err(format!(
            "{} is not the name of a port; expected one such as https, or its number",
            quote(text)
        ));
    }
    Ok(PortOfService::Name(text.to_owned()))
}

/// Whether it is a label of DNS in lower case (RFC 1123 section 2.1).
fn is_label(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| letter(byte) || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether an object may have this name.
fn is_object(text: &str) -> bool {
    text.len() <= MAX_OBJECT_NAME && text.split('.').all(is_label)
}
