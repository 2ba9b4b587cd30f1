//! A flow that is cut ends at once, though the data plane may be using it at this moment.
//!
//! 1. [`sever`]: the word becomes ENDED, by a swap from exactly the word that was judged. There is no
//!    mark before, as for an idle flow (see `close`): no packet may keep this one. A packet that
//!    changes the word at this moment makes the swap fail, and it is tried again.
//! 2. One grace period for all of them. A packet that had read the live word has been dealt with when
//!    it ends: it was translated, or dropped because its own swap failed, and its numbers and bytes are
//!    in the entry. From then on no packet of the flow is translated.
//! 3. [`Severed::flow`]: the entry is reported and its ends are reset, by numbers that do not change
//!    any more. The id goes back last: until then no other flow is written there.
//!
//! A reset that userspace sends is exact for a flow that rests. The numbers of a busy one may be old
//! by what is on its way: then its end answers with a challenge (RFC 5961 section 3.2) or drops the
//! reset, but it also sends what is on its way, or has it sent; and to any segment of an ended flow the
//! data plane answers with a reset by that segment's own numbers.
//!
//! A flow that is over already and still translates becomes ENDED as well; its id is in its queue, or on its
//! way there, and stays there. A CPU that has just taken it out and loses the swap to this one finds the
//! generation the same, and puts it back.

use lb_common::{
    conntrack::{FlowState, State},
    maps::flow::Flow,
};

use super::selector::{EndReason, EvictSelector};
use crate::{
    dataplane::{
        flows::{FlowOwners, FlowTable},
        labels::Labels,
    },
    flows::idle::Ticks,
};

/// Swaps that are tried in one go; each that fails was another packet's.
const MAX_SWAPS: u32 = 64;

/// A live flow that was ended. Its id is in no queue yet, so its fields stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Severed {
    /// Its id.
    pub id: u32,
    /// Its word while it lived.
    pub alive: FlowState,
    /// Why.
    pub why: EndReason,
    /// When.
    pub time: Ticks,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// It is not to be cut, or nothing of it is left.
    Spared,
    /// It was a live flow, and is in these counts.
    Severed(Severed, FlowOwners),
    /// It was over, and does not translate any more.
    Silenced,
    /// It changed each time; it is to be tried again.
    Missed,
}

/// Ends the flow with this id if `cut` selects it, whatever its packets do meanwhile.
pub fn sever(
    table: &FlowTable,
    labels: &Labels,
    id: u32,
    cut: &EvictSelector,
    now: Ticks,
) -> Termination {
    // A client that is another flow's by now is judged in vain: the swap fails.
    let holds = |flow: &Flow| cut.holds(flow, id, labels.client(id, flow));
    sever_if(table, id, holds, now)
}

fn sever_if(
    table: &FlowTable,
    id: u32,
    mut holds: impl FnMut(&Flow) -> Option<EndReason>,
    now: Ticks,
) -> Termination {
    for _ in 0..MAX_SWAPS {
        // What changes while it is read is claimed for a new flow, which is none of those to be cut.
        let read = table.flow(id).filter(|(word, _)| word.translates());
        let Some((alive, flow)) = read else {
            return Termination::Spared;
        };
        // It is judged by the word that the swap is from.
        let flow = Flow {
            word: alive.raw(),
            ..flow
        };
        let Some(why) = holds(&flow) else {
            return Termination::Spared;
        };
        if !table.swap(id, alive, alive.end()) {
            continue;
        }
        if matches!(alive.state(), State::Closed) {
            return Termination::Silenced;
        }
        let severed = Severed {
            id,
            alive: alive.woken(),
            why,
            time: now,
        };
        return Termination::Severed(severed, FlowOwners::from(&flow));
    }
    Termination::Missed
}

