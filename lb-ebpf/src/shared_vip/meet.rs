//! The backend of a bound flow answers: its SYN-ACK becomes the client's first segment.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    conntrack::FlowState,
    late_binding::{End, FirstSegment, has_agreed, is_taken},
    maps::{
        hello::{HELLO_IN_PART, HelloHead},
        splice::Binding,
    },
    syn_cookie::offer::SynOptions,
    verdict::{
        DropReason, HELLO_BOUND, HELLO_DISAGREED, HELLO_REPEATED, HELLO_UNANSWERED, Verdict,
    },
    wire::{
        L4,
        header::{ACK, RST, SYN},
        parse_ipv4,
    },
};

use super::{
    bind::snat_end,
    clone,
    first_segment::{grow, write},
    slot::ClaimedSlot,
    syn::lb_offer,
};
use crate::{
    count, emit,
    flow::{backend_answers, entry::Entry, half_open, index, snat::release, splice, traffic},
    frame::xdp::Xdp,
    lookup::NetworkRef,
    subprogram::{Outcome, SynBits},
};

/// A segment of its backend in the network `id` for the flow with this id, which is to be bound: how it ended, as
/// [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_meet(ctx: *mut xdp_md, id: u32, flow_id: u32) -> u32 {
    Outcome::of(answer(&XdpContext::new(ctx), id as u16, flow_id)).raw()
}

#[inline(always)]
fn answer(ctx: &XdpContext, id: u16, flow_id: u32) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    let options = SynBits::from_raw(lb_offer(ctx.ctx, network.mss.into())).options();
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let (flags, number) = (tcp.flags.get(), tcp.sequence.get().get());
    let acknowledged = tcp.acknowledgment.get().get();
    let from = snat_end(&entry)?;
    let held = HeldFlow::hold(entry)?;
    let (_, asked) = entry.acks();
    let is_answer = flags & ACK != 0 && acknowledged == asked;
    match (flags & (SYN | RST), options) {
        (SYN, Some(options)) if is_answer => {
            let said = Said {
                from,
                number,
                options,
            };
            meet(ctx, &network, held, said)
        }
        (RST, _) if is_answer => {
            backend_answers::refused(&entry);
            held.give_up(HELLO_UNANSWERED);
            Err(DropReason::RefusedByBackend)
        }
        // Nothing that the flow has to do with.
        (RST, _) => {
            held.let_go();
            Err(DropReason::ReplyUnexpected)
        }
        // Of an earlier connection from this port, that the backend has not forgotten: it gets a reset.
        _ => {
            held.give_up(HELLO_UNANSWERED);
            Err(DropReason::NoFlow)
        }
    }
}

/// A flow that is to be bound, and that no other CPU changes meanwhile.
struct HeldFlow {
    entry: Entry,
    /// Its word before, and now.
    before: FlowState,
    word: FlowState,
    binding: Binding,
}

impl HeldFlow {
    #[inline(always)]
    fn hold(entry: Entry) -> Result<Self, DropReason> {
        let before = entry.word();
        let word = before.hold();
        let binding = *splice::bound(&entry, before).ok_or(DropReason::RecordMissing)?;
        let is_free = before.is_binding() && !before.is_held();
        match is_free && entry.swap(before, word) {
            true => Ok(Self {
                entry,
                before,
                word,
                binding,
            }),
            false => Err(DropReason::FlowRace),
        }
    }

    /// As it was.
    #[inline(always)]
    fn let_go(self) {
        let _is_back = self.entry.swap(self.word, self.before);
    }

    /// Whether a hello is the one that has opened it.
    #[inline(always)]
    fn is_of(&self, head: &HelloHead) -> bool {
        let (_, asked) = self.entry.acks();
        head.flags & HELLO_IN_PART == 0
            && head.number == self.binding.sequence
            && head.isn.wrapping_add(1) == asked
            && head.key == self.entry.key(self.word)
    }

    /// Ends it, and gives userspace its hello, which goes on from there.
    #[inline(always)]
    fn give_up(self, note: u32) {
        let key = self.entry.key(self.word);
        if !half_open::end(&self.entry, self.word, self.word.close()) {
            return;
        }
        index::remove_closed(&key);
        count::note(key.network, note);
        if let Ok(mut slot) = ClaimedSlot::claim(&key) {
            let head = slot.head();
            let [length, _] = head.lengths;
            if self.is_of(head) {
                // Or its client sends it again.
                let _is_given = slot.submit(length.into());
            }
            slot.leave();
        }
        release(self.entry.id);
    }

    /// The backend has answered: its word is that of a flow then.
    #[inline(always)]
    fn meet(&self, said: &Said) -> Result<(), DropReason> {
        let Said {
            number, options, ..
        } = *said;
        let time = options.time.unwrap_or_default().get();
        let scale = options.offer.scale.unwrap_or(0);
        splice::bind(&self.entry, self.binding.answered(number, time, scale));
        self.entry.set_ack_request(number.wrapping_add(1));
        self.entry.touch_reply();
        if !self.entry.swap(self.word, self.word.meet()) {
            return Err(DropReason::FlowRace);
        }
        backend_answers::answered(self.entry.backend_id());
        traffic::lb_bound(self.entry.id);
        count::note(self.entry.owners().0, HELLO_BOUND);
        Ok(())
    }
}

/// What a backend's SYN-ACK has, and what it is sent by.
#[derive(Clone, Copy)]
struct Said {
    from: End,
    number: u32,
    options: SynOptions,
}

#[inline(always)]
fn meet(
    ctx: &XdpContext,
    network: &NetworkRef,
    held: HeldFlow,
    said: Said,
) -> Result<Verdict, DropReason> {
    if !has_agreed(&held.binding, said.options) {
        held.give_up(HELLO_DISAGREED);
        return Err(DropReason::NoFlow);
    }
    let key = held.entry.key(held.word);
    let segment = FirstSegment {
        from: said.from,
        to: held.entry.backend(),
        acknowledgment: said.number.wrapping_add(1),
        echo: said.options.time.unwrap_or_default(),
    };
    let Ok(mut slot) = ClaimedSlot::claim(&key) else {
        // Another hello is being written there.
        held.meet(&said)?;
        return Ok(repeated(key.network));
    };
    let is_kept = held.is_of(slot.head());
    if is_kept && !is_taken(slot.head(), said.options) {
        slot.leave();
        held.give_up(HELLO_DISAGREED);
        return Err(DropReason::NoFlow);
    }
    let sent = held.meet(&said).map(|()| match is_kept {
        true => send(ctx, network, &held.entry, &segment, &mut slot),
        false => None,
    });
    slot.leave();
    sent?.unwrap_or_else(|| Ok(repeated(key.network)))
}

/// What the client sends again goes by the flow.
#[inline(always)]
fn repeated(network: u16) -> Verdict {
    count::note(network, HELLO_REPEATED);
    Verdict::Consumed
}

/// Makes the frame the client's first segment, and sends it back; or, where it has no room for that, a copy that has.
/// `None` if there is none.
#[inline(always)]
fn send(
    ctx: &XdpContext,
    network: &NetworkRef,
    entry: &Entry,
    segment: &FirstSegment,
    slot: &mut ClaimedSlot,
) -> Option<Result<Verdict, DropReason>> {
    match grow(ctx, slot.head()) {
        Some(()) => {
            write(ctx, network, entry, segment, slot)?;
            Some(emit::back(ctx, network))
        }
        None => clone::send(ctx, entry.id, segment).map(Ok),
    }
}
