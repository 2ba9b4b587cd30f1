//! Progress of long work: a bar on a terminal, which is gone at the end, and plain lines everywhere else.

use std::{
    borrow::Cow,
    env,
    ffi::OsString,
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the bar of a step that takes long is drawn anew, with its time.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// With one of these set, and not empty, a terminal gets plain lines, too.
const PLAIN_LINES: [&str; 2] = ["CI", "NO_COLOR"];

/// Work of a known number of steps. Dropped, its bar is cleared; the lines stay.
pub(crate) struct Progress {
    /// What is done, the first word of each line.
    work: &'static str,
    bar: ProgressBar,
    is_live: bool,
    lines: Box<dyn Write + Send>,
}

impl Progress {
    /// Work on standard error.
    pub(crate) fn new(work: &'static str, steps: usize) -> Self {
        let stderr = io::stderr();
        if is_live(stderr.is_terminal(), |name| env::var_os(name)) {
            let progress = Self::on(work, steps, ProgressDrawTarget::stderr(), stderr);
            progress.bar.enable_steady_tick(TICK_INTERVAL);
            progress
        } else {
            let mut progress = Self::on(work, steps, ProgressDrawTarget::hidden(), stderr);
            progress.is_live = false;
            progress
        }
    }

    fn on(
        work: &'static str,
        steps: usize,
        target: ProgressDrawTarget,
        lines: impl Write + Send + 'static,
    ) -> Self {
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        let template = "{spinner} {prefix} {pos}/{len}  {elapsed}  {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(work);
        Self {
            work,
            bar,
            is_live: true,
            lines: Box::new(lines),
        }
    }

    /// Whether there is a bar, which what a child prints would tear.
    pub(crate) const fn is_live(&self) -> bool {
        self.is_live
    }

    /// Makes a step, and prints a line when it has ended; without a bar also one when it begins.
    ///
    /// # Errors
    /// That of the step, which has no line at its end.
    pub(crate) fn step<T, E>(
        &mut self,
        name: &str,
        step: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let number = self.bar.position() + 1;
        let head = format!(
            "{} {number}/{}: {name}",
            self.work,
            self.bar.length().unwrap_or(number)
        );
        if self.is_live {
            self.now(name.to_owned());
        } else {
            self.line(&format!("{head} ..."));
        }
        let begun = Instant::now();
        let made = step(self)?;
        self.advance();
        self.line(&format!("{head}: {:.1} s", begun.elapsed().as_secs_f64()));
        Ok(made)
    }

    /// What the bar says from now on.
    pub(crate) fn now(&self, words: impl Into<Cow<'static, str>>) {
        self.bar.set_message(words);
    }

    /// One step more has ended.
    pub(crate) fn advance(&self) {
        self.bar.inc(1);
    }

    /// Prints a line that stays, above the bar.
    pub(crate) fn line(&mut self, line: &str) {
        let lines = &mut self.lines;
        // A reader of these lines that is gone is no reason to stop.
        self.bar.suspend(|| {
            let _gone = writeln!(lines, "{line}");
        });
    }

    /// Does what has the terminal for itself, such as a child that asks for a password.
    pub(crate) fn without_bar<T>(&self, step: impl FnOnce() -> T) -> T {
        self.bar.suspend(step)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Whether a bar may be drawn: standard error is a terminal that can, and no variable forbids it.
fn is_live(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !is_dumb && !PLAIN_LINES.iter().any(|name| is_set(name))
}

#[cfg(test)]
mod tests {
    use std::{
        fmt,
        sync::{Arc, Mutex},
    };

    use indicatif::TermLike;

    use super::*;

    /// What was printed, the bar included.
    #[derive(Clone, Default)]
    struct Terminal(Arc<Mutex<String>>);

    impl Terminal {
        fn add(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }
    }

    impl fmt::Debug for Terminal {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Terminal")
        }
    }

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.add(&String::from_utf8_lossy(bytes))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl TermLike for Terminal {
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

    /// The lines without the times in them.
    fn without_times(text: &str) -> Vec<String> {
        let line = |line: &str| match line.rsplit_once(": ") {
            Some((head, time)) if time.ends_with(" s") => head.to_owned(),
            _ => line.to_owned(),
        };
        text.lines().map(line).collect()
    }

    fn two_steps(progress: &mut Progress) {
        let made: Result<u8, ()> = progress.step("linker", |_| Ok(7));
        assert_eq!(made, Ok(7));
        let failed: Result<(), &str> = progress.step("typos", |_| Err("no network"));
        assert_eq!(failed, Err("no network"));
    }

    #[test]
    fn without_a_terminal_a_step_has_a_line_at_its_start_and_at_its_end() {
        let terminal = Terminal::default();
        let hidden = ProgressDrawTarget::hidden();
        let mut progress = Progress::on("set-up", 2, hidden, terminal.clone());
        progress.is_live = false;
        two_steps(&mut progress);
        drop(progress);
        let expected = [
            "set-up 1/2: linker ...",
            "set-up 1/2: linker",
            "set-up 2/2: typos ...",
        ];
        assert_eq!(without_times(&terminal.text()), expected);
    }

    #[test]
    fn on_a_terminal_a_step_has_a_bar_that_is_cleared_and_one_line_at_its_end() {
        let (screen, lines) = (Terminal::default(), Terminal::default());
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let mut progress = Progress::on("set-up", 2, target, lines.clone());
        two_steps(&mut progress);
        assert_eq!(without_times(&lines.text()), ["set-up 1/2: linker"]);
        let drawn = screen.text();
        assert!(drawn.contains("set-up 0/2"), "{drawn}");
        assert!(drawn.contains("linker"), "{drawn}");
        drop(progress);
        let rest = screen.text();
        assert!(rest.ends_with("<cleared>"), "{rest}");
    }

    #[test]
    fn a_bar_is_for_terminals_that_nothing_forbids_it_on() {
        let with = |set: &'static [(&str, &str)]| {
            move |name: &str| {
                let found = set.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            }
        };
        assert!(is_live(true, with(&[])));
        assert!(is_live(true, with(&[("CI", ""), ("TERM", "xterm")])));
        assert!(!is_live(false, with(&[])));
        assert!(!is_live(true, with(&[("CI", "true")])));
        assert!(!is_live(true, with(&[("NO_COLOR", "1")])));
        assert!(!is_live(true, with(&[("TERM", "dumb")])));
    }
}