impl Severed {
    /// The flow as it was at its end, with its last word: after the grace period, and before its id is
    /// put back. None only if the id was in its queue twice.
    pub fn flow(&self, table: &FlowTable) -> Option<Flow> {
        let ended = self.alive.end();
        // The process that takes back what it refers to forgets the entry, and leaves the fields.
        let flow = table.fields(self.id, [ended, ended.forget()])?;
        Some(Flow {
            word: ended.raw(),
            ..flow
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::idle::words::*;

    const ID: u32 = 3;
    const BACKEND: u16 = 7;
    const NOW: Ticks = 99;
    const OWNERS: FlowOwners = FlowOwners {
        network: 2,
        service: 5,
        backend: BACKEND as u32,
    };

    fn table(word: FlowState) -> FlowTable {
        let table = FlowTable::anonymous(8);
        let flow = Flow {
            word: word.raw(),
            backend_id: BACKEND,
            network: 2,
            service: 5,
            ..Flow::default()
        };
        table.put(ID, &flow);
        table
    }

    fn cut(backend: u16) -> EvictSelector {
        EvictSelector {
            backends: [backend.into()].into(),
            ..EvictSelector::default()
        }
    }

    /// Severs by a cut that knows no labels.
    fn sever(table: &FlowTable, id: u32, cut: &EvictSelector, now: Ticks) -> Termination {
        super::sever(table, &Labels::anonymous(0), id, cut, now)
    }

    fn severed(alive: FlowState) -> Severed {
        Severed {
            id: ID,
            alive,
            why: EndReason::Backend,
            time: NOW,
        }
    }

    #[test]
    fn a_live_flow_in_any_state_is_ended_once() {
        let words = [
            new(),
            replied(),
            established(),
            half_closed(),
            udp(false),
            udp(true),
        ];
        for alive in words.into_iter().flat_map(|word| [word, word.expiring()]) {
            let table = table(alive);
            let wanted = severed(alive.woken());
            assert_eq!(
                sever(&table, ID, &cut(BACKEND), NOW),
                Termination::Severed(wanted, OWNERS)
            );
            assert_eq!(table.word(ID), Some(alive.end()), "without the mark");
            let flow = wanted.flow(&table).unwrap();
            assert_eq!((flow.word, flow.backend_id), (alive.end().raw(), BACKEND));
            assert_eq!(sever(&table, ID, &cut(BACKEND), NOW), Termination::Spared);
        }
    }

    #[test]
    fn one_that_is_over_and_translates_is_silenced_and_keeps_its_generation() {
        let closed = half_closed().close();
        let table = table(closed);
        assert_eq!(sever(&table, ID, &cut(BACKEND), NOW), Termination::Silenced);
        assert_eq!(table.word(ID), Some(closed.end()));
        assert!(!closed.end().translates() && closed.end().claimable());
        assert_eq!(closed.end().generation(), closed.generation());
        assert!(closed.end().backend_closed_first(), "it rests all the same");
    }

    #[test]
    fn what_is_not_meant_is_left_alone() {
        for (word, backend) in [
            (established(), BACKEND + 1),
            (half_closed().close(), BACKEND + 1),
            (FlowState::default(), 0),
            (FlowState::default(), BACKEND),
            (FlowState::default().claim(false), BACKEND),
            (established().end(), BACKEND),
        ] {
            let table = table(word);
            assert_eq!(sever(&table, ID, &cut(backend), NOW), Termination::Spared);
            assert_eq!(table.word(ID), Some(word), "{word:?}");
        }
        let table = table(established());
        assert_eq!(sever(&table, 8, &cut(BACKEND), NOW), Termination::Spared);
    }

    /// What a stroke does to an established flow whose word `packet` changes each time that it has
    /// been judged.
    fn met(packet: impl Fn(u32, FlowState) -> FlowState) -> (Termination, FlowState) {
        let table = table(established());
        let mut times = 0;
        let holds = |flow: &Flow| {
            times += 1;
            let word = table.word(ID).unwrap();
            assert!(table.swap(ID, word, packet(times, word)));
            (flow.backend_id == BACKEND).then_some(EndReason::Backend)
        };
        let stroke = sever_if(&table, ID, holds, NOW);
        (stroke, table.word(ID).unwrap())
    }

    #[test]
    fn a_packet_that_changes_the_flow_meanwhile_does_not_save_it() {
        let half = half_closed();
        let (stroke, word) = met(|times, _| match times {
            1 => established().expiring(),
            2 => established(),
            _ => half,
        });
        assert_eq!(stroke, Termination::Severed(severed(half), OWNERS));
        assert_eq!(word, half.end());
        let closed = half.close();
        assert_eq!(met(|_, _| closed), (Termination::Silenced, closed.end()));
    }

    /// Its backend's SYN-ACK comes while it is judged.
    #[test]
    fn one_that_is_answered_meanwhile_is_no_unanswered_one() {
        let cut = EvictSelector {
            unanswered: [BACKEND.into()].into(),
            ..EvictSelector::default()
        };
        let table = table(new());
        let mut times = 0;
        let holds = |flow: &Flow| {
            times += 1;
            table.swap(ID, new(), replied());
            cut.holds(flow, ID, None)
        };
        assert_eq!(sever_if(&table, ID, holds, NOW), Termination::Spared);
        assert_eq!((times, table.word(ID)), (2, Some(replied())));
    }

    #[test]
    fn one_that_changes_each_time_is_to_be_tried_again() {
        let (stroke, word) = met(|times, _| match times % 2 {
            0 => established(),
            _ => half_closed(),
        });
        assert_eq!((stroke, word), (Termination::Missed, established()));
    }

    #[test]
    fn another_flow_that_has_the_id_meanwhile_is_left_alone() {
        let next = established().close().claim(false).publish();
        let table = table(established());
        let mut times = 0;
        let stroke = sever_if(
            &table,
            ID,
            |_| {
                times += 1;
                table.swap(ID, established(), next);
                (times == 1).then_some(EndReason::Backend)
            },
            NOW,
        );
        assert_eq!(
            (stroke, times),
            (Termination::Spared, 2),
            "it is judged anew"
        );
        assert_eq!(table.word(ID), Some(next));
    }

    /// Its client's network is removed meanwhile.
    #[test]
    fn a_forgotten_flow_is_still_known_and_another_ones_is_not() {
        let table = table(established());
        sever(&table, ID, &cut(BACKEND), NOW);
        let ended = established().end();
        assert!(table.swap(ID, ended, ended.forget()));
        let flow = severed(established()).flow(&table).unwrap();
        assert_eq!((flow.word, flow.backend_id), (ended.raw(), BACKEND));
        let claimed = ended.forget().claim(false);
        assert!(table.swap(ID, ended.forget(), claimed));
        assert_eq!(severed(established()).flow(&table), None);
        assert!(table.swap(ID, claimed, claimed.publish()));
        assert_eq!(severed(established()).flow(&table), None);
    }
}
