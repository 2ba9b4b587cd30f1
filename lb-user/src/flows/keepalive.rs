//! Idle flows are probed at both ends, and one whose end has died is found. Pure.
//!
//! Each end is judged by its own bytes. The answer of one end moves the flow's last seen, and it
//! reaches the other end as an acknowledgment of nothing new, which is not answered. So a live end
//! cannot hide a dead one.
//!
//! The silence of an end that has never answered a probe proves nothing: it may drop segments without
//! timestamps (RFC 7323 section 3.2), or a filter in between does. It is mute: from then on only it is
//! probed, which moves no last seen, and its flow falls under an idle time, until it answers.
//!
//! A flow that is doubted is probed as well. An end that has aborted answers with a reset that is exact, which closes
//! the flow in the data plane; any other answer of either end takes the doubt off. When neither has answered, the flow
//! ends.

pub mod next_hops;
mod pass;
pub mod probe;
pub mod round_robin;

use lb_common::{
    conntrack::{FlowState, State},
    maps::{flow::Flow, snat::PAGE},
};

use super::{
    idle::Ticks,
    keepalive::probe::{EndAction, ProbeStep, Silent},
    reset::segments::FlowEnd,
};

/// What is known of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProbedEnd {
    /// Whether it has ever answered a probe.
    answers: bool,
    /// None if it is not being probed.
    silent: Option<Silent>,
}

/// What is known of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProbedFlow {
    generation: u32,
    /// What both ends had acknowledged when probing began: data moves it, an answer does not.
    acknowledged: [u32; 2],
    client: ProbedEnd,
    backend: ProbedEnd,
}

impl ProbedFlow {
    const fn end(&mut self, end: FlowEnd) -> &mut ProbedEnd {
        match end {
            FlowEnd::Client => &mut self.client,
            FlowEnd::Backend => &mut self.backend,
        }
    }

    const fn stop_asking(&mut self) {
        self.client.silent = None;
        self.backend.silent = None;
    }

    const fn is_asking(&self) -> bool {
        self.client.silent.is_some() || self.backend.silent.is_some()
    }
}

const fn traffic(flow: &Flow, end: FlowEnd) -> u64 {
    match end {
        FlowEnd::Client => flow.traffic_request,
        FlowEnd::Backend => flow.traffic_reply,
    }
}

const fn acknowledged(flow: &Flow) -> [u32; 2] {
    [flow.ack_request.get(), flow.ack_reply.get()]
}

/// What is to be done about a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepaliveAction {
    /// Nothing more: both ends live, or the flow is over.
    Over,
    /// This is to be done for these ends; nothing: wait.
    Ask(Vec<(FlowEnd, ProbeStep)>),
    /// This end is dead: the flow is to be ended.
    Dead(FlowEnd),
    /// An end of a doubted flow has answered.
    Trusted,
}

/// What is known of the flows that have been probed, by id: 80 bytes for each id, taken a page at a
/// time when its first flow is probed.
#[derive(Debug, Default)]
pub struct Keepalive(Vec<Vec<ProbedFlow>>);

impl Keepalive {
    /// Begins to probe an idle flow, unless that has begun.
    pub fn begin(&mut self, id: u32, word: FlowState, flow: &Flow) {
        let generation = word.generation();
        let Some(probed) = self.place(id) else {
            return;
        };
        if probed.generation != generation {
            *probed = ProbedFlow {
                generation,
                ..ProbedFlow::default()
            };
        } else if probed.is_asking() {
            return;
        }
        probed.acknowledged = acknowledged(flow);
        for end in FlowEnd::BOTH {
            probed.end(end).silent = Some(Silent::new(traffic(flow, end)));
        }
    }

    /// Earlier probes of the flow are of no meaning any more.
    pub fn begin_anew(&mut self, id: u32, word: FlowState) {
        let generation = word.generation();
        let probed = self.get_mut(id);
        if let Some(probed) = probed.filter(|probed| probed.generation == generation) {
            probed.stop_asking();
        }
    }

    /// Whether an end of the flow is being probed.
    pub fn is_asking(&self, id: u32, word: FlowState) -> bool {
        self.get(id, word).is_some_and(ProbedFlow::is_asking)
    }

