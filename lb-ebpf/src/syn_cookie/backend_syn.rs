//! The SYN of a bound flow to its backend.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    conntrack::FlowState,
    late_binding::{self, End},
    maps::{
        backend::Backend,
        hello::{HELLO_IN_PART, HelloHead},
        network::Network,
    },
    nat,
    syn_cookie::{
        handshake::{OpeningOptions, OpeningSegment},
        offer::SynOffer,
    },
    verdict::DropReason,
    wire::{
        Packet,
        header::{Ethernet, RST},
    },
};

use super::hello_segment::resize_for_headers;
use crate::{
    flow::{entry::Entry, snat::snat_page, splice},
    frame::xdp::Xdp,
    lookup::NetworkRef,
    maps::BACKENDS,
};

/// What is sent, and where.
pub(super) struct BackendSyn {
    syn: OpeningSegment,
    backend: &'static Backend,
    /// The backend's network.
    pub(super) to: NetworkRef,
}

impl BackendSyn {
    /// Of a flow that this hello from `network` has opened.
    #[inline(always)]
    pub(super) fn new(
        entry: &Entry,
        head: &HelloHead,
        network: &Network,
    ) -> Result<Self, DropReason> {
        let backend = BACKENDS.get(entry.backend_id());
        let backend = backend.ok_or(DropReason::RecordMissing)?;
        let to = NetworkRef::of(backend.network)?;
        let mss = SynOffer::from_bits(head.number as u8).mss(network.mss);
        let syn = late_binding::syn(head, snat_end(entry)?, entry.backend(), mss, to.mss);
        Ok(Self { syn, backend, to })
    }

    /// The reset that takes it back, with the number of what the backend awaits next.
    #[inline(always)]
    pub(super) fn reset(mut self, sequence: u32) -> Self {
        self.syn.flags = RST;
        self.syn.sequence = sequence;
        self.syn.window = 0;
        self.syn.options = OpeningOptions::NONE;
        self
    }

    /// Writes it over a frame.
    #[inline(always)]
    pub(super) fn write(&self, ctx: &XdpContext) -> Option<()> {
        resize_for_headers(ctx, self.syn.options.frame_bytes())?;
        let xdp = Xdp::new(ctx);
        let ethernet: &Ethernet = xdp.header(0)?;
        nat::address_frame(ethernet, self.to.mac, self.backend.next_hop);
        self.syn.write(&xdp, false)
    }
}

/// Whether a hello is the one that has opened the flow with this word, whose backend has not got it yet.
#[inline(always)]
pub(super) fn is_of(entry: &Entry, word: FlowState, head: &HelloHead) -> bool {
    let (_, asked) = entry.acks();
    let Some(binding) = splice::bound(entry, word) else {
        return false;
    };
    // Of one that has been sent its header the binding has the difference of two numbers.
    head.flags & HELLO_IN_PART == 0
        && head.isn.wrapping_add(1) == asked
        && (binding.is_greeted() || binding.sequence == head.number)
        && head.key == entry.key(word)
}

/// The number that the backend of a flow awaits next: once it has been sent its header, what is behind that.
#[inline(always)]
pub(super) fn awaited(entry: &Entry, word: FlowState) -> u32 {
    let (_, asked) = entry.acks();
    match splice::bound(entry, word) {
        Some(binding) if !binding.is_greeted() => asked.wrapping_sub(binding.header().into()),
        _ => asked,
    }
}

/// What the backend of a flow knows its client by.
#[inline(always)]
pub(super) fn snat_end(entry: &Entry) -> Result<End, DropReason> {
    let page = snat_page(entry.id).ok_or(DropReason::RecordMissing)?;
    Ok((page.address, entry.snat_port()))
}
