//! The receiver of a stream: every packet is checked, and counted by what is wrong with it.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
    programs::XdpContext,
};

use crate::{
    frame::{header, redirect},
    generate::STREAM,
    packet::{FIRST_PORT, NO_FLOW, PORT_BITS, Packet, WithData, join},
};

/// What is expected. Everything in host order.
#[repr(C)]
pub struct Wanted {
    /// The first backend's address, less its network's bits, and how many there are.
    backend: u32,
    backends: u32,
    /// Where they listen.
    port: u32,
    /// The address that clients have to hear from, and how many there are.
    vip: u32,
    vips: u32,
    /// 1 to answer packets that open a connection.
    answers: u32,
    /// 1 to follow where each flow goes.
    follows: u32,
}

#[btf_map]
static WANTED: Array<Wanted, 1> = Array::new();

/// What came.
#[repr(u32)]
#[derive(Clone, Copy)]
enum Came {
    Right,
    /// Opens a connection.
    Opening,
    /// An answer, at the client.
    Answer,
    /// A checksum.
    BadChecksum,
    /// A packet of another length.
    BadLength,
    /// Not the address or port of a backend, or in an answer not that of the VIP or of a client.
    BadAddress,
    /// No flow of the stream.
    BadFlow,
    /// A flow that has moved to another backend or source.
    Moved,
}

/// How many of each.
#[btf_map]
static CAME: PerCpuArray<u64, 8> = PerCpuArray::new();

#[inline(always)]
fn count(came: Came) {
    if let Some(counter) = CAME.get_ptr_mut(came as u32) {
        // SAFETY: this CPU's own value of an array map.
        let value = unsafe { counter.read() };
        // SAFETY: as for the read.
        unsafe { counter.write(value + 1) };
    }
}

/// The packet in the frame, if it is one of this kind.
#[expect(
    clippy::mut_from_ref,
    reason = "the memory is the frame's, and none of the context's"
)]
#[inline(always)]
fn packet<P: Packet>(ctx: &XdpContext) -> Option<&mut P> {
    let frame = header::<P>(ctx)?;
    // SAFETY: `header` checked the bounds, packets have an alignment of two, as frames have, and each look into a frame is
    // over before the next one.
    let packet = unsafe { &mut *frame };
    packet.is_one().then_some(packet)
}

/// The flow's number behind the headers, where there are so many bytes of data.
#[inline(always)]
fn flow<P: Packet>(ctx: &XdpContext, data: u32) -> Option<[u16; 2]> {
    if data == 0 {
        return Some(NO_FLOW);
    }
    let frame = header::<WithData<P>>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned read needs nothing else.
    Some(unsafe { frame.read_unaligned() }.flow)
}

/// Counts what the stream sends; nothing of what is not of a stream of this kind.
#[inline(always)]
pub(crate) fn sink<P: Packet>(ctx: &XdpContext) -> Option<u32> {
    let packet = packet::<P>(ctx)?;
    let wanted = WANTED.get(0)?;
    let [_, port] = packet.ports();
    if port as u32 != wanted.port {
        return None;
    }
    let came = judge(ctx, packet, wanted);
    count(came);
    if !matches!(came, Came::Opening) || wanted.answers == 0 {
        return Some(xdp_action::XDP_DROP);
    }
    packet.turn();
    // A veth does not wake a peer without a program for what is transmitted, but for what is redirected.
    Some(redirect(ctx.ingress_ifindex() as u32))
}

/// The same of a packet that has just been made, wherever it goes.
#[inline(always)]
pub(crate) fn check_own<P: Packet>(ctx: &XdpContext) {
    let (Some(packet), Some(wanted)) = (packet::<P>(ctx), WANTED.get(0)) else {
        return count(Came::BadLength);
    };
    count(judge(ctx, packet, wanted));
}

#[inline(always)]
fn judge<P: Packet>(ctx: &XdpContext, packet: &P, wanted: &Wanted) -> Came {
    let Some(stream) = STREAM.get(0) else {
        return Came::BadFlow;
    };
    let data = packet.data();
    let Some(flow) = flow::<P>(ctx, data) else {
        return Came::BadLength;
    };
    if !packet.is_whole(flow) {
        return Came::BadChecksum;
    }
    let [_, destination] = packet.addresses();
    if (destination & 0xffff).wrapping_sub(wanted.backend) >= wanted.backends {
        return Came::BadAddress;
    }
    if packet.opens() {
        return match data {
            0 => Came::Opening,
            _ => Came::BadLength,
        };
    }
    let headers = size_of::<P>() as u32;
    let length = (ctx.data_end() - ctx.data()) as u32;
    if data != stream.data || length != headers + data {
        return Came::BadLength;
    }
    let flow = join(flow);
    if flow.wrapping_sub(stream.first) >= stream.flows {
        return Came::BadFlow;
    }
    match wanted.follows != 0 && !follow(packet, flow) {
        true => Came::Moved,
        false => Came::Right,
    }
}

/// Whether a flow goes where it has gone before.
#[inline(always)]
fn follow<P: Packet>(packet: &P, flow: u32) -> bool {
    let [source, backend] = packet.addresses();
    let [port, _] = packet.ports();
    let way = (backend as u64) << 32 | ((source & 0xffff) as u64) << 16 | port as u64;
    let Some(place) = P::way(flow) else {
        return false;
    };
    // SAFETY: the value of an array map; flows come in on one CPU at a time.
    let before = unsafe { place.read() };
    // SAFETY: as for the read.
    unsafe { place.write(way) };
    before == 0 || before == way
}

/// Counts answers at the client; nothing of what is not one of this kind.
#[inline(always)]
pub(crate) fn back<P: Packet>(ctx: &XdpContext) -> Option<u32> {
    let packet = packet::<P>(ctx)?;
    let (wanted, stream) = (WANTED.get(0)?, STREAM.get(0)?);
    if !packet.is_answer() {
        return None;
    }
    let [source, destination] = packet.addresses();
    let [source_port, destination_port] = packet.ports();
    let vip = source.wrapping_sub(wanted.vip);
    let port = (source_port as u32).wrapping_sub(stream.port);
    let client = destination.wrapping_sub(stream.source);
    let number = (destination_port as u32).wrapping_sub(FIRST_PORT);
    let flow = (client << PORT_BITS) + number;
    let came = if !packet.is_whole(NO_FLOW) {
        Came::BadChecksum
    } else if vip >= wanted.vips || port > stream.ports {
        Came::BadAddress
    } else if flow.wrapping_sub(stream.first) >= stream.flows {
        Came::BadFlow
    } else {
        Came::Answer
    };
    count(came);
    Some(xdp_action::XDP_DROP)
}
