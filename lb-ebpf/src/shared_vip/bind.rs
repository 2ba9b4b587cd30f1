//! A hello whose name is known opens a flow: its segment becomes the SYN to a backend.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    conntrack::FlowState,
    late_binding::{self, End},
    maps::{
        backend::Backend,
        flow::FlowKey,
        hello::{HELLO_HAS_TIMES, HelloHead, HelloSlot},
        service::Service,
        splice::Binding,
    },
    nat,
    syn_cookie::offer::SynOffer,
    verdict::{DropReason, HELLO_UNANSWERED, HELLO_UNOPENED, Verdict},
    wire::{Ipv4Frame, Packet, header::Ethernet, parse_ipv4},
};

use super::{name, slot::ClaimedSlot};
use crate::{
    count, emit,
    flow::{
        entry::{Entry, now},
        half_open, index,
        snat::{release, snat_page},
        splice,
    },
    frame::xdp::Xdp,
    lookup::{self, NetworkRef},
    maps::BACKENDS,
    new_flow,
    reject::judge::cut,
    subprogram::{Outcome, whole},
};

/// The segment from the network `id` whose hello is in its slot: it opens a flow, or userspace gets it. How it ended, as
/// [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_bind(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of(hello(&XdpContext::new(ctx), id as u16)).raw()
}

#[inline(always)]
fn hello(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
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
) -> Result<Verdict, DropReason> {
    match open(frame, key, &network, slot) {
        Ok(flow_id) => {
            let sent = lb_syn(ctx.ctx, key.network.into(), flow_id, slot.index);
            Outcome::from_raw(sent).result()
        }
        Err(note) => {
            count::note(key.network, note);
            let [length, _] = slot.head().lengths;
            slot.submit(length.into()).map(|()| Verdict::Consumed)
        }
    }
}

/// The id of the flow of this hello, which it may have opened before; or what it is counted as if it does not open one.
#[inline(always)]
fn open(
    frame: &Ipv4Frame<'_>,
    key: &FlowKey,
    network: &NetworkRef,
    slot: &mut ClaimedSlot,
) -> Result<u32, u32> {
    let index = slot.index;
    match lb_begun(index) {
        0 => {}
        GIVEN_UP => return Err(HELLO_UNANSWERED),
        begun => return Ok(begun),
    }
    let service = lookup::record(key).ok_or(HELLO_UNOPENED)?;
    let route = name::route(index, service.id)?;
    let chosen = Service {
        pool: route.pool,
        flags: route.flags.into(),
        ..Service::default()
    };
    let isn = slot.head().isn;
    let bind = |entry: &Entry, claimed: FlowState| {
        lb_note_binding(entry.id, claimed.generation(), index);
        claimed.bind()
    };
    new_flow::bind(frame, key, network, (&service, &chosen), isn, bind).map_err(|_| HELLO_UNOPENED)
}

/// Writes the binding of a flow of this generation that the hello in the slot with this index opens. Returns 0. A subprogram, for its own
/// stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_note_binding(flow_id: u32, generation: u32, slot: u32) -> u32 {
    if let (Some(entry), Some(slot)) = (Entry::at(flow_id), ClaimedSlot::read(slot)) {
        let head = &slot.head;
        let time = (head.flags & HELLO_HAS_TIMES != 0).then_some(slot.echo);
        let has_scale = SynOffer::from_bits(head.number as u8).scale.is_some();
        splice::bind(
            &entry,
            Binding::bound(generation, head.number, time, has_scale),
        );
    }
    0
}

/// What [`lb_begun`] returns of a flow whose backend has had its time.
const GIVEN_UP: u32 = u32::MAX;

/// The id of the flow that the hello in the slot with this index has opened before, whose backend has not answered: it gets the SYN
/// again. 0 if there is none; a backend that has had its time is [`GIVEN_UP`]. A subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_begun(slot: u32) -> u32 {
    ClaimedSlot::read(slot).map_or(0, |slot| begun(&slot.head))
}

#[inline(always)]
fn begun(head: &HelloHead) -> u32 {
    let key = &head.key;
    let Some(entry) = Entry::at(index::find(key)) else {
        return 0;
    };
    let word = entry.word();
    if !word.is_binding() || word.is_held() || entry.key(word) != *key {
        return 0;
    }
    let (_, asked) = entry.acks();
    let binding = splice::bound(&entry, word);
    let is_same = asked == head.isn.wrapping_add(1)
        && binding.is_some_and(|binding| binding.sequence == head.number);
    let idle = now().wrapping_sub(entry.last_seen());
    if is_same && !entry.attempt().is_unanswered(idle) {
        return entry.id;
    }
    if half_open::end(&entry, word, word.close()) {
        index::remove_closed(key);
        release(entry.id);
    }
    if is_same { GIVEN_UP } else { 0 }
}

/// Makes the segment from the network `id`, whose hello is in the slot with this index, the SYN to the backend of its flow, and
/// sends it: how that ended, as [`Outcome`]. A subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_syn(ctx: *mut xdp_md, id: u32, flow_id: u32, index: u32) -> u32 {
    Outcome::of(send(&XdpContext::new(ctx), id as u16, flow_id, index)).raw()
}

#[inline(always)]
fn send(ctx: &XdpContext, id: u16, flow_id: u32, index: u32) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    let backend: &Backend = BACKENDS
        .get(entry.backend_id())
        .ok_or(DropReason::RecordMissing)?;
    let to = NetworkRef::of(backend.network)?;
    let HelloSlot { head, .. } = ClaimedSlot::read(index).ok_or(DropReason::RecordMissing)?;
    let mss = SynOffer::from_bits(head.number as u8).mss(network.mss);
    let syn = late_binding::syn(head, snat_end(&entry)?, entry.backend(), mss, to.mss);
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    nat::address_frame(ethernet, to.mac, backend.next_hop);
    syn.write(&xdp, false).ok_or(DropReason::Malformed)?;
    cut(ctx, xdp.len(), syn.options.frame_bytes()).ok_or(DropReason::Malformed)?;
    emit::out(ctx, &to)
}

/// What the backend of a flow knows its client by.
#[inline(always)]
pub(super) fn snat_end(entry: &Entry) -> Result<End, DropReason> {
    let page = snat_page(entry.id).ok_or(DropReason::RecordMissing)?;
    Ok((page.address, entry.snat_port()))
}
