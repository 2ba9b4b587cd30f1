//! lookup: which network a frame came from, what its address is, which service listens there; whom a cell
//! talks to.

use lb_common::{
    addr::{Be16, Be32},
    maps::{
        flow::FlowKey,
        network::{Address, AddressKey, Network, NetworkKey},
        peer::PeerKey,
        service::{Service, ServiceKey},
    },
};

use network_types::ip::IpProto;

use crate::maps::{ADDRESSES, LOCAL_PEERS, NETWORK_IDS, NETWORKS, SERVICES};

/// The network behind an interface and VLAN: its id and record.
#[inline(always)]
pub(crate) fn network(ifindex: u32, vlan: u16) -> Option<(u16, &'static Network)> {
    let key = NetworkKey {
        ifindex,
        vlan,
        _reserved: 0,
    };
    // SAFETY: the value is a plain integer; a concurrent update gives the old or the new id.
    let id = *unsafe { NETWORK_IDS.get(&key) }?;
    Some((id as u16, NETWORKS.get(id)?))
}

/// What `address` is in `network`: a VIP, a SNAT address, or none of ours.
#[inline(always)]
pub(crate) fn address(network: u16, address: Be32) -> Option<&'static Address> {
    // SAFETY: userspace replaces the record as a whole under a new element; a freed element may be
    // reused within this packet only if an address is removed and another added at that instant,
    // and the tuple check of the flow then refuses the packet.
    unsafe {
        ADDRESSES.get(&AddressKey {
            address,
            network,
            _reserved: 0,
        })
    }
}

/// Whether the cell of `network` talks to this address and port.
#[inline(always)]
pub(crate) fn is_local_peer(network: u16, address: Be32, port: Be16) -> bool {
    let key = PeerKey {
        address,
        port,
        network,
    };
    // SAFETY: the value is not read.
    unsafe { LOCAL_PEERS.get(&key) }.is_some()
}

/// Whether connections to this VIP and TCP port of `network` end in its cell.
#[inline(always)]
pub(crate) fn is_shared(network: u16, vip: Be32, vip_port: Be16) -> bool {
    let key = FlowKey {
        vip,
        vip_port,
        network,
        protocol: IpProto::Tcp as u16,
        ..FlowKey::default()
    };
    service(&key).is_some_and(Service::is_of_cell)
}

/// The service that listens on the VIP, port and protocol of `key`.
#[inline(always)]
pub(crate) fn service(key: &FlowKey) -> Option<&'static Service> {
    let key = ServiceKey {
        vip: key.vip,
        port: key.vip_port,
        network: key.network,
        protocol: u32::from(key.protocol),
    };
    // SAFETY: as for `address`; at worst one new flow goes to a service that is being removed.
    unsafe { SERVICES.get(&key) }
}
