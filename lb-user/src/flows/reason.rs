//! Why flows are ended. Pure.

use lb_common::{
    conntrack::FlowState,
    maps::{
        event::{DEAD, EXPIRED},
        flow::Flow,
    },
};

use super::{
    idle::{Policy, Ticks},
    keepalive::Keepalive,
};

/// Why a flow is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is idle for too long.
    Idle,
    /// One of its ends does not answer.
    Dead,
}

impl Cause {
    /// The kind of the flow's last event.
    pub const fn event(self) -> u32 {
        match self {
            Self::Idle => EXPIRED,
            Self::Dead => DEAD,
        }
    }
}

/// What a flow that is to end is judged by.
pub struct Judge<'a> {
    /// The times.
    pub policy: &'a Policy,
    /// What probes have found.
    pub keepalive: &'a mut Keepalive,
    /// The time of the judgement.
    pub now: Ticks,
}

impl Judge<'_> {
    /// Whether the flow with this id is still to end for `cause`, now that no packet is on its way.
    pub fn confirms(self, cause: Cause, id: u32, word: FlowState, flow: &Flow) -> bool {
        let Self {
            policy,
            keepalive,
            now,
        } = self;
        let &Flow {
            service, last_seen, ..
        } = flow;
        match cause {
            Cause::Idle => {
                policy.is_due(word, service, last_seen, now)
                    || keepalive.is_mute(id, word)
                        && policy.is_due_mute(word, service, last_seen, now)
            }
            Cause::Dead => {
                let after = policy.keepalive(word, service);
                keepalive.is_dead(id, word, flow, after, now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{idle::words::*, keepalive::KeepaliveAction, reset::segments::FlowEnd},
        *,
    };

    const ID: u32 = 3;

    #[test]
    fn a_cause_has_its_own_event() {
        assert_eq!(Cause::Idle.event(), EXPIRED);
        assert_eq!(Cause::Dead.event(), DEAD);
    }

    #[test]
    fn a_dead_flow_is_judged_by_its_ends_and_an_idle_one_by_its_time() {
        const SERVICE: u16 = 4;
        const KEEPALIVE: u32 = 3000;
        let (policy, mut keepalive) = (Policy::probing(SERVICE, KEEPALIVE), Keepalive::default());
        let mut flow = Flow {
            service: SERVICE,
            ..Flow::default()
        };
        let word = established();
        // Both ends answer once, and then no more.
        let mut now = 0;
        for answers in [54, 0] {
            keepalive.begin(ID, word, &flow);
            for _ in 0..3 {
                for end in FlowEnd::BOTH {
                    keepalive.probed(ID, end, true, now);
                }
                flow.traffic_request += answers;
                flow.traffic_reply += answers;
                now += KEEPALIVE;
                let judgement = keepalive.judge(ID, word, &flow, Some(KEEPALIVE), now);
                assert_eq!(judgement == KeepaliveAction::Over, answers > 0);
            }
        }
        let mut holds = |cause: Cause, flow: &Flow| {
            let judge = Judge {
                policy: &policy,
                keepalive: &mut keepalive,
                now,
            };
            judge.confirms(cause, ID, word, flow)
        };
        assert!(holds(Cause::Dead, &flow));
        assert!(!holds(Cause::Idle, &flow), "never");
        flow.traffic_request += 54;
        flow.traffic_reply += 54;
        assert!(!holds(Cause::Dead, &flow));
    }
}
