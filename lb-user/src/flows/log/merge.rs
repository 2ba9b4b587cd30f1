//! Two streams of events as one.

use super::LogEvent;

/// The next event of each stream, taken out of it already.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Of the data plane.
    pub(super) ring: Option<LogEvent>,
    /// Of this process.
    pub(super) report: Option<LogEvent>,
}

impl Heads {
    pub(super) const fn is_empty(&self) -> bool {
        self.ring.is_none() && self.report.is_none()
    }

    /// Takes the earlier event out, so that neither stream waits for the end of the other and a flow
    /// ends before the next one on its id begins. Of two at the same time that is the report: an id
    /// is another flow's in no time, and no flow is ended by this process as soon as it has begun.
    pub(super) fn take(&mut self) -> Option<LogEvent> {
        let Self { ring, report } = self;
        match (&ring, &report) {
            (Some(first), Some(other)) if is_before(first.event.time, other.event.time) => {
                ring.take()
            }
            (_, Some(_)) => report.take(),
            (_, None) => ring.take(),
        }
    }
}

/// Whether `time` is before `other`, over the wrap as well.
const fn is_before(time: u32, other: u32) -> bool {
    time.wrapping_sub(other).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use lb_common::maps::event::FlowEvent;

    use super::*;

    /// What comes out of two streams of events that were at these times: their times, and which
    /// stream they are of.
    fn merged(ring: &[u32], reports: &[u32]) -> Vec<(u32, u32)> {
        let stream = |id, times: &[u32]| -> VecDeque<LogEvent> {
            let event = |&time| {
                let event = FlowEvent {
                    id,
                    time,
                    ..FlowEvent::default()
                };
                event.into()
            };
            times.iter().map(event).collect()
        };
        let (mut ring, mut reports) = (stream(0, ring), stream(1, reports));
        let mut heads = Heads::default();
        std::iter::from_fn(|| {
            heads.ring = heads.ring.take().or_else(|| ring.pop_front());
            heads.report = heads.report.take().or_else(|| reports.pop_front());
            heads
                .take()
                .map(|LogEvent { event, .. }| (event.time, event.id))
        })
        .collect()
    }

    #[test]
    fn events_come_in_the_order_of_time() {
        assert_eq!(
            merged(&[1, 3, 4, 9], &[2, 3, 5]),
            [(1, 0), (2, 1), (3, 1), (3, 0), (4, 0), (5, 1), (9, 0)]
        );
        assert_eq!(merged(&[1, 2], &[]), [(1, 0), (2, 0)]);
        assert_eq!(merged(&[], &[1, 2]), [(1, 1), (2, 1)]);
    }

    #[test]
    fn time_wraps() {
        let last = u32::MAX;
        assert_eq!(merged(&[last, 1], &[0]), [(last, 0), (0, 1), (1, 0)]);
        assert_eq!(merged(&[0], &[last]), [(last, 1), (0, 0)]);
    }
}
