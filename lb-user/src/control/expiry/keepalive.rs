//! Keepalive: idle flows are probed at both ends, and one whose end has died is found. Pure.
//!
//! Each end is judged by its own bytes. The answer of one end moves the flow's last seen, and it
//! reaches the other end as an acknowledgment of nothing new, which is not answered. So a live end
//! cannot hide a dead one.

use std::collections::HashMap;

use lb_common::{
    conntrack::{State, Word},
    maps::flow::Flow,
};

use super::{
    ends::End,
    idle::{Ticks, age},
};

/// Probes without an answer that make an end dead.
const TRIES: u8 = 3;
/// At least so long from one probe to the next, about a second: Linux answers old sequence numbers
/// of a connection twice a second at most (`net.ipv4.tcp_invalid_ratelimit`).
const SHORTEST_GAP: Ticks = 1000;
/// Flows that are probed at a time; others wait for their turn.
const MOST: usize = 1 << 16;

/// How long to wait for the answer to a probe of a flow that is probed after `keepalive`.
pub fn gap(keepalive: Ticks) -> Ticks {
    (keepalive / 3).max(SHORTEST_GAP)
}

/// An end that has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Silent {
    /// Its bytes when probing began.
    bytes: u64,
    tries: u8,
    last: Option<Ticks>,
}

/// What is to be done about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Answered,
    Wait,
    Probe,
    Dead,
}

impl Silent {
    const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            tries: 0,
            last: None,
        }
    }

    fn turn(&self, bytes: u64, now: Ticks, gap: Ticks) -> Turn {
        if bytes != self.bytes {
            return Turn::Answered;
        }
        match self.last {
            Some(last) if age(now, last) < gap => Turn::Wait,
            _ if self.tries < TRIES => Turn::Probe,
            _ => Turn::Dead,
        }
    }
}

/// A flow that is being probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probed {
    generation: u32,
    client: Option<Silent>,
    backend: Option<Silent>,
}

impl Probed {
    const fn end(&mut self, end: End) -> &mut Option<Silent> {
        match end {
            End::Client => &mut self.client,
            End::Backend => &mut self.backend,
        }
    }
}

const fn bytes(flow: &Flow, end: End) -> u64 {
    match end {
        End::Client => flow.bytes_request,
        End::Backend => flow.bytes_reply,
    }
}

/// What is to be done about a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing more: both ends live, or the flow is over.
    Over,
    /// These ends are to be sent a probe; none: wait.
    Probe(Vec<End>),
    /// An end is dead: the flow is to be ended.
    Dead,
}

/// The flows that are being probed, by id.
#[derive(Debug, Default)]
pub struct Keepalive(HashMap<u32, Probed>);

impl Keepalive {
    /// Begins to probe an idle flow, unless that has begun or too many are being probed.
    pub fn begin(&mut self, id: u32, word: Word, flow: &Flow) {
        let generation = word.generation();
        let known = self.0.get(&id);
        if known.map_or(self.0.len() >= MOST, |probed| {
            probed.generation == generation
        }) {
            return;
        }
        let silent = |end| Some(Silent::new(bytes(flow, end)));
        let probed = Probed {
            generation,
            client: silent(End::Client),
            backend: silent(End::Backend),
        };
        self.0.insert(id, probed);
    }