    /// Whether an end of the flow has been probed for long enough and has never answered.
    pub fn is_mute(&self, id: u32, word: FlowState) -> bool {
        self.get(id, word).is_some_and(|probed| {
            [probed.client, probed.backend]
                .iter()
                .any(|end| !end.answers && end.silent.is_some_and(|silent| silent.is_tried()))
        })
    }

    /// Judges a flow that is being probed. `keepalive` is none if it is not to be probed any more.
    pub fn judge(
        &mut self,
        id: u32,
        word: FlowState,
        flow: &Flow,
        keepalive: Option<Ticks>,
        now: Ticks,
    ) -> KeepaliveAction {
        let (Some(keepalive), Some(probed)) = (keepalive, self.get_mut(id)) else {
            return KeepaliveAction::Over;
        };
        if probed.generation != word.generation() || !matches!(word.state(), State::Established) {
            *probed = ProbedFlow::default();
            return KeepaliveAction::Over;
        }
        let is_doubted = word.is_doubted();
        let is_quiet = probed.acknowledged == acknowledged(flow);
        let (mut steps, mut dead, mut answers) = (Vec::new(), Vec::new(), 0);
        for end in FlowEnd::BOTH {
            let known = probed.end(end);
            let Some(silent) = known.silent else {
                continue;
            };
            match silent.turn(
                traffic(flow, end),
                known.answers || is_doubted,
                now,
                keepalive,
            ) {
                EndAction::Answered => {
                    known.answers |= is_quiet && silent.is_asked();
                    known.silent = None;
                    answers += 1;
                }
                EndAction::Wait => {}
                EndAction::Step(step) => steps.push((end, step)),
                EndAction::Dead => dead.push(end),
            }
        }
        if is_doubted {
            if answers > 0 {
                probed.stop_asking();
                return KeepaliveAction::Trusted;
            }
            // It takes both.
            dead.truncate(dead.len() / 2);
        }
        match dead.first() {
            Some(&end) => KeepaliveAction::Dead(end),
            None if probed.is_asking() => KeepaliveAction::Ask(steps),
            None => KeepaliveAction::Over,
        }
    }

    /// Whether an end of the flow is still dead: all its probes have had their time, and its bytes
    /// have not moved.
    pub fn is_dead(
        &mut self,
        id: u32,
        word: FlowState,
        flow: &Flow,
        keepalive: Option<Ticks>,
        now: Ticks,
    ) -> bool {
        let judgement = self.judge(id, word, flow, keepalive, now);
        matches!(judgement, KeepaliveAction::Dead(_))
    }

    /// Notes that a probe went out, or that it could not be `sent`.
    pub fn probed(&mut self, id: u32, end: FlowEnd, sent: bool, now: Ticks) {
        if let Some(silent) = self.silent(id, end) {
            silent.probed(sent, now);
        }
    }

    /// Notes that an inquiry for the next hop of an end has been made.
    pub fn sought(&mut self, id: u32, end: FlowEnd) {
        if let Some(silent) = self.silent(id, end) {
            silent.sought();
        }
    }

    fn silent(&mut self, id: u32, end: FlowEnd) -> Option<&mut Silent> {
        self.get_mut(id)?.end(end).silent.as_mut()
    }

    fn get(&self, id: u32, word: FlowState) -> Option<&ProbedFlow> {
        let (page, offset) = place(id)?;
        let probed = self.0.get(page)?.get(offset)?;
        (probed.generation == word.generation()).then_some(probed)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut ProbedFlow> {
        let (page, offset) = place(id)?;
        self.0.get_mut(page)?.get_mut(offset)
    }

    /// The place of a flow, made if there is none.
    fn place(&mut self, id: u32) -> Option<&mut ProbedFlow> {
        let (index, offset) = place(id)?;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, Vec::new);
        }
        let page = self.0.get_mut(index)?;
        if page.is_empty() {
            page.resize(usize::try_from(PAGE).ok()?, ProbedFlow::default());
        }
        page.get_mut(offset)
    }
}

/// The page of an id, and its place there.
fn place(id: u32) -> Option<(usize, usize)> {
    let page = usize::try_from(id / PAGE).ok()?;
    Some((page, usize::try_from(id % PAGE).ok()?))
}

#[cfg(test)]
mod tests {
    use lb_common::addr::Be32;

    use super::{super::idle::words::*, *};

    const K: Ticks = 6000;
    const GAP: Ticks = 2000;
    const ID: u32 = 5;

