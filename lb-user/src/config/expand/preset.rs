//! The parts of a hosted control plane: where clients expect each one, which clients it is for, and the Service that has it.

use crate::config::{
    discover::{ObjectName, PortOfService},
    listen::Protocol::{self, Tcp, Udp},
    place::At,
    schema::{Cluster, Component, RawControlPlane},
};

/// Port 443, of everything that is published as `Route`.
pub(super) const HTTPS: u16 = 443;
/// Port 80, of the same.
pub(super) const HTTP: u16 = 80;

/// A part of a control plane.
pub(super) struct PartPreset {
    /// Behind the name of the cluster.
    pub(super) suffix: &'static str,
    /// Where a load balancer has it.
    pub(super) port: u16,
    pub(super) protocols: &'static [Protocol],
    pub(super) clients: For,
    pub(super) may_be_route: bool,
    /// The name and the port of the Service that HyperShift has for it, if it is not published as `Route`
    /// (<https://github.com/openshift/hypershift>, `control-plane-operator/controllers/hostedcontrolplane`).
    service: Option<(&'static str, u16)>,
}

/// The clients that a part is for, where it has no `allow`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// Those of the cluster.
    All,
    /// Worker nodes, if it is written which clients these are.
    Workers,
    /// Worker nodes, and it has to be written which clients these are.
    OnlyWorkers,
}

impl PartPreset {
    const fn tcp(suffix: &'static str, port: u16, clients: For) -> Self {
        Self {
            suffix,
            port,
            protocols: &[Tcp],
            clients,
            may_be_route: false,
            service: None,
        }
    }

    const fn at(self, service: &'static str, port: u16) -> Self {
        Self {
            service: Some((service, port)),
            ..self
        }
    }

    const fn or_route(self) -> Self {
        Self {
            may_be_route: true,
            ..self
        }
    }

    /// Where the backends are found.
    pub(super) fn service(&self, of: &RawControlPlane) -> Option<(ObjectName, PortOfService)> {
        let (name, port) = self.service?;
        let service = ObjectName {
            namespace: of.namespace.as_ref()?.value.clone(),
            name: name.to_owned(),
        };
        Some((service, PortOfService::Number(port)))
    }

    /// Whether it is found, and needs no node_port.
    pub(super) const fn is_discovered(&self) -> bool {
        self.service.is_some()
    }
}

const API: PartPreset = PartPreset::tcp("api", 6443, For::All).at("kube-apiserver", 6443);
const OAUTH: PartPreset = PartPreset::tcp("oauth", HTTPS, For::All)
    .at("oauth-openshift", 6443)
    .or_route();
const KONNECTIVITY: PartPreset = PartPreset::tcp("konnectivity", 8091, For::Workers)
    .at("konnectivity-server", 8091)
    .or_route();
const IGNITION: PartPreset = PartPreset::tcp("ignition", HTTPS, For::Workers)
    .at("ignition-server-proxy", 443)
    .or_route();
const IGNITION_PROXY: PartPreset =
    PartPreset::tcp("ignition-proxy", 8443, For::Workers).at("ignition-server-proxy", 443);
const IGNITION_SERVER: PartPreset =
    PartPreset::tcp("ignition-srv", 9090, For::Workers).at("ignition-server", 443);
const MACHINE_CONFIG: PartPreset = PartPreset::tcp("machine-config", 22_623, For::OnlyWorkers);
const DNS: PartPreset = PartPreset {
    protocols: &[Tcp, Udp],
    ..PartPreset::tcp("dns", 53, For::All)
};

/// The parts of a cluster, as far as it has them.
pub(super) fn parts(
    cluster: &Cluster,
) -> impl Iterator<Item = (&'static PartPreset, &At<Component>)> {
    let all = [
        (&API, &cluster.api),
        (&OAUTH, &cluster.oauth),
        (&KONNECTIVITY, &cluster.konnectivity),
        (&IGNITION, &cluster.ignition),
        (&IGNITION_PROXY, &cluster.ignition_proxy),
        (&IGNITION_SERVER, &cluster.ignition_server),
        (&MACHINE_CONFIG, &cluster.machine_config),
        (&DNS, &cluster.dns),
    ];
    let all = all.into_iter();
    all.filter_map(|(preset, component)| Some((preset, component.as_ref()?)))
}
