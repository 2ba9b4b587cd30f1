//! An event as a line of RFC 5424.

use std::{fs, process};

use syslog_fmt::v5424::{Config, Formatter, Msg};

use crate::{
    api::{Event, Severity},
    config::Facility,
    events::file::time,
};

/// The program in each line.
const APP_NAME: &str = "lb";
/// The name of the structured data. The number is the one for examples (RFC 5612): `lb` has no own.
const DATA_ID: &str = "lb@32473";
/// The longest line: what receivers should take (RFC 5424 section 6.1).
const MAX_LINE: usize = 2048;
/// The longest value of the structured data, before it is escaped.
const MAX_VALUE: usize = 300;
/// The longest name of a host.
const MAX_HOST: usize = 255;

/// What is the same in all lines.
#[derive(Debug)]
pub(super) struct SyslogFormat {
    formatter: Formatter,
    instance: String,
}

impl SyslogFormat {
    pub(super) fn new(facility: Facility, instance: &str) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self::of_host(&host, process::id(), facility, instance)
    }

    fn of_host(host: &str, process: u32, facility: Facility, instance: &str) -> Self {
        let host: String = host
            .chars()
            .filter(char::is_ascii_graphic)
            .take(MAX_HOST)
            .collect();
        let config = Config {
            facility: facility_code(facility),
            hostname: Some(host.as_str()).filter(|host| !host.is_empty()),
            app_name: Some(APP_NAME),
            proc_id: Some(&process.to_string()),
        };
        Self {
            formatter: config.into_formatter(),
            instance: instance.to_owned(),
        }
    }

    /// The line of an event. Its texts have no control characters: they were escaped when it was noted.
    pub(super) fn line(&self, event: &Event) -> Vec<u8> {
        let Event {
            number,
            time_ms,
            kind,
            severity,
            object,
            words,
            by,
        } = event;
        let number = number.to_string();
        let mut data = vec![
            ("instance", self.instance.as_str()),
            ("number", &number),
            ("kind", kind),
            ("object", begin(object, MAX_VALUE)),
        ];
        data.extend(by.as_deref().map(|by| ("by", begin(by, MAX_VALUE))));
        let ordered = by.as_ref().map(|by| format!(" (by {by})"));
        let ordered = ordered.unwrap_or_default();
        let mut line = Vec::with_capacity(512);
        let written = self.formatter.write_with_data(
            &mut line,
            severity_code(*severity),
            time(*time_ms).to_string(),
            // As text without a mark of its encoding, which many receivers show.
            Msg::FmtArguments(format_args!("{object}: {words}{ordered}")),
            Some(kind.as_str()),
            [(DATA_ID, data)],
        );
        // Writing to memory does not fail.
        debug_assert!(written.is_ok(), "{written:?}");
        let text = String::from_utf8_lossy(&line);
        line.truncate(begin(&text, MAX_LINE).len());
        line
    }
}

/// The beginning of a text, of so many bytes at most.
fn begin(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes))
        .unwrap_or_default()
}

const fn severity_code(severity: Severity) -> syslog_fmt::Severity {
    match severity {
        Severity::Error => syslog_fmt::Severity::Err,
        Severity::Warning => syslog_fmt::Severity::Warning,
        Severity::Notice => syslog_fmt::Severity::Notice,
    }
}

const fn facility_code(facility: Facility) -> syslog_fmt::Facility {
    use syslog_fmt::Facility as Code;
    match facility {
        Facility::Daemon => Code::Daemon,
        Facility::User => Code::User,
        Facility::Syslog => Code::Syslog,
        Facility::Auth => Code::Auth,
        Facility::Authpriv => Code::Authpriv,
        Facility::Local0 => Code::Local0,
        Facility::Local1 => Code::Local1,
        Facility::Local2 => Code::Local2,
        Facility::Local3 => Code::Local3,
        Facility::Local4 => Code::Local4,
        Facility::Local5 => Code::Local5,
        Facility::Local6 => Code::Local6,
        Facility::Local7 => Code::Local7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            number: 7,
            time_ms: 1_000_000_000_789,
            kind: "health".to_owned(),
            severity: Severity::Warning,
            object: "backend p/a".to_owned(),
            words: "up -> dead: connection refused".to_owned(),
            by: None,
        }
    }

    fn line(host: &str, facility: Facility, event: &Event) -> String {
        let format = SyslogFormat::of_host(host, 9, facility, "main");
        String::from_utf8(format.line(event)).unwrap()
    }

    #[test]
    fn a_line_has_all_parts_of_rfc_5424() {
        assert_eq!(
            line("lb-1.example\n", Facility::Daemon, &event()),
            concat!(
                "<28>1 2001-09-09T01:46:40.789Z lb-1.example lb 9 health ",
                r#"[lb@32473 instance="main" number="7" kind="health" object="backend p/a"] "#,
                "backend p/a: up -> dead: connection refused"
            )
        );
        let ordered = Event {
            kind: "override".to_owned(),
            severity: Severity::Notice,
            words: "drained".to_owned(),
            by: Some("uid 0, process 5".to_owned()),
            ..event()
        };
        assert_eq!(
            line("", Facility::Local7, &ordered),
            concat!(
                "<189>1 2001-09-09T01:46:40.789Z - lb 9 override ",
                r#"[lb@32473 instance="main" number="7" kind="override" object="backend p/a" by="uid 0, process 5"] "#,
                "backend p/a: drained (by uid 0, process 5)"
            )
        );
        let error = Event {
            severity: Severity::Error,
            ..event()
        };
        assert!(line("h", Facility::Daemon, &error).starts_with("<27>1 "));
    }

    #[test]
    fn values_are_escaped_and_lines_are_not_too_long() {
        let hostile = Event {
            object: r#"pool a"b\c]d <script>"#.to_owned(),
            ..event()
        };
        let text = line("h", Facility::Daemon, &hostile);
        assert!(
            text.contains(r#"object="pool a\"b\\c\]d <script>"]"#),
            "{text}"
        );
        let long = Event {
            object: "ä".repeat(2000),
            words: "ö".repeat(2000),
            by: Some("\"".repeat(2000)),
            ..event()
        };
        let text = line("h", Facility::Daemon, &long);
        assert!((2046..=MAX_LINE).contains(&text.len()), "{}", text.len());
        let data = format!("by=\"{}\"]", r#"\""#.repeat(MAX_VALUE));
        assert!(text.contains(&data), "{text}");
    }
}
