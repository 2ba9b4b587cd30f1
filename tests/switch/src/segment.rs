//! A TCP segment of a stream by IPv4, without options.

use aya_ebpf::{btf_maps::Array, macros::btf_map};

use crate::{
    generate::Stream,
    packet::{NO_FLOW, Numbers, Packet, fold, join, pair, split, word},
};

/// Ethernet, IPv4 and TCP headers.
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

/// Where each flow has gone.
#[btf_map]
static WAYS: Array<u64, { 1 << 20 }> = Array::new();

impl Packet for Segment {
    #[inline(always)]
    fn make(stream: &Stream, flow: u32) -> Self {
        let opens = stream.opens != 0;
        let numbers = Numbers::of(stream, flow);
        let mut segment = Self {
            macs: stream.macs,
            ethertype: IPV4,
            ip: [IP, (HEADERS + numbers.data).to_be(), 0, WHOLE],
            ttl: TTL_TCP,
            ip_check: 0,
            source: split(numbers.source),
            destination: split(numbers.destination),
            source_port: numbers.source_port,
            destination_port: numbers.destination_port,
            sequence: split(CLIENT + u32::from(!opens)),
            acknowledged: split(if opens { 0 } else { BACKEND + 1 }),
            flags: if opens { SYN } else { DATA },
            window: 0xffff,
            tcp_check: 0,
            urgent: 0,
        };
        segment.seal(numbers.flow);
        segment
    }

    #[inline(always)]
    fn is_one(&self) -> bool {
        self.ethertype == IPV4
            && self.ip[0] == IP
            && self.ttl.to_be() as u8 == PROTOCOL.to_be() as u8
    }

    #[inline(always)]
    fn data(&self) -> u32 {
        u16::from_be(self.ip[1]).wrapping_sub(HEADERS) as u32
    }

    #[inline(always)]
    fn is_whole(&self, flow: [u16; 2]) -> bool {
        self.ip_sum() == 0xffff && self.tcp_sum(flow) == 0xffff
    }

    #[inline(always)]
    fn addresses(&self) -> [u32; 2] {
        [join(self.source), join(self.destination)]
    }

    #[inline(always)]
    fn ports(&self) -> [u16; 2] {
        [
            u16::from_be(self.source_port),
            u16::from_be(self.destination_port),
        ]
    }

    #[inline(always)]
    fn opens(&self) -> bool {
        self.flags == SYN
    }

    #[inline(always)]
    fn is_answer(&self) -> bool {
        self.flags == SYN_ACK
    }

    /// Makes a SYN the SYN-ACK that answers it.
    #[inline(always)]
    fn turn(&mut self) {
        let [a, b, c, d, e, f] = self.macs;
        self.macs = [d, e, f, a, b, c];
        (self.source, self.destination) = (self.destination, self.source);
        (self.source_port, self.destination_port) = (self.destination_port, self.source_port);
        self.ttl = TTL_TCP;
        self.flags = SYN_ACK;
        self.acknowledged = split(join(self.sequence).wrapping_add(1));
        self.sequence = split(BACKEND);
        self.seal(NO_FLOW);
    }

    #[inline(always)]
    fn way(flow: u32) -> Option<*mut u64> {
        WAYS.get_ptr_mut(flow)
    }
}
