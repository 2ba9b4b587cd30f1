//! A TCP segment of a stream, as it is on the wire: no options anywhere, and data that is a flow's number
//! and zeros.

/// Ethernet, IPv4 and TCP headers in words of 16 bits in network order. A kernel takes off what fills a short frame
/// up, so there may be nothing behind them.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    /// Destination and source.
    pub(crate) macs: [u16; 6],
    pub(crate) ethertype: u16,
    /// Version, header length, type of service; total length; id; fragment.
    pub(crate) ip: [u16; 4],
    /// Time to live and protocol; header checksum.
    pub(crate) ttl: u16,
    pub(crate) ip_check: u16,
    pub(crate) source: [u16; 2],
    pub(crate) destination: [u16; 2],
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) sequence: [u16; 2],
    pub(crate) acknowledged: [u16; 2],
    /// Header length and flags.
    pub(crate) flags: u16,
    pub(crate) window: u16,
    pub(crate) tcp_check: u16,
    pub(crate) urgent: u16,
}

/// A segment with data, which begins with the flow's number.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub(crate) struct WithData {
    pub(crate) segment: Segment,
    pub(crate) flow: [u16; 2],
}

pub(crate) const IPV4: u16 = 0x0800u16.to_be();
/// A header of five words; don't fragment; a TTL of 64, TCP.
pub(crate) const IP: u16 = 0x4500u16.to_be();
pub(crate) const WHOLE: u16 = 0x4000u16.to_be();
pub(crate) const TTL_TCP: u16 = 0x4006u16.to_be();
pub(crate) const PROTOCOL: u16 = 6u16.to_be();
/// Flags with a header of five words.
pub(crate) const SYN: u16 = 0x5002u16.to_be();
pub(crate) const SYN_ACK: u16 = 0x5012u16.to_be();
pub(crate) const DATA: u16 = 0x5018u16.to_be();
/// First sequence numbers of a client and of a backend.
pub(crate) const CLIENT: u32 = 1000;
pub(crate) const BACKEND: u32 = 5000;
/// Bytes of the headers that count for the total length.
pub(crate) const HEADERS: u16 = 40;

impl Segment {
    /// The sum of all words of the IP header, the checksum's own with them: 0xffff if it is right.
    #[inline(always)]
    pub(crate) fn ip_sum(&self) -> u16 {
        let ip = self.ip;
        let sum = word(ip[0])
            + word(ip[1])
            + word(ip[2])
            + word(ip[3])
            + word(self.ttl)
            + word(self.ip_check)
            + pair(self.source)
            + pair(self.destination);
        fold(sum)
    }

    /// The sum of the pseudo header, the TCP header and the data: a flow's number and zeros, or nothing.
    #[inline(always)]
    pub(crate) fn tcp_sum(&self, flow: [u16; 2]) -> u16 {
        let length = u16::from_be(self.ip[1]).wrapping_sub(20);
        let sum = pair(self.source)
            + pair(self.destination)
            + word(PROTOCOL)
            + word(length.to_be())
            + word(self.source_port)
            + word(self.destination_port)
            + pair(self.sequence)
            + pair(self.acknowledged)
            + word(self.flags)
            + word(self.window)
            + word(self.tcp_check)
            + word(self.urgent)
            + pair(flow);
        fold(sum)
    }

    /// Makes both checksums right.
    #[inline(always)]
    pub(crate) fn seal(&mut self, flow: [u16; 2]) {
        self.ip_check = 0;
        self.ip_check = !self.ip_sum();
        self.tcp_check = 0;
        self.tcp_check = !self.tcp_sum(flow);
    }
}

#[inline(always)]
fn word(word: u16) -> u32 {
    word as u32
}

#[inline(always)]
fn pair(words: [u16; 2]) -> u32 {
    words[0] as u32 + words[1] as u32
}

/// In a segment without data.
pub(crate) const NO_FLOW: [u16; 2] = [0; 2];

/// The ones' complement sum in 16 bits (RFC 1071): it is the same in either byte order.
#[inline(always)]
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A number in two words of network order.
#[inline(always)]
pub(crate) fn split(number: u32) -> [u16; 2] {
    [((number >> 16) as u16).to_be(), (number as u16).to_be()]
}

/// The number in two words of network order.
#[inline(always)]
pub(crate) fn join(words: [u16; 2]) -> u32 {
    ((u16::from_be(words[0]) as u32) << 16) | u16::from_be(words[1]) as u32
}
