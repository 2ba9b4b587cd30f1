//! The keys of clusters of Kubernetes, and of pools whose backends their APIs know.

use super::{
    declare::section,
    kinds::{File, Flag, Name, Whole, kinds},
    pool::Weight,
    values::parsed,
};
use crate::config::{
    discover::{PortOfService, ServiceName, port_of_service, service_name},
    place::At,
};

section! {
    /// A cluster of Kubernetes, whose API is asked where its services are and followed from then on. What it has said is
    /// kept on the disk, and stays when it does not answer.
    struct RawKubernetes = "cluster of Kubernetes" {
        /// The kubeconfig, by its path from the root: the server, its authority, and a token, a file with one, or a client
        /// certificate. No other user may read it. The token of a file is read again when it has changed.
        required kubeconfig: File,
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

kinds! {
    Service("`NAMESPACE/NAME`"): Option<At<ServiceName>> = parsed(service_name);
    Port("name or number"): Option<At<PortOfService>> = parsed(port_of_service);
}
