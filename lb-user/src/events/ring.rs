//! The latest events. Each class has its own bound: a pool that flaps does not push out what operators have ordered.

use std::collections::VecDeque;

use crate::api::Event;

/// How many events of each class are kept, and how many bytes of them.
const BOUNDS: [Bound; 3] = [
    Bound {
        events: 2000,
        bytes: 1 << 20,
    },
    Bound {
        events: 500,
        bytes: 1 << 18,
    },
    Bound {
        events: 7500,
        bytes: 5 << 19,
    },
];

/// The most events that are kept in all.
pub(super) const MAX_EVENTS: usize = BOUNDS[0].events + BOUNDS[1].events + BOUNDS[2].events;
/// The most bytes of them, as lines of a file; a little more than what is counted here.
pub(super) const MAX_BYTES: u64 = 4 << 20;
/// The largest number of an event: the largest that is exact in any reader of JSON.
const MAX_NUMBER: u64 = (1 << 53) - 1;
/// What a line has beside its texts.
const FRAME_BYTES: usize = 160;

/// What is kept of a class at most.
struct Bound {
    events: usize,
    bytes: usize,
}

/// What pushes one another out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// What was ordered, and what came of it.
    Order,
    /// Starts and ends of the process.
    Process,
    /// What happened by itself.
    Other,
}

impl Class {
    fn of(event: &Event) -> Self {
        match event.kind.as_str() {
            "confirm" | "kill" | "override" | "reload" | "rollback" => Self::Order,
            "process" => Self::Process,
            _ if event.by.is_some() => Self::Order,
            _ => Self::Other,
        }
    }
}

/// The latest events of each class.
#[derive(Debug, Default)]
pub(super) struct Ring {
    classes: [Kept; BOUNDS.len()],
    /// The number of the latest one, 0 before the first.
    latest: u64,
}

/// The latest events of a class, in order.
#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    bytes: usize,
}

impl Ring {
    /// The number of the next event.
    pub(super) const fn next_number(&self) -> u64 {
        self.latest.saturating_add(1)
    }

    /// Keeps an event that has a number. One that is not later than the latest is known already.
    pub(super) fn add(&mut self, event: Event) {
        if event.number <= self.latest || event.number > MAX_NUMBER {
            return;
        }
        self.latest = event.number;
        let class = Class::of(&event) as usize;
        self.classes[class].add(event, &BOUNDS[class]);
    }

    /// Those after the one with this number, oldest first.
    ///
    /// All of them if there is none with this number yet: then it is one of an instance that was taken down, and the
    /// caller has seen nothing of this one.
    pub(super) fn after(&self, number: u64) -> Vec<Event> {
        let number = if number > self.latest { 0 } else { number };
        let all = self.classes.iter().flat_map(|class| &class.events);
        let mut later: Vec<Event> = all.filter(|event| event.number > number).cloned().collect();
        later.sort_by_key(|event| event.number);
        later
    }

    /// So many of the latest, oldest first.
    pub(super) fn latest(&self, count: usize) -> Vec<Event> {
        let latest = self
            .classes
            .iter()
            .flat_map(|class| class.events.iter().rev().take(count));
        let mut latest: Vec<&Event> = latest.collect();
        latest.sort_by_key(|event| event.number);
        let more = latest.len().saturating_sub(count);
        latest.into_iter().skip(more).cloned().collect()
    }

    /// The latest one of what the process did.
    pub(super) fn latest_of_process(&self) -> Option<&Event> {
        self.classes[Class::Process as usize].events.back()
    }
}

impl Kept {
    fn add(&mut self, event: Event, bound: &Bound) {
        self.bytes += bytes(&event);
        self.events.push_back(event);
        while (self.events.len() > bound.events || self.bytes > bound.bytes)
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= bytes(&oldest);
        }
    }
}

fn bytes(event: &Event) -> usize {
    let by = event.by.as_ref().map_or(0, String::len);
    FRAME_BYTES + event.kind.len() + event.object.len() + event.words.len() + by
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Severity;

    fn event(number: u64, kind: &str) -> Event {
        Event {
            number,
            time_ms: number,
            kind: kind.to_owned(),
            severity: Severity::Notice,
            object: format!("backend {number}"),
            words: "up".to_owned(),
            by: None,
        }
    }

    fn ring(numbers: impl IntoIterator<Item = u64>) -> Ring {
        let mut ring = Ring::default();
        for number in numbers {
            ring.add(event(number, "health"));
        }
        ring
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn events_come_in_order_and_from_where_they_are_asked_for() {
        let ring = ring(1..=5);
        assert_eq!(numbers(&ring.after(0)), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&ring.after(3)), [4, 5]);
        assert_eq!(numbers(&ring.after(5)), [0; 0]);
        assert_eq!(ring.after(4), [event(5, "health")]);
        assert_eq!(ring.next_number(), 6);
    }

    #[test]
    fn the_latest_are_those_of_all_classes() {
        let mut ring = ring(1..=3);
        ring.add(event(4, "reload"));
        ring.add(event(5, "process"));
        ring.add(event(6, "health"));
        assert_eq!(numbers(&ring.latest(4)), [3, 4, 5, 6]);
        assert_eq!(numbers(&ring.latest(9)), [1, 2, 3, 4, 5, 6]);
        assert_eq!(numbers(&ring.latest(0)), [0; 0]);
    }

    #[test]
    fn a_number_of_an_instance_that_was_taken_down_hides_nothing() {
        assert_eq!(numbers(&ring(1..=2).after(700)), [1, 2]);
        assert_eq!(numbers(&ring([]).after(700)), [0; 0]);
    }

    #[test]
    fn the_oldest_go_and_numbers_stay() {
        let bound = BOUNDS[Class::Other as usize].events as u64;
        let ring = ring(1..=bound + 10);
        let kept = numbers(&ring.after(0));
        assert_eq!(kept, (11..=bound + 10).collect::<Vec<_>>());
        assert_eq!(numbers(&ring.after(5)), kept, "6 to 10 are gone");
    }

    #[test]
    fn what_flaps_pushes_no_order_out() {
        let mut ring = Ring::default();
        ring.add(event(1, "process"));
        ring.add(event(2, "override"));
        let by = Some("uid 0, process 9".to_owned());
        ring.add(Event {
            by,
            ..event(3, "mend")
        });
        for number in 4..50_000 {
            ring.add(event(number, "health"));
        }
        let kept = ring.after(0);
        assert_eq!(numbers(&kept[..3]), [1, 2, 3]);
        assert_eq!(kept.len(), 3 + BOUNDS[Class::Other as usize].events);
        assert_eq!(ring.latest_of_process(), Some(&event(1, "process")));
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut ring = Ring::default();
        let words = "w".repeat(4000);
        for number in 1..=10_000 {
            let words = words.clone();
            ring.add(Event {
                words,
                ..event(number, "reload")
            });
        }
        let kept = ring.after(0);
        let bytes: usize = kept.iter().map(bytes).sum();
        assert!(bytes <= BOUNDS[0].bytes && kept.len() > 200, "{bytes}");
    }

    #[test]
    fn a_number_that_is_none_is_not_taken() {
        let ring = ring([7, 7, 3, u64::MAX, 8]);
        assert_eq!(numbers(&ring.after(0)), [7, 8]);
        assert_eq!(ring.next_number(), 9);
    }
}
