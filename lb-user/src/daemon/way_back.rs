//! The way back from networks that have come, gone or moved with a reload that waits to be confirmed: a thread that keeps the
//! privileges of the start until then, and starts the process that takes over with what was before.

use std::{
    env,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::control::control_loop::Control;

/// How long after a process that has not taken over the next one is started.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The message for one that has not.
const FAILED: &str = "the last reload was not confirmed, and the process that goes back to what was before has not taken over, \
                      trying again";

/// The thread; it ends with this.
pub(super) struct WayBack {
    files: SyncSender<PathBuf>,
    started: Option<Instant>,
}

impl WayBack {
    /// Starts the thread, which has the privileges that the calling one has now.
    ///
    /// # Errors
    ///
    /// If the kernel has no thread.
    pub(super) fn open(instance: &str) -> Result<Self> {
        let (files, orders) = sync_channel(1);
        let instance = instance.to_owned();
        // Not as other threads, which give privileges up.
        let thread = thread::Builder::new().name("way-back".to_owned());
        let thread = thread.spawn(move || serve(&instance, &orders));
        thread.context("start the thread that keeps the way back")?;
        Ok(Self {
            files,
            started: None,
        })
    }

    /// Starts the process if that is due. Once what waited is confirmed there is nothing to go back from, and the thread ends.
    pub(super) fn follow(way_back: &mut Option<Self>, control: &Control) {
        let Some(way) = way_back else {
            return;
        };
        if !control.goes_back_by_process() {
            *way_back = None;
            return;
        }
        let is_soon = way
            .started
            .is_some_and(|started| started.elapsed() < RETRY_INTERVAL);
        if let Some(file) = control.is_due_to_go_back()
            && !is_soon
        {
            way.started = Some(Instant::now());
            // One that is under way is waited for.
            let _full = way.files.try_send(file);
        }
    }
}

/// Starts a process for a file that comes, one at a time, until no other comes any more. It lives on when it has taken over.
fn serve(instance: &str, files: &Receiver<PathBuf>) {
    let mut under_way: Option<Child> = None;
    loop {
        match files.recv_timeout(POLL_INTERVAL) {
            Ok(file) if under_way.is_none() => match take_over(instance, file) {
                Ok(started) => under_way = Some(started),
                Err(error) => tracing::error!("{FAILED}: {error:#}"),
            },
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let ended = under_way.as_mut().and_then(|next| next.try_wait().ok()?);
        if let Some(ended) = ended {
            tracing::error!("{FAILED}: {ended}");
            under_way = None;
        }
    }
}

fn take_over(instance: &str, file: PathBuf) -> Result<Child> {
    // Its file may have been replaced meanwhile, by an upgrade.
    let program = env::current_exe().ok().filter(|program| program.exists());
    let mut next = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    next.args(["run", "--takeover", "--no-careful", "--instance", instance]);
    next.arg("--config").arg(file);
    let next = next.stdin(Stdio::null()).stdout(Stdio::null());
    // What a terminal sends to this one is not for that one.
    next.process_group(0).spawn().context("start it")
}
