//! family: what differs between IPv4 and IPv6 on a packet's way through its flow.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    addr::{Be32, Be128},
    maps::flow::FlowKey,
    nat::{self, Translation},
    partial,
    wire::{
        Frame, Ip, Ipv4Frame, Ipv6Frame,
        header::{Ethernet, Ipv4, Ipv6},
    },
};

use crate::{
    conntrack::Hit,
    fragment, fragment6, lookup,
    maps::CLIENTS6,
    options, policy,
    rewrite::{lb_clamp, lb_clamp6, lb_complete, lb_complete6},
};

/// Bytes that an IPv6 header is longer than one of IPv4.
const LONGER: u16 = 20;

/// An IP header of one version, and what to do with packets of it.
pub(crate) trait Family: Ip + Sized {
    /// Its addresses.
    type Address: Copy;

    /// Which of the two it is.
    const IS_IPV6: bool;

    /// What stands for the source in the tuple of a flow that it is the client of.
    fn client(&self) -> Option<Be32>;

    /// Whether the source is the client of a flow that was found by [`Self::client`].
    fn is_of_client(&self, hit: &Hit) -> bool;

    /// Keeps the source as the client of a flow that is not published yet.
    fn note_client(&self, flow_id: u32);

    /// Whether the source is this backend.
    fn is_from(&self, backend: Be32) -> bool;

    /// What stands for the source, if it is configured.
    fn source(&self) -> Option<Be32>;

    /// Whether no host can have the source.
    fn has_bogon_source(&self) -> bool;

    /// Whether the source is one of our addresses in the network `id`.
    fn has_our_source(&self, id: u16) -> bool;

    /// What a rule set says of the source.
    fn source_rule(&self, set: u32) -> u32;

    /// What a rule set says of the destination.
    fn destination_rule(&self, set: u32) -> u32;

    /// The address in a record.
    fn address(of: Be32) -> Option<Self::Address>;

    /// The address of the client of a flow.
    fn client_of(hit: &Hit) -> Option<Self::Address>;

