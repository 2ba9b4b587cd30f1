//! What the ends of flows are sent: resets, which wait for their turn, probes, and SYNs again.
//!
//! Flows that expire are few in a second, and their resets are made when it is their turn. Those that are cut
//! are many at once, and wait in an outbox of their own.

use std::{collections::VecDeque, sync::Arc};

use lb_common::{
    addr::Be32,
    conntrack::{FlowState, State},
    maps::{flow::Flow, splice::Binding},
    tcp_frame::BareSegment,
};

use super::{
    queue::{PendingReset, ResetQueue, Tally},
    segments::{FlowEnd, SendRate, Tuple, address},
};
use crate::{
    dataplane::flows::FlowTable,
    flows::{ExpiryCounts, idle::Ticks, map_cache::MapCache},
    network::raw::{RawSocket, Sent},
};

/// Flows whose ends are reset: per tick, about 2000 in a second, and in one go. Each takes two frames.
const RESETS: (u32, u32) = (2, 256);
/// Probes: per tick, about 2000 in a second, and in one go, which is those of a pass. The batches
/// spread them.
const PROBES: (u32, u32) = (2, 2048);
/// SYNs that come again: per tick, about 4000 in a second, and in one go.
const SYNS: (u32, u32) = (4, 4096);
/// Flows whose ends wait for their resets; more are closed without.
const MAX_FLOWS_WAITING: usize = 1 << 16;

/// A flow that has ended, and whose ends do not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    id: u32,
    word: FlowState,
    /// Whether its ends have been sought.
    sought: bool,
}

/// An end of a flow that a frame is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipient {
    pub(crate) end: FlowEnd,
    /// Whether its MAC has been asked for: it may be at another one than the flow's.
    pub(crate) is_sought: bool,
}

/// The frames on their way.
pub(crate) struct ResetSender {
    nics: RawSocket,
    resets: SendRate,
    probes: SendRate,
    syns: SendRate,
    waiting: VecDeque<Ended>,
    outbox: ResetQueue,
    counts: Arc<ExpiryCounts>,
    /// Whether resets are made: the ends of flows that another box serves get theirs from it.
    serves: bool,
}

/// Whether the ends of a flow that was `alive` are reset: at least one of them has a connection then.
pub(crate) fn is_loud(alive: FlowState) -> bool {
    !alive.is_udp() && matches!(alive.state(), State::Replied | State::Established)
}

impl ResetSender {
    pub(crate) fn new(counts: Arc<ExpiryCounts>, now: Ticks, serves: bool) -> Self {
        Self {
            nics: RawSocket::default(),
            resets: SendRate::new(RESETS.0, RESETS.1, now),
            probes: SendRate::new(PROBES.0, PROBES.1, now),
            syns: SendRate::new(SYNS.0, SYNS.1, now),
            waiting: VecDeque::new(),
            outbox: ResetQueue::new(now),
            counts,
            serves,
        }
    }

    /// Whether resets wait.
    pub(crate) fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether those of flows that were cut wait.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether there is room for those of one more.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    /// Makes the resets of a flow that was cut, whose id no other flow has yet.
    pub(crate) fn make_resets(&mut self, id: u32, flow: &Flow, records: &mut MapCache) {
        if !self.serves {
            return;
        }
        for end in FlowEnd::BOTH {
            let to = Recipient {
                end,
                is_sought: false,
            };
            let reset = addressed(id, flow, to, records, |tuple| tuple.reset(end));
            let waits = reset.is_some_and(|reset| self.outbox.add(end, reset));
            self.counts.resets_unsent.add(u64::from(!waits));
        }
    }

    /// Sends those whose turn it is.
    pub(crate) fn send_outgoing(&mut self, now: Ticks) {
        let nics = &mut self.nics;
        let Tally { sent, unsent } = self.outbox.send(now, |frames| {
            let (sent, last) = nics.send_all(frames);
            if let Sent::No(error) = last {
                let ifindex = frames.get(sent).map(|(ifindex, _)| *ifindex);
                tracing::debug!(ifindex, %error, "a reset or probe was not sent");
            }
            (sent, last)
        });
        self.counts.resets.add(sent);
        self.counts.resets_unsent.add(unsent);
    }

    /// Queues the resets of a flow that has been closed, with the word that it has now.
    pub(crate) fn queue_resets(&mut self, id: u32, word: FlowState, sought: bool) {
        if !self.serves {
            return;
        }
        if self.waiting.len() < MAX_FLOWS_WAITING {
            self.waiting.push_back(Ended { id, word, sought });
        } else {
            self.counts.resets_unsent.add(2);
        }
    }

