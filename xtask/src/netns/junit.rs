//! The result as JUnit XML, which build servers read.

use std::{fmt::Write as _, time::Duration};

use super::process::Ended;

/// One `testsuite` with a `testcase` for each test; `time` is that of all.
pub(super) fn report(ended: &[Ended], time: Duration) -> String {
    let failures = ended.iter().filter(|ended| !ended.passed()).count();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail.
    let _infallible = writeln!(
        xml,
        "<testsuite name=\"netns\" tests=\"{}\" failures=\"{failures}\" time=\"{:.1}\">",
        ended.len(),
        time.as_secs_f64(),
    );
    for test in ended {
        xml.push_str(&case(test));
    }
    xml.push_str("</testsuite>\n");
    xml
}

fn case(test: &Ended) -> String {
    let (class, name) = test.name.rsplit_once("::").unwrap_or(("", &test.name));
    let failure = test.failure.as_ref().map_or_else(String::new, |failure| {
        format!("<failure message=\"{}\"/>", escaped(failure))
    });
    format!(
        "<testcase classname=\"{}\" name=\"{}\" time=\"{:.1}\">{failure}<system-out>{}</system-out></testcase>\n",
        escaped(class),
        escaped(name),
        test.time.as_secs_f64(),
        escaped(&test.log),
    )
}

/// Text of an element or attribute. XML 1.0 has no control characters but tab and line ends.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_and_what_was_printed_are_escaped() {
        let ended = Ended {
            name: "six::mtu::a_test".to_owned(),
            time: Duration::from_millis(1500),
            log: "1 < 2 & \u{1b}[1m\"x\"\n".to_owned(),
            failure: Some("`x`: exit status 101".to_owned()),
            beside: Vec::new(),
        };
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
            <testsuite name=\"netns\" tests=\"1\" failures=\"1\" time=\"2.0\">\n\
            <testcase classname=\"six::mtu\" name=\"a_test\" time=\"1.5\">\
            <failure message=\"`x`: exit status 101\"/>\
            <system-out>1 &lt; 2 &amp; \u{fffd}[1m&quot;x&quot;\n</system-out></testcase>\n\
            </testsuite>\n";
        assert_eq!(report(&[ended], Duration::from_secs(2)), expected);
    }
}
