//! Where a backend's SYN-ACK has no room for a client's first segment, a copy of the frame has: a veth packs small frames,
//! and the kernel copies each into a page. A map of devices makes the copies, and a program in there the segment.
//!
//! The map has the NICs of backends, and one of them once more at its end: what it redirects to all of them is copied but for
//! the last one, which is the frame itself and has no room. A queue of the device has one program for all that one poll has sent
//! there, so frames of any kind come to it.

use aya_ebpf::{
    bindings::{BPF_F_BROADCAST, xdp_action},
    programs::XdpContext,
};
use lb_common::{
    addr::{Be16, Be32},
    late_binding::FirstSegment,
    verdict::Verdict,
    wire::{N32, Packet, Tag, header::Ethernet},
};
use network_types::eth::EtherType;

use super::{
    bind::snat_end,
    first_segment::{grow, write},
    slot::ClaimedSlot,
};
use crate::{
    flow::{entry::Entry, splice},
    frame::{vlan, xdp::Xdp},
    lookup::network_by_id,
    maps::{BACKENDS, CLONES},
};

/// The EtherType of a frame that is to be made a segment: one for experiments inside of a station (RFC 9542 section 3).
const CLONE: u16 = 0x88b5;
/// Where its words are.
const WORDS_AT: usize = size_of::<Ethernet>();
const WORD: usize = size_of::<N32>();

/// Sends a copy of the frame, for the flow with this id.
#[inline(always)]
pub(super) fn send(ctx: &XdpContext, flow_id: u32, segment: &FirstSegment) -> Option<Verdict> {
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    let words = [
        Be32::new(flow_id),
        Be32::new(segment.acknowledgment),
        segment.echo,
    ];
    let mut at = WORDS_AT;
    for word in words {
        let place: &N32 = xdp.header(at)?;
        place.set(word);
        at += WORD;
    }
    ethernet.ethertype.set(Be16::new(CLONE));
    let sent = CLONES.redirect(0, BPF_F_BROADCAST.into());
    (sent == Ok(xdp_action::XDP_REDIRECT)).then_some(Verdict::Forwarded)
}

/// `lb_emit`.
#[inline(always)]
pub(crate) fn emit(ctx: &XdpContext) -> u32 {
    let xdp = Xdp::new(ctx);
    let ethernet: Option<&Ethernet> = xdp.header(0);
    let is_clone = ethernet.is_some_and(|ethernet| ethernet.ethertype.get().get() == CLONE);
    match is_clone.then(|| first_segment(ctx)) {
        Some(None) => xdp_action::XDP_DROP,
        Some(Some(())) | None => xdp_action::XDP_PASS,
    }
}

/// Makes a copy the segment that it stands for, if it leaves by the NIC of its flow's backend.
#[inline(always)]
fn first_segment(ctx: &XdpContext) -> Option<()> {
    let xdp = Xdp::new(ctx);
    let word = |index: usize| -> Option<Be32> {
        let word: &N32 = xdp.header(WORDS_AT + index * WORD)?;
        Some(word.get())
    };
    let (flow_id, acknowledgment, echo) = (word(0)?.get(), word(1)?.get(), word(2)?);
    let entry = Entry::at(flow_id)?;
    let state = entry.word();
    let network = network_by_id(BACKENDS.get(entry.backend_id())?.network).ok()?;
    // SAFETY: a field of the context of the running program.
    let egress = unsafe { (*ctx.ctx).egress_ifindex };
    if egress != network.ifindex {
        return None;
    }
    let binding = *splice::bound(&entry, state)?;
    let key = entry.key(state);
    let mut slot = ClaimedSlot::claim(&key).ok()?;
    let head = slot.head();
    let is_kept = head.key == key
        && binding.sequence == head.number.wrapping_sub(acknowledgment.wrapping_sub(1));
    let written = if is_kept {
        grow(ctx, slot.head())
    } else {
        None
    };
    let written = written.and_then(|()| {
        let segment = FirstSegment {
            from: snat_end(&entry).ok()?,
            to: entry.backend(),
            acknowledgment,
            echo,
        };
        write(ctx, network, &entry, &segment, &mut slot)
    });
    slot.leave();
    written?;
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    ethernet
        .ethertype
        .set(Be16::from_raw(EtherType::Ipv4 as u16));
    if network.vlan != 0 {
        vlan::put_on(ctx, Tag::of(network.vlan)).ok()?;
    }
    Some(())
}
