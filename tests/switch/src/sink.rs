//! The receiver of a stream: every segment is checked, and counted by what is wrong with it.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
    programs::XdpContext,
};

use crate::{
    frame::{header, redirect},
    generate::{FIRST_PORT, PORT_BITS, STREAM},
    segment::{self, Segment, WithData, join, split},
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
    /// 1 to answer segments that open a connection.
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
    /// The checksum of IP or of TCP.
    BadChecksum,
    /// A segment of another length.
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

/// Where each flow has gone: backend, SNAT address, SNAT port, 0 before its first segment.
#[btf_map]
static WAYS: Array<u64, { 1 << 20 }> = Array::new();

#[inline(always)]
fn count(came: Came) {
    if let Some(counter) = CAME.get_ptr_mut(came as u32) {
        // SAFETY: this CPU's own value of an array map.
        let value = unsafe { counter.read() };
        // SAFETY: as for the read.
        unsafe { counter.write(value + 1) };
    }
}

/// The segment in the frame, if it is one.
#[inline(always)]
fn segment(ctx: &XdpContext) -> Option<Segment> {
    let frame = header::<Segment>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned read needs nothing else.
    let segment = unsafe { frame.read_unaligned() };
    let is_segment = segment.ethertype == segment::IPV4
        && segment.ip[0] == segment::IP
        && segment.ttl.to_be() as u8 == segment::PROTOCOL.to_be() as u8;
    is_segment.then_some(segment)
}

/// The flow's number behind the headers, where there are so many bytes of data.
#[inline(always)]
fn flow(ctx: &XdpContext, data: u32) -> Option<[u16; 2]> {
    if data == 0 {
        return Some(segment::NO_FLOW);
    }
    let frame = header::<WithData>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned read needs nothing else.
    Some(unsafe { frame.read_unaligned() }.flow)
}

/// Whether both checksums are right.
#[inline(always)]
fn is_whole(segment: &Segment, flow: [u16; 2]) -> bool {
    segment.ip_sum() == 0xffff && segment.tcp_sum(flow) == 0xffff
}

/// Counts what the stream sends; nothing of what is not of a stream.
#[inline(always)]
pub(crate) fn sink(ctx: &XdpContext) -> Option<u32> {
    let mut segment = segment(ctx)?;
    let wanted = WANTED.get(0)?;
    if u16::from_be(segment.destination_port) as u32 != wanted.port {
        return None;
    }
    let came = judge(ctx, &segment, wanted);
    count(came);
    if !matches!(came, Came::Opening) || wanted.answers == 0 {
        return Some(xdp_action::XDP_DROP);
    }
    turn(&mut segment);
    let frame = header::<Segment>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned write needs nothing else.
    unsafe { frame.write_unaligned(segment) };
    // A veth does not wake a peer without a program for what is transmitted, but for what is redirected.
    Some(redirect(ctx.ingress_ifindex() as u32))
}

/// The same of a segment that has just been made, wherever it goes.
#[inline(always)]
pub(crate) fn check_own(ctx: &XdpContext) {
    let (Some(segment), Some(wanted)) = (segment(ctx), WANTED.get(0)) else {
        return count(Came::BadLength);
    };
    count(judge(ctx, &segment, wanted));
}

#[inline(always)]
fn judge(ctx: &XdpContext, segment: &Segment, wanted: &Wanted) -> Came {
    let Some(stream) = STREAM.get(0) else {
        return Came::BadFlow;
    };
    let data = u16::from_be(segment.ip[1]).wrapping_sub(segment::HEADERS) as u32;
    let Some(flow) = flow(ctx, data) else {
        return Came::BadLength;
    };
    if !is_whole(segment, flow) {
        return Came::BadChecksum;
    }
    let backend = (join(segment.destination) & 0xffff).wrapping_sub(wanted.backend);
    if backend >= wanted.backends {
        return Came::BadAddress;
    }
    if segment.flags == segment::SYN {
        return match data {
            0 => Came::Opening,
            _ => Came::BadLength,
        };
    }
    let headers = size_of::<Segment>() as u32;
    let length = (ctx.data_end() - ctx.data()) as u32;
    if data != stream.data || length != headers + data {
        return Came::BadLength;
    }
    let flow = join(flow);
    if flow.wrapping_sub(stream.first) >= stream.flows {
        return Came::BadFlow;
    }
    match wanted.follows != 0 && !follow(segment, flow) {
        true => Came::Moved,
        false => Came::Right,
    }
}

/// Whether a flow goes where it has gone before.
#[inline(always)]
fn follow(segment: &Segment, flow: u32) -> bool {
    let backend = join(segment.destination) as u64;
    let source = (join(segment.source) & 0xffff) as u64;
    let way = backend << 32 | source << 16 | u16::from_be(segment.source_port) as u64;
    let Some(place) = WAYS.get_ptr_mut(flow) else {
        return false;
    };
    // SAFETY: the value of an array map; flows come in on one CPU at a time.
    let before = unsafe { place.read() };
    // SAFETY: as for the read.
    unsafe { place.write(way) };
    before == 0 || before == way
}

/// Makes a SYN the SYN-ACK that answers it.
#[inline(always)]
fn turn(segment: &mut Segment) {
    let [a, b, c, d, e, f] = segment.macs;
    segment.macs = [d, e, f, a, b, c];
    (segment.source, segment.destination) = (segment.destination, segment.source);
    (segment.source_port, segment.destination_port) =
        (segment.destination_port, segment.source_port);
    segment.ttl = segment::TTL_TCP;
    segment.flags = segment::SYN_ACK;
    segment.acknowledged = split(join(segment.sequence).wrapping_add(1));
    segment.sequence = split(segment::BACKEND);
    segment.seal(segment::NO_FLOW);
}

/// Counts answers at the client; nothing of what is not one.
#[inline(always)]
pub(crate) fn back(ctx: &XdpContext) -> Option<u32> {
    let segment = segment(ctx)?;
    let (wanted, stream) = (WANTED.get(0)?, STREAM.get(0)?);
    if segment.flags != segment::SYN_ACK {
        return None;
    }
    let vip = join(segment.source).wrapping_sub(wanted.vip);
    let port = (u16::from_be(segment.source_port) as u32).wrapping_sub(stream.port);
    let client = join(segment.destination).wrapping_sub(stream.source);
    let number = (u16::from_be(segment.destination_port) as u32).wrapping_sub(FIRST_PORT);
    let flow = (client << PORT_BITS) + number;
    let came = if !is_whole(&segment, segment::NO_FLOW) {
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
