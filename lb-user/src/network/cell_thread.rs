//! Threads that live in the namespace of a network. They have entered it before they gave up the
//! privilege to enter any.

use std::{
    fmt,
    sync::mpsc::{self, Sender, sync_channel},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::thread::CapabilitySet;
use tokio::runtime::Runtime;

use super::namespace;
use crate::system::privileges::{self, KEPT, KEPT_BY_LISTENERS};

/// Starts a thread that lives in `cell`, or in the calling thread's namespace. When this returns it is
/// there, has what `prepare` has made there, and works.
///
/// # Errors
///
/// If it cannot be started, enter the cell or prepare itself.
pub fn start<T>(
    name: String,
    cell: Option<&str>,
    prepare: impl FnOnce() -> Result<T> + Send + 'static,
    work: impl FnOnce(T) + Send + 'static,
) -> Result<JoinHandle<()>> {
    start_with(KEPT, name, cell, prepare, work)
}

/// As [`start`], for one that receives from clients or backends: it has a runtime, and no more privileges
/// than it needs.
///
/// # Errors
///
/// As for [`start`].
pub fn start_listener(
    name: String,
    cell: Option<&str>,
    work: impl FnOnce(Runtime) + Send + 'static,
) -> Result<JoinHandle<()>> {
    start_with(KEPT_BY_LISTENERS, name, cell, runtime, work)
}

fn start_with<T>(
    kept: CapabilitySet,
    name: String,
    cell: Option<&str>,
    prepare: impl FnOnce() -> Result<T> + Send + 'static,
    work: impl FnOnce(T) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let (started, is_ready) = sync_channel(1);
    let cell = cell.map(str::to_owned);
    let settle = move || {
        if let Some(cell) = cell {
            namespace::enter(&cell)?;
        }
        privileges::give_up(kept)?;
        prepare()
    };
    let run = move || match settle() {
        Ok(prepared) => {
            if started.send(Ok(())).is_ok() {
                work(prepared);
            }
        }
        Err(error) => drop(started.send(Err(error))),
    };
    let thread = thread::Builder::new().name(name).spawn(run)?;
    let is_ready = is_ready.recv();
    is_ready.unwrap_or_else(|_| Err(anyhow!("the thread has ended")))?;
    Ok(thread)
}

/// What most of them are prepared with.
///
/// # Errors
///
/// If the kernel refuses it what it needs.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread in a cell that does there the jobs it is given, one after the other. It ends when this is
/// dropped.
pub struct Resident {
    cell: String,
    work: Sender<Work>,
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resident").field(&self.cell).finish()
    }
}

impl Resident {
    /// Starts it; the namespace of the cell is made if there is none.
    ///
    /// # Errors
    ///
    /// If it cannot be made or entered.
    pub fn start(cell: &str) -> Result<Self> {
        namespace::create(cell)?;
        let (sender, asked) = mpsc::channel::<Work>();
        let name = cell.to_owned();
        let work = move |()| asked.into_iter().for_each(|work| work());
        start(name, Some(cell), || Ok(()), work)?;
        Ok(Self {
            cell: cell.to_owned(),
            work: sender,
        })
    }

    /// Has it do this, and waits for what comes of it.
    ///
    /// # Errors
    ///
    /// Those of `work`.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, answer) = sync_channel(1);
        let work = Box::new(move || drop(done.send(work())));
        let gone = || anyhow!("the thread of cell {} has ended", self.cell);
        self.work.send(work).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}
