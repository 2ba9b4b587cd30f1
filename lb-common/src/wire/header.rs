//! Headers as they stand on the wire. Every field is in network byte order.

use super::{N8, N16, N32, N128, NMac, Wire};

macro_rules! header {
    ($(#[$meta:meta])* $name:ident [$size:literal] { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)+ }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)+ }

        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() == 1);

        // SAFETY: `repr(C)`, alignment one and no padding (asserted above), and made of cells of
        // bytes, for which every bit pattern is valid.
        unsafe impl Wire for $name {}
    };
}

header! {
    /// Ethernet II (IEEE 802.3).
    Ethernet [14] {
        /// Destination.
        destination: NMac,
        /// Source.
        source: NMac,
        /// What follows; a value of 1536 or more.
        ethertype: N16,
    }
}

header! {
    /// Ethernet II with a tag, up to the tag's end.
    TaggedEthernet [18] {
        /// Destination.
        destination: NMac,
        /// Source.
        source: NMac,
        /// 0x8100 or 0x88a8.
        protocol: N16,
        /// Priority (3 bits), drop eligible (1) and VLAN id (12).
        tci: N16,
        /// What follows.
        ethertype: N16,
    }
}

header! {
    /// The tag between an Ethernet header's addresses and the type of what follows (802.1Q).
    Vlan [4] {
        /// Priority (3 bits), drop eligible (1) and VLAN id (12).
        tci: N16,
        /// What follows.
        ethertype: N16,
    }
}

header! {
    /// IPv4 without options (RFC 791 section 3.1).
    Ipv4 [20] {
        /// Version (4 bits) and header length in 32-bit words (4 bits).
        version_ihl: N8,
        /// DSCP and ECN.
        tos: N8,
        /// Header and payload in bytes.
        total_length: N16,
        /// Identification of the datagram, for fragments.
        identification: N16,
        /// Flags (3 bits) and fragment offset in units of 8 bytes (13 bits).
        fragment: N16,
        /// Time to live, in hops.
        ttl: N8,
        /// Protocol of the payload.
        protocol: N8,
        /// Checksum of this header.
        checksum: N16,
        /// Source address.
        source: N32,
        /// Destination address.
        destination: N32,
    }
}

header! {
    /// IPv6 (RFC 8200 section 3).
    Ipv6 [40] {
        /// Version (4 bits), traffic class (8) and flow label (20).
        version_class_label: N32,
        /// Bytes behind this header, extension headers included.
        payload_length: N16,
        /// What follows: an extension header, or the layer-4 protocol.
        next_header: N8,
        /// Hops that are left.
        hop_limit: N8,
        /// Source address.
        source: N128,
        /// Destination address.
        destination: N128,
    }
}

header! {
    /// How an IPv6 extension header begins; hop-by-hop, routing and destination options (RFC 8200 section 4).
    Extension [4] {
        /// What follows it.
        next_header: N8,
        /// Its bytes in units of 8, the first 8 not counted.
        length: N8,
        /// Routing: its type.
        kind: N8,
        /// Depends on the header.
        rest: N8,
    }
}

header! {
    /// The fragment header of IPv6 (RFC 8200 section 4.5).
    FragmentHeader [8] {
        /// What follows it.
        next_header: N8,
        /// Zero.
        reserved: N8,
        /// Offset in units of 8 bytes (13 bits), reserved (2), more fragments (1).
        fragment: N16,
        /// Identification of the datagram.
        identification: N32,
    }
}

header! {
    /// Neighbour solicitation and advertisement without options (RFC 4861 sections 4.3 and 4.4).
    Neighbour [24] {
        /// 135 or 136.
        kind: N8,
        /// 0.
        code: N8,
        /// Checksum over pseudo-header and message.
        checksum: N16,
        /// Flags of an advertisement.
        flags: N32,
        /// The address that it is about.
        target: N128,
    }
}

header! {
    /// The beginning of an option of neighbour discovery, which is all of one that has a MAC (RFC 4861
    /// section 4.6).
    NeighbourOption [8] {
        /// 1: the MAC of the sender, 2: that of the target.
        kind: N8,
        /// Bytes of the option in units of 8.
        length: N8,
        /// The MAC, if it has one.
        mac: NMac,
    }
}

header! {
    /// TCP without options (RFC 9293 section 3.1).
    Tcp [20] {
        /// Source port.
        source: N16,
        /// Destination port.
        destination: N16,
        /// Sequence number of the first byte.
        sequence: N32,
        /// Next sequence number that is expected from the peer.
        acknowledgment: N32,
        /// Header length in 32-bit words (upper 4 bits).
        data_offset: N8,
        /// CWR ECE URG ACK PSH RST SYN FIN.
        flags: N8,
        /// Receive window, unscaled.
        window: N16,
        /// Checksum over pseudo-header, header and payload.
        checksum: N16,
        /// Urgent pointer.
        urgent: N16,
    }
}

