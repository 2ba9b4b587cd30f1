//! Fragmented datagrams: which flow the fragments without ports belong to.

use crate::{
    addr::{Be16, Be32},
    pod::pod_struct,
    wire::header::Ipv4,
};

pod_struct! {
    /// What the fragments of a datagram have in common (RFC 791 section 3.2), and where they came
    /// from. 16 bytes. Of IPv6 (RFC 8200 section 4.5): the addresses are what stands for them
    /// ([`label`](super::label)), and the identification is in two halves.
    pub struct FragmentKey {
        /// Source address, as received.
        pub source: Be32,
        /// Destination address, as received.
        pub destination: Be32,
        /// Id of the network that they came from.
        pub network: u16,
        /// Identification, as received; of IPv6 its lower half.
        pub identification: Be16,
        /// IP protocol number; of IPv6 the upper half of the identification.
        pub protocol: u32,
    }
}

impl FragmentKey {
    /// The key of a fragment that came from the network with this id.
    #[inline(always)]
    pub fn of(ip: &Ipv4, network: u16) -> Self {
        Self {
            source: ip.source.get(),
            destination: ip.destination.get(),
            network,
            identification: ip.identification.get(),
            protocol: u32::from(ip.protocol.get()),
        }
    }
}

pod_struct! {
    /// A datagram whose first fragment was sent on. 24 bytes.
    ///
    /// Where the others go is not in here but in the entry of the flow, which is compared with their
    /// addresses: a record that was recycled while it is read sends nothing to a stranger.
    pub struct Fragmented {
        /// What has passed: see `fragment::Extents`. Changed by compare-and-swap; the other fields
        /// are written once.
        pub extents: u64,
        /// Id of the flow.
        pub flow: u32,
        /// Generation of the flow's entry.
        pub generation: u32,
        /// When the first fragment passed: as `Flow::last_seen`.
        pub began: u32,
        /// Identification that the fragments are sent on with.
        pub identification: Be16,
        /// [`FROM_CLIENT`] or [`FROM_BACKEND`].
        pub direction: u16,
    }
}

/// The fragments are a request's.
pub const FROM_CLIENT: u16 = 0;
/// The fragments are a reply's.
pub const FROM_BACKEND: u16 = 1;
