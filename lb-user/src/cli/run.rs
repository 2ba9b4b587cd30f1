//! `lb run`: the control plane in the foreground.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time,
};

use super::{USAGE, failed, init_log};
use crate::{
    config::{self, Config, Loaded},
    control::{
        apply::read_ids,
        start::{self, Running},
    },
    dataplane::{maps::Maps, pins::Pins},
    host,
    observe::log::{self, FlowLog, Reports},
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
    /// By a signal, confirmed; the data plane goes on.
    Stopped,
    /// Nobody confirmed in time, or a signal came before.
    Unconfirmed,
}

/// Level of aya-log in the programs: debug, where the dropped packets are.
const TRACE_DROPS: u8 = 4;
/// How often the programs' log is read.
const LOG_POLL: Duration = Duration::from_millis(100);
/// How often flows that hold ids of what is configured no more are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// Runs until a signal.
pub(super) fn run(options: &Options) -> ExitCode {
    let Loaded {
        config,
        text,
        warnings,
    } = match config::load_text(&options.config) {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(USAGE);
        }
    };
    init_log(options.trace_drops);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match run_config(options, &config, &text) {
        Ok(End::Stopped) => ExitCode::SUCCESS,
        Ok(End::Unconfirmed) => {
            eprintln!("lb: not confirmed in time: taken down again");
            ExitCode::FAILURE
        }
        Err(error) => failed(&error),
    }
}

fn run_config(options: &Options, config: &Config, text: &str) -> Result<End> {
    host::check()?;
    if options.careful && options.confirm.is_none() {
        host::refuse_access_interfaces(config)?;
    }
    let pins = Pins::new(&options.instance);
    let _lock = host::Lock::take(&pins)?;
    ensure!(
        options.confirm.is_none() || !pins.exist(),
        "--confirm undoes a first start, and instance {} is up already: run without it, or after \
         `lb down --instance {}`",
        options.instance,
        options.instance
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start tokio")?;
    // Before anything is attached: from here on a signal ends `watch`, never the process.
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let deadline = options
        .confirm
        .map(|patience| time::Instant::now() + patience);
    let level = if options.trace_drops { TRACE_DROPS } else { 0 };
    let (reporter, reports) = log::channel();
    let mut running = start::start(config, text, &pins, level, &runtime, reporter)?;
    if deadline.is_none() {
        running.keep()?;
    }
    println!(
        "ready: instance {}, {} networks, {} services",
        options.instance,
        config.networks.len(),
        config.services.len()
    );
    io::stdout().flush().context("write to standard output")?;
    let flow_log = config.flow_log.as_ref();
    let end = runtime.block_on(async {
        let flow_log = flow_log.and_then(|path| open_log(path, &pins, reports));
        watch(&mut running, flow_log, options, &mut signals, deadline).await
    })?;
    if matches!(end, End::Unconfirmed) {
        drop(running);
        start::remove(&pins)?;
    }
    Ok(end)
}

/// The signals that end the control plane. SIGHUP comes when an SSH session dies.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self> {
        let watch = |kind| signal(kind).context("watch for signals");
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [interrupt, terminate, hangup] = kinds.map(watch);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn any(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// The flow log, or what is wrong with it: flows go on without.
fn open_log(path: &Path, pins: &Pins, reports: Reports) -> Option<FlowLog> {
    let open = || {
        let ids = read_ids(&Maps::open(&pins.maps())?)?;
        FlowLog::open(&pins.maps(), path, &ids, reports)
    };
    let opened: Result<FlowLog> = open();
    opened
        .inspect_err(|error| tracing::error!("flows are not written to a file: {error:#}"))
        .ok()
}

/// Waits for flow events and writes them; a log that fails is closed.
async fn drain(flow_log: &mut Option<FlowLog>) {
    if let Some(log) = flow_log
        && let Err(error) = log.drain().await
    {
        tracing::error!("flows are no longer written to a file: {error:#}");
        *flow_log = None;
    }
}

/// Keeps next hops up to date until a signal comes, or until `deadline` if nobody confirms before.
async fn watch(
    running: &mut Running,
    mut flow_log: Option<FlowLog>,
    options: &Options,
    signals: &mut Signals,
    deadline: Option<time::Instant>,
) -> Result<End> {
    let mut logger = match options.trace_drops {
        true => Some(
            aya_log::EbpfLogger::init(running.object.ebpf()).context("read the programs' log")?,
        ),
        false => None,
    };
    let mut log = time::interval(LOG_POLL);
    // Not at once: packets that were on their way when the plan was applied may still open flows.
    let mut sweep = time::interval_at(time::Instant::now() + SWEEP, SWEEP);
    let mut confirmed = deadline.map(|deadline| ask(deadline - time::Instant::now()));
    let expired = time::sleep_until(deadline.unwrap_or_else(time::Instant::now));
    tokio::pin!(expired);
    loop {
        tokio::select! {
            () = signals.any() => break,
            Some(neighbour) = running.resolved.recv() => running.live.set_next_hop(&neighbour)?,
            _ = log.tick(), if logger.is_some() => {
                if let Some(logger) = &mut logger { logger.flush(); }
            }
            () = drain(&mut flow_log), if flow_log.is_some() => {}
            _ = sweep.tick(), if running.has_retired() => {
                if let Err(error) = running.sweep() {
                    tracing::error!("ids of what is configured no more stay taken: {error:#}");
                }
            }
            answer = wait(&mut confirmed), if confirmed.is_some() => {
                if !answer { break; }
                running.keep()?;
                confirmed = None;
                println!("confirmed");
            }
            () = &mut expired, if confirmed.is_some() => break,
        }
    }
    if confirmed.is_some() {
        return Ok(End::Unconfirmed);
    }
    tracing::info!("stopped; the data plane goes on (`lb down` ends it)");
    Ok(End::Stopped)
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
