//! The keys of a cluster: what a hosted control plane publishes, and how.

use super::{
    declare::section,
    health_and_drain::Care,
    kinds::{Address, All, Choice, Clients, Domain, Merged, Name, NodePort, Whole},
    kubernetes::{RawControlPlane, Service},
    pool::Header,
    selection::Selection,
    timeouts::Life,
};

section! {
    /// A hosted control plane, which becomes pools and services named CLUSTER-api, CLUSTER-apps-https and so on.
    struct Cluster = "cluster" {
        /// The network that the clients and the VIPs are on.
        required network: Name,
        /// The group of nodes that the control plane runs on.
        optional nodes: Name => "required by every part but `apps`, unless it is discovered",
        /// Where the API of the hub has the Services of the control plane. The parts without `node_port` are found there.
        optional discover: Whole<RawControlPlane>,
        /// The API, at port 6443; not as `Route`.
        optional api: Merged<Component>,
        /// The OAuth server, at port 443.
        optional oauth: Merged<Component>,
        /// Konnectivity, at port 8091, for `workers`.
        optional konnectivity: Merged<Component>,
        /// Ignition, at port 443, for `workers`.
        optional ignition: Merged<Component>,
        /// The proxy in front of Ignition, at port 8443, for `workers`; not as `Route`.
        optional ignition_proxy: Merged<Component>,
        /// The server behind that, at port 9090, for `workers`; not as `Route`.
        optional ignition_server: Merged<Component>,
        /// The machine config server of a cluster that is not hosted, at port 22623, for `workers` alone: its answers have
        /// keys in them. Not as `Route`.
        optional machine_config: Merged<Component>,
        /// DNS, at port 53 of TCP and UDP; not as `Route`.
        optional dns: Merged<Component>,
        /// The NodePorts of the ingress shard on `nodes`, for parts that are published as `Route`.
        optional routes: Whole<Routes>,
        /// The applications of the cluster itself: 443 and 80 of a VIP go to ports of its worker nodes.
        optional apps: Merged<Apps>,
        /// The worker nodes of the cluster: the clients of the parts that are for them and have no `allow` of their own. A
        /// part that is published as `Route` is for all clients of its VIP.
        optional workers: Clients => "as `allow`",
        /// The clients that may use the services, of every part without rules of its own.
        optional allow: Clients => "the network's `sources`",
        /// The clients that may not use them.
        optional deny: Clients,
        /// Keys that services have, too.
        optional life: All<Life>,
        /// The domain of the cluster, for the comments of `lb check --expand`.
        optional[own] base_domain: Domain,
    }
    also(keys) {
        /// Whether neither the entry nor the defaults have `nodes`.
        without_nodes: bool = keys.lacks("nodes"),
        /// Whether neither the entry nor the defaults have `routes`.
        without_routes: bool = keys.lacks("routes"),
        /// Whether neither the entry nor the defaults have `workers`.
        without_workers: bool = keys.lacks("workers"),
    }
}

section! {
    /// A part of a hosted control plane.
    struct Component = "component" {
        /// `LoadBalancer` (the usual port of the VIP goes to `node_port`), `NodePort` (`node_port` of the VIP goes to
        /// `node_port`) or `Route` (443 and 80 of the VIP go to the ports of `routes`).
        required publish: Choice,
        /// The port of the nodes. Of a `LoadBalancer` that is discovered it is that of the Service.
        optional node_port: NodePort => "required unless it is published as `Route`, or discovered",
        /// The clients that may use it; the same for all parts at one VIP.
        optional allow: Clients => "as of the cluster",
        /// The clients that may not use it; the same for all parts at one VIP.
        optional deny: Clients => "as of the cluster",
        /// Keys that pools have, too.
        optional selection: All<Selection>,
        /// Keys that pools have, too.
        optional care: All<Care>,
        /// The VIP.
        required[own] vip: Address,
        /// Of a `Route`: the name in the HostedCluster, for all parts of a VIP or for none. With it the VIP is a shared
        /// one that leads to the names of its parts alone: 443 by SNI, 80 by Host, and others are refused. Without it
        /// each client of the VIP reaches all of the ingress shard.
        optional[own] hostname: Domain => "any name",
    }
    also(keys) {
        /// Whether neither the entry nor the defaults have `node_port`.
        without_node_port: bool = keys.lacks("node_port"),
        /// Whether `hostname` is not written.
        without_hostname: bool = keys.is_absent("hostname"),
    }
}

section! {
    /// The NodePorts of an ingress shard: `https`, or the Service that has them.
    struct Routes = "routes" {
        /// The Service of the shard, as `NAMESPACE/NAME`, in the cluster of `discover`: its ports `https` and `http` are
        /// those for 443 and 80.
        optional service: Service,
        /// For port 443.
        optional https: NodePort => "required without `service`",
        /// For port 80.
        optional http: NodePort,
        /// `v2`: the shard expects a header of the PROXY protocol, as of a pool, on both ports.
        optional proxy_protocol: Header = "none",
        /// Keys that pools have, too.
        optional selection: All<Selection>,
        /// Keys that pools have, too.
        optional care: All<Care>,
    }
    also(keys) {
        /// Whether neither the entry nor the defaults have `https`.
        without_https: bool = keys.lacks("https"),
    }
}

section! {
    /// The ingress of the cluster's own applications: 443 and 80 of a VIP go to ports of its worker nodes.
    struct Apps = "apps" {
        /// The group of worker nodes, on the network of the cluster unless the group has another one.
        required nodes: Name,
        /// For port 443.
        required https: NodePort,
        /// For port 80.
        optional http: NodePort,
        /// `v2`: the ingress expects a header of the PROXY protocol, as of a pool, on both ports.
        optional proxy_protocol: Header = "none",
        /// The clients that may use it.
        optional allow: Clients => "as of the cluster",
        /// The clients that may not use it.
        optional deny: Clients => "as of the cluster",
        /// Keys that pools have, too.
        optional selection: All<Selection>,
        /// Keys that pools have, too.
        optional care: All<Care>,
        /// The VIP.
        required[own] vip: Address,
    }
}