header! {
    /// The option of a TCP SYN that announces how large segments may be (RFC 9293 section 3.2).
    Mss [4] {
        /// 2.
        kind: N8,
        /// 4.
        length: N8,
        /// Most bytes of data in a segment.
        value: N16,
    }
}

header! {
    /// The option of a TCP SYN that says how far windows are shifted (RFC 7323 section 2.2).
    WindowScale [3] {
        /// 3.
        kind: N8,
        /// 3.
        length: N8,
        /// To the left, 14 at most.
        shift: N8,
    }
}

header! {
    /// How a TCP option begins that is more than one byte (RFC 9293 section 3.1).
    TcpOption [2] {
        /// The meaning of the rest.
        kind: N8,
        /// Bytes of the option, these two included.
        length: N8,
    }
}

header! {
    /// The TCP option of timestamps (RFC 7323 section 3.2).
    Timestamps [10] {
        /// 8.
        kind: N8,
        /// 10.
        length: N8,
        /// The sender's clock.
        value: N32,
        /// The last value of the peer's clock; significant with ACK.
        echo: N32,
    }
}

header! {
    /// A block of data in the TCP option of selective acknowledgments (RFC 2018 section 3).
    SackBlock [8] {
        /// Sequence number of its first byte.
        left: N32,
        /// The one behind its last byte.
        right: N32,
    }
}

header! {
    /// UDP (RFC 768).
    Udp [8] {
        /// Source port.
        source: N16,
        /// Destination port.
        destination: N16,
        /// Header and payload in bytes.
        length: N16,
        /// Checksum over pseudo-header, header and payload; zero means none.
        checksum: N16,
    }
}

header! {
    /// ICMP (RFC 792).
    Icmp [8] {
        /// Type.
        kind: N8,
        /// Code.
        code: N8,
        /// Checksum over header and payload.
        checksum: N16,
        /// Depends on the type; unused in "destination unreachable" but for its MTU.
        rest: N32,
    }
}

header! {
    /// The first eight bytes of TCP or UDP: what an ICMP error quotes at least (RFC 792).
    Quoted [8] {
        /// Source port.
        source: N16,
        /// Destination port.
        destination: N16,
        /// TCP: sequence number. UDP: length and checksum.
        rest: N32,
    }
}

header! {
    /// ARP for IPv4 over Ethernet (RFC 826).
    Arp [28] {
        /// 1: Ethernet.
        hardware: N16,
        /// 0x0800: IPv4.
        protocol: N16,
        /// 6 bytes.
        hardware_size: N8,
        /// 4 bytes.
        protocol_size: N8,
        /// 1 request, 2 reply.
        operation: N16,
        /// MAC of the sender.
        sender_mac: NMac,
        /// Address of the sender.
        sender: N32,
        /// MAC of the target; undefined in a request.
        target_mac: NMac,
        /// Address that a request is for, or that of the requester in a reply.
        target: N32,
    }
}

/// IPv4 flag: the datagram may not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// IPv4 flag: more fragments of the datagram follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The fragment offset in the same field, in units of 8 bytes.
pub const FRAGMENT_OFFSET: u16 = 0x1fff;

impl Ipv4 {
    /// Bytes of the header with its options, by its length field.
    #[inline(always)]
    pub fn header_bytes(&self) -> usize {
        usize::from(self.version_ihl.get() & 15) * 4
    }

    /// Whether this is a fragment other than the first one of its datagram: without ports.
    #[inline(always)]
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.get().get() & FRAGMENT_OFFSET != 0
    }

    /// Whether this is any fragment of a datagram.
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get().get() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// Whether its identification is of no use: in one piece, and to stay so (RFC 6864 section 4).
    #[inline(always)]
    pub fn is_atomic(&self) -> bool {
        let flags = DONT_FRAGMENT | MORE_FRAGMENTS | FRAGMENT_OFFSET;
        self.fragment.get().get() & flags == DONT_FRAGMENT
    }
}

/// More fragments of the datagram follow, in the fragment header of IPv6.
pub const MORE_FRAGMENTS6: u16 = 1;

impl FragmentHeader {
    /// Where this fragment begins, in units of 8 bytes.
    #[inline(always)]
    pub fn offset(&self) -> u16 {
        self.fragment.get().get() >> 3
    }

    /// Whether others follow.
    #[inline(always)]
    pub fn more(&self) -> bool {
        self.fragment.get().get() & MORE_FRAGMENTS6 != 0
    }
}

/// TCP flag: no more data from the sender.
pub const FIN: u8 = 0x01;
/// TCP flag: synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// TCP flag: reset the connection.
pub const RST: u8 = 0x04;
/// TCP flag: what has been sent so far is for the receiver's application.
pub const PSH: u8 = 0x08;
/// TCP flag: the acknowledgment field is significant.
pub const ACK: u8 = 0x10;