    /// The ids of all that are being probed.
    pub fn ids(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    /// Judges a flow that is being probed. `keepalive` is none if it is not to be probed any more.
    pub fn judge(
        &mut self,
        id: u32,
        word: Word,
        flow: &Flow,
        keepalive: Option<Ticks>,
        now: Ticks,
    ) -> Judgement {
        let (Some(keepalive), Some(probed)) = (keepalive, self.0.get_mut(&id)) else {
            return self.over(id);
        };
        if probed.generation != word.generation() || !matches!(word.state(), State::Established) {
            return self.over(id);
        }
        let mut probes = Vec::new();
        let mut dead = false;
        for end in End::BOTH {
            let place = probed.end(end);
            let turn = place.map_or(Turn::Answered, |silent| {
                silent.turn(bytes(flow, end), now, gap(keepalive))
            });
            match turn {
                Turn::Answered => *place = None,
                Turn::Wait => {}
                Turn::Probe => probes.push(end),
                Turn::Dead => dead = true,
            }
        }
        if dead {
            Judgement::Dead
        } else if probed.client.is_none() && probed.backend.is_none() {
            self.over(id)
        } else {
            Judgement::Probe(probes)
        }
    }

    /// Whether an end of the flow is still dead: all its probes have had their time, and its bytes
    /// have not moved.
    pub fn is_dead(
        &mut self,
        id: u32,
        word: Word,
        flow: &Flow,
        keepalive: Option<Ticks>,
        now: Ticks,
    ) -> bool {
        self.judge(id, word, flow, keepalive, now) == Judgement::Dead
    }

    /// Notes that a probe went out, or that it could not be `sent`: then it does not count.
    pub fn probed(&mut self, id: u32, end: End, sent: bool, now: Ticks) {
        let silent = self
            .0
            .get_mut(&id)
            .and_then(|probed| probed.end(end).as_mut());
        if let Some(silent) = silent {
            silent.last = Some(now);
            silent.tries += u8::from(sent);
        }
    }

    /// Forgets a flow.
    pub fn over(&mut self, id: u32) -> Judgement {
        self.0.remove(&id);
        Judgement::Over
    }
}

#[cfg(test)]
mod tests {
    use super::super::idle::words::*;
    use super::*;

    const K: Ticks = 6000;
    const GAP: Ticks = 2000;
    const ID: u32 = 5;

    fn flow() -> Flow {
        Flow {
            bytes_request: 100,
            bytes_reply: 200,
            ..Flow::default()
        }
    }

    fn begun() -> Keepalive {
        let mut keepalive = Keepalive::default();
        keepalive.begin(ID, established(), &flow());
        keepalive
    }

    fn judge(keepalive: &mut Keepalive, flow: &Flow, now: Ticks) -> Judgement {
        keepalive.judge(ID, established(), flow, Some(K), now)
    }

    /// Judges, and sends what is to be sent.
    fn round(keepalive: &mut Keepalive, flow: &Flow, now: Ticks) -> Judgement {
        let judgement = judge(keepalive, flow, now);
        if let Judgement::Probe(ends) = &judgement {
            for &end in ends {
                keepalive.probed(ID, end, true, now);
            }
        }
        judgement
    }

    fn probe(ends: &[End]) -> Judgement {
        Judgement::Probe(ends.to_vec())
    }

    #[test]
    fn both_ends_are_probed_and_a_flow_that_answers_lives() {
        let (mut keepalive, mut flow) = (begun(), flow());
        assert_eq!(round(&mut keepalive, &flow, 0), probe(&End::BOTH));
        assert_eq!(round(&mut keepalive, &flow, GAP - 1), probe(&[]));
        flow.bytes_reply += 54;
        assert_eq!(round(&mut keepalive, &flow, GAP - 1), probe(&[]));
        assert_eq!(round(&mut keepalive, &flow, GAP), probe(&[End::Client]));
        flow.bytes_request += 54;
        assert_eq!(round(&mut keepalive, &flow, GAP + 1), Judgement::Over);
        assert!(keepalive.ids().is_empty());
    }

    #[test]
    fn an_end_that_answers_does_not_hide_one_that_is_dead() {
        for dead in End::BOTH {
            let (mut keepalive, mut flow) = (begun(), flow());
            round(&mut keepalive, &flow, 0);
            match dead {
                End::Client => flow.bytes_reply += 54,
                End::Backend => flow.bytes_request += 54,
            }
            for now in [GAP, 2 * GAP] {
                assert_eq!(round(&mut keepalive, &flow, now), probe(&[dead]));
            }
            assert_eq!(round(&mut keepalive, &flow, 3 * GAP - 1), probe(&[]));
            assert_eq!(round(&mut keepalive, &flow, 3 * GAP), Judgement::Dead);
            assert!(keepalive.is_dead(ID, established(), &flow, Some(K), 3 * GAP + 1));
            flow.bytes_request += 54;
            flow.bytes_reply += 54;
            assert!(!keepalive.is_dead(ID, established(), &flow, Some(K), 3 * GAP + 1));
        }
    }

