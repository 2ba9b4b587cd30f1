//! A TCP segment of a stream by IPv6. An address is known by its last 32 bits, which are those of an IPv4 address:
//! `10.N.x.y` is `fd00:0:0:N::10.N.x.y`.

use aya_ebpf::{btf_maps::Array, macros::btf_map};

use crate::{
    generate::Stream,
    packet::{NO_FLOW, Numbers, Packet, fold, join, pair, split, word},
    segment::{BACKEND, CLIENT, DATA, PROTOCOL, SYN, SYN_ACK},
};

/// Ethernet, IPv6 and TCP headers.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub(crate) struct Segment6 {
    /// Destination and source.
    macs: [u16; 6],
    ethertype: u16,
    /// Version, class and flow label.
    version: [u16; 2],
    length: u16,
    /// Next header and hop limit.
    next: u16,
    source: Address,
    destination: Address,
    source_port: u16,
    destination_port: u16,
    sequence: [u16; 2],
    acknowledged: [u16; 2],
    /// Header length and flags.
    flags: u16,
    window: u16,
    check: u16,
    urgent: u16,
}

type Address = [u16; 8];

const IPV6: u16 = 0x86ddu16.to_be();
const VERSION: [u16; 2] = [0x6000u16.to_be(), 0];
/// TCP, and a hop limit of 64.
const NEXT: u16 = 0x0640u16.to_be();
/// Bytes of the TCP header.
const HEADER: u16 = 20;
const PREFIX: u16 = 0xfd00u16.to_be();

/// Where each flow has gone.
#[btf_map]
static WAYS6: Array<u64, { 1 << 16 }> = Array::new();

#[inline(always)]
fn address(low: u32) -> Address {
    let [high, last] = split(low);
    let network = ((low >> 16) as u16 & 0xff).to_be();
    [PREFIX, 0, 0, network, 0, 0, high, last]
}

#[inline(always)]
fn low(address: Address) -> u32 {
    let [.., high, last] = address;
    join([high, last])
}

/// Whether an address is one of a stream's.
#[inline(always)]
fn is_ours(address: Address) -> bool {
    let [prefix, a, b, network, c, d, high, _] = address;
    let zeros = a | b | c | d == 0;
    zeros && prefix == PREFIX && network.to_be() == high.to_be() & 0xff
}

#[inline(always)]
fn sum(address: Address) -> u32 {
    let [a, b, c, d, e, f, g, h] = address;
    pair([a, b]) + pair([c, d]) + pair([e, f]) + pair([g, h])
}

impl Segment6 {
    #[inline(always)]
    fn tcp_sum(&self, flow: [u16; 2]) -> u16 {
        let addresses = sum(self.source) + sum(self.destination);
        let ports = word(self.source_port) + word(self.destination_port);
        let numbers = pair(self.sequence) + pair(self.acknowledged);
        let rest = word(self.flags) + word(self.window) + word(self.check) + word(self.urgent);
        let sum = addresses + word(self.length) + word(PROTOCOL) + ports + numbers + rest;
        fold(sum + pair(flow))
    }

    #[inline(always)]
    fn seal(&mut self, flow: [u16; 2]) {
        self.check = 0;
        self.check = !self.tcp_sum(flow);
    }
}

impl Packet for Segment6 {
    #[inline(always)]
    fn make(stream: &Stream, flow: u32) -> Self {
        let opens = stream.opens != 0;
        let numbers = Numbers::of(stream, flow);
        let mut segment = Self {
            macs: stream.macs,
            ethertype: IPV6,
            version: VERSION,
            length: (HEADER + numbers.data).to_be(),
            next: NEXT,
            source: address(numbers.source),
            destination: address(numbers.destination),
            source_port: numbers.source_port,
            destination_port: numbers.destination_port,
            sequence: split(CLIENT + u32::from(!opens)),
            acknowledged: split(if opens { 0 } else { BACKEND + 1 }),
            flags: if opens { SYN } else { DATA },
            window: 0xffff,
            check: 0,
            urgent: 0,
        };
        segment.seal(numbers.flow);
        segment
    }

    #[inline(always)]
    fn is_one(&self) -> bool {
        self.ethertype == IPV6
            && self.version[0] == VERSION[0]
            && (self.next.to_be() >> 8) == PROTOCOL.to_be()
    }

    #[inline(always)]
    fn data(&self) -> u32 {
        u16::from_be(self.length).wrapping_sub(HEADER) as u32
    }

    /// An address with another prefix is as wrong as a checksum.
    #[inline(always)]
    fn is_whole(&self, flow: [u16; 2]) -> bool {
        self.tcp_sum(flow) == 0xffff && is_ours(self.source) && is_ours(self.destination)
    }

    #[inline(always)]
    fn addresses(&self) -> [u32; 2] {
        [low(self.source), low(self.destination)]
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

    #[inline(always)]
    fn turn(&mut self) {
        let [a, b, c, d, e, f] = self.macs;
        self.macs = [d, e, f, a, b, c];
        (self.source, self.destination) = (self.destination, self.source);
        (self.source_port, self.destination_port) = (self.destination_port, self.source_port);
        self.next = NEXT;
        self.flags = SYN_ACK;
        self.acknowledged = split(join(self.sequence).wrapping_add(1));
        self.sequence = split(BACKEND);
        self.seal(NO_FLOW);
    }

    #[inline(always)]
    fn way(flow: u32) -> Option<*mut u64> {
        WAYS6.get_ptr_mut(flow)
    }
}
