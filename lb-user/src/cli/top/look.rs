//! One look after the other at an instance, whether its control plane runs or not.

use std::time::Instant;

use anyhow::Result;

use crate::{
    admin::client,
    api::{Answer, Event, Request},
    cli::{ask, observed},
    dataplane::pins::Pins,
    events::file,
    reports::{
        overview::{ControlReports, MAX_EVENTS, Overview},
        rates::Watch,
    },
};

/// Looks at an instance.
pub(super) struct Looker {
    instance: String,
    watch: Watch,
    events: LatestEvents,
}

impl Looker {
    /// It has not looked yet.
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            watch: Watch::default(),
            events: LatestEvents::default(),
        }
    }

    /// Looks. The instance is opened anew: another process, or another data plane, may have it now.
    ///
    /// # Errors
    ///
    /// If it is not up, or may not be read.
    pub(super) fn look(&mut self) -> Result<Overview> {
        let observer = observed::open(&self.instance)?;
        let when = Instant::now();
        let mut overview = Overview::new(&observer, self.control())?;
        self.watch.follow(&mut overview, when);
        Ok(overview)
    }

    /// What the control plane knows; without one, the events that it has left.
    fn control(&mut self) -> ControlReports {
        let status = ask::health(&self.instance);
        let instance = &self.instance;
        self.events.follow(|after| events_after(instance, after));
        let names = match client::ask(&self.instance, &Request::RefusedNames) {
            Ok(Answer::RefusedNames { names }) => names,
            _ => Vec::new(),
        };
        ControlReports {
            status,
            events: self.events.0.clone(),
            names,
        }
    }
}

/// Events after the one with this number, oldest first; none where none can be had.
fn events_after(instance: &str, after: u64) -> Vec<Event> {
    match client::ask(instance, &Request::Events { after }) {
        Ok(Answer::Events { events }) => events,
        _ => {
            let left = file::read_after(&Pins::new(instance), after);
            left.ok().flatten().unwrap_or_default()
        }
    }
}

/// The latest events of an instance, oldest first, as many as an overview has.
#[derive(Debug, Default)]
struct LatestEvents(Vec<Event>);

impl LatestEvents {
    /// Goes on with what has come since, by `read`, which returns the events after the one with a number.
    fn follow(&mut self, read: impl Fn(u64) -> Vec<Event>) {
        let newer = self.0.last().and_then(|latest| {
            // The latest one comes again, to prove that these are the same events: numbers begin anew with the instance,
            // and a process that was killed may have written fewer than it has shown.
            let mut events = read(latest.number.saturating_sub(1)).into_iter();
            (events.next().as_ref() == Some(latest)).then_some(events)
        });
        match newer {
            Some(newer) => self.0.extend(newer),
            None => self.0 = read(0),
        }
        let older = self.0.len().saturating_sub(MAX_EVENTS);
        self.0.drain(..older);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::api::Severity;

    /// An event, distinguished by `words` from others with its number.
    fn event(number: u64, words: &str) -> Event {
        Event {
            number,
            time_ms: 1_000_000_000_789,
            kind: "health".to_owned(),
            severity: Severity::Warning,
            object: "backend p/a".to_owned(),
            words: words.to_owned(),
            by: None,
        }
    }

    fn events(numbers: impl IntoIterator<Item = u64>, words: &str) -> Vec<Event> {
        let numbers = numbers.into_iter();
        numbers.map(|number| event(number, words)).collect()
    }

    /// Follows an instance that has these events: what was requested, and how many events came in all.
    fn follow(latest: &mut LatestEvents, all: &[Event]) -> (Vec<u64>, usize) {
        let requested = RefCell::new((Vec::new(), 0));
        latest.follow(|after| {
            // As the ring of an instance answers.
            let last = all.last().map_or(0, |event| event.number);
            let begin = if after > last { 0 } else { after };
            let later = all.iter().filter(|event| event.number > begin);
            let later: Vec<Event> = later.cloned().collect();
            let (numbers, count) = &mut *requested.borrow_mut();
            numbers.push(after);
            *count += later.len();
            later
        });
        requested.into_inner()
    }

    #[test]
    fn a_look_requests_what_has_come_since_the_one_before() {
        let mut latest = LatestEvents::default();
        assert_eq!(follow(&mut latest, &[]), (vec![0], 0));
        assert_eq!(follow(&mut latest, &events(1..=2, "a")), (vec![0], 2));
        let first = events(1..=3000, "a");
        assert_eq!(follow(&mut latest, &first), (vec![1], 2999));
        assert_eq!(latest.0, events(2901..=3000, "a"));
        assert_eq!(follow(&mut latest, &first), (vec![2999], 1));
        assert_eq!(latest.0, events(2901..=3000, "a"));
        // Also over a restart, and where some are not kept any more.
        let later = [&first[..], &events([3001, 3004], "a")].concat();
        assert_eq!(follow(&mut latest, &later), (vec![2999], 3));
        assert_eq!(latest.0[98..], events([3001, 3004], "a"));
        assert_eq!((latest.0.len(), latest.0[0].number), (MAX_EVENTS, 2903));
    }

    #[test]
    fn other_events_replace_those_that_are_there() {
        let mut latest = LatestEvents(events(1..=5, "a"));
        // Another instance with fewer, with as many, with more.
        for (last, words) in [(3, "b"), (3, "c"), (9, "d")] {
            let all = events(1..=last, words);
            let before = latest.0.last().unwrap().number - 1;
            assert_eq!(follow(&mut latest, &all).0, [before, 0]);
            assert_eq!(latest.0, all);
        }
        // The latest one is not kept any more.
        let gap = [events(1..=4, "d"), events(12..=14, "d")].concat();
        assert_eq!(follow(&mut latest, &gap).0, [8, 0]);
        assert_eq!(latest.0, gap);
        assert_eq!(follow(&mut latest, &[]).0, [13, 0]);
        assert_eq!(latest.0, []);
    }
}