    fn flow() -> Flow {
        Flow {
            traffic_request: 100,
            traffic_reply: 200,
            ..Flow::default()
        }
    }

    fn begun() -> Keepalive {
        let mut keepalive = Keepalive::default();
        keepalive.begin(ID, established(), &flow());
        keepalive
    }

    /// A flow whose ends have answered once, and which is probed anew.
    fn heard() -> (Keepalive, Flow) {
        let (mut keepalive, mut flow) = (begun(), flow());
        round(&mut keepalive, &flow, 0);
        for end in FlowEnd::BOTH {
            answer(&mut flow, end);
        }
        assert_eq!(round(&mut keepalive, &flow, 1), KeepaliveAction::Over);
        keepalive.begin(ID, established(), &flow);
        (keepalive, flow)
    }

    fn answer(flow: &mut Flow, end: FlowEnd) {
        match end {
            FlowEnd::Client => flow.traffic_request += 54,
            FlowEnd::Backend => flow.traffic_reply += 54,
        }
    }

    fn judge(keepalive: &mut Keepalive, flow: &Flow, now: Ticks) -> KeepaliveAction {
        keepalive.judge(ID, established(), flow, Some(K), now)
    }

    /// Judges, and does what is to be done.
    fn round(keepalive: &mut Keepalive, flow: &Flow, now: Ticks) -> KeepaliveAction {
        let judgement = judge(keepalive, flow, now);
        if let KeepaliveAction::Ask(steps) = &judgement {
            for &(end, step) in steps {
                match step {
                    ProbeStep::Seek => keepalive.sought(ID, end),
                    ProbeStep::Probe | ProbeStep::ProbeAgain => {
                        keepalive.probed(ID, end, true, now)
                    }
                }
            }
        }
        judgement
    }

    fn both(step: ProbeStep) -> KeepaliveAction {
        KeepaliveAction::Ask(FlowEnd::BOTH.map(|end| (end, step)).to_vec())
    }

    fn one(end: FlowEnd, step: ProbeStep) -> KeepaliveAction {
        KeepaliveAction::Ask(vec![(end, step)])
    }

    fn wait() -> KeepaliveAction {
        KeepaliveAction::Ask(Vec::new())
    }

    #[test]
    fn both_ends_are_probed_and_a_flow_that_answers_lives() {
        let (mut keepalive, mut flow) = (begun(), flow());
        assert_eq!(round(&mut keepalive, &flow, 0), both(ProbeStep::Probe));
        assert_eq!(round(&mut keepalive, &flow, GAP / 2 - 1), wait());
        answer(&mut flow, FlowEnd::Backend);
        let seek = one(FlowEnd::Client, ProbeStep::Seek);
        assert_eq!(round(&mut keepalive, &flow, GAP / 2), seek, "once");
        assert_eq!(round(&mut keepalive, &flow, GAP - 1), wait());
        let again = one(FlowEnd::Client, ProbeStep::ProbeAgain);
        assert_eq!(round(&mut keepalive, &flow, GAP), again);
        answer(&mut flow, FlowEnd::Client);
        assert!(keepalive.is_asking(ID, established()));
        assert_eq!(round(&mut keepalive, &flow, GAP + 1), KeepaliveAction::Over);
        assert!(!keepalive.is_asking(ID, established()));
    }

    #[test]
    fn an_end_that_answers_does_not_hide_one_that_is_dead() {
        for (live, dead) in [
            (FlowEnd::Client, FlowEnd::Backend),
            (FlowEnd::Backend, FlowEnd::Client),
        ] {
            let (mut keepalive, mut flow) = heard();
            round(&mut keepalive, &flow, 0);
            answer(&mut flow, live);
            for now in [GAP, 2 * GAP] {
                let again = one(dead, ProbeStep::ProbeAgain);
                assert_eq!(round(&mut keepalive, &flow, now), again);
            }
            let seek = one(dead, ProbeStep::Seek);
            assert_eq!(round(&mut keepalive, &flow, 3 * GAP - 1), seek);
            let verdict = KeepaliveAction::Dead(dead);
            assert_eq!(round(&mut keepalive, &flow, 3 * GAP), verdict);
            assert!(keepalive.is_dead(ID, established(), &flow, Some(K), 3 * GAP + 1));
            assert!(!keepalive.is_mute(ID, established()));
            answer(&mut flow, dead);
            assert!(!keepalive.is_dead(ID, established(), &flow, Some(K), 3 * GAP + 1));
        }
    }

