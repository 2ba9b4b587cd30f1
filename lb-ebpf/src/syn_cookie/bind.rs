//! A hello whose name is known opens a flow: its segment becomes the SYN to a backend.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        flow::FlowKey,
        hello::{HELLO_HAS_HEADER, HELLO_HAS_TIMES, HelloHead},
        service::Service,
        splice::Binding,
    },
    syn_cookie::offer::SynOffer,
    verdict::{DropReason, HELLO_UNOPENED, Verdict},
    wire::{Ipv4Frame, parse_ipv4},
};

use super::{
    backend_syn::{BackendSyn, is_of},
    name,
    proxy_header::lb_make_header,
    slot::ClaimedSlot,
};
use crate::{
    count, emit,
    flow::{
        backend_answers,
        entry::{Entry, now},
        half_open, index,
        snat::release,
        splice, traffic,
    },
    frame::xdp::Xdp,
    lookup::{self, NetworkRef},
    new_flow,
    subprogram::{Begun, Outcome, whole},
};

/// The segment from the network `id` whose hello is in its slot: it opens a flow, or userspace gets it. How it ended, as
/// [`Outcome`], which may be to [go on](Outcome::go_on). A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_bind(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of_step(hello(&XdpContext::new(ctx), id as u16)).raw()
}

#[inline(always)]
fn hello(ctx: &XdpContext, id: u16) -> Result<Outcome, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let mut slot = ClaimedSlot::claim(key)?;
    let end = match slot.head().key == *key {
        true => go(ctx, &frame, key, network, &mut slot),
        false => Err(DropReason::HellosFull),
    };
    slot.leave();
    end
}

/// To a backend, or to userspace.
#[inline(always)]
fn go(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    key: &FlowKey,
    network: NetworkRef,
    slot: &mut ClaimedSlot,
) -> Result<Outcome, DropReason> {
    match open(frame, key, &network, slot) {
        Ok(flow_id) => {
            let sent = lb_syn(ctx.ctx, key.network.into(), flow_id, slot.index);
            Ok(Outcome::from_raw(sent))
        }
        Err(Unbound::Raced) => Err(DropReason::FlowRace),
        Err(Unbound::Noted(note)) => {
            count::note(key.network, note);
            slot.submit()?;
            Ok(Outcome::of(Ok(Verdict::Consumed)))
        }
        Err(Unbound::Unanswered(flow_id)) => Ok(Outcome::go_on(flow_id)),
    }
}

/// A hello that is not sent to a backend.
enum Unbound {
    /// Userspace gets it, and it is counted as this.
    Noted(u32),
    /// The flow with this id is left by its backend.
    Unanswered(u32),
    /// Another CPU changes its flow, or a record that it goes by; it comes again.
    Raced,
}

impl From<u32> for Unbound {
    #[inline(always)]
    fn from(note: u32) -> Self {
        Self::Noted(note)
    }
}

/// The id of the flow of this hello, which it may have opened before.
#[inline(always)]
fn open(
    frame: &Ipv4Frame<'_>,
    key: &FlowKey,
    network: &NetworkRef,
    slot: &mut ClaimedSlot,
) -> Result<u32, Unbound> {
    let index = slot.index;
    match Begun::from_raw(lb_begun(index)) {
        Begun::Nothing => {}
        Begun::Waiting(flow_id) => {
            // Of a hello that its client has sent again there is none yet.
            if splice::has_header(flow_id) {
                lb_make_header(flow_id, index);
            }
            return Ok(flow_id);
        }
        Begun::Unanswered(flow_id) => return Err(Unbound::Unanswered(flow_id)),
        Begun::Raced => return Err(Unbound::Raced),
    }
    let service = lookup::record(key).ok_or(HELLO_UNOPENED)?;
    let route = name::route(index, &service)?;
    let chosen = Service {
        pool: route.pool,
        flags: route.balance(),
        ..Service::default()
    };
    let isn = slot.head().isn;
    let bind = |entry: &Entry, claimed: FlowState| {
        lb_note_binding(entry.id, claimed.generation(), index);
        claimed.bind()
    };
    let opened = new_flow::bind(frame, key, network, (&service, &chosen), isn, bind);
    opened.map_err(|reason| match reason {
        DropReason::FlowRace => Unbound::Raced,
        _ => HELLO_UNOPENED.into(),
    })
}

