//! The sender of a stream: one valid TCP segment after the other, of many flows.

use aya_ebpf::{btf_maps::Array, macros::btf_map, programs::XdpContext};

use crate::{
    frame::header,
    segment::{self, Segment, WithData, split},
};

/// What is sent. Everything in host order but the MAC addresses.
#[repr(C)]
pub struct Stream {
    /// Destination and source, in the order of the frame.
    pub macs: [u16; 6],
    /// The first client's address; each has `1 << PORT_BITS` ports.
    pub source: u32,
    /// The first address that is sent to.
    pub destination: u32,
    /// Bits of a flow's number that say to which address, from the first one on.
    pub spread: u32,
    /// The first port that is sent to.
    pub port: u32,
    /// Bits of a flow's number that say to which port, from the first one on.
    pub ports: u32,
    /// The first flow of the stream, and how many there are.
    pub first: u32,
    pub flows: u32,
    /// From one flow to the next: 1, or a prime number for some other order.
    pub step: u32,
    /// 1 to open connections, 0 to send data.
    pub opens: u32,
    /// Bytes of data in a segment that does not open a connection.
    pub data: u32,
}

/// Ports of a client, from [`FIRST_PORT`] on, as a power of two.
pub(crate) const PORT_BITS: u32 = 15;
pub(crate) const FIRST_PORT: u32 = 1024;

#[btf_map]
pub(crate) static STREAM: Array<Stream, 1> = Array::new();

/// How many segments were made.
#[btf_map]
static MADE: Array<u64, 1> = Array::new();

/// Writes the next segment; its flow.
#[inline(always)]
pub(crate) fn generate(ctx: &XdpContext) -> Option<u32> {
    let stream = STREAM.get(0)?;
    let made = MADE.get_ptr_mut(0)?;
    // SAFETY: the value of an array map; one CPU makes segments, and nothing else writes.
    let number = unsafe { made.read() };
    // SAFETY: as for the read.
    unsafe { made.write(number + 1) };
    let place = (number * stream.step as u64).checked_rem(stream.flows as u64)?;
    let flow = stream.first + place as u32;
    write(ctx, stream, flow)?;
    Some(flow)
}

#[inline(always)]
fn write(ctx: &XdpContext, stream: &Stream, flow: u32) -> Option<()> {
    let opens = stream.opens != 0;
    let (data, flags) = if opens {
        (0, segment::SYN)
    } else {
        (stream.data as u16, segment::DATA)
    };
    let acknowledged = if opens { 0 } else { segment::BACKEND + 1 };
    let mut segment = Segment {
        macs: stream.macs,
        ethertype: segment::IPV4,
        ip: [
            segment::IP,
            (segment::HEADERS + data).to_be(),
            0,
            segment::WHOLE,
        ],
        ttl: segment::TTL_TCP,
        ip_check: 0,
        source: split(stream.source + (flow >> PORT_BITS)),
        destination: split(stream.destination + (flow & stream.spread)),
        source_port: ((FIRST_PORT + (flow & ((1 << PORT_BITS) - 1))) as u16).to_be(),
        destination_port: ((stream.port + (flow & stream.ports)) as u16).to_be(),
        sequence: split(segment::CLIENT + u32::from(!opens)),
        acknowledged: split(acknowledged),
        flags,
        window: 0xffff,
        tcp_check: 0,
        urgent: 0,
    };
    let flow = if opens { segment::NO_FLOW } else { split(flow) };
    segment.seal(flow);
    let frame = header::<WithData>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned write needs nothing else.
    unsafe { frame.write_unaligned(WithData { segment, flow }) };
    Some(())
}