    #[test]
    fn an_end_that_has_never_answered_is_mute_and_never_dead() {
        for (live, mute) in [
            (FlowEnd::Client, FlowEnd::Backend),
            (FlowEnd::Backend, FlowEnd::Client),
        ] {
            let (mut keepalive, mut flow) = (begun(), flow());
            round(&mut keepalive, &flow, 0);
            answer(&mut flow, live);
            let is_mute = |keepalive: &Keepalive| keepalive.is_mute(ID, established());
            for now in [GAP, 2 * GAP] {
                round(&mut keepalive, &flow, now);
            }
            let last = 2 * GAP;
            assert_eq!(round(&mut keepalive, &flow, last + GAP), wait());
            let seek = one(mute, ProbeStep::Seek);
            assert_eq!(round(&mut keepalive, &flow, last + K - 1), seek);
            assert!(!is_mute(&keepalive));
            for now in [last + K, last + 2 * K, last + 3 * K] {
                let again = one(mute, ProbeStep::ProbeAgain);
                assert_eq!(round(&mut keepalive, &flow, now), again, "it alone");
                assert!(is_mute(&keepalive));
            }
            // It answers after all: from now on its silence means something.
            answer(&mut flow, mute);
            let now = last + 3 * K + GAP + 1;
            assert_eq!(round(&mut keepalive, &flow, now), KeepaliveAction::Over);
            assert!(!is_mute(&keepalive));
            keepalive.begin(ID, established(), &flow);
            round(&mut keepalive, &flow, now);
            answer(&mut flow, live);
            for now in [now + GAP, now + 2 * GAP] {
                round(&mut keepalive, &flow, now);
            }
            assert!(keepalive.is_dead(ID, established(), &flow, Some(K), now + 3 * GAP));
        }
    }

    #[test]
    fn one_answer_takes_a_doubt_off_and_two_silent_ends_end_the_flow() {
        let doubted = established().doubted();
        let judge = |keepalive: &mut Keepalive, flow: &Flow, now| {
            let judgement = keepalive.judge(ID, doubted, flow, Some(K), now);
            if let KeepaliveAction::Ask(steps) = &judgement {
                let probes = steps.iter().filter(|(_, step)| *step != ProbeStep::Seek);
                for &(end, _) in probes {
                    keepalive.probed(ID, end, true, now);
                }
            }
            judgement
        };
        for end in FlowEnd::BOTH {
            let (mut keepalive, mut flow) = (begun(), flow());
            assert_eq!(judge(&mut keepalive, &flow, 0), both(ProbeStep::Probe));
            assert_eq!(
                judge(&mut keepalive, &flow, GAP),
                both(ProbeStep::ProbeAgain)
            );
            answer(&mut flow, end);
            assert_eq!(
                judge(&mut keepalive, &flow, GAP + 1),
                KeepaliveAction::Trusted
            );
            assert!(!keepalive.is_asking(ID, doubted), "neither end");
        }
        let (mut keepalive, flow) = (begun(), flow());
        for now in [0, GAP, 2 * GAP, 3 * GAP - 1] {
            assert!(matches!(
                judge(&mut keepalive, &flow, now),
                KeepaliveAction::Ask(_)
            ));
        }
        // One probe that did not leave proves nothing of its end.
        let mut other = Keepalive(keepalive.0.clone());
        other.probed(ID, FlowEnd::Client, false, 2 * GAP);
        assert!(matches!(
            judge(&mut other, &flow, 3 * GAP),
            KeepaliveAction::Ask(_)
        ));
        assert!(keepalive.is_dead(ID, doubted, &flow, Some(K), 3 * GAP));
    }

    #[test]
    fn what_was_asked_before_the_doubt_answers_nothing() {
        let (mut keepalive, mut flow) = (begun(), flow());
        round(&mut keepalive, &flow, 0);
        // The reset that is doubted.
        answer(&mut flow, FlowEnd::Client);
        let next = established().close().claim(false).publish();
        keepalive.begin_anew(ID, next);
        assert!(keepalive.is_asking(ID, established()), "another flow");
        let doubted = established().doubted();
        keepalive.begin_anew(ID, doubted);
        keepalive.begin(ID, doubted, &flow);
        let judgement = keepalive.judge(ID, doubted, &flow, Some(K), 1);
        assert_eq!(judgement, both(ProbeStep::Probe));
    }