    #[test]
    fn a_probe_that_could_not_be_sent_does_not_count() {
        let (mut keepalive, flow) = (begun(), flow());
        for now in (0..10).map(|round| round * GAP) {
            assert_eq!(judge(&mut keepalive, &flow, now), probe(&End::BOTH));
            for end in End::BOTH {
                keepalive.probed(ID, end, false, now);
            }
            assert_eq!(judge(&mut keepalive, &flow, now + 1), probe(&[]));
        }
    }

    #[test]
    fn another_flow_on_the_id_is_not_judged_by_the_old_ones_silence() {
        let (mut keepalive, flow) = (begun(), flow());
        for now in [0, GAP, 2 * GAP] {
            round(&mut keepalive, &flow, now);
        }
        let next = Word::from_raw(established().raw() + (1 << 8));
        assert_eq!(next.generation(), established().generation() + 1);
        assert_eq!(
            keepalive.judge(ID, next, &flow, Some(K), 3 * GAP),
            Judgement::Over
        );
        assert!(keepalive.ids().is_empty());
    }

    #[test]
    fn a_flow_that_is_not_to_be_probed_any_more_is_forgotten() {
        let flow = flow();
        assert_eq!(
            begun().judge(ID, established(), &flow, None, 0),
            Judgement::Over
        );
        let closed = established().close();
        assert_eq!(
            begun().judge(ID, closed, &flow, Some(K), 0),
            Judgement::Over
        );
    }

    #[test]
    fn beginning_again_changes_nothing() {
        let (mut keepalive, mut flow) = (begun(), flow());
        round(&mut keepalive, &flow, 0);
        flow.bytes_request += 54;
        keepalive.begin(ID, established(), &flow);
        assert_eq!(round(&mut keepalive, &flow, GAP), probe(&[End::Backend]));
    }

    #[test]
    fn memory_is_bounded() {
        let mut keepalive = Keepalive::default();
        for id in 0..u32::try_from(MOST).unwrap() + 10 {
            keepalive.begin(id, established(), &flow());
        }
        assert_eq!(keepalive.ids().len(), MOST);
    }

    #[test]
    fn probes_are_a_second_apart_at_least() {
        assert_eq!(gap(100), SHORTEST_GAP);
        assert_eq!(gap(60_000), 20_000);
    }

    /// More living flows than there are probes for them in `KEEPALIVE`: each waits longer, but none
    /// for ever.
    #[test]
    fn every_flow_gets_its_turn() {
        use super::super::ends::Pace;
        use std::collections::BTreeMap;
        const FLOWS: u32 = 5000;
        const KEEPALIVE: Ticks = 30_000;
        let mut keepalive = Keepalive::default();
        let mut pace = Pace::new(1, 100, 0);
        let mut flows: BTreeMap<u32, (Flow, Ticks)> =
            (0..FLOWS).map(|id| (id, (flow(), 0))).collect();
        let mut probed: BTreeMap<u32, Ticks> = BTreeMap::new();
        let end = 600_000;
        for now in (KEEPALIVE..end).step_by(1000) {
            for (&id, (flow, last_seen)) in &flows {
                if age(now, *last_seen) >= KEEPALIVE {
                    keepalive.begin(id, established(), flow);
                }
            }
            for id in keepalive.ids() {
                let (flow, last_seen) = flows.get_mut(&id).unwrap();
                match keepalive.judge(id, established(), flow, Some(KEEPALIVE), now) {
                    Judgement::Over => {}
                    Judgement::Dead => panic!("{id} lives"),
                    Judgement::Probe(ends) => {
                        for end in ends {
                            if pace.take(now) {
                                keepalive.probed(id, end, true, now);
                                // It answers at once.
                                match end {
                                    End::Client => flow.bytes_request += 54,
                                    End::Backend => flow.bytes_reply += 54,
                                }
                                *last_seen = now;
                                probed.insert(id, now);
                            }
                        }
                    }
                }
            }
        }
        let never = (0..FLOWS).filter(|id| !probed.contains_key(id)).count();
        let late = probed
            .values()
            .filter(|at| age(end, **at) > 240_000)
            .count();
        assert_eq!((never, late), (0, 0), "never probed, not for four minutes");
    }
}
