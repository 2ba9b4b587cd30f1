//! The backend of a bound flow answers: its SYN-ACK becomes the client's hello. Or it becomes the header that this backend gets in
//! front of it; then the ACK of that becomes the hello, and nothing of the backend comes to the client before.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be32,
    conntrack::FlowState,
    late_binding::{End, HelloSegment, has_agreed, is_taken},
    maps::{
        flow::FlowKey,
        hello::{HelloHead, HelloPart},
        network::{NETWORK_AT_ONCE, Network},
        splice::{BOUND_HAS_SCALE, BOUND_HAS_TIMES, Binding},
        vip_offer::{VipOffer, taken},
    },
    syn_cookie::offer::{SynOffer, SynOptions},
    verdict::{
        DropReason, HELLO_BOUND, HELLO_DISAGREED, HELLO_REPEATED, HELLO_UNANSWERED, Verdict,
    },
    wire::{
        L4,
        header::{ACK, FIN, RST, SYN},
        parse_ipv4,
    },
};

use super::{
    backend_syn::{awaited, is_of, snat_end},
    clone,
    hello::lb_times,
    hello_segment::{resize, write},
    refusal::ClientReset,
    slot::ClaimedSlot,
    syn::lb_offer,
    vip_offer::lb_lower_offer,
};
use crate::{
    count, counts, emit,
    flow::{
        backend_answers, budget,
        entry::{Entry, now},
        half_open, index,
        snat::release,
        splice, traffic,
    },
    frame::xdp::Xdp,
    lookup::NetworkRef,
    subprogram::{Outcome, SynBits, TimesBits},
};

/// A segment of its backend in the network `id` for the flow with this id, which is to be bound: how it ended, as
/// [`Outcome`], which may be to [go on](Outcome::go_on). A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_meet(ctx: *mut xdp_md, id: u32, flow_id: u32) -> u32 {
    Outcome::of_step(answer(&XdpContext::new(ctx), id as u16, flow_id)).raw()
}

#[inline(always)]
fn answer(ctx: &XdpContext, id: u16, flow_id: u32) -> Result<Outcome, DropReason> {
    let network = NetworkRef::of(id)?;
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    let offer = SynBits::from_raw(lb_offer(ctx.ctx, network.mss.into()));
    let times = TimesBits::from_raw(lb_times(ctx.ctx)).times();
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let (flags, number) = (tcp.flags.get(), tcp.sequence.get().get());
    let acknowledged = tcp.acknowledgment.get().get();
    let from = snat_end(&entry)?;
    let (_, asked) = entry.acks();
    if flags & RST != 0 {
        let is_refusal = flags & ACK != 0 && acknowledged == awaited(&entry, entry.word());
        return match is_refusal {
            true => Ok(refused(&entry)),
            // Nothing that the flow has to do with.
            false => Err(DropReason::ReplyUnexpected),
        };
    }
    let held = HeldFlow::hold(entry)?;
    let answer = held.answer(flags, asked.wrapping_sub(acknowledged), frame.payload);
    // Not before: what only some ways have is not kept over others.
    match (answer, offer.options()) {
        (Answer::Syn | Answer::WithoutHeader | Answer::WithHeader, Some(options)) => {
            let said = Said {
                from,
                number,
                options,
                echo: times.map_or(0, |times| times.echo),
                answer,
            };
            meet(ctx, &network, held, said)
        }
        (Answer::Early, _) => {
            held.release();
            Ok(Outcome::of(Ok(Verdict::Consumed)))
        }
        // It has the SYN, and answers a copy of it: its SYN-ACK comes again.
        _ if held.binding.is_plain() && acknowledged == asked => {
            held.release();
            Ok(Outcome::of(Ok(Verdict::Consumed)))
        }
        // Of an earlier connection from this port, that the backend has not forgotten; or the backend does not like the
        // header: it gets a reset, behind which it takes a SYN.
        _ if held.binding.is_plain() => {
            held.release();
            Err(DropReason::NoFlow)
        }
        _ => {
            held.give_up(HELLO_UNANSWERED);
            Err(DropReason::NoFlow)
        }
    }
}

/// What a segment of its backend is for a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The SYN-ACK.
    Syn,
    /// An ACK of a backend that has none of its header.
    WithoutHeader,
    /// That of one that has it. What else is in there the backend repeats.
    WithHeader,
    /// What a backend says before, and repeats.
    Early,
    /// None.
    None,
}

/// The flow goes to another backend, or its client's hello to userspace.
#[inline(always)]
fn refused(entry: &Entry) -> Outcome {
    backend_answers::refused(entry);
    entry.set_attempt(entry.attempt().refused());
    Outcome::go_on(entry.id)
}