    #[test]
    fn data_and_what_came_before_a_probe_are_no_answers() {
        let (mut keepalive, mut flow) = (begun(), flow());
        answer(&mut flow, FlowEnd::Client);
        round(&mut keepalive, &flow, 0);
        answer(&mut flow, FlowEnd::Backend);
        flow.ack_request = Be32::new(55);
        assert_eq!(round(&mut keepalive, &flow, 1), KeepaliveAction::Over);
        keepalive.begin(ID, established(), &flow);
        for now in (0..6).map(|round| round * GAP) {
            let judgement = round(&mut keepalive, &flow, now);
            assert!(
                matches!(judgement, KeepaliveAction::Ask(_)),
                "{judgement:?}"
            );
        }
    }

    #[test]
    fn after_a_probe_that_could_not_be_sent_the_count_begins_anew() {
        let (mut keepalive, flow) = heard();
        for now in [0, GAP, 2 * GAP] {
            round(&mut keepalive, &flow, now);
        }
        for now in (3..10).map(|round| round * GAP) {
            for end in FlowEnd::BOTH {
                keepalive.probed(ID, end, false, now);
            }
            assert_eq!(judge(&mut keepalive, &flow, now + GAP - 1), wait());
            assert_eq!(
                judge(&mut keepalive, &flow, now + GAP),
                both(ProbeStep::Probe)
            );
        }
        for now in (10..13).map(|round| round * GAP) {
            round(&mut keepalive, &flow, now);
            assert!(!keepalive.is_dead(ID, established(), &flow, Some(K), now));
        }
        assert!(keepalive.is_dead(ID, established(), &flow, Some(K), 13 * GAP));
    }

    #[test]
    fn another_flow_on_the_id_is_not_judged_by_the_old_ones_silence() {
        let next = FlowState::from_raw(established().raw() + (1 << 10));
        assert_eq!(next.generation(), established().generation() + 1);
        let silent = || {
            let (mut keepalive, flow) = heard();
            for now in [0, GAP, 2 * GAP] {
                round(&mut keepalive, &flow, now);
            }
            (keepalive, flow)
        };
        let (mut keepalive, flow) = silent();
        assert!(!keepalive.is_asking(ID, next));
        assert_eq!(
            keepalive.judge(ID, next, &flow, Some(K), 3 * GAP),
            KeepaliveAction::Over
        );
        // Nor by its answers.
        let (mut keepalive, flow) = silent();
        keepalive.begin(ID, next, &flow);
        for now in (0..6).map(|round| round * GAP) {
            let judgement = keepalive.judge(ID, next, &flow, Some(K), now);
            assert!(
                matches!(judgement, KeepaliveAction::Ask(_)),
                "{judgement:?}"
            );
            for end in FlowEnd::BOTH {
                keepalive.probed(ID, end, true, now);
            }
        }
    }

    #[test]
    fn a_flow_that_is_not_to_be_probed_any_more_is_forgotten() {
        let flow = flow();
        assert_eq!(
            begun().judge(ID, established(), &flow, None, 0),
            KeepaliveAction::Over
        );
        let closed = established().close();
        assert_eq!(
            begun().judge(ID, closed, &flow, Some(K), 0),
            KeepaliveAction::Over
        );
    }

    #[test]
    fn beginning_again_changes_nothing() {
        let (mut keepalive, mut flow) = (begun(), flow());
        round(&mut keepalive, &flow, 0);
        answer(&mut flow, FlowEnd::Client);
        keepalive.begin(ID, established(), &flow);
        let again = one(FlowEnd::Backend, ProbeStep::ProbeAgain);
        assert_eq!(round(&mut keepalive, &flow, GAP), again);
    }

    #[test]
    fn memory_is_taken_in_pages() {
        let mut keepalive = Keepalive::default();
        for id in [PAGE, 2 * PAGE - 1, 9 * PAGE + 3] {
            keepalive.begin(id, established(), &flow());
            assert!(keepalive.is_asking(id, established()));
        }
        let pages: Vec<usize> = keepalive.0.iter().map(Vec::len).collect();
        let page = usize::try_from(PAGE).unwrap();
        assert_eq!(pages, [0, page, 0, 0, 0, 0, 0, 0, 0, page]);
        assert_eq!(size_of::<ProbedFlow>(), 80);
    }
}