    /// Sends the resets of one flow, if it is their turn; whether there may be more.
    pub(crate) fn reset_next(
        &mut self,
        table: &FlowTable,
        records: &mut MapCache,
        now: Ticks,
    ) -> bool {
        let Some(&Ended { id, word, sought }) = self.waiting.front() else {
            return false;
        };
        if !self.resets.take(now) {
            return false;
        }
        self.waiting.pop_front();
        // Once the id is claimed, the tuple may be another flow's already.
        let flow = table.flow(id).filter(|(found, _)| *found == word);
        for end in FlowEnd::BOTH {
            let sent = flow.is_some_and(|(_, flow)| {
                let to = Recipient {
                    end,
                    is_sought: sought,
                };
                self.send(id, &flow, to, records, |tuple| tuple.reset(end))
            });
            let counts = &self.counts;
            let count = if sent {
                &counts.resets
            } else {
                &counts.resets_unsent
            };
            count.add(1);
        }
        true
    }

    /// Sends a probe to one end. None if it is not its turn yet; else
    /// whether it went out.
    pub(crate) fn probe(
        &mut self,
        id: u32,
        flow: &Flow,
        to: Recipient,
        records: &mut MapCache,
        now: Ticks,
    ) -> Option<bool> {
        if !self.probes.take(now) {
            return None;
        }
        let sent = self.send(id, flow, to, records, |tuple| tuple.probe(to.end));
        let counts = &self.counts;
        let count = if sent {
            &counts.probes
        } else {
            &counts.probes_unsent
        };
        count.add(1);
        Some(sent)
    }

    /// Whether frames to this end can leave now.
    pub(crate) fn has_carrier(
        &mut self,
        id: u32,
        flow: &Flow,
        end: FlowEnd,
        records: &mut MapCache,
    ) -> bool {
        let way = records.way(id, flow, end, false);
        way.is_some_and(|(network, _)| self.nics.has_carrier(network.ifindex))
    }

    /// Resets the client of a flow that a cookie has opened, and whose backend has not answered: it has a connection.
    pub(crate) fn refuse(
        &mut self,
        id: u32,
        flow: &Flow,
        binding: &Binding,
        records: &mut MapCache,
    ) {
        if !self.serves {
            return;
        }
        // With the numbers that the client knows, so without those of a splice.
        let flow = Flow {
            word: 0,
            ack_request: Be32::new(binding.sequence.wrapping_add(1)),
            ..*flow
        };
        let end = FlowEnd::Client;
        let to = Recipient {
            end,
            is_sought: false,
        };
        let sent = self.send(id, &flow, to, records, |tuple| tuple.reset(end));
        let count = if sent {
            &self.counts.resets
        } else {
            &self.counts.resets_unsent
        };
        count.add(1);
    }

    /// Sends a SYN again, as a whole frame. Whether it was its turn.
    pub(crate) fn send_syn(&mut self, ifindex: u32, frame: &[u8], now: Ticks) -> bool {
        if !self.syns.take(now) {
            return false;
        }
        match self.nics.send(ifindex, frame) {
            Sent::Yes => self.counts.syns.add(1),
            Sent::Full => {}
            Sent::No(error) => tracing::debug!(ifindex, %error, "a SYN was not sent again"),
        }
        true
    }

    fn send(
        &mut self,
        id: u32,
        flow: &Flow,
        to: Recipient,
        records: &mut MapCache,
        make: impl FnOnce(&Tuple<'_>) -> BareSegment,
    ) -> bool {
        let addressed = addressed(id, flow, to, records, make);
        let Some(PendingReset { ifindex, segment }) = addressed else {
            return false;
        };
        match self.nics.send(ifindex, segment.frame().as_ref()) {
            Sent::Yes => true,
            Sent::Full => false,
            Sent::No(error) => {
                tracing::debug!(ifindex, %error, "a reset or probe was not sent");
                false
            }
        }
    }
}

/// A segment for an end of a flow, addressed; none if there is no way to it.
fn addressed(
    id: u32,
    flow: &Flow,
    to: Recipient,
    records: &mut MapCache,
    make: impl FnOnce(&Tuple<'_>) -> BareSegment,
) -> Option<PendingReset> {
    let page = records.page(id)?;
    let (network, next_hop) = records.way(id, flow, to.end, to.is_sought)?;
    let flow = records.numbers(id, flow, to.end)?;
    let tuple = Tuple::new(id, &flow, &page, records.labels())?;
    let segment = address(make(&tuple), &network, next_hop)?;
    Some(PendingReset {
        ifindex: network.ifindex,
        segment,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::idle::words::*;

    #[test]
    fn where_another_box_serves_no_reset_waits() {
        for serves in [true, false] {
            let mut sender = ResetSender::new(Arc::default(), 0, serves);
            sender.queue_resets(7, established().close(), false);
            assert_eq!(sender.is_busy(), serves);
        }
    }

    #[test]
    fn whoever_has_a_connection_is_told() {
        for word in [replied(), established(), half_closed()] {
            assert!(is_loud(word), "{word:?}");
        }
        for word in [new(), udp(false), udp(true)] {
            assert!(!is_loud(word), "{word:?}");
        }
    }
}
