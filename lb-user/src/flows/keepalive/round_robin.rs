//! Which flows are probed when there are more idle flows than probes. Pure.

use std::mem;

use crate::flows::idle::{Ticks, age};

/// Whose turn it is when there are more probes than may be sent: a pass goes on where the one before
/// had to stop.
#[derive(Debug, Default)]
pub struct Turns {
    first: u32,
    refused: bool,
    round: Ticks,
}

impl Turns {
    /// The first round begins.
    pub fn new(now: Ticks) -> Self {
        Self {
            round: now,
            ..Self::default()
        }
    }

    /// Whether this flow may be sent a probe in this pass.
    pub const fn may(&self, id: u32) -> bool {
        !self.refused && id >= self.first
    }

    /// No more probes may be sent in this pass: the next one begins with this flow.
    pub const fn refuse(&mut self, id: u32) {
        self.refused = true;
        self.first = id;
    }

    /// The pass is over. If it ended a round of several, because every flow has had its turn now: how
    /// long that took.
    pub fn end_pass(&mut self, now: Ticks) -> Option<Ticks> {
        if mem::take(&mut self.refused) {
            return None;
        }
        let took = age(now, mem::replace(&mut self.round, now));
        let first = mem::take(&mut self.first);
        (first > 0).then_some(took)
    }
}

#[cfg(test)]
mod tests {
    use lb_common::maps::flow::Flow;

    use super::{
        super::{Keepalive, KeepaliveAction},
        *,
    };
    use crate::flows::{
        idle::words::*,
        reset::segments::{FlowEnd, SendRate},
    };

    #[test]
    fn a_pass_goes_on_where_the_one_before_had_to_stop() {
        let mut turns = Turns::new(100);
        let served = |turns: &mut Turns| -> Vec<u32> {
            let mut left = 2;
            let serve = |id: &u32| {
                let may = turns.may(*id);
                if may && left == 0 {
                    turns.refuse(*id);
                    return false;
                }
                left -= u32::from(may);
                may
            };
            (0..5).filter(serve).collect()
        };
        assert_eq!(served(&mut turns), [0, 1]);
        assert_eq!(turns.end_pass(110), None);
        assert_eq!(served(&mut turns), [2, 3]);
        assert_eq!(turns.end_pass(120), None);
        assert_eq!(served(&mut turns), [4]);
        assert_eq!(turns.end_pass(130), Some(30));
        assert_eq!(served(&mut turns), [0, 1]);
        let mut idle = Turns::new(100);
        assert_eq!(idle.end_pass(110), None, "one pass is no round");
    }

    /// More living flows than there are probes for them in `KEEPALIVE`: each waits longer, but none
    /// for ever.
    #[test]
    fn every_flow_gets_its_turn() {
        use std::collections::BTreeMap;
        const FLOWS: u32 = 5000;
        const KEEPALIVE: Ticks = 30_000;
        let mut keepalive = Keepalive::default();
        let mut turns = Turns::new(0);
        let mut pace = SendRate::new(1, 100, 0);
        let mut flows: BTreeMap<u32, (Flow, Ticks)> =
            (0..FLOWS).map(|id| (id, (Flow::default(), 0))).collect();
        let mut probed: BTreeMap<u32, Ticks> = BTreeMap::new();
        let end = 600_000;
        for now in (KEEPALIVE..end).step_by(1000) {
            for (&id, (flow, last_seen)) in &mut flows {
                if age(now, *last_seen) >= KEEPALIVE {
                    keepalive.begin(id, established(), flow);
                }
                match keepalive.judge(id, established(), flow, Some(KEEPALIVE), now) {
                    KeepaliveAction::Over | KeepaliveAction::Trusted => {}
                    KeepaliveAction::Dead(_) => panic!("{id} lives"),
                    KeepaliveAction::Ask(steps) => {
                        for (end, _) in steps {
                            if !turns.may(id) {
                                continue;
                            }
                            if !pace.take(now) {
                                turns.refuse(id);
                                continue;
                            }
                            keepalive.probed(id, end, true, now);
                            // It answers at once.
                            match end {
                                FlowEnd::Client => flow.traffic_request += 54,
                                FlowEnd::Backend => flow.traffic_reply += 54,
                            }
                            *last_seen = now;
                            probed.insert(id, now);
                        }
                    }
                }
            }
            turns.end_pass(now);
        }
        let never = (0..FLOWS).filter(|id| !probed.contains_key(id)).count();
        let late = probed
            .values()
            .filter(|at| age(end, **at) > 240_000)
            .count();
        assert_eq!((never, late), (0, 0), "never probed, not for four minutes");
    }
}