/// A flow that is to be bound, and that no other CPU changes meanwhile.
struct HeldFlow {
    entry: Entry,
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
                word,
                binding,
            }),
            false => Err(DropReason::FlowRace),
        }
    }

    /// What a segment with these flags is, that acknowledges all that the backend gets in front of the hello but for so many
    /// bytes, and has so many itself.
    #[inline(always)]
    fn answer(&self, flags: u8, behind: u32, payload: u16) -> Answer {
        let header = u32::from(self.binding.header());
        if flags & (SYN | ACK) == SYN | ACK && behind == header {
            return Answer::Syn;
        }
        if flags & (SYN | FIN | ACK) != ACK || !self.binding.is_greeted() || behind > header {
            return Answer::None;
        }
        if behind == 0 {
            return Answer::WithHeader;
        }
        match payload == 0 && behind == header {
            true => Answer::WithoutHeader,
            false => Answer::Early,
        }
    }

    /// Leaves it as it is.
    #[inline(always)]
    fn release(self) {
        // Or it was ended meanwhile.
        let _released = self.entry.swap(self.word, self.word.release());
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
            if is_of(&self.entry, self.word, head) {
                // Or its client sends it again.
                let _is_given = slot.submit();
            }
            slot.leave();
        }
        release(self.entry.id);
    }

    /// The backend, which takes segments of this size, has agreed to less than the client was promised. Later clients get no
    /// more than that.
    #[inline(always)]
    fn disagree(self, ctx: &XdpContext, said: &Said, takes: u16) -> Result<Verdict, DropReason> {
        let flags = self.binding.flags;
        let [has_times, has_scale] =
            [BOUND_HAS_TIMES, BOUND_HAS_SCALE].map(|flag| flags & flag != 0);
        let agreed = VipOffer::of(takes, said.options, has_times, has_scale);
        let (network, service) = self.entry.owners();
        let is_plain = self.binding.is_plain();
        lb_lower_offer(service.into(), agreed.word(), is_plain.into());
        if let Some(reset) = ClientReset::of(&self.entry, self.word) {
            count::note(network, HELLO_DISAGREED);
            return reset.end(ctx, &self.entry, self.word);
        }
        self.give_up(HELLO_DISAGREED);
        Err(DropReason::NoFlow)
    }

    /// Its client may have no more flows: it gets a reset.
    #[inline(always)]
    fn refuse(self, ctx: &XdpContext, reason: DropReason) -> Result<Outcome, DropReason> {
        let reset = ClientReset::of(&self.entry, self.word).ok_or(reason)?;
        counts::lb_note_refused(self.entry.owners().1.into(), reason as u32);
        let end = reset.end(ctx, &self.entry, self.word);
        end.map(|verdict| Outcome::of(Ok(verdict)))
    }

    /// The backend has answered: its word is that of a flow then, if it gets the hello now.
    #[inline(always)]
    fn meet(
        &self,
        said: &Said,
        number: u32,
        part: HelloPart,
        has_rest: bool,
    ) -> Result<(), DropReason> {
        let time = said.options.time.unwrap_or_default().get();
        let scale = said.options.offer.scale.unwrap_or(0);
        let mut binding = self.binding;
        if !binding.is_greeted() {
            binding = binding.answered(number, time, scale);
        }
        self.entry.touch_reply();
        if part == HelloPart::Header {
            splice::bind(&self.entry, binding.greeted());
            let is_released = self.entry.swap(self.word, self.word.release());
            return is_released.then_some(()).ok_or(DropReason::FlowRace);
        }
        if has_rest {
            binding = binding.with_rest();
        }
        splice::bind(&self.entry, binding);
        self.entry.set_ack_request(number.wrapping_add(1));
        let met = match binding.is_plain() {
            true => self.word.establish(),
            false => self.word.meet(),
        };
        if !self.entry.swap(self.word, met) {
            return Err(DropReason::FlowRace);
        }
        budget::follow(&self.entry, self.word, met);
        backend_answers::answered(self.entry.backend_id());
        let is_named = !binding.is_plain();
        traffic::lb_bound(self.entry.id, is_named.into());
        if is_named {
            count::note(self.entry.owners().0, HELLO_BOUND);
        }
        Ok(())
    }
}

/// What a backend's answer has, and the end that it is for.
#[derive(Clone, Copy)]
struct Said {
    from: End,
    /// Its number: of a SYN-ACK, that of its SYN.
    number: u32,
    options: SynOptions,
    /// The client's clock, as it was in the SYN; 0 if it has none.
    echo: u32,
    answer: Answer,
}

