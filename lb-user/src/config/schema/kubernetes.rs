//! The keys of clusters of Kubernetes, and of pools whose backends their APIs know.

use super::{
    declare::section,
    kinds::{Address, Clients, File, Flag, Name, Whole, kinds},
    pool::{Header, Weight},
    reader::{at, list_not_empty},
    values::parsed,
};
use crate::config::{
    discover::{ObjectName, PortOfService, namespace, port_of_service, secret_name, service_name},
    hosted::{HostedName, VipRange, hosted_name, vip_range},
    list::List,
    place::{At, Location},
    problem::Findings,
    yaml::Node,
};

section! {
    /// A cluster of Kubernetes, whose API is asked where its services are and followed from then on. What it has said is
    /// kept on the disk, and stays when it does not answer.
    struct RawKubernetes = "cluster of Kubernetes" {
        /// The kubeconfig, by its path from the root: the server, its authority, and a token, a file with one, or a client
        /// certificate. No other user may read it. The token of a file is read again when it has changed.
        required[unless(secret)] kubeconfig: File,
        /// The Secret of the cluster in `through` whose key `kubeconfig` is the kubeconfig, as `NAMESPACE/NAME`, instead of a
        /// file: HyperShift makes one for the administrator of each hosted cluster. It is read with each connection, kept in
        /// memory only, and may name no files.
        optional secret: Secret,
        /// Whether `secret` of other clusters may name Secrets of this one.
        optional secrets: Flag = "false",
        /// The port of a Service of another cluster through which the API is reached: at any of its nodes, instead of the
        /// server in the kubeconfig, whose host name the API's certificate must have. So a hosted cluster is reached at the
        /// nodes of its hub.
        optional through: Whole<RawDiscover>,
        /// Services of type LoadBalancer that get a VIP into their status, as a cloud would give them an address. The status
        /// of other Services stays as it is, and so does one that something else has written.
        optional load_balancers: LoadBalancers,
        /// The HostedClusters of a hub that become `clusters`, with the ways of publishing that they say. Those of the file
        /// come first, then the older ones: what is claimed twice is refused to the later one.
        optional hosted_clusters: HostedLists,
    }
}

section! {
    /// HostedClusters of a hub, and what they have in common. The keys of `defaults.cluster` hold for them, too.
    struct RawHosted = "hosted clusters" {
        /// Which ones: `NAMESPACE/NAME`, or `NAMESPACE/*` for all of a namespace.
        required name: Hosted,
        /// The network that the clients and the VIPs are on.
        required network: Name,
        /// The network that the nodes of the hub are on.
        required hub_network: Name,
        /// Where the VIPs are, one for each hosted cluster: addresses and ranges `FIRST-LAST`. A choice of a range is kept
        /// by name, and has no address that something else listens at.
        required vips: VipRanges,
        /// The Service of the ingress shard, as `NAMESPACE/NAME`, for the parts that are published as `Route`: its ports
        /// `https` and `http` are those for 443 and 80 of the names.
        optional shard: Service,
        /// `v2`: the shard expects a header of the PROXY protocol, as of a pool.
        optional proxy_protocol: Header = "none",
        /// The clients. Without it the API is for those in `allowedCIDRBlocks` of the hosted cluster, if there are any.
        optional allow: Clients => "the network's `sources`",
        /// The worker nodes, as of a cluster.
        optional workers: Clients => "as `allow`",
    }
}

section! {
    /// A VIP in the status of a Service of type LoadBalancer. A Service with several is there several times.
    struct RawLoadBalancer = "load balancer" {
        /// The Service.
        required service: Service,
        /// A VIP of `services`.
        required vip: Address,
    }
}

section! {
    /// The nodes at whose port a service of a cluster of Kubernetes is reached: all that are ready, schedulable and not
    /// excluded from external load balancers, and with `externalTrafficPolicy: Local` those of them with an endpoint.
    struct RawDiscovered = "discovered backends" {
        /// The service.
        required discover: Whole<RawDiscover>,
        /// The share of new flows of each node, 1 to 256.
        optional weight: Weight = "1",
        /// Whether they get new flows only as long as too few of the other backends are up.
        optional backup: Flag = "false",
    }
}

section! {
    /// A port of a service of a cluster of Kubernetes.
    struct RawDiscover = "discover" {
        /// The entry of `kubernetes`.
        required cluster: Name,
        /// The service, as `NAMESPACE/NAME`.
        required service: Service,
        /// The name or the number of its port.
        required port: Port,
    }
}

section! {
    /// The Services of a control plane, which the API of the hub knows.
    struct RawControlPlane = "control plane" {
        /// The entry of `kubernetes`.
        required cluster: Name,
        /// The namespace of the Services.
        required namespace: Namespace,
        /// The network that the nodes of the hub are on.
        required network: Name,
    }
}

kinds! {
    HostedLists("list of mappings", RawHosted): List<At<RawHosted>> = hosted_lists;
    Hosted("`NAMESPACE/NAME` or `NAMESPACE/*`"): Option<At<HostedName>> = parsed(hosted_name);
    VipRanges("list of addresses and ranges"): List<At<VipRange>> = vip_ranges;
    LoadBalancers("list of mappings", RawLoadBalancer): List<At<RawLoadBalancer>> = load_balancers;
    Namespace("name"): Option<At<String>> = parsed(namespace);
    Service("`NAMESPACE/NAME`"): Option<At<ObjectName>> = parsed(service_name);
    Secret("`NAMESPACE/NAME`"): Option<At<ObjectName>> = parsed(secret_name);
    Port("name or number"): Option<At<PortOfService>> = parsed(port_of_service);
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a reader")]
fn load_balancers(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<RawLoadBalancer>>> {
    list_not_empty(node, &place, findings, at)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a reader")]
fn hosted_lists(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<RawHosted>>> {
    list_not_empty(node, &place, findings, at)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a reader")]
fn vip_ranges(node: &Node, place: Location, findings: &mut Findings) -> Option<List<At<VipRange>>> {
    list_not_empty(node, &place, findings, parsed(vip_range))
}
