//! `lb run`: the control plane in the foreground.

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time,
};
use tracing_subscriber::EnvFilter;

use super::{USAGE, failed};
use crate::{
    config::{self, Config},
    control::start::{self, Running},
    dataplane::pins::Pins,
    host,
};

/// What `lb run` was asked for.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) config: PathBuf,
    pub(super) instance: String,
    pub(super) confirm: Option<Duration>,
    pub(super) careful: bool,
    pub(super) trace_drops: bool,
}

/// How the control plane ended.
enum End {
    /// By a signal; the data plane goes on.
    Stopped,
    /// Nobody confirmed in time.
    Unconfirmed,
}

/// Level of aya-log in the programs: debug, where the dropped packets are.
const TRACE_DROPS: u8 = 4;
/// How often the programs' log is read.
const LOG_POLL: Duration = Duration::from_millis(100);

/// Runs until a signal.
pub(super) fn run(options: &Options) -> ExitCode {
    let config = match config::load(&options.config) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(USAGE);
        }
    };
    init_log(options.trace_drops);
    match run_config(options, &config) {
        Ok(End::Stopped) => ExitCode::SUCCESS,
        Ok(End::Unconfirmed) => {
            eprintln!("lb: not confirmed in time: taken down again");
            ExitCode::FAILURE
        }
        Err(error) => failed(&error),
    }
}

fn run_config(options: &Options, config: &Config) -> Result<End> {
    host::check()?;
    if options.careful && options.confirm.is_none() {
        host::refuse_access_interfaces(config)?;
    }
    let pins = Pins::new(&options.instance);
    let _lock = host::Lock::take(&pins)?;
    let text = fs::read_to_string(&options.config)
        .with_context(|| format!("read {}", options.config.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start tokio")?;
    let level = if options.trace_drops { TRACE_DROPS } else { 0 };
    let mut running = start::start(config, &text, &pins, level, &runtime)?;
    println!(
        "ready: instance {}, {} networks, {} services",
        options.instance,
        config.networks.len(),
        config.services.len()
    );
    io::stdout().flush().context("write to standard output")?;
    let end = watch(&runtime, &mut running, options)?;
    if matches!(end, End::Unconfirmed) {
        start::remove(&pins)?;
    }
    Ok(end)
}

/// Keeps next hops up to date until a signal comes or the time to confirm is over.
fn watch(runtime: &Runtime, running: &mut Running, options: &Options) -> Result<End> {
    let Running {
        live,
        resolved,
        object,
    } = running;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
        let mut logger = match options.trace_drops {
            true => {
                Some(aya_log::EbpfLogger::init(object.ebpf()).context("read the programs' log")?)
            }
            false => None,
        };
        let mut log = time::interval(LOG_POLL);
        let mut confirmed = options.confirm.map(ask);
        let deadline = time::sleep(options.confirm.unwrap_or_default());
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                Some(neighbour) = resolved.recv() => live.set_next_hop(&neighbour)?,
                _ = log.tick(), if logger.is_some() => {
                    if let Some(logger) = &mut logger { logger.flush(); }
                }
                answer = wait(&mut confirmed), if confirmed.is_some() => {
                    confirmed = None;
                    if answer { println!("confirmed"); } else { return Ok(End::Unconfirmed); }
                }
                () = &mut deadline, if confirmed.is_some() => return Ok(End::Unconfirmed),
            }
        }
        tracing::info!("stopped; the data plane goes on (`lb down` ends it)");
        Ok(End::Stopped)
    })
}

/// Asks on the terminal; the answer arrives from a thread that reads one line.
fn ask(patience: Duration) -> oneshot::Receiver<bool> {
    eprintln!(
        "Press Enter within {} s to keep this; otherwise everything is taken down again.",
        patience.as_secs()
    );
    let (answer, asked) = oneshot::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        if matches!(read, Ok(bytes) if bytes > 0) {
            // Nobody waits any more: the time is over.
            let _late: Result<(), bool> = answer.send(true);
        } else {
            // Without a terminal nobody can confirm: the deadline decides.
            thread::sleep(patience);
        }
    });
    asked
}

async fn wait(confirmed: &mut Option<oneshot::Receiver<bool>>) -> bool {
    match confirmed {
        Some(answer) => answer.await.unwrap_or(false),
        None => false,
    }
}

fn init_log(trace_drops: bool) {
    let default = if trace_drops {
        "info,lb_ebpf=debug"
    } else {
        "info"
    };
    let filter = EnvFilter::try_from_env("LB_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}
