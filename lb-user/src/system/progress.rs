//! What takes seconds is shown on a terminal while it lasts: a line with its time, cleared at the end, and one that
//! stays. Elsewhere the log has it.

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing::Level;

/// How often the line is drawn anew, with its time.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// With one of these set, and not empty, nothing is drawn.
const PLAIN_LINES: [&str; 2] = ["CI", "NO_COLOR"];

/// Does `work`, with `doing` on the terminal as long as it lasts, and `done` with the time afterwards. The thread that
/// draws has ended when this returns. What `work` logs at the level of the default filter would tear the line, so it
/// should log nothing.
///
/// # Errors
///
/// That of `work`, which leaves no line.
pub(crate) fn during<T, E>(
    doing: &'static str,
    done: &str,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let stderr = io::stderr();
    let is_quiet = !tracing::enabled!(Level::DEBUG);
    if is_quiet && is_live(stderr.is_terminal(), |name| env::var_os(name)) {
        return shown(ProgressDrawTarget::stderr(), stderr, (doing, done), work);
    }
    work()
}

fn shown<T, E>(
    target: ProgressDrawTarget,
    mut lines: impl Write,
    (doing, done): (&'static str, &str),
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let bar = ProgressBar::with_draw_target(None, target).with_message(doing);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK_INTERVAL);
    let begun = Instant::now();
    let result = work();
    bar.disable_steady_tick();
    bar.finish_and_clear();
    if result.is_ok() {
        // A terminal that is gone is no reason to stop.
        let _gone = writeln!(lines, "{done} in {:.1} s", begun.elapsed().as_secs_f64());
    }
    result
}

/// Whether a line may be drawn: standard error is a terminal that can, and no variable forbids it.
fn is_live(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !is_dumb && !PLAIN_LINES.iter().any(|name| is_set(name))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        thread,
    };

    use indicatif::TermLike;

    use super::*;

    /// What was drawn.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn add(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> io::Result<()> {
            self.add(&format!("{line}\n"))
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.add(text)
        }

        fn clear_line(&self) -> io::Result<()> {
            self.add("<cleared>")
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is drawn during work with this result, and what stays.
    fn of(result: Result<u8, &str>) -> (String, String) {
        let (screen, mut lines) = (Screen::default(), Vec::new());
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let made = shown(target, &mut lines, ("it verifies", "it verified"), || {
            while screen.text().is_empty() {
                thread::yield_now();
            }
            result
        });
        assert_eq!(made, result);
        (screen.text(), String::from_utf8(lines).unwrap())
    }

    #[test]
    fn on_a_terminal_the_line_is_cleared_and_one_with_the_time_stays() {
        let (drawn, stays) = of(Ok(7));
        assert!(drawn.contains("it verifies  0s"), "{drawn}");
        assert!(drawn.ends_with("<cleared>"), "{drawn}");
        assert_eq!(stays, "it verified in 0.0 s\n");
    }

    #[test]
    fn work_that_fails_leaves_no_line() {
        let (drawn, stays) = of(Err("refused"));
        assert!(drawn.ends_with("<cleared>"), "{drawn}");
        assert_eq!(stays, "");
    }

    #[test]
    fn without_a_terminal_nothing_is_drawn_and_the_work_is_done() {
        assert_eq!(during("a", "b", || Ok::<_, ()>(7)), Ok(7));
        assert_eq!(during("a", "b", || Err::<u8, _>("no")), Err("no"));
    }

    #[test]
    fn a_line_is_for_terminals_that_nothing_forbids_it_on() {
        let with = |set: &'static [(&str, &str)]| {
            move |name: &str| {
                let found = set.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            }
        };
        assert!(is_live(true, with(&[("CI", ""), ("TERM", "xterm")])));
        assert!(!is_live(false, with(&[])));
        assert!(!is_live(true, with(&[("CI", "true")])));
        assert!(!is_live(true, with(&[("NO_COLOR", "1")])));
        assert!(!is_live(true, with(&[("TERM", "dumb")])));
    }
}
