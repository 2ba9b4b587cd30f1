//! What a stream needs of its packets, of whatever protocol: to make one, and to tell a right one.

use crate::generate::Stream;

/// The headers of a packet of a stream, in words of 16 bits in network order, and nothing behind them but a flow's number
/// and zeros. A kernel takes off what fills a short frame up, so there may be nothing behind headers without data.
pub(crate) trait Packet: Copy {
    /// One of this flow, with both checksums.
    fn make(stream: &Stream, flow: u32) -> Self;

    /// Whether headers are of this kind.
    fn is_one(&self) -> bool;

    /// Bytes of data, by the length in the headers.
    fn data(&self) -> u32;

    /// Whether all checksums are right, with this flow's number as data.
    fn is_whole(&self, flow: [u16; 2]) -> bool;

    /// Source and destination; of IPv6 addresses the last word, see [`crate::segment6`].
    fn addresses(&self) -> [u32; 2];

    /// Ports of source and destination.
    fn ports(&self) -> [u16; 2];

    /// Whether it is the first of a flow.
    fn opens(&self) -> bool;

    /// Whether it is what a first packet is answered by.
    fn is_answer(&self) -> bool;

    /// Makes the first packet of a flow the answer to it.
    fn turn(&mut self);

    /// Where the flow has gone before, 0 if it has not: backend, SNAT address, SNAT port.
    fn way(flow: u32) -> Option<*mut u64>;
}

/// A packet with data, which begins with the flow's number.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub(crate) struct WithData<P> {
    pub(crate) packet: P,
    pub(crate) flow: [u16; 2],
}

/// In a packet without data.
pub(crate) const NO_FLOW: [u16; 2] = [0; 2];

/// A packet's flow, in the numbers that both ends know it by.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// Bytes of data, of which the flow's number are the first.
    pub(crate) data: u16,
    pub(crate) flow: [u16; 2],
}

impl Numbers {
    #[inline(always)]
    pub(crate) fn of(stream: &Stream, flow: u32) -> Self {
        let opens = stream.opens != 0;
        Self {
            source: stream.source + (flow >> PORT_BITS),
            destination: stream.destination + (flow & stream.spread),
            source_port: ((FIRST_PORT + (flow & ((1 << PORT_BITS) - 1))) as u16).to_be(),
            destination_port: ((stream.port + (flow & stream.ports)) as u16).to_be(),
            data: if opens { 0 } else { stream.data as u16 },
            flow: if opens { NO_FLOW } else { split(flow) },
        }
    }
}

/// Ports of a client, from [`FIRST_PORT`] on, as a power of two.
pub(crate) const PORT_BITS: u32 = 15;
pub(crate) const FIRST_PORT: u32 = 1024;

#[inline(always)]
pub(crate) fn word(word: u16) -> u32 {
    word as u32
}

#[inline(always)]
pub(crate) fn pair(words: [u16; 2]) -> u32 {
    words[0] as u32 + words[1] as u32
}

/// The ones' complement sum in 16 bits (RFC 1071): it is the same in either byte order.
#[inline(always)]
pub(crate) fn fold(sum: u32) -> u16 {
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