    /// Whether it is as every kernel sends TCP: see `is_plain_tcp` of both.
    fn is_plain_tcp(frame: &Frame<'_, Self>) -> bool;

    /// Rewrites addresses and ports, and takes one hop off.
    fn translate(frame: &Frame<'_, Self>, to: &Translation<Self::Address>);

    /// Makes an open checksum whole; one of the states in `partial`.
    fn complete(ctx: &XdpContext, frame: &Frame<'_, Self>, keep: bool) -> u32;

    /// Leaves the checksum open again.
    fn reopen(frame: &Frame<'_, Self>);

    /// Holds a SYN to segments of so many bytes, which is what IPv4 has room for.
    fn clamp(ctx: &XdpContext, frame: &Frame<'_, Self>, most: u16);

    /// Gives a datagram that is or may be in pieces an identification of ours: see `fragment`.
    fn identify(ctx: &XdpContext, frame: &Frame<'_, Self>, id: u16, flow_id: u32, direction: u16);

    /// Hides from a client which way the packet came, if it says so.
    fn conceal(ctx: &XdpContext, frame: &Frame<'_, Self>);
}

/// The request tuple of a packet that came from the network `id` to this VIP.
#[inline(always)]
pub(crate) fn key<I: Family>(frame: &Frame<'_, I>, vip: Be32, id: u16) -> Option<FlowKey> {
    Some(FlowKey::new(frame.ip.client()?, vip, frame.l4, id))
}

impl Family for Ipv4 {
    type Address = Be32;

    const IS_IPV6: bool = false;

    #[inline(always)]
    fn client(&self) -> Option<Be32> {
        Some(self.source.get())
    }

    #[inline(always)]
    fn is_of_client(&self, _hit: &Hit) -> bool {
        true
    }

    #[inline(always)]
    fn note_client(&self, _flow_id: u32) {}

    #[inline(always)]
    fn is_from(&self, backend: Be32) -> bool {
        self.source.get() == backend
    }

    #[inline(always)]
    fn source(&self) -> Option<Be32> {
        Some(self.source.get())
    }

    #[inline(always)]
    fn has_bogon_source(&self) -> bool {
        self.source.get().is_bogon()
    }

    #[inline(always)]
    fn has_our_source(&self, id: u16) -> bool {
        lookup::address(id, self.source.get()).is_some()
    }

    #[inline(always)]
    fn source_rule(&self, set: u32) -> u32 {
        policy::rule(set, self.source.get())
    }

    #[inline(always)]
    fn destination_rule(&self, set: u32) -> u32 {
        policy::rule(set, self.destination.get())
    }

    #[inline(always)]
    fn address(of: Be32) -> Option<Be32> {
        Some(of)
    }

    #[inline(always)]
    fn client_of(hit: &Hit) -> Option<Be32> {
        Some(hit.key.client)
    }

    #[inline(always)]
    fn is_plain_tcp(frame: &Ipv4Frame<'_>) -> bool {
        frame.is_plain_tcp()
    }

    #[inline(always)]
    fn translate(frame: &Ipv4Frame<'_>, to: &Translation) {
        nat::translate(frame, to);
    }

    #[inline(always)]
    fn complete(ctx: &XdpContext, _frame: &Ipv4Frame<'_>, keep: bool) -> u32 {
        lb_complete(ctx.ctx, u32::from(keep))
    }

    #[inline(always)]
    fn reopen(frame: &Ipv4Frame<'_>) {
        partial::reopen(frame);
    }

    #[inline(always)]
    fn clamp(ctx: &XdpContext, _frame: &Ipv4Frame<'_>, most: u16) {
        lb_clamp(ctx.ctx, u32::from(most));
    }

    #[inline(always)]
    fn identify(ctx: &XdpContext, frame: &Ipv4Frame<'_>, id: u16, flow_id: u32, direction: u16) {
        fragment::identify(ctx, frame.ip, id, flow_id, direction);
    }

    #[inline(always)]
    fn conceal(ctx: &XdpContext, frame: &Ipv4Frame<'_>) {
        options::conceal(ctx, frame.ip);
    }
}

impl Family for Ipv6 {
    type Address = Be128;

    const IS_IPV6: bool = true;

    #[inline(always)]
    fn client(&self) -> Option<Be32> {
        lookup::client_hash(self.source.get())
    }

    #[inline(always)]
    fn is_of_client(&self, hit: &Hit) -> bool {
        lookup::client6(hit.entry.id) == Some(self.source.get()) && hit.still()
    }

    #[inline(always)]
    fn note_client(&self, flow_id: u32) {
        if let Some(client) = CLIENTS6.get_ptr_mut(flow_id) {
            // SAFETY: a value of an array map, whose entry this CPU has claimed.
            unsafe { client.write_volatile(self.source.get()) };
        }
    }

    #[inline(always)]
    fn is_from(&self, backend: Be32) -> bool {
        lookup::unlabel(backend) == Some(self.source.get())
    }

    #[inline(always)]
    fn source(&self) -> Option<Be32> {
        lookup::label(self.source.get())
    }

    #[inline(always)]
    fn has_bogon_source(&self) -> bool {
        self.source.get().is_bogon()
    }

    #[inline(always)]
    fn has_our_source(&self, id: u16) -> bool {
        self.source()
            .is_some_and(|label| lookup::labelled(id, label).is_some())
    }

    #[inline(always)]
    fn source_rule(&self, set: u32) -> u32 {
        policy::rule6(set, self.source.get())
    }

    #[inline(always)]
    fn destination_rule(&self, set: u32) -> u32 {
        policy::rule6(set, self.destination.get())
    }

    #[inline(always)]
    fn address(of: Be32) -> Option<Be128> {
        lookup::unlabel(of)
    }

    #[inline(always)]
    fn client_of(hit: &Hit) -> Option<Be128> {
        lookup::client6(hit.entry.id).filter(|_| hit.still())
    }

    #[inline(always)]
    fn is_plain_tcp(frame: &Ipv6Frame<'_>) -> bool {
        frame.is_plain_tcp()
    }

    #[inline(always)]
    fn translate(frame: &Ipv6Frame<'_>, to: &Translation<Be128>) {
        nat::translate6(frame, to);
    }

    #[inline(always)]
    fn complete(ctx: &XdpContext, frame: &Ipv6Frame<'_>, keep: bool) -> u32 {
        let protocol = u32::from(frame.l4.protocol());
        lb_complete6(ctx.ctx, protocol, frame.at as u32, u32::from(keep))
    }

    #[inline(always)]
    fn reopen(frame: &Ipv6Frame<'_>) {
        partial::reopen6(frame);
    }

    #[inline(always)]
    fn clamp(ctx: &XdpContext, frame: &Ipv6Frame<'_>, most: u16) {
        lb_clamp6(
            ctx.ctx,
            frame.at as u32,
            u32::from(most.saturating_sub(LONGER)),
        );
    }

    #[inline(always)]
    fn identify(ctx: &XdpContext, frame: &Ipv6Frame<'_>, id: u16, flow_id: u32, direction: u16) {
        if frame.at != size_of::<Ethernet>() + size_of::<Self>() {
            let from = fragment6::both(id, direction);
            let _written = fragment6::lb_identify6(ctx.ctx, from, flow_id);
        }
    }

    #[inline(always)]
    fn conceal(_ctx: &XdpContext, _frame: &Ipv6Frame<'_>) {}
}
