//! Where a service's flows go, and their next-hop slots.

use crate::{
    addr::{Be16, Be32, Mac},
    pod::pod_struct,
};

pod_struct! {
    /// A backend, at the index of its id. 16 bytes. Written by userspace only.
    ///
    /// The next hop is kept here and not in the flows, so one write moves all flows of the backend.
    /// A MAC of six bytes is not one store: a packet may see half of a change, and is then lost on
    /// the wire like any packet sent to the old MAC in that moment.
    pub struct Backend {
        /// Address of the node.
        pub address: Be32,
        /// The NodePort.
        pub port: Be16,
        /// Id of its network.
        pub network: u16,
        /// MAC of the next hop; none while it is not resolved.
        pub next_hop: Mac,
        /// Most flows in full use at a time; 0 for no limit, which an older `lb` writes and an older data plane takes.
        pub max_flows: u16,
    }
}
