//! Where frames are not copied, a backend gets the second segment of a hello when it has acknowledged the first one: its ACK
//! becomes that segment.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be32,
    late_binding::HelloSegment,
    maps::hello::HelloPart,
    verdict::{DropReason, Verdict},
    wire::{
        L4,
        header::{ACK, FIN, RST, SYN},
        parse_ipv4,
    },
};

use super::{backend_syn::snat_end, hello::lb_times, meet, slot::ClaimedSlot};
use crate::{
    flow::{entry::Entry, splice},
    frame::xdp::Xdp,
    lookup::network_by_id,
    maps::BACKENDS,
    subprogram::{Outcome, TimesBits},
};

/// A segment of its backend for the flow with this id, which is to be sent the rest of its hello: how it ended, as [`Outcome`];
/// [`Outcome::FOR_REST`] if the segment is the client's all the same. What comes behind it is the client's in any case. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_rest(ctx: *mut xdp_md, flow_id: u32) -> u32 {
    match rest(&XdpContext::new(ctx), flow_id) {
        Some(end) => Outcome::of(end).raw(),
        None => Outcome::FOR_REST.raw(),
    }
}

#[inline(always)]
fn rest(ctx: &XdpContext, flow_id: u32) -> Option<Result<Verdict, DropReason>> {
    let entry = Entry::at(flow_id)?;
    let word = entry.word();
    let key = entry.key(word);
    let binding = *splice::bound(&entry, word)?;
    splice::bind(&entry, binding.without_rest());
    let backend = BACKENDS.get(entry.backend_id())?;
    let network = network_by_id(backend.network).ok()?;
    let times = TimesBits::from_raw(lb_times(ctx.ctx)).times();
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4()?;
    let frame = parse_ipv4(&xdp, ethernet, ip).ok()?;
    let L4::Tcp(tcp) = frame.l4 else {
        return None;
    };
    let sequence = tcp.sequence.get().get();
    let number = sequence.wrapping_add(binding.sequence).wrapping_sub(1);
    let acknowledged = tcp.acknowledgment.get().get();
    let segment = HelloSegment {
        from: snat_end(&entry).ok()?,
        to: entry.backend(),
        acknowledgment: sequence,
        echo: Be32::new(times.map_or(0, |times| times.value)),
        part: HelloPart::Second,
    };
    if frame.payload != 0 || tcp.flags.get() & (SYN | FIN | RST | ACK) != ACK {
        return None;
    }
    let mut slot = ClaimedSlot::claim(&key).ok()?;
    let head = slot.head();
    let behind_first = head.number_of(HelloPart::Second);
    let is_due = head.key == key
        && head.number == number
        && head.is_in_two()
        && acknowledged == behind_first;
    let sent = if is_due {
        meet::send(ctx, network, &entry, &segment, &mut slot)
    } else {
        None
    };
    slot.leave();
    sent
}
