//! Where a frame came from, and how to send one there.

use crate::{
    addr::{Be32, Mac},
    maps::{
        addr6,
        snat::{FIRST_LEG_PORT, PAGE, PortPage},
    },
    pod::pod_struct,
    verdict::{DropReason, Verdict},
};

pod_struct! {
    /// Where a frame came from. 8 bytes.
    pub struct NetworkKey {
        /// Interface of the frame: a network's NIC, or the outer end of its cell.
        pub ifindex: u32,
        /// 802.1Q VLAN id, 0 for an untagged frame.
        pub vlan: u16,
        /// Zero.
        pub _reserved: u16,
    }
}

pod_struct! {
    /// A network, at the index of its id. 184 bytes. Written by userspace only.
    pub struct Network {
        /// The NIC that frames to this network leave by.
        pub ifindex: u32,
        /// The outer end of its cell; 0 for a host network, which has none.
        pub cell_ifindex: u32,
        /// MAC of the NIC: source of every frame we send there.
        pub mac: Mac,
        /// 802.1Q VLAN id, 0 for untagged.
        pub vlan: u16,
        /// One of the `ROLE_` constants; 0 for a record that was never written.
        pub role: u16,
        /// The `NETWORK_` flags, and above them the number of its SNAT addresses of IPv6.
        pub flags: u16,
        /// Rule set of the sources that may come from it.
        pub sources: u32,
        /// Rule set of the destinations that are on its link, and that must not pass to the host; 0 for none.
        pub destinations: u32,
        /// Most flows of its clients at a time; 0 for no limit of its own.
        pub budget: u32,
        /// Bytes of the largest IP packet that it carries, host order.
        pub mtu: u16,
        /// Most bytes in a TCP segment to or from it, host order: the bound of a SYN's option. With IPv6 20
        /// less.
        pub mss: u16,
        /// Number of its SNAT addresses of IPv4.
        pub snat_count: u32,
        /// Slots of its SNAT addresses: indexes of their queues of free ids. Those of IPv4 from the
        /// beginning, those of IPv6 up to the end, so that neither moves for the other: see [`Self::snat`].
        pub snat_slots: [[u8; 16]; MAX_SNAT_PER_NETWORK / 16],
        /// The same slots as a set: bit n of the first number is slot n, that of the second one slot 64 + n.
        pub snat_set: [u64; MAX_SNAT_PER_NETWORK / 64],
    }
}

/// Where the number of SNAT addresses of IPv6 begins in `flags`.
const SNAT6_SHIFT: u32 = 8;
/// Most SNAT addresses of one network.
pub const MAX_SNAT_PER_NETWORK: usize = 128;
const SNAT_PLACES: u32 = 128;
const _: () = assert!(SNAT_PLACES as usize == MAX_SNAT_PER_NETWORK);

/// A tenant's network: nothing but declared services, and never the host's own stack.
pub const ROLE_TENANT: u16 = 1;
/// The management network: what is not ours passes to the host.
pub const ROLE_MGMT: u16 = 2;
/// The way out to all other networks: what is not ours passes to the host.
pub const ROLE_UPLINK: u16 = 3;

/// Its VIPs and SNAT addresses are the host's own addresses.
pub const NETWORK_HOST: u16 = 1;
/// Frames may come from a kernel stack that leaves checksums to the interface (veth, virtio): in their
/// place stands the sum of the pseudo-header alone.
pub const NETWORK_PARTIAL: u16 = 8;
/// Our programs run in the kernel's stack, which still knows of such a frame that its checksum is to
/// be computed, and has that done wherever the frame leaves the host.
pub const NETWORK_GENERIC: u16 = 16;
/// A packet to a port of a VIP that no service listens on gets an answer instead of silence.
pub const NETWORK_REJECT: u16 = 2;
/// The flows of its clients are reported when they begin and end. Not a flag of the service: a flow
/// may outlive what its VIP listens on.
pub const NETWORK_EVENTS: u16 = 4;
/// Both segments of a hello leave its NIC at once, as copies of one frame.
pub const NETWORK_AT_ONCE: u16 = 64;
/// No packet is served: the network's control plane has stopped, and is configured to take this along. What
/// is ours is dropped.
pub const NETWORK_STOPPED: u16 = 32;

/// Consecutive places of `snat_slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatPlaces {
    /// The first one.
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// Whether they are of IPv6.
    pub is_ipv6: bool,
}

impl Network {
    /// Whether nothing of this network may reach the host's stack.
    #[inline(always)]
    pub const fn is_tenant(&self) -> bool {
        self.role == ROLE_TENANT
    }

    /// Whether its addresses are the host's own: only what is declared is ours.
    #[inline(always)]
    pub const fn is_host(&self) -> bool {
        self.flags & NETWORK_HOST != 0
    }

    /// Whether no packet is served until the next start.
    #[inline(always)]
    pub const fn is_stopped(&self) -> bool {
        self.flags & NETWORK_STOPPED != 0
    }

    /// Of which of `snat_slots` a flow of IPv6, or of IPv4, takes its port.
    #[inline(always)]
    pub const fn snat(&self, is_ipv6: bool) -> SnatPlaces {
        if is_ipv6 {
            let count = (self.flags >> SNAT6_SHIFT) as u32;
            SnatPlaces {
                first: SNAT_PLACES.wrapping_sub(count),
                count,
                is_ipv6,
            }
        } else {
            SnatPlaces {
                first: 0,
                count: self.snat_count,
                is_ipv6,
            }
        }
    }

    /// Whether this slot is that of one of its SNAT addresses, of either family.
    #[inline(always)]
    pub const fn has_slot(&self, slot: u16) -> bool {
        let [low, high] = self.snat_set;
        let set = if slot < 64 { low } else { high };
        (slot as usize) < MAX_SNAT_PER_NETWORK && set >> (slot & 63) & 1 != 0
    }

