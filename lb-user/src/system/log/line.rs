//! A line of the log. No character of it can end the line, or move a cursor, but for the colours of a terminal.

use std::fmt::{self, Debug, Write as _};

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

use crate::system::escape::escaped;

/// The message among the fields of a record.
const MESSAGE: &str = "message";
/// The target of a record that came from the `log` crate, and the beginning of what else such a record has.
const LOG_TARGET: &str = "log.target";
const OF_LOG: &str = "log.";

/// What stands before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinePrefix {
    None,
    /// The priority, as sd-daemon(3) has it; the journal has the time itself.
    Priority,
}

/// How lines are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineFormat {
    pub(super) is_json: bool,
    pub(super) prefix: LinePrefix,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut record = Record::default();
        event.record(&mut record);
        let metadata = event.metadata();
        let target = record.target.take();
        let target = target.as_deref().unwrap_or_else(|| metadata.target());
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = *metadata.level();
        let line = match self.is_json {
            true => record.json(&time, level, target),
            false if self.prefix == LinePrefix::Priority => record.text(target),
            false if writer.has_ansi_escapes() => {
                let color = color(level);
                let text = record.text(target);
                format!("\u{1b}[2m{time}\u{1b}[0m \u{1b}[{color}m{level:>5}\u{1b}[0m {text}")
            }
            false => format!("{time} {level:>5} {}", record.text(target)),
        };
        if self.prefix == LinePrefix::Priority {
            write!(writer, "<{}>", priority(level))?;
        }
        writeln!(writer, "{line}")
    }
}

/// What a record has to say.
#[derive(Debug, Default)]
struct Record {
    message: String,
    fields: Vec<(&'static str, Shown)>,
    /// Where it comes from, if that is not where its metadata says.
    target: Option<String>,
}

/// A line of JSON; the order is that of its parts.
#[derive(Serialize)]
struct JsonLine<'r> {
    time: &'r str,
    level: String,
    subject: &'r str,
    message: &'r str,
    fields: Map<String, Value>,
    target: &'r str,
}

/// The value of a field.
#[derive(Debug)]
enum Shown {
    /// In text with quotes.
    Text(String),
    /// As its type displays it.
    Plain(String),
    /// A number, or a truth.
    Value(Value),
}

impl Record {
    /// The part of a line that is the same on a terminal and in the journal.
    fn text(&self, target: &str) -> String {
        let mut line = format!("{}: {}", subject(target), self.message);
        for (name, value) in &self.fields {
            // Writing to a text does not fail.
            let _unused = match value {
                Shown::Text(text) => write!(line, " {name}={text:?}"),
                Shown::Plain(text) => write!(line, " {name}={text}"),
                Shown::Value(value) => write!(line, " {name}={value}"),
            };
        }
        escaped(&line).into_owned()
    }

    fn json(&self, time: &str, level: Level, target: &str) -> String {
        let clean = |text: &str| Value::from(escaped(text));
        let fields = self.fields.iter().map(|(name, value)| {
            let value = match value {
                Shown::Text(text) | Shown::Plain(text) => clean(text),
                Shown::Value(value) => value.clone(),
            };
            ((*name).to_owned(), value)
        });
        let line = JsonLine {
            time,
            level: level.as_str().to_lowercase(),
            subject: &escaped(subject(target)),
            message: &escaped(&self.message),
            fields: fields.collect(),
            target: &escaped(target),
        };
        serde_json::to_string(&line).unwrap_or_default()
    }

    fn add(&mut self, field: &Field, value: Shown) {
        match (field.name(), value) {
            (MESSAGE, Shown::Text(text) | Shown::Plain(text)) => self.message = text,
            (LOG_TARGET, Shown::Text(text) | Shown::Plain(text)) => self.target = Some(text),
            (name, _) if name.starts_with(OF_LOG) => {}
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, Shown::Plain(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Shown::Text(value.to_owned()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Shown::Value(value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Shown::Value(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Shown::Value(value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Shown::Value(value.into()));
    }
}

/// The part of `lb` that a target is of, or the crate.
fn subject(target: &str) -> &str {
    match target.split_once("::") {
        Some(("lb_user", path)) => path.split("::").next().unwrap_or(path),
        Some((name, _)) => name,
        None if target == "lb_ebpf" => "packets",
        None => target,
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// The number of a colour of a terminal.
fn color(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        _ => 34,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing::subscriber::with_default;

    use super::*;

    /// What was written.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(is_json: bool, prefix: LinePrefix, colors: bool, log: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(colors)
            .event_format(LineFormat { is_json, prefix })
            .with_writer(move || writer.clone())
            .finish();
        with_default(subscriber, log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn log() {
        let address = "10.0.0.1";
        tracing::warn!(
            target: "lb_user::control::reload",
            file = "a\n<script>\u{1b}[2J]\"\u{9b}",
            %address,
            count = 7,
            by = None::<String>,
            "a line\nof two \u{1b}[31mred"
        );
    }

    #[test]
    fn text_is_one_line_for_people() {
        let text = written(false, LinePrefix::None, false, log);
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.len() >= 20 && time.ends_with('Z'), "{time}");
        assert_eq!(
            rest,
            concat!(
                r#" WARN control: a line\nof two \u{1b}[31mred"#,
                r#" file="a\n<script>\u{1b}[2J]\"\u{9b}" address=10.0.0.1 count=7"#,
                "\n"
            )
        );
        let colored = written(false, LinePrefix::None, true, log);
        let level = "\u{1b}[33m WARN\u{1b}[0m control: a line";
        assert!(colored.contains(level), "{colored}");
        assert_eq!(colored.matches('\u{1b}').count(), 4, "{colored}");
    }

    #[test]
    fn the_journal_gets_priorities_and_no_time() {
        let text = written(false, LinePrefix::Priority, false, || {
            tracing::error!(target: "lb_user::health", "1");
            tracing::warn!(target: "lb_ebpf", "2");
            tracing::info!(target: "lb", "3");
        });
        assert_eq!(text, "<3>health: 1\n<4>packets: 2\n<6>lb: 3\n");
    }

    #[test]
    fn json_is_one_object_in_a_line() {
        for (prefix, begin) in [(LinePrefix::None, ""), (LinePrefix::Priority, "<4>")] {
            let text = written(true, prefix, false, log);
            let line = text.strip_suffix('\n').unwrap();
            assert!(!line.contains(char::is_control), "{line}");
            let json: Value = serde_json::from_str(line.strip_prefix(begin).unwrap()).unwrap();
            let time = json["time"].as_str().unwrap();
            assert!(time.ends_with('Z'), "{time}");
            let wanted = serde_json::json!({
                "time": time,
                "level": "warn",
                "subject": "control",
                "message": r"a line\nof two \u{1b}[31mred",
                "fields": {
                    "file": r#"a\n<script>\u{1b}[2J]"\u{9b}"#,
                    "address": "10.0.0.1",
                    "count": 7
                },
                "target": "lb_user::control::reload"
            });
            assert_eq!(json, wanted);
        }
    }

    #[test]
    fn a_subject_is_a_part_of_lb_or_a_crate() {
        for (target, wanted) in [
            ("lb_user::proxy::splice::handoff", "proxy"),
            ("lb_user::health", "health"),
            ("lb", "lb"),
            ("lb_ebpf", "packets"),
            ("hyper::proto::h1", "hyper"),
        ] {
            assert_eq!(subject(target), wanted);
        }
    }
}
