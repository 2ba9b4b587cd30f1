//! Fragmented datagrams: which flow the fragments without ports belong to.

use crate::{
    addr::{Be16, Be32},
    pod::pod_struct,
    wire::header::Ipv4,
};

pod_struct! {
    /// What the fragments of a datagram have in common (RFC 791 section 3.2), and where they came
    /// from. 16 bytes. Of IPv6 (RFC 8200 section 4.5): the addresses are what stands for them
    /// ([`label`](super::addr6)), and the identification is in two halves.
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

impl FragmentKey {
    /// The fields as four numbers, for a function of its own.
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        let Self {
            source,
            destination,
            network,
            identification,
            protocol,
        } = *self;
        let both = (network as u32) << 16 | identification.raw() as u32;
        [source.raw(), destination.raw(), both, protocol]
    }
}

/// Records of a set; see `datagram`.
pub const PLACES: u32 = 8;
/// Sets, a power of two.
pub const SETS: u32 = 8192;
/// Records of all sets.
pub const DATAGRAMS: u32 = SETS * PLACES;

pod_struct! {
    /// A datagram whose first fragment was sent on. 40 bytes.
    ///
    /// Several CPUs write it, and the word says whose turn it is: a record is taken by compare-and-swap, written,
    /// and published by the next one. What was read counts only if the word has the same count before and after,
    /// so no fragment goes by a record of two datagrams. Where it goes is not in here but in the entry of the
    /// flow, which is compared with the fragment's addresses.
    pub struct Datagram {
        /// See `datagram::RecordState`.
        pub word: u64,
        /// What its fragments have in common.
        pub key: FragmentKey,
        /// Id of the flow.
        pub flow: u32,
        /// Generation of the flow's entry.
        pub generation: u32,
        /// When the first fragment passed: as `Flow::last_seen`.
        pub began: u32,
        /// Identification that the fragments are sent on with.
        pub identification: Be16,
        /// [`FROM_CLIENT`] or [`FROM_BACKEND`].
        pub direction: u8,
        /// Id of the network of the flow's client: below 256.
        pub owner: u8,
    }
}

/// The fragments are a request's.
pub const FROM_CLIENT: u16 = 0;
/// The fragments are a reply's.
pub const FROM_BACKEND: u16 = 1;
