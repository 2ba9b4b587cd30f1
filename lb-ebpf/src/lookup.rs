//! lookup: which network a frame came from, what its address is, which service listens there; whom a cell
//! talks to.

use lb_common::{
    addr::{Be16, Be32, Be128},
    maps::{
        flow::FlowKey,
        label,
        network::{Address, AddressKey, Network, NetworkKey},
        peer::PeerKey,
        service::{Service, ServiceKey},
    },
};

use network_types::ip::IpProto;

use crate::maps::{
    ADDRESSES, ADDRESSES6, CLIENTS6, HASH_KEY, LABELS, LOCAL_PEERS, NETWORK_IDS, NETWORKS, SERVICES,
};

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
            version: 0,
        })
    }
}

/// The same of the IPv6 address with this label.
#[inline(always)]
pub(crate) fn labelled(network: u16, label: Be32) -> Option<&'static Address> {
    // SAFETY: as for `address`.
    unsafe {
        ADDRESSES.get(&AddressKey {
            address: label,
            network,
            version: 6,
        })
    }
}

/// The label of an IPv6 address, if it is configured anywhere.
#[inline(always)]
pub(crate) fn label(address: Be128) -> Option<Be32> {
    // SAFETY: the value is a plain integer; a label is given to another address only when no flow and no
    // record has it any more.
    let &index = unsafe { LABELS.get(&address) }?;
    Some(label::label(index))
}

/// The IPv6 address that a label stands for.
#[inline(always)]
pub(crate) fn unlabel(label: Be32) -> Option<Be128> {
    ADDRESSES6.get(label::index(label)?).copied()
}

/// The client of the IPv6 flow with this id. Its entry's generation is to be read again afterwards.
#[inline(always)]
pub(crate) fn client6(flow_id: u32) -> Option<Be128> {
    let client = CLIENTS6.get_ptr_mut(flow_id)?;
    // SAFETY: a value of an array map, for which any bits are valid; who claims the entry meanwhile
    // changes its generation.
    Some(unsafe { client.read_volatile() })
}

/// What stands for a client's address in the tuple of its flow.
#[inline(always)]
pub(crate) fn client_hash(address: Be128) -> Option<Be32> {
    Some(HASH_KEY.get(0)?.client(address))
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
