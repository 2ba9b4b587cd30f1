//! `lb run`: the control plane in the foreground.

use std::{
    io::{self, Write as _},
    path::{self, Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
    time,
};

use super::{USAGE, failed, init_log};
use crate::{
    admin::server::{Order, Server},
    config::{self, Loaded, Problems},
    control::{
        apply::read_ids,
        handover::{self, Door, Heir, Inheritance},
        serve::Control,
        start,
        state::State,
        unconfirmed::{self, Chosen, Source},
    },
    dataplane::{maps::Maps, pins::Pins},
    host,
    observe::log::{self, FlowLog, Reports},
    shared::Listeners,
};

/// What `lb run` was asked for.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) config: PathBuf,
    pub(super) instance: String,
    pub(super) takeover: bool,
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
    /// The next process has taken over, and what this one carried has ended.
    GaveWay,
}

/// Why nothing is kept up to date any more.
enum Stop {
    /// A signal, or nobody confirmed.
    End(End),
    /// The next process has asked.
    Heir(Heir),
}

/// Level of aya-log in the programs: debug, where the dropped packets are.
const TRACE_DROPS: u8 = 4;
/// How often the programs' log is read.
const LOG_POLL: Duration = Duration::from_millis(100);
/// How often drains, ramps and files are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Orders that wait for their turn.
const ORDERS: usize = 16;
/// How often flows that hold ids of what is configured no more are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// Runs until a signal.
pub(super) fn run(options: &Options) -> ExitCode {
    init_log(options.trace_drops);
    let file = config::load_text(&options.config);
    match &file {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                tracing::warn!("{warning}");
            }
        }
        Err(problems) => {
            eprintln!("{problems}");
            // What was applied, or waits to be confirmed, goes on whatever the file says.
            if options.takeover || start::applied(&Pins::new(&options.instance)).is_err() {
                return ExitCode::from(USAGE);
            }
        }
    }
    match run_file(options, file) {
        Ok(End::Stopped | End::GaveWay) => ExitCode::SUCCESS,
        Ok(End::Unconfirmed) => {
            eprintln!("lb: not confirmed in time: taken down again");
            ExitCode::FAILURE
        }
        Err(error) => failed(&error),
    }
}

fn run_file(options: &Options, file: Result<Loaded, Problems>) -> Result<End> {
    host::check()?;
    let pins = Pins::new(&options.instance);
    let (lock, listeners) = hold(options.takeover, &file, &pins)?;
    ensure!(
        options.confirm.is_none() || !pins.exist(),
        "--confirm undoes a first start, and instance {} is up already: run without it, or after \
         `lb down --instance {}`",
        options.instance,
        options.instance
    );
    let state = kept_state(&pins);
    let problems = file.as_ref().err().cloned();
    let applied = start::applied(&pins).ok();
    let Chosen {
        config,
        text,
        source,
    } = unconfirmed::choose(file, &state, applied.as_deref())?;
    if options.careful && options.confirm.is_none() {
        host::refuse_access_interfaces(&config)?;
    }
    let before = applied.and_then(|text| config::parse("applied.yaml", &text).ok());
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
    let mut running = start::start(
        &config,
        &text,
        &pins,
        level,
        &runtime,
        (reporter, &state, listeners),
    )?;
    if deadline.is_none() {
        running.keep()?;
    }
    let file = path::absolute(&options.config)?;
    let before = before.as_ref().unwrap_or(&config);
    let mut control = Control::new(running, state, &file, before);
    if let Some(problems) = problems {
        control.started_without(&problems);
    }
    match source {
        Source::File => control.started_another(),
        Source::After | Source::Applied => {}
        Source::Before => control.went_back(),
    }
    let orders = listen(&pins, &runtime);
    println!(
        "ready: instance {}, {} networks, {} services",
        options.instance,
        config.networks.len(),
        config.services.len()
    );
    io::stdout().flush().context("write to standard output")?;
    let flow_log = config.flow_log.as_ref();
    runtime.block_on(async {
        let mut flow_log = flow_log.and_then(|path| open_log(path, &pins, reports));
        let sources = (&mut flow_log, orders?, Door::open(&pins)?);
        match watch(&mut control, sources, options, &mut signals, deadline).await? {
            Stop::End(End::Unconfirmed) => {
                drop(control);
                start::remove(&pins)?;
                Ok(End::Unconfirmed)
            }
            Stop::End(end) => Ok(end),
            Stop::Heir(heir) => {
                give_way(control, heir, lock, &mut flow_log, &mut signals).await?;
                Ok(End::GaveWay)
            }
        }
    })
}

/// Makes this process the control plane of the instance; with `takeover`, in the place of the one that is
/// it now, and not before it is sure that the programs can be loaded.
fn hold(
    takeover: bool,
    file: &Result<Loaded, Problems>,
    pins: &Pins,
) -> Result<(host::Lock, Listeners)> {
    if takeover && let Ok(loaded) = file {
        start::rehearse(&loaded.config, pins)?;
        if let Some(Inheritance { lock, listeners }) = handover::inherit(pins)? {
            return Ok((lock, Listeners::new(listeners)));
        }
    }
    Ok((host::Lock::take(pins)?, Listeners::default()))
}

