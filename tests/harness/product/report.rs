//! What the log of a failed test needs to know of `lb`: its status, its drops, and the end of its own log.

use crate::{
    process::{self, complain},
    product::lb::Lb,
};

/// Where a test runs in a process of its own with a log of its own, this variable asks for the report in any
/// case: a test that fails with an error looks like one that passes until its data plane is gone.
const ALWAYS: &str = "LB_TEST_REPORT";
/// Lines of the log.
const MAX_LINES: usize = 60;

/// Prints it, if this test is failing or might be.
pub(crate) fn print(lb: &mut Lb<'_>) {
    if !std::thread::panicking() && std::env::var_os(ALWAYS).is_none() {
        return;
    }
    for question in ["status", "drops"] {
        let answer = lb.command().and_then(|mut command| {
            let command = command.args([question, "--instance", lb.site().run()]);
            process::succeed(command)
        });
        match answer {
            Ok(answer) => complain(format_args!("lb {question}:\n{answer}")),
            Err(error) => complain(format_args!("{error:#}")),
        }
    }
    let log = lb.process().stderr();
    let lines: Vec<&str> = log.lines().collect();
    let end = lines.get(lines.len().saturating_sub(MAX_LINES)..);
    let end = end.unwrap_or_default().join("\n");
    complain(format_args!("the end of its log:\n{end}"));
}
