//! What has happened lately, for operators.

use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::api::Event;

/// How many events are kept.
const MAX_EVENTS: usize = 1000;

/// The latest events, in order.
#[derive(Debug, Default)]
pub struct Events {
    kept: VecDeque<Event>,
    /// The number of the latest one, 0 before the first.
    latest: u64,
}

impl Events {
    /// Notes what happened just now; [`Event`] has what the words mean.
    pub fn push(
        &mut self,
        kind: &str,
        object: impl Into<String>,
        words: impl Into<String>,
        by: Option<String>,
    ) {
        self.push_at(SystemTime::now(), kind, object.into(), words.into(), by);
    }

    fn push_at(
        &mut self,
        time: SystemTime,
        kind: &str,
        object: String,
        words: String,
        by: Option<String>,
    ) {
        if self.kept.len() >= MAX_EVENTS {
            self.kept.pop_front();
        }
        self.latest += 1;
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.kept.push_back(Event {
            number: self.latest,
            time_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            kind: kind.to_owned(),
            object,
            words,
            by,
        });
    }

    /// Those after the one with this number, oldest first.
    ///
    /// All of them if there is none with this number yet: then it is one of an earlier process, and the
    /// caller has seen nothing of this one.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<Event> {
        let number = if number > self.latest { 0 } else { number };
        let later = self.kept.iter().filter(|event| event.number > number);
        later.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn events(count: u64) -> Events {
        let mut events = Events::default();
        for number in 1..=count {
            let time = UNIX_EPOCH + Duration::from_millis(number);
            let object = format!("backend {number}");
            events.push_at(time, "health", object, "up".to_owned(), None);
        }
        events
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn events_come_in_order_and_from_where_they_are_asked_for() {
        let events = events(5);
        assert_eq!(numbers(&events.after(0)), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&events.after(3)), [4, 5]);
        assert_eq!(numbers(&events.after(5)), [0; 0]);
        assert_eq!(
            events.after(4),
            [Event {
                number: 5,
                time_ms: 5,
                kind: "health".to_owned(),
                object: "backend 5".to_owned(),
                words: "up".to_owned(),
                by: None,
            }]
        );
    }

    #[test]
    fn a_number_of_an_earlier_process_hides_nothing() {
        assert_eq!(numbers(&events(2).after(700)), [1, 2]);
        assert_eq!(numbers(&events(0).after(700)), [0; 0]);
    }

    #[test]
    fn the_oldest_go_and_numbers_stay() {
        let many = MAX_EVENTS as u64 + 10;
        let events = events(many);
        let kept = numbers(&events.after(0));
        assert_eq!(kept.len(), MAX_EVENTS);
        assert_eq!((kept[0], kept[MAX_EVENTS - 1]), (11, many));
        assert_eq!(events.after(0)[0].object, "backend 11");
        assert_eq!(numbers(&events.after(5)), kept, "6 to 10 are gone");
    }

    #[test]
    fn an_event_has_the_time_of_now() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut events = Events::default();
        events.push(
            "reload",
            "/etc/lb.yaml",
            "generation 2",
            Some("uid 0".to_owned()),
        );
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let [event] = &events.after(0)[..] else {
            panic!("one event")
        };
        assert!((before.as_millis()..=after.as_millis()).contains(&event.time_ms.into()));
        assert_eq!(event.by.as_deref(), Some("uid 0"));
    }
}
