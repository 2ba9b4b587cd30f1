//! What differs between IPv4 and IPv6 for conntrack, policy and a new flow.

use lb_common::{
    addr::Be32,
    maps::{flow::FlowKey, network::Address},
    wire::{
        Frame, Ip,
        header::{Ipv4, Ipv6},
    },
};

use crate::{flow::entry::Hit, lookup, maps::CLIENTS6};

/// An IP header of one version.
pub(crate) trait IpVersion: Ip + Sized {
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

    /// Whether no host can have the source.
    fn has_bogon_source(&self) -> bool;

    /// Whether the source is one of our addresses in the network `id`.
    fn has_our_source(&self, id: u16) -> bool;

    /// What an address, or the label of one, is in the network `id`.
    fn ours(id: u16, address: Be32) -> Option<&'static Address>;

    /// The longest match of a rule set for the source.
    fn source_rule(&self, set: u32) -> u32;

    /// The longest match of a rule set for the destination.
    fn destination_rule(&self, set: u32) -> u32;
}

/// The request tuple of a packet that came from the network `id` to this VIP.
#[inline(always)]
pub(crate) fn key<I: IpVersion>(frame: &Frame<'_, I>, vip: Be32, id: u16) -> Option<FlowKey> {
    Some(FlowKey::new(frame.ip.client()?, vip, frame.l4, id))
}

impl IpVersion for Ipv4 {
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
    fn has_bogon_source(&self) -> bool {
        self.source.get().is_bogon()
    }

    #[inline(always)]
    fn has_our_source(&self, id: u16) -> bool {
        lookup::address(id, self.source.get()).is_some()
    }

    #[inline(always)]
    fn ours(id: u16, address: Be32) -> Option<&'static Address> {
        lookup::address(id, address)
    }

    #[inline(always)]
    fn source_rule(&self, set: u32) -> u32 {
        lookup::rule(set, self.source.get())
    }

    #[inline(always)]
    fn destination_rule(&self, set: u32) -> u32 {
        lookup::rule(set, self.destination.get())
    }
}

impl IpVersion for Ipv6 {
    const IS_IPV6: bool = true;

    #[inline(always)]
    fn client(&self) -> Option<Be32> {
        lookup::client_hash(self.source.get())
    }

    #[inline(always)]
    fn is_of_client(&self, hit: &Hit) -> bool {
        hit.client6() == Some(self.source.get())
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
    fn has_bogon_source(&self) -> bool {
        self.source.get().is_bogon()
    }

    #[inline(always)]
    fn has_our_source(&self, id: u16) -> bool {
        lookup::label(self.source.get()).is_some_and(|label| lookup::labelled(id, label).is_some())
    }

    #[inline(always)]
    fn ours(id: u16, label: Be32) -> Option<&'static Address> {
        lookup::labelled(id, label)
    }

    #[inline(always)]
    fn source_rule(&self, set: u32) -> u32 {
        lookup::rule6(set, self.source.get())
    }

    #[inline(always)]
    fn destination_rule(&self, set: u32) -> u32 {
        lookup::rule6(set, self.destination.get())
    }
}
