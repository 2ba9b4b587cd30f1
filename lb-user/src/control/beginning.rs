//! The beginning and the end of a process, as events: where it began anew, and which version runs since when.

use std::process;

use super::control_loop::Control;
use crate::api::Severity;

/// How a process came to be the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// No other process was it.
    Start,
    /// It has taken over from the one that was it.
    TakeOver,
}

/// The object of events of the process.
pub(crate) const CONTROL_PLANE: &str = "control plane";
/// The message of a process that gives way to another one.
pub(crate) const GIVES_WAY: &str = "gives way to a new process";
/// The message of a process that was stopped.
const STOPPED: &str = "stopped by a signal";

impl Control {
    /// Notes that this process has begun, and that the one before has not ended in order, if so.
    pub(super) fn note_beginning(&mut self, beginning: Beginning) {
        let last = self.history.latest_of_process();
        let is_crashed = last.is_some_and(|last| {
            beginning == Beginning::Start && last.words != GIVES_WAY && last.words != STOPPED
        });
        let words = words(beginning, is_crashed, process::id());
        let severity = match is_crashed {
            true => Severity::Warning,
            false => Severity::Notice,
        };
        self.event("process", severity, CONTROL_PLANE, &words);
    }

    /// Notes that this process was requested to end.
    pub(crate) fn note_stop(&mut self) {
        self.event("process", Severity::Notice, CONTROL_PLANE, STOPPED);
    }
}

fn words(beginning: Beginning, is_crashed: bool, process: u32) -> String {
    let how = match (beginning, is_crashed) {
        (Beginning::TakeOver, _) => "started, and took over",
        (Beginning::Start, true) => "started; the process before has ended without a stop",
        (Beginning::Start, false) => "started",
    };
    format!(
        "{how} (lb {}, process {process})",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_names_version_and_process() {
        let version = env!("CARGO_PKG_VERSION");
        for (beginning, is_crashed, begin) in [
            (Beginning::Start, false, "started ("),
            (
                Beginning::Start,
                true,
                "started; the process before has ended without a stop (",
            ),
            (Beginning::TakeOver, false, "started, and took over ("),
        ] {
            let wanted = format!("{begin}lb {version}, process 7)");
            assert_eq!(words(beginning, is_crashed, 7), wanted);
        }
    }
}
