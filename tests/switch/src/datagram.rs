//! A UDP datagram of a stream by IPv4. The first of a flow has no data, and so has its answer.

use aya_ebpf::{btf_maps::Array, macros::btf_map};

use crate::{
    generate::Stream,
    packet::{NO_FLOW, Numbers, Packet, fold, join, pair, split, word},
    segment::{IP, IPV4, WHOLE},
};

/// Ethernet, IPv4 and UDP headers.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    /// Destination and source.
    macs: [u16; 6],
    ethertype: u16,
    /// Version, header length, type of service; total length; id; fragment.
    ip: [u16; 4],
    /// Time to live and protocol; header checksum.
    ttl: u16,
    ip_check: u16,
    source: [u16; 2],
    destination: [u16; 2],
    source_port: u16,
    destination_port: u16,
    length: u16,
    udp_check: u16,
}

/// A TTL of 64, UDP.
const TTL_UDP: u16 = 0x4011u16.to_be();
const PROTOCOL: u16 = 17u16.to_be();
/// Bytes of the headers that count for the total length, and for that of UDP.
const HEADERS: u16 = 28;
const OWN_HEADER: u16 = 8;

/// Where each flow has gone.
#[btf_map]
static WAYS_UDP: Array<u64, { 1 << 16 }> = Array::new();

impl Datagram {
    #[inline(always)]
    fn ip_sum(&self) -> u16 {
        let ip = self.ip;
        let sum = word(ip[0]) + word(ip[1]) + word(ip[2]) + word(ip[3]);
        let sum = sum + word(self.ttl) + word(self.ip_check);
        fold(sum + pair(self.source) + pair(self.destination))
    }

    /// The sum of the pseudo header, the UDP header and the data.
    #[inline(always)]
    fn udp_sum(&self, flow: [u16; 2]) -> u16 {
        let sum = pair(self.source) + pair(self.destination) + word(PROTOCOL);
        let sum = sum + 2 * word(self.length) + word(self.udp_check);
        fold(sum + word(self.source_port) + word(self.destination_port) + pair(flow))
    }

    #[inline(always)]
    fn seal(&mut self, flow: [u16; 2]) {
        self.ip_check = 0;
        self.ip_check = !self.ip_sum();
        self.udp_check = 0;
        // 0 would be none.
        self.udp_check = match !self.udp_sum(flow) {
            0 => 0xffff,
            check => check,
        };
    }
}

impl Packet for Datagram {
    #[inline(always)]
    fn make(stream: &Stream, flow: u32) -> Self {
        let numbers = Numbers::of(stream, flow);
        let mut datagram = Self {
            macs: stream.macs,
            ethertype: IPV4,
            ip: [IP, (HEADERS + numbers.data).to_be(), 0, WHOLE],
            ttl: TTL_UDP,
            ip_check: 0,
            source: split(numbers.source),
            destination: split(numbers.destination),
            source_port: numbers.source_port,
            destination_port: numbers.destination_port,
            length: (OWN_HEADER + numbers.data).to_be(),
            udp_check: 0,
        };
        datagram.seal(numbers.flow);
        datagram
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
        self.udp_check != 0 && self.ip_sum() == 0xffff && self.udp_sum(flow) == 0xffff
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
        self.data() == 0
    }

    #[inline(always)]
    fn is_answer(&self) -> bool {
        self.data() == 0
    }

    #[inline(always)]
    fn turn(&mut self) {
        let [a, b, c, d, e, f] = self.macs;
        self.macs = [d, e, f, a, b, c];
        (self.source, self.destination) = (self.destination, self.source);
        (self.source_port, self.destination_port) = (self.destination_port, self.source_port);
        self.ttl = TTL_UDP;
        self.seal(NO_FLOW);
    }

    #[inline(always)]
    fn way(flow: u32) -> Option<*mut u64> {
        WAYS_UDP.get_ptr_mut(flow)
    }
}