    /// The slots of its SNAT addresses, those of IPv4 first.
    pub fn slots(&self) -> impl Iterator<Item = u8> {
        let of = |is_ipv6| {
            let SnatPlaces { first, count, .. } = self.snat(is_ipv6);
            let slots = self.snat_slots.into_iter().flatten().skip(first as usize);
            slots.take(count as usize)
        };
        of(false).chain(of(true))
    }

    /// The part of `flags` that holds so many SNAT addresses of IPv6.
    pub const fn snat6(count: u16) -> u16 {
        count << SNAT6_SHIFT
    }

    /// The end of a frame that none of our addresses, ports or protocols claims: it passes where the
    /// address is the host's own, and is dropped for `reason` elsewhere.
    ///
    /// # Errors
    ///
    /// `reason`.
    #[inline(always)]
    pub const fn undeclared(&self, reason: DropReason) -> Result<Verdict, DropReason> {
        if self.is_host() {
            Ok(Verdict::Passed)
        } else {
            Err(reason)
        }
    }
}

pod_struct! {
    /// One of our addresses in a network. 8 bytes.
    pub struct AddressKey {
        /// The address, or its label.
        pub address: Be32,
        /// Id of the network.
        pub network: u16,
        /// 6 for a label, which stands for an IPv6 address; 0 for an IPv4 one.
        pub version: u16,
    }
}

impl AddressKey {
    /// The key of an address, or the label of one, in the network with this id.
    #[inline(always)]
    pub const fn new(address: Be32, network: u16) -> Self {
        let version = if addr6::index(address).is_some() {
            6
        } else {
            0
        };
        Self {
            address,
            network,
            version,
        }
    }
}

pod_struct! {
    /// What one of our addresses is. 12 bytes. Written by userspace only.
    pub struct Address {
        /// The `KIND_` bits.
        pub kind: u32,
        /// SNAT: its first flow id.
        pub base: u32,
        /// SNAT: first port that belongs to flows, host order.
        pub first_port: u16,
        /// SNAT: number of ports that belong to flows.
        pub count: u16,
    }
}

/// A VIP.
pub const KIND_VIP: u32 = 1;
/// A SNAT address. Both only where the address is the host's own.
pub const KIND_SNAT: u32 = 2;
/// The link-local IPv6 address of a cell, which its neighbours answer to.
pub const KIND_LINK: u32 = 4;

/// An address that was another box's a moment ago: a segment of no flow has no answer, because its flow may still come from there.
pub const KIND_QUIET: u32 = 8;

impl Address {
    /// Whether a segment of no flow has no answer there.
    #[inline(always)]
    pub const fn is_quiet(&self) -> bool {
        self.kind & KIND_QUIET != 0
    }

    /// Whether it is a VIP, whatever else it is.
    pub const fn is_vip(&self) -> bool {
        self.kind & KIND_VIP != 0
    }

    /// Whether only the active one of two boxes has it: a VIP, or a SNAT address that flows have.
    pub const fn is_of_active(&self) -> bool {
        self.is_vip() || self.kind & KIND_SNAT != 0 && self.count > 0
    }

    /// Whether a SNAT `port` (host order) belongs to flows.
    #[inline(always)]
    pub const fn is_of_flow(&self, port: u16) -> bool {
        let offset = port.wrapping_sub(self.first_port);
        port >= self.first_port && offset < self.count
    }

    /// The flow id behind a SNAT `port` (host order), or `None` outside the flows' part; `page` gives the [`PortPage`] with
    /// this number.
    #[inline(always)]
    pub fn flow_id<'p>(
        &self,
        port: u16,
        page: impl FnOnce(u32) -> Option<&'p PortPage>,
    ) -> Option<u32> {
        if !self.is_of_flow(port) {
            return None;
        }
        let place = self
            .base
            .wrapping_add(port.wrapping_sub(self.first_port).into());
        let id = page(place / PAGE)?[(place % PAGE) as usize];
        Some(self.base.wrapping_add(id.into()))
    }

    /// Whether a `port` (host order) of it belongs to the sockets of the network's cell, which are the
    /// backends' ends of shared VIPs and the checks. Of a VIP that is none, whatever the port.
    #[inline(always)]
    pub const fn is_local(&self, port: u16) -> bool {
        self.kind & KIND_SNAT != 0 && port >= FIRST_LEG_PORT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snat_port_is_a_flow_id_only_inside_its_range() {
        let snat = Address {
            kind: KIND_SNAT,
            base: 2048,
            first_port: 1024,
            count: 1000,
        };
        let mut pages = [[0; PAGE as usize]; 2];
        for (place, id) in (0..1000).zip((0..1000).rev()) {
            pages[0][place] = id;
        }
        let id = |port| snat.flow_id(port, |page| pages.get(page as usize - 2));
        assert_eq!(id(1023), None);
        assert_eq!(id(1024), Some(3047));
        assert_eq!(id(2023), Some(2048));
        assert_eq!(id(2024), None);
        assert_eq!(id(0), None);
    }

    #[test]
    fn the_last_ports_of_a_snat_address_are_the_cells() {
        let of = |kind| Address {
            kind,
            base: 2048,
            first_port: 1024,
            count: 56_320,
        };
        for port in [57_344, 64_511, 64_512, 65_535] {
            assert!(of(KIND_SNAT).is_local(port));
            assert!(of(KIND_SNAT | KIND_VIP).is_local(port));
            assert!(!of(KIND_VIP).is_local(port));
            assert!(!of(KIND_SNAT).is_of_flow(port));
        }
        for port in [0, 1024, 57_343] {
            assert!(!of(KIND_SNAT).is_local(port));
        }
    }
}