/// In the place of a header's length: it could not be made, and its backend gets nothing.
const UNMADE: u16 = u16::MAX;

/// Writes the binding of a flow of this generation that the hello in the slot with this index opens, and its name. Returns 0.
/// A subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_note_binding(flow_id: u32, generation: u32, index: u32) -> u32 {
    name::lb_keep_name(flow_id, generation, index);
    if let (Some(entry), Some(slot)) = (Entry::at(flow_id), ClaimedSlot::read(index)) {
        let head = &slot.head;
        let time = (head.flags & HELLO_HAS_TIMES != 0).then_some(slot.echo);
        let has_scale = SynOffer::from_bits(head.number as u8).scale.is_some();
        let binding = Binding::bound(generation, head.number, time, has_scale);
        let header = match head.flags & HELLO_HAS_HEADER {
            0 => 0,
            _ => match lb_make_header(flow_id, index) {
                0 => UNMADE,
                bytes => bytes as u16,
            },
        };
        splice::bind(&entry, binding.with_header(header));
    }
    0
}

/// The flow that the hello in the slot with this index has opened before, and whose backend has not got it, as [`Begun`]. A
/// subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_begun(slot: u32) -> u32 {
    ClaimedSlot::read(slot).map_or(0, |slot| begun(&slot.head).raw())
}

#[inline(always)]
fn begun(head: &HelloHead) -> Begun {
    let key = &head.key;
    let Some(entry) = Entry::at(index::find(key)) else {
        return Begun::Nothing;
    };
    let word = entry.word();
    if entry.key(word) != *key {
        return Begun::Nothing;
    }
    // Answered, or being answered, since the segment was found to have none.
    let is_answered = matches!(word.state(), State::Replied | State::Established);
    if is_answered || word.is_held() {
        return Begun::Raced;
    }
    if !word.is_binding() {
        return Begun::Nothing;
    }
    if is_of(&entry, word, head) {
        let idle = now().wrapping_sub(entry.last_seen());
        if !entry.attempt().is_unanswered(idle) {
            return Begun::Waiting(entry.id);
        }
        if !entry.attempt().is_refused() {
            backend_answers::unanswered(&entry);
            traffic::repeated(&entry);
        }
        return Begun::Unanswered(entry.id);
    }
    match forget(&entry, word, key) {
        true => Begun::Nothing,
        false => Begun::Raced,
    }
}

/// Ends a flow with this tuple whose backend has not answered; whether no other CPU has changed it first.
#[inline(always)]
pub(super) fn forget(entry: &Entry, word: FlowState, key: &FlowKey) -> bool {
    if !half_open::end(entry, word, word.close()) {
        return false;
    }
    index::remove_closed(key);
    release(entry.id);
    true
}

/// Makes a segment the SYN to the backend of a flow that the hello in the slot with this index, from the network `id`, has opened,
/// and sends it. How it ended, as [`Outcome`]. A subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_syn(ctx: *mut xdp_md, id: u32, flow_id: u32, index: u32) -> u32 {
    Outcome::of(send(&XdpContext::new(ctx), id as u16, flow_id, index)).raw()
}

#[inline(always)]
fn send(ctx: &XdpContext, id: u16, flow_id: u32, index: u32) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    let slot = ClaimedSlot::read(index).ok_or(DropReason::RecordMissing)?;
    let binding = splice::bound(&entry, entry.word()).ok_or(DropReason::FlowRace)?;
    let [header, _] = slot.head.header;
    if binding.header() != header {
        return Err(DropReason::Malformed);
    }
    let syn = BackendSyn::new(&entry, &slot.head, &network)?;
    syn.write(ctx).ok_or(DropReason::Malformed)?;
    // From the NIC of the backends, behind a refusal, or from that of the clients.
    if syn.to.ifindex == ctx.ingress_ifindex() as u32 {
        return emit::back(ctx, &syn.to);
    }
    emit::out(ctx, &syn.to)
}
