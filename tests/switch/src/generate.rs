//! The sender of a stream: one valid packet after the other, of many flows.

use aya_ebpf::{btf_maps::Array, macros::btf_map, programs::XdpContext};

use crate::{
    frame::header,
    packet::{NO_FLOW, Packet, WithData, split},
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
    /// Bytes of data in a packet that does not open a connection.
    pub data: u32,
}

#[btf_map]
pub(crate) static STREAM: Array<Stream, 1> = Array::new();

/// How many packets were made.
#[btf_map]
static MADE: Array<u64, 1> = Array::new();

/// Writes the next packet; its flow.
#[inline(always)]
pub(crate) fn generate<P: Packet>(ctx: &XdpContext) -> Option<u32> {
    let stream = STREAM.get(0)?;
    let made = MADE.get_ptr_mut(0)?;
    // SAFETY: the value of an array map; one CPU makes packets, and nothing else writes.
    let number = unsafe { made.read() };
    // SAFETY: as for the read.
    unsafe { made.write(number + 1) };
    let place = (number * stream.step as u64).checked_rem(stream.flows as u64)?;
    let flow = stream.first + place as u32;
    let packet = P::make(stream, flow);
    let data = if stream.opens != 0 {
        NO_FLOW
    } else {
        split(flow)
    };
    let frame = header::<WithData<P>>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned write needs nothing else.
    unsafe { frame.write_unaligned(WithData { packet, flow: data }) };
    Some(flow)
}
