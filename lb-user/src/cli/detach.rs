//! `lb run --takeover --detach`: starts the process that takes over, and waits until it is ready.

use std::{
    env,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileTypeExt as _, process::CommandExt as _},
    },
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::unix::pipe::Receiver,
    runtime,
};

use super::failed;
use crate::{
    daemon::run::READY,
    system::{log::leads_to_journal, output},
};

/// The option, which the new process does not get.
const OPTION: &str = "--detach";
/// Bytes of the log that are relayed at a time.
const PIECE: usize = 4096;
/// The message where the new process has no log any more.
pub(super) const LOST: &str = "lb: standard error is a pipe, which the process that goes on does not keep: what it logs from here on \
                    is lost. To keep it, have standard error lead to a file";

/// Starts this program anew, with the same arguments but for one. The exit code is that of the new process if
/// it ends before it is ready; it has printed why.
pub(super) fn detach() -> ExitCode {
    start().unwrap_or_else(|error| failed(&error))
}

fn start() -> Result<ExitCode> {
    let is_kept = leads_to_a_log(io::stderr()).context("look at standard error")?;
    let program = env::current_exe().context("find this program")?;
    let arguments = env::args_os().skip(1);
    let mut next = Command::new(program);
    next.args(arguments.filter(|argument| argument != OPTION))
        .stderr(match is_kept {
            true => Stdio::inherit(),
            false => Stdio::piped(),
        });
    let print = |line: &str| {
        let _gone = output::print(line);
    };
    let Some(ended) = wait_until_ready(next, print, output::relay_error)? else {
        if !is_kept {
            output::print_error(LOST);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Starts a process and waits until it is ready. `print` gets its lines, and `log` what it logs where its standard error is a
/// pipe. How it has ended, if it has not got ready.
///
/// # Errors
///
/// If it cannot be started, or be heard.
pub(super) fn wait_until_ready(
    mut next: Command,
    print: impl FnMut(&str),
    log: impl FnMut(&[u8]),
) -> Result<Option<ExitStatus>> {
    let next = next.stdin(Stdio::null()).stdout(Stdio::piped());
    // What a terminal sends to this one is not for that one.
    let next = next.process_group(0).spawn();
    let mut next = next.context("start the process that takes over")?;
    let runtime = runtime::Builder::new_current_thread().enable_io().build();
    let relayed = relay(&mut next, print, log);
    let is_ready = runtime.context("start tokio")?.block_on(relayed);
    if is_ready.context("read what the process that takes over prints")? {
        return Ok(None);
    }
    let ended = next.wait().context("wait for the new process")?;
    Ok(Some(ended))
}

/// Whether standard error leads where a process may log for as long as it lives. The reader of a pipe would wait for the
/// end of it.
fn leads_to_a_log(error: impl AsFd) -> io::Result<bool> {
    let file = File::from(error.as_fd().try_clone_to_owned()?).metadata()?;
    let kind = file.file_type();
    if kind.is_socket() {
        return Ok(leads_to_journal(&file));
    }
    Ok(!kind.is_fifo())
}

/// Has `print` what a process prints, and `log` what it logs, until it is ready or has ended; returns whether it is ready.
async fn relay(
    next: &mut Child,
    mut print: impl FnMut(&str),
    mut log: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let receiver = |pipe: OwnedFd| Receiver::from_owned_fd(pipe);
    let error = next.stderr.take().map(|pipe| receiver(pipe.into()));
    let mut error = error.transpose()?;
    let Some(pipe) = next.stdout.take() else {
        return Ok(false);
    };
    let mut lines = BufReader::new(receiver(pipe.into())?).lines();
    let mut is_over = false;
    let mut piece = [0; PIECE];
    loop {
        tokio::select! {
            // What was logged before a line was printed comes before it.
            biased;
            read = read(&mut error, &mut piece), if error.is_some() => match read? {
                0 => error = None,
                count => log(piece.get(..count).unwrap_or_default()),
            },
            line = lines.next_line(), if !is_over => match line? {
                None => is_over = true,
                Some(line) => {
                    print(&line);
                    if line.starts_with(READY) {
                        return Ok(true);
                    }
                }
            },
            else => return Ok(false),
        }
    }
}

/// Reads what there is; nothing at the end.
async fn read(pipe: &mut Option<Receiver>, piece: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(piece).await,
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pipe_is_not_kept_and_a_file_is() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!leads_to_a_log(&writer).unwrap());
        let (one, other) = UnixStream::pair().unwrap();
        assert!(!leads_to_a_log(&one).unwrap());
        drop((reader, other));
        assert!(leads_to_a_log(File::open("/dev/null").unwrap()).unwrap());
        assert!(leads_to_a_log(tempfile::tempfile().unwrap()).unwrap());
    }

    /// Plays `script` as the new process; whether it is ready, and how much it has logged until then.
    fn play(script: &str) -> (bool, usize) {
        let mut next = Command::new("sh");
        let next = next.args(["-c", script]).stdin(Stdio::null());
        let next = next.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut next = next.spawn().unwrap();
        let runtime = runtime::Builder::new_current_thread().enable_io().build();
        let mut logged = 0;
        let relayed = relay(&mut next, |_| {}, |bytes| logged += bytes.len());
        let is_ready = runtime.unwrap().block_on(relayed).unwrap();
        let _gone = next.kill();
        next.wait().unwrap();
        (is_ready, logged)
    }

    #[test]
    fn a_process_is_waited_for_until_it_is_ready_or_gone() {
        for (script, is_ready, logged) in [
            ("echo log >&2; echo 'ready: main'; exec sleep 60", true, 4),
            ("echo 'not ready: at all'; echo log >&2", false, 4),
            ("exec >&- 2>&-; sleep 0.1", false, 0),
            // More than a pipe holds.
            (
                "head -c 300000 /dev/zero >&2; echo 'ready: '; exec sleep 60",
                true,
                300_000,
            ),
        ] {
            assert_eq!(play(script), (is_ready, logged), "{script}");
        }
    }
}
