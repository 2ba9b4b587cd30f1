//! What follows when this CPU has won the close of a flow, and the record of its beginning.

use lb_common::{
    addr::Be128,
    conntrack::FlowState,
    maps::{
        addr6,
        event::{BEGAN, FlowEvent},
        network::NETWORK_EVENTS,
    },
    verdict::UNREPORTED,
};

use crate::{
    count,
    flow::{
        entry::{Entry, now},
        snat::{release, snat_page},
    },
    lookup,
    maps::{FLOW_EVENTS, NETWORKS},
};

/// Gives back what the flow held. `kind` is one of the constants of `maps::event`.
#[inline(always)]
pub(crate) fn ended(entry: &Entry, word: FlowState, kind: u32) {
    let (network, _) = entry.owners();
    report(entry, word, kind, network);
    // Last: from here on another CPU may write a new flow into the entry.
    release(entry.id);
}

/// Notes a flow that began.
#[inline(always)]
pub(crate) fn began(entry: &Entry, word: FlowState) {
    let (network, _) = entry.owners();
    report(entry, word, BEGAN, network);
}

/// Writes these fields of an event, which are all but `flow`: as one value it would have to have a flow.
macro_rules! write_event {
    ($event:ident, { $($field:ident: $value:expr),+ $(,)? }) => {{
        const _: fn(FlowEvent) = |FlowEvent { flow: _, $($field: _),+ }| ();
        $({
            let value = $value;
            // SAFETY: a field of a reserved record, which is ours until it is submitted.
            let place = unsafe { &raw mut (*$event).$field };
            // SAFETY: the same.
            unsafe { place.write(value) };
        })+
    }};
}

/// Reports the flow if its clients' network wants that. A full buffer loses the record, which is
/// counted, never a packet.
#[inline(always)]
pub(crate) fn report(entry: &Entry, word: FlowState, kind: u32, network: u16) {
    let wanted = NETWORKS.get(u32::from(network));
    if wanted.is_none_or(|network| network.flags & NETWORK_EVENTS == 0) {
        return;
    }
    let Some(page) = snat_page(entry.id) else {
        return;
    };
    let Some(mut record) = FLOW_EVENTS.reserve(0) else {
        count::note(network, UNREPORTED);
        return;
    };
    let event = record.as_mut_ptr();
    write_event!(event, {
        id: entry.id,
        kind: kind,
        snat: page.address,
        port: entry.snat_port().get().into(),
        time: now(),
        _reserved: 0,
        client: match addr6::index(entry.vip()) {
            Some(_) => lookup::client6(entry.id).unwrap_or_default(),
            None => Be128::default(),
        },
    });
    // SAFETY: as in `write_event`.
    let flow = unsafe { &raw mut (*event).flow };
    // SAFETY: the same.
    unsafe { entry.copy(word, flow) };
    record.submit(0);
}
