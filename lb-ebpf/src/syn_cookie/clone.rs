//! Where a backend's SYN-ACK has no room for a client's hello, a copy of the frame has: a veth packs small frames,
//! and the kernel copies each into a page. A map of devices makes the copies, and a program in there the segments: both, of
//! a hello that came in two.
//!
//! The map has the NICs of backends, each twice, and one of them once more at its end: what it redirects to all of them is
//! copied but for the last one, which is the frame itself and has no room. A queue of the device has the program of its first frame
//! for all that one poll has sent there, so all other frames leave by a map with the same program (`emit`), and come to it as well; and a
//! slot says which segment the next copy becomes.

use aya_ebpf::{
    bindings::{BPF_F_BROADCAST, xdp_action},
    programs::XdpContext,
};
use lb_common::{
    addr::{Be16, Be32},
    late_binding::HelloSegment,
    maps::{hello::HelloPart, network::Network},
    verdict::Verdict,
    wire::{N32, Packet, Tag, header::Ethernet},
};
use network_types::eth::EtherType;

use super::{
    backend_syn::snat_end,
    hello_segment::{resize, write},
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

/// Sends copies of the frame for the flow with this id, which become the next segments of its hello, as its slot says. They have the
/// two words, which are what they acknowledge and echo.
#[inline(always)]
pub(super) fn send(ctx: &XdpContext, flow_id: u32, words: [Be32; 2]) -> Option<Verdict> {
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    let [acknowledgment, echo] = words;
    let mut at = WORDS_AT;
    for word in [Be32::new(flow_id), acknowledgment, echo] {
        let place: &N32 = xdp.header(at)?;
        place.set(word);
        at += WORD;
    }
    ethernet.ethertype.set(Be16::new(CLONE));
    let sent = CLONES.redirect(0, BPF_F_BROADCAST.into());
    (sent == Ok(xdp_action::XDP_REDIRECT)).then_some(Verdict::Forwarded)
}

/// Whether frames are copied: only where services need it.
#[inline(always)]
pub(super) fn is_possible() -> bool {
    CLONES.get_ifindex(0).is_some()
}

/// `lb_emit`.
#[inline(always)]
pub(crate) fn emit(ctx: &XdpContext) -> u32 {
    let xdp = Xdp::new(ctx);
    let ethernet: Option<&Ethernet> = xdp.header(0);
    let is_clone = ethernet.is_some_and(|ethernet| ethernet.ethertype.get().get() == CLONE);
    match is_clone.then(|| segment(ctx)) {
        Some(None) => xdp_action::XDP_DROP,
        Some(Some(())) | None => xdp_action::XDP_PASS,
    }
}

/// Makes a copy the next segment of its flow, if it leaves by the NIC of that one's backend.
#[inline(always)]
fn segment(ctx: &XdpContext) -> Option<()> {
    let xdp = Xdp::new(ctx);
    let word = |index: usize| -> Option<Be32> {
        let word: &N32 = xdp.header(WORDS_AT + index * WORD)?;
        Some(word.get())
    };
    let (flow_id, acknowledgment, echo) = (word(0)?.get(), word(1)?, word(2)?);
    let entry = Entry::at(flow_id)?;
    let network = network_by_id(BACKENDS.get(entry.backend_id())?.network).ok()?;
    // SAFETY: a field of the context of the running program.
    let egress = unsafe { (*ctx.ctx).egress_ifindex };
    if egress != network.ifindex {
        return None;
    }
    let key = entry.key(entry.word());
    let mut slot = ClaimedSlot::claim(&key).ok()?;
    let written = hello(ctx, network, &entry, [acknowledgment, echo], &mut slot);
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

/// The next segment of a hello, for a backend in this network.
#[inline(always)]
fn hello(
    ctx: &XdpContext,
    network: &Network,
    entry: &Entry,
    [acknowledgment, echo]: [Be32; 2],
    slot: &mut ClaimedSlot,
) -> Option<()> {
    let state = entry.word();
    let binding = *splice::bound(entry, state)?;
    let head = slot.head();
    let number = acknowledgment.get().wrapping_sub(1);
    let is_kept =
        head.key == entry.key(state) && binding.sequence == head.number.wrapping_sub(number);
    if !is_kept {
        return None;
    }
    let segment = HelloSegment {
        from: snat_end(entry).ok()?,
        to: entry.backend(),
        acknowledgment: acknowledgment.get(),
        echo,
        part: next(slot)?,
    };
    let (bytes, _) = segment.frame_bytes(slot.head());
    resize(ctx, bytes)?;
    write(ctx, network, entry, &segment, slot)
}

/// What the next copy of a frame becomes; `None` if there is to be none.
#[inline(always)]
fn next(slot: &mut ClaimedSlot) -> Option<HelloPart> {
    let [next, end] = *slot.copies();
    if next >= end {
        return None;
    }
    *slot.copies() = [next + 1, end];
    Some(HelloPart::of(next))
}
