//! Which network a frame came from, what its address is, which service listens there; the peers that a cell
//! talks to.

use core::ops::Deref;

use aya_ebpf::maps::lpm_trie::Key;
use lb_common::{
    addr::{Be16, Be32, Be128},
    maps::{
        addr6,
        cell_peer::PeerKey,
        flow::FlowKey,
        network::{Address, AddressKey, Network, NetworkKey},
        rule::{RuleKey, RuleKey6, SET_BITS},
        service::{Service, ServiceKey},
    },
    verdict::DropReason,
};
use network_types::ip::IpProto;

use crate::maps::{
    ADDRESSES, ADDRESSES6, CLIENTS6, HASH_KEY, LABELS, LOCAL_PEERS, NETWORK_IDS, NETWORKS, RULES,
    RULES6, SERVICES,
};

/// The network behind an interface and VLAN: its id and record.
#[inline(always)]
pub(crate) fn network(ifindex: u32, vlan: u16) -> Option<(u16, &'static Network)> {
    let key = NetworkKey {
        ifindex,
        vlan,
        _reserved: 0,
    };
    // SAFETY: the value is a plain integer, and read at once: the memory of a removed key is another one's by then
    // only in a plan that moves networks, see `moved` of the control plane.
    let id = *unsafe { NETWORK_IDS.get(&key) }?;
    network_with(id as u16)
}

/// The network with this id, and the id.
#[inline(always)]
pub(crate) fn network_with(id: u16) -> Option<(u16, &'static Network)> {
    Some((id, NETWORKS.get(id.into())?))
}

/// What `address` is in `network`: a VIP, a SNAT address, or none of ours.
#[inline(always)]
pub(crate) fn address(network: u16, address: Be32) -> Option<&'static Address> {
    // SAFETY: any bits are valid for the record. An address is removed at the end of a plan and its memory used by
    // the next plan at the earliest; records of addresses that stay do not change but on a host network, and in their kind where
    // another box's come and stop being quiet. A packet that holds one as long as that reads another of our addresses: a
    // reply is taken then only if its sender, port, protocol and numbers are those of the flow with that id.
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
    Some(addr6::label(index))
}

/// The IPv6 address that a label stands for.
#[inline(always)]
pub(crate) fn unlabel(label: Be32) -> Option<Be128> {
    ADDRESSES6.get(addr6::index(label)?).copied()
}

/// The client of the IPv6 flow with this id. Its entry's generation is to be read again afterwards.
#[inline(always)]
pub(crate) fn client6(flow_id: u32) -> Option<Be128> {
    let client = CLIENTS6.get_ptr_mut(flow_id)?;
    // SAFETY: a value of an array map, for which any bits are valid; a flow that claims the entry meanwhile
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

/// A copy of the record of the service that listens on the VIP, port and protocol of `key`: what decides on a new
/// flow, if [`is_current`] says so after it was used.
#[inline(always)]
pub(crate) fn record(key: &FlowKey) -> Option<Service> {
    service(key).map(copy)
}

/// Whether a copy is the record of its service. The memory of a record that is written anew is the next one's that
/// is, of any key, at once and while packets read it: a copy may be another service's, which its mark says, or half of
/// each. For the latter to be overlooked the second copy must have met such a write as well, in the same field.
#[inline(always)]
pub(crate) fn is_current(key: &FlowKey, record: &Service) -> bool {
    let is_marked = record.mark == 0 || record.mark == service_key(key).mark();
    is_marked && service(key).is_some_and(|now| copy(now) == *record)
}

/// Each field read once, and now.
#[inline(always)]
fn copy(service: &Service) -> Service {
    macro_rules! read {
        ($field:ident) => {
            // SAFETY: a field of a map value, for which any bits are valid.
            unsafe { (&raw const service.$field).read_volatile() }
        };
    }
    Service {
        pool: read!(pool),
        id: read!(id),
        mark: read!(mark),
        rules: read!(rules),
        flags: read!(flags),
        budget: read!(budget),
    }
}

/// The service that listens on the VIP, port and protocol of `key`, for what no flow goes by: its
/// fields may be another service's, see [`is_current`].
#[inline(always)]
pub(crate) fn service(key: &FlowKey) -> Option<&'static Service> {
    // SAFETY: a record of plain integers, for which any bits are valid.
    unsafe { SERVICES.get(&service_key(key)) }
}

#[inline(always)]
fn service_key(key: &FlowKey) -> ServiceKey {
    ServiceKey {
        vip: key.vip,
        port: key.vip_port,
        network: key.network,
        protocol: u32::from(key.protocol),
    }
}

/// The network with this id.
#[inline(always)]
pub(crate) fn network_by_id(id: u16) -> Result<&'static Network, DropReason> {
    NETWORKS.get(u32::from(id)).ok_or(DropReason::RecordMissing)
}

/// The value of the longest matching prefix of `set`; 0 where none matches.
#[inline(always)]
pub(crate) fn rule(set: u32, address: Be32) -> u32 {
    let key = Key::new(SET_BITS + 32, RuleKey { set, address });
    RULES.get(&key).copied().unwrap_or(0)
}

/// The same of IPv6.
#[inline(always)]
pub(crate) fn rule6(set: u32, address: Be128) -> u32 {
    let key = Key::new(SET_BITS + 128, RuleKey6 { set, address });
    RULES6.get(&key).copied().unwrap_or(0)
}

/// A network, and its id.
#[derive(Clone, Copy)]
pub(crate) struct NetworkRef {
    pub(crate) id: u16,
    network: &'static Network,
}

impl NetworkRef {
    #[inline(always)]
    pub(crate) fn of(id: u16) -> Result<Self, DropReason> {
        Ok(Self::new(id, network_by_id(id)?))
    }

    /// A network that was looked up by this id.
    #[inline(always)]
    pub(crate) const fn new(id: u16, network: &'static Network) -> Self {
        Self { id, network }
    }

    /// Its record.
    #[inline(always)]
    pub(crate) const fn record(self) -> &'static Network {
        self.network
    }

    /// The same of an id that a subprogram has as argument.
    #[inline(always)]
    pub(crate) fn of_raw(id: u32) -> Option<Self> {
        let network = NETWORKS.get(id)?;
        Some(Self {
            id: id as u16,
            network,
        })
    }
}

impl Deref for NetworkRef {
    type Target = Network;

    #[inline(always)]
    fn deref(&self) -> &Network {
        self.network
    }
}
