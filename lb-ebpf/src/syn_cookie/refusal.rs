//! A client whose connection was opened by a cookie alone, and which no backend takes, gets a reset.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    addr::Mac,
    conntrack::FlowState,
    maps::flow::FlowKey,
    nat,
    syn_cookie::handshake::{OpeningOptions, OpeningSegment},
    verdict::{DropReason, Verdict},
    wire::{
        Packet,
        header::{ACK, Ethernet, RST},
    },
};

use super::hello_segment::resize_for_headers;
use crate::{
    emit,
    flow::{entry::Entry, half_open, index, snat::release, splice, traffic},
    frame::xdp::Xdp,
    lookup::NetworkRef,
};

/// The reset to the client of a flow that waits for its backend.
pub(super) struct ClientReset {
    segment: OpeningSegment,
    key: FlowKey,
    mac: Mac,
}

impl ClientReset {
    /// Of a flow with this word, which is plain; `None` if it is not.
    #[inline(always)]
    pub(super) fn of(entry: &Entry, word: FlowState) -> Option<Self> {
        let binding = splice::bound(entry, word).filter(|binding| binding.is_plain())?;
        let key = entry.key(word);
        let (_, acknowledgment) = entry.acks();
        let segment = OpeningSegment {
            from: (key.vip, key.vip_port),
            to: (key.client, key.client_port),
            sequence: binding.sequence.wrapping_add(1),
            acknowledgment,
            flags: RST | ACK,
            window: 0,
            options: OpeningOptions::NONE,
        };
        Some(Self {
            segment,
            key,
            mac: entry.client_mac(),
        })
    }

    /// Ends the flow, unless its word has changed, and makes the frame the reset.
    #[inline(always)]
    pub(super) fn end(
        self,
        ctx: &XdpContext,
        entry: &Entry,
        word: FlowState,
    ) -> Result<Verdict, DropReason> {
        if !half_open::end(entry, word, word.end()) {
            return Err(DropReason::FlowRace);
        }
        index::remove_closed(&self.key);
        traffic::lb_unbound(entry.id);
        release(entry.id);
        let network = NetworkRef::of(self.key.network)?;
        let bytes = self.segment.options.frame_bytes();
        resize_for_headers(ctx, bytes).ok_or(DropReason::Malformed)?;
        let xdp = Xdp::new(ctx);
        let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
        nat::address_frame(ethernet, network.mac, self.mac);
        self.segment
            .write(&xdp, false)
            .ok_or(DropReason::Malformed)?;
        if network.ifindex == ctx.ingress_ifindex() as u32 {
            return emit::back(ctx, &network);
        }
        emit::out(ctx, &network)
    }
}
