//! `lb events`: what has happened, a line each; of an instance that does not run, what it has left.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::{
    arguments::{Format, Show},
    ask::OTHER_ANSWER,
    print,
};
use crate::{
    admin::client::{self, Failure},
    api::{Answer, Event, Request},
    dataplane::pins::Pins,
    events::file::{self, time},
    reports::events::{EventReport, EventsReport},
    system::{escape::escaped, output},
};

/// How often `--follow` requests more.
const POLL: Duration = Duration::from_millis(500);

pub(super) fn show(after: u64, follow: bool, show: &Show) -> Result<()> {
    let (instance, format) = (&show.instance.name, show.output.format);
    let events = match ask(instance, after) {
        Err(failure @ Failure::NotRunning { .. }) => left(instance, after, failure)?,
        events => events?,
    };
    if !follow && format == Format::Json {
        let events = events.into_iter().map(EventReport::from).collect();
        return print::report(&EventsReport { events });
    }
    let mut seen = LatestPrinted(after);
    print(seen.take(events), format)?;
    match follow {
        true => go_on(seen, instance, format),
        false => Ok(()),
    }
}

/// What an instance that does not run has left after an event.
fn left(instance: &str, after: u64, failure: Failure) -> Result<Vec<Event>> {
    let pins = Pins::new(instance);
    let events = file::read_after(&pins, after);
    let events = events.with_context(|| format!("read {}", file::path(&pins).display()))?;
    let events = events.ok_or(failure)?;
    output::print_error(format_args!(
        "lb: from {}: instance {instance} is not running",
        file::path(&pins).display()
    ));
    Ok(events)
}

/// Prints events as they come, also those of the next process, as long as they are read.
fn go_on(mut seen: LatestPrinted, instance: &str, format: Format) -> Result<()> {
    let mut answered = true;
    loop {
        thread::sleep(POLL);
        if output::is_unread() {
            return Ok(());
        }
        match ask(instance, seen.0) {
            Ok(events) => {
                answered = true;
                print(seen.take(events), format)?;
            }
            Err(failure @ Failure::NotAllowed { .. }) => return Err(failure.into()),
            Err(failure) => {
                if answered {
                    output::print_error(format_args!("lb: {failure}; waiting"));
                    answered = false;
                }
            }
        }
    }
}

fn ask(instance: &str, after: u64) -> Result<Vec<Event>, Failure> {
    let events = || match client::ask(instance, &Request::Events { after })? {
        Answer::Events { events } => Ok(events),
        Answer::Refused { reasons, .. } => bail!("{}", reasons.join("\n")),
        _ => bail!(OTHER_ANSWER),
    };
    let events: Result<Vec<Event>> = events();
    events.map_err(|error| error.downcast().unwrap_or_else(Failure::Other))
}

fn print(events: Vec<(u64, Event)>, format: Format) -> Result<()> {
    for (missed, event) in events {
        if missed > 0 {
            output::print_error(format_args!("lb: {missed} older events are gone"));
        }
        match format {
            Format::Json => print::report_line(&EventReport::from(event))?,
            Format::Table => print::line(line(&event))?,
        }
    }
    Ok(())
}

/// The number of the latest event that was printed.
#[derive(Debug)]
struct LatestPrinted(u64);

impl LatestPrinted {
    /// Notes events as printed; each with how many are missing before it.
    fn take(&mut self, events: Vec<Event>) -> Vec<(u64, Event)> {
        let numbered = events.into_iter().map(|event| {
            // A number that is not higher is one of an instance that was taken down, and begins anew.
            let before = if event.number > self.0 { self.0 } else { 0 };
            let missed = event.number.saturating_sub(before).saturating_sub(1);
            self.0 = event.number;
            (missed, event)
        });
        numbered.collect()
    }
}

fn line(event: &Event) -> String {
    let Event {
        number,
        time_ms,
        kind,
        severity: _,
        object,
        words,
        by,
    } = event;
    let time = time(*time_ms);
    let by = by.as_deref().map(|by| format!(" (by {by})"));
    let by = by.unwrap_or_default();
    // A process of another version may have let control characters through.
    let text = format!("{kind:<9}  {object}: {words}{by}");
    format!("{number:>6}  {time}  {}", escaped(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Severity;

    fn event(number: u64) -> Event {
        Event {
            number,
            time_ms: 1_000_000_000_789,
            kind: "health".to_owned(),
            severity: Severity::Warning,
            object: "backend p/a".to_owned(),
            words: "up -> dead: connection refused".to_owned(),
            by: None,
        }
    }

    #[test]
    fn an_event_is_a_line() {
        assert_eq!(
            line(&event(7)),
            "     7  2001-09-09T01:46:40.789Z  health     backend p/a: up -> dead: connection refused"
        );
        let asked = Event {
            kind: "override".to_owned(),
            words: "drained".to_owned(),
            by: Some("uid 0, process 9".to_owned()),
            ..event(1_234_567)
        };
        assert_eq!(
            line(&asked),
            "1234567  2001-09-09T01:46:40.789Z  override   backend p/a: drained (by uid 0, process 9)"
        );
        let hostile = Event {
            words: "a\u{1b}[2J\n<script>".to_owned(),
            ..event(1)
        };
        assert!(line(&hostile).ends_with(r"backend p/a: a\u{1b}[2J\n<script>"));
        let far = Event {
            time_ms: u64::MAX,
            ..event(1)
        };
        assert!(line(&far).contains("backend p/a"));
    }

    #[test]
    fn in_json_an_event_has_the_time_of_its_line() {
        let json = serde_json::to_string(&EventReport::from(event(7))).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"number":7,"time":"2001-09-09T01:46:40.789Z","kind":"health","severity":"warning","object":"backend p/a","#,
                r#""words":"up -> dead: connection refused","by":null}"#
            )
        );
    }

    #[test]
    fn what_is_missing_is_said_once() {
        let mut seen = LatestPrinted(0);
        let missed = |seen: &mut LatestPrinted, numbers: &[u64]| -> Vec<u64> {
            let events = numbers.iter().copied().map(event).collect();
            let taken = seen.take(events).into_iter();
            taken.map(|(missed, _)| missed).collect()
        };
        assert_eq!(missed(&mut seen, &[1, 2]), [0, 0]);
        assert_eq!(missed(&mut seen, &[3]), [0]);
        assert_eq!(missed(&mut seen, &[10, 11]), [6, 0]);
        assert_eq!(missed(&mut seen, &[]), [0; 0]);
        // Another process, and one of which two events are gone.
        assert_eq!(missed(&mut seen, &[1, 2]), [0, 0]);
        seen.0 = 9;
        assert_eq!(missed(&mut seen, &[3]), [2]);
        assert_eq!(seen.0, 3);
        // An operator that requests the events after 5 misses none before.
        let mut seen = LatestPrinted(5);
        assert_eq!(missed(&mut seen, &[6]), [0]);
    }
}