#[inline(always)]
fn meet(
    ctx: &XdpContext,
    network: &NetworkRef,
    held: HeldFlow,
    said: Said,
) -> Result<Outcome, DropReason> {
    let key = held.entry.key(held.word);
    let part = match said.answer {
        Answer::WithoutHeader => HelloPart::Header,
        Answer::Syn if held.binding.header() != 0 => HelloPart::Header,
        _ => HelloPart::First,
    };
    let takes = taken(said.options.mss, network.mss);
    let mut slot = ClaimedSlot::claim(&key).ok();
    let kept = slot.as_mut().map(ClaimedSlot::head);
    let kept = kept.filter(|head| is_of(&held.entry, held.word, head));
    let is_kept = kept.is_some();
    // An ACK may stand behind data that the backend has sent, and repeats.
    let number = match (&kept, held.binding.is_greeted()) {
        (Some(head), true) => head.number.wrapping_sub(held.binding.sequence),
        _ => said.number,
    };
    let segment = HelloSegment {
        from: said.from,
        to: held.entry.backend(),
        acknowledgment: number.wrapping_add(1),
        echo: said.options.time.unwrap_or_default(),
        part,
    };
    let is_taken = kept.is_none_or(|head| is_taken(head, takes));
    if said.answer == Answer::Syn && !(is_taken && has_agreed(&held.binding, said.options)) {
        if let Some(slot) = slot {
            slot.leave();
        }
        return Ok(Outcome::of(held.disagree(ctx, &said, takes)));
    }
    if held.binding.is_plain() && budget::check_again(&held.entry).is_err() {
        if let Some(slot) = slot {
            slot.leave();
        }
        return held.refuse(ctx, DropReason::BudgetSpent);
    }
    let Some(mut slot) = slot else {
        if held.binding.is_plain() {
            // Data of its client may be: it is taken up again.
            held.release();
            return Err(DropReason::HellosFull);
        }
        // Another hello is being written there.
        held.meet(&said, number, part, false)?;
        return Ok(repeated(&held));
    };
    let is_kept = match held.binding.is_plain() && !is_kept {
        true => {
            *slot.head() = ack_alone(&held, &key, said.echo);
            true
        }
        false => is_kept,
    };
    let is_in_two = is_kept && part == HelloPart::First && slot.head().is_in_two();
    let is_at_once = is_in_two && network.flags & NETWORK_AT_ONCE != 0 && clone::is_possible();
    let met = held.meet(&said, number, part, is_in_two && !is_at_once);
    let sent = met.map(|()| match (is_kept, is_at_once) {
        (false, _) => None,
        (true, true) => copies(ctx, held.entry.id, &segment, 2, &mut slot).map(Ok),
        (true, false) => send(ctx, network, &held.entry, &segment, &mut slot),
    });
    slot.leave();
    Ok(sent?.map_or_else(|| repeated(&held), Outcome::of))
}

/// The ACK of a client behind a cookie, of which nothing is kept any more: with its clock from the SYN, and the window of a SYN.
#[inline(always)]
fn ack_alone(held: &HeldFlow, key: &FlowKey, time: u32) -> HelloHead {
    let (_, asked) = held.entry.acks();
    let number = held.binding.sequence;
    let scale = SynOffer::from_bits(number as u8).scale.unwrap_or(0);
    let has_times = held.binding.flags & BOUND_HAS_TIMES != 0;
    HelloHead {
        window: u16::MAX >> (scale & 15),
        mac: held.entry.client_mac(),
        ..HelloHead::ack(
            *key,
            asked.wrapping_sub(1),
            number,
            has_times.then_some(time),
            now(),
        )
    }
}

/// What the client sends again goes by the flow.
#[inline(always)]
fn repeated(held: &HeldFlow) -> Outcome {
    count::note(held.entry.owners().0, HELLO_REPEATED);
    Outcome::of(Ok(Verdict::Consumed))
}

/// Makes the frame this segment of the client's hello, and sends it back; or, where it has no room for that, a copy that has.
/// `None` if there is none.
#[inline(always)]
pub(super) fn send(
    ctx: &XdpContext,
    network: &Network,
    entry: &Entry,
    segment: &HelloSegment,
    slot: &mut ClaimedSlot,
) -> Option<Result<Verdict, DropReason>> {
    let (bytes, _) = segment.frame_bytes(slot.head());
    match resize(ctx, bytes) {
        Some(()) => {
            write(ctx, network, entry, segment, slot)?;
            Some(emit::back(ctx, network))
        }
        None if !clone::is_possible() => bare(ctx, network, entry, segment, slot),
        None => {
            let end = segment.part as u16 + 1;
            copies(ctx, entry.id, segment, end, slot).map(Ok)
        }
    }
}

/// Makes the frame a segment without data, and sends it back; what the client has sent it sends again.
#[inline(always)]
fn bare(
    ctx: &XdpContext,
    network: &Network,
    entry: &Entry,
    segment: &HelloSegment,
    slot: &mut ClaimedSlot,
) -> Option<Result<Verdict, DropReason>> {
    let head = slot.head();
    head.lengths = [0; 2];
    head.sums = [0; 2];
    let (bytes, _) = segment.frame_bytes(head);
    resize(ctx, bytes)?;
    write(ctx, network, entry, segment, slot)?;
    Some(emit::back(ctx, network))
}

/// Sends a copy of the frame for this segment, and for each behind it before the one with the number `end`.
#[inline(always)]
fn copies(
    ctx: &XdpContext,
    flow_id: u32,
    segment: &HelloSegment,
    end: u16,
    slot: &mut ClaimedSlot,
) -> Option<Verdict> {
    *slot.copies() = [segment.part as u16, end];
    let words = [Be32::new(segment.acknowledgment), segment.echo];
    clone::send(ctx, flow_id, words)
}
