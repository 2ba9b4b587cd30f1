//! A flow id, which is also the SNAT port, for a new flow (`claim`); and back into its queue.

use lb_common::{conntrack::FlowState, maps::flow::FlowKey, verdict::DropReason};

use crate::{
    flow::{
        claim,
        entry::{Entry, NewFlow},
        events, index,
        snat::release,
        traffic,
    },
    ip::version::IpVersion,
    lookup::NetworkRef,
};

/// Swaps that are tried to withdraw a flow that replies change; one that stays is half-open, and expires.
const MAX_SWAPS: u32 = 4;

/// Claims an id in the backend's `network`, writes the flow of the packet with this header and makes it
/// findable by the word that `publish` makes of its entry's. Gives its entry, and that entry's generation.
#[inline(always)]
pub(crate) fn allocate<I: IpVersion>(
    network: NetworkRef,
    client: &I,
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
    publish: impl Fn(&Entry, FlowState) -> FlowState,
) -> Result<(Entry, u32), DropReason> {
    let snat = network.snat(I::IS_IPV6);
    let (entry, claimed, earlier) = claim::claim(network.id, snat, key, udp, flow)?;
    index::remove(&entry, earlier);
    traffic::hand_in(&entry, earlier);
    entry.fill(key, flow);
    client.note_client(entry.id);
    let published = publish(&entry, claimed);
    if !entry.swap(claimed, published) {
        return Err(DropReason::FlowRace);
    }
    match index::insert(&entry, published) {
        Ok(()) => {
            events::began(&entry, published);
            Ok((entry, published.generation()))
        }
        Err(reason) => {
            if withdraw(&entry, published) {
                release(entry.id);
            }
            Err(reason)
        }
    }
}

/// Takes a published flow back; false if it is over already, and everything given back.
///
/// Race: a late reply to the id's earlier flow may change the word of a UDP flow meanwhile.
#[inline(always)]
fn withdraw(entry: &Entry, published: FlowState) -> bool {
    let mut word = published;
    for _ in 0..MAX_SWAPS {
        if entry.swap(word, word.withdraw()) {
            return true;
        }
        word = entry.word();
        if word.generation() != published.generation() || word.claimable() {
            return false;
        }
    }
    false
}
