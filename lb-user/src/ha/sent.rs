//! What the peer has been sent of each flow, and so what it is to be sent next. Pure.
//!
//! The table is the truth: a look at an entry says what is to be sent, and nothing is lost by a hint that is.

use lb_common::conntrack::FlowState;

/// How far a flow's latest packet is from what the peer knows until it is sent again, in units of coarse time: somewhat more than four
/// seconds. A flow that idles is not sent again.
const REFRESH: u32 = 4096;

/// What of the flows of one SNAT address has been sent, by the ports' offsets. 8 bytes for each.
#[derive(Debug)]
pub struct SentFlows {
    entries: Vec<SentFlow>,
}

/// What has been sent of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SentFlow {
    /// The word that its flow had; 0 if none was sent, or its end was.
    word: u32,
    /// When that was seen last.
    last_seen: u32,
}

/// What the peer is to be sent of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It has all that it needs.
    Nothing,
    /// The flow as it is now.
    Flow,
    /// That its flow is over.
    End,
}

impl SentFlows {
    /// Of an address with so many ports, of which nothing has been sent.
    pub fn new(ports: usize) -> Self {
        Self {
            entries: vec![SentFlow::default(); ports],
        }
    }

    /// What is due of the flow at this offset, which has this word now and was seen at this coarse time; it is sent then.
    pub fn look(&mut self, offset: usize, word: FlowState, last_seen: u32) -> Due {
        let Some(sent) = self.entries.get_mut(offset) else {
            return Due::Nothing;
        };
        let (now, due) = if word.is_replicated() {
            let word = word.woken().raw();
            let is_known = sent.word == word && last_seen.wrapping_sub(sent.last_seen) < REFRESH;
            (
                SentFlow { word, last_seen },
                if is_known { Due::Nothing } else { Due::Flow },
            )
        } else {
            let was_sent = sent.word != 0;
            (
                SentFlow::default(),
                if was_sent { Due::End } else { Due::Nothing },
            )
        };
        if due != Due::Nothing {
            *sent = now;
        }
        due
    }

    /// What was due of an offset could not be sent: it is due again.
    pub fn forget(&mut self, offset: usize) {
        if let Some(sent) = self.entries.get_mut(offset) {
            *sent = SentFlow::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_sent_when_it_is_new_changed_active_again_or_over() {
        let mut sent = SentFlows::new(2);
        let new = FlowState::default().claim(false).publish();
        let live = new.establish();
        assert_eq!(
            sent.look(1, new, 1),
            Due::Nothing,
            "the backend has not answered"
        );
        assert_eq!(sent.look(1, live, 2), Due::Flow);
        assert_eq!(sent.look(1, live, 2), Due::Nothing);
        assert_eq!(
            sent.look(1, live.expiring(), 3),
            Due::Nothing,
            "a mark of our own"
        );
        assert_eq!(sent.look(1, live.doubted(), 3), Due::Flow);
        assert_eq!(sent.look(1, live, 3), Due::Flow);
        assert_eq!(sent.look(1, live, 2 + REFRESH), Due::Nothing);
        assert_eq!(sent.look(1, live, 3 + REFRESH), Due::Flow);
        let over = live.close();
        assert_eq!(sent.look(1, over, 4 + REFRESH), Due::End);
        assert_eq!(sent.look(1, over, 4 + REFRESH), Due::Nothing);
        // Another flow has the port before a look has seen the end.
        let next = over.claim(false).publish().establish();
        assert_eq!(sent.look(1, next, 5 + REFRESH), Due::Flow);
        let later = next.close().claim(false).publish();
        assert_eq!(sent.look(1, later, 6 + REFRESH), Due::End);
        assert_eq!(sent.look(1, later.establish(), 7 + REFRESH), Due::Flow);
        sent.forget(1);
        assert_eq!(sent.look(1, later.establish(), 7 + REFRESH), Due::Flow);
        assert_eq!(sent.look(2, live, 1), Due::Nothing, "no port");
    }

    /// The coarse time wraps after 52 days.
    #[test]
    fn a_clock_that_wraps_is_no_activity_of_the_past() {
        let mut sent = SentFlows::new(1);
        let live = FlowState::default().claim(true).establish();
        assert_eq!(sent.look(0, live, u32::MAX - 10), Due::Flow);
        assert_eq!(sent.look(0, live, 10), Due::Nothing);
        assert_eq!(sent.look(0, live, REFRESH), Due::Flow);
    }
}