/// Hands the instance over, and goes on until the connections that this process carries have ended.
async fn give_way(
    control: Control,
    heir: Heir,
    lock: host::Lock,
    flow_log: &mut Option<FlowLog>,
    signals: &mut Signals,
) -> Result<()> {
    if let Some(log) = flow_log {
        log.leave_data_plane();
    }
    let pins = control.running.pins().clone();
    let (front, legs) = control.leave();
    heir.give(lock, front.give())
        .context("hand the instance over; nobody controls it until the next start")?;
    let count = legs.all().len();
    tracing::info!("handed over; {count} connections of shared VIPs are finished here");
    let mut looks = time::interval(TICK);
    loop {
        tokio::select! {
            _ = looks.tick() => {
                let is_done = legs.all().is_empty() && front.is_idle();
                // Nothing goes on without the data plane.
                if is_done || !pins.exist() { return Ok(()); }
            }
            // A reload is the next process's.
            reload = signals.any() => if !reload { return Ok(()); },
            () = drain(flow_log), if flow_log.is_some() => {}
        }
    }
}

/// What an earlier process has left beside its data plane; without one there is nothing that it was
/// about.
fn kept_state(pins: &Pins) -> State {
    match pins.exist() {
        true => State::load(&pins.runtime()),
        false => State::default(),
    }
}

/// Opens the admin socket.
fn listen(pins: &Pins, runtime: &Runtime) -> Result<mpsc::Receiver<Order>> {
    let _inside = runtime.enter();
    let server = Server::open(&pins.socket())?;
    let (sender, orders) = mpsc::channel(ORDERS);
    runtime.spawn(async move {
        if let Err(error) = server.serve(sender).await {
            tracing::error!("the admin socket is closed: {error:#}");
        }
    });
    Ok(orders)
}

/// The signals that the control plane knows.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let watch = |kind| signal(kind).context("watch for signals");
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hangup: watch(SignalKind::hangup())?,
        })
    }

    /// The next one: whether it means that the file is to be read anew, and not the end.
    async fn any(&mut self) -> bool {
        tokio::select! {
            _ = self.interrupt.recv() => false,
            _ = self.terminate.recv() => false,
            _ = self.hangup.recv() => true,
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

/// Keeps everything up to date until a signal comes, or until `deadline` if nobody confirms before.
async fn watch(
    control: &mut Control,
    (flow_log, mut orders, door): (&mut Option<FlowLog>, mpsc::Receiver<Order>, Door),
    options: &Options,
    signals: &mut Signals,
    deadline: Option<time::Instant>,
) -> Result<Stop> {
    let mut logger = match options.trace_drops {
        true => Some(
            aya_log::EbpfLogger::init(control.running.object.ebpf())
                .context("read the programs' log")?,
        ),
        false => None,
    };
    let mut log = time::interval(LOG_POLL);
    // Not at once: packets that were on their way when the plan was applied may still open flows.
    let mut sweep = time::interval_at(time::Instant::now() + SWEEP, SWEEP);
    let mut ticks = time::interval(TICK);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut confirmed = deadline.map(|deadline| ask(deadline - time::Instant::now()));
    let expired = time::sleep_until(deadline.unwrap_or_else(time::Instant::now));
    tokio::pin!(expired);
    loop {
        tokio::select! {
            // Of a session that died before anybody confirmed, a hangup is the end.
            reload = signals.any() => {
                if !reload || confirmed.is_some() { break; }
                // It has been said what came of it.
                let _said = control.reload(None, None, Some("SIGHUP".to_owned())).await;
            }
            Some(neighbour) = control.running.resolved.recv() => {
                control.running.live.set_next_hop(&neighbour)?;
            }
            Some(report) = control.running.checks.reports.recv() => {
                said(control.report(report).await);
            }
            Some(order) = orders.recv() => control.order(order).await,
            heir = door.heir(), if confirmed.is_none() => return Ok(Stop::Heir(heir)),
            _ = ticks.tick() => said(control.tick().await),
            _ = log.tick(), if logger.is_some() => {
                if let Some(logger) = &mut logger { logger.flush(); }
            }
            () = drain(flow_log), if flow_log.is_some() => {}
            _ = sweep.tick(), if control.running.has_retired() => {
                if let Err(error) = control.running.sweep() {
                    tracing::error!("ids of what is configured no more stay taken: {error:#}");
                }
            }
            answer = wait(&mut confirmed), if confirmed.is_some() => {
                if !answer { break; }
                control.running.keep()?;
                confirmed = None;
                println!("confirmed");
            }
            () = &mut expired, if confirmed.is_some() => break,
        }
        if let (Some(log), Some(ids)) = (flow_log.as_mut(), control.running.new_names()) {
            log.set_names(ids);
        }
    }
    if confirmed.is_some() {
        return Ok(Stop::End(End::Unconfirmed));
    }
    tracing::info!("stopped; the data plane goes on (`lb down` ends it)");
    Ok(Stop::End(End::Stopped))
}

/// What the kernel refuses is tried again with the next change.
fn said(result: Result<()>) {
    if let Err(error) = result {
        tracing::error!("a change of the pools was not made: {error:#}");
    }
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
