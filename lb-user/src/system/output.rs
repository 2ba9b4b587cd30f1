//! Standard output and standard error, whose reader may be gone and whose disk may be full: what `println!` and
//! `eprintln!` panic of is an error here, or nothing.

use std::{
    fmt::Display,
    io::{self, Write},
    os::fd::AsFd as _,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Prints a line, or several, to standard output.
///
/// # Errors
///
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe) if the reader is gone, or why else it is not written.
pub fn print(text: impl Display) -> io::Result<()> {
    line(&mut io::stdout().lock(), text)
}

/// As [`print()`], to standard error. What that does not take is lost: there is nowhere else to report it.
pub fn print_error(text: impl Display) {
    let _lost = line(&mut io::stderr().lock(), text);
}

/// Whether standard output is a pipe or a socket whose reader is gone.
pub(crate) fn is_unread() -> bool {
    let output = io::stdout();
    let mut polled = [PollFd::new(output.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut polled, PollTimeout::ZERO).is_ok()
        && polled[0]
            .revents()
            .is_some_and(|found| found.intersects(gone))
}

/// Writes bytes of another process's standard error to this one's; what that does not take is lost.
pub(crate) fn relay_error(bytes: &[u8]) {
    let _lost = io::stderr().lock().write_all(bytes);
}

/// Writes a line in one piece where it is one, so that those of several processes stay apart.
fn line(to: &mut impl Write, text: impl Display) -> io::Result<()> {
    to.write_all(format!("{text}\n").as_bytes())?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        fs::File,
        io::Read as _,
        process::{Command, Stdio},
    };

    use super::*;

    /// Set in the process that prints.
    const PRINTS: &str = "LB_TEST_PRINTS";

    /// Takes nothing.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_is_not_taken_is_an_error() {
        let mut text = Vec::new();
        line(&mut text, format_args!("{}\nb", "a")).unwrap();
        assert_eq!(text, b"a\nb\n");
        let error = line(&mut Full, "a").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    /// Prints to both in a process of its own, and how that ended: nothing is expected of what is printed.
    fn play(stdout: Stdio, stderr: Stdio) -> Option<i32> {
        let name = "system::output::tests::a_process_outlives_its_readers";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]);
        let command = command.env(PRINTS, "1").stdout(stdout).stderr(stderr);
        command.status().unwrap().code()
    }

    #[test]
    fn a_process_outlives_its_readers() {
        if env::var(PRINTS).is_ok() {
            print_error("to a reader that is gone");
            relay_error(b"as this\n");
            let printed = print("and this");
            // Not by the harness, which would print itself.
            std::process::exit(if printed.is_err() { 7 } else { 0 });
        }
        let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
        let closed = || {
            let (reader, writer) = io::pipe().unwrap();
            drop(reader);
            Stdio::from(writer)
        };
        assert_eq!(play(Stdio::null(), closed()), Some(0));
        assert_eq!(play(Stdio::null(), full()), Some(0));
        let (mut reader, writer) = io::pipe().unwrap();
        assert_eq!(play(Stdio::null(), writer.into()), Some(0));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "to a reader that is gone\nas this\n");
    }
}
