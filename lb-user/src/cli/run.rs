//! `lb run`: the control plane in the foreground.

use std::{
    fs::File,
    future,
    io::{self, IsTerminal as _, Write as _},
    path::{self, Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, ensure};
use rustix::stdio::dup2_stdout;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
    time,
};

use super::{USAGE, failed, init_log};
use crate::{
    admin::server::{Order, Server},
    config::{self, Config, Loaded, OnStop, Problems},
    control::{
        apply::read_ids,
        confirm::{self, Chosen, Source},
        control_loop::Control,
        mend::MEND_INTERVAL,
        persisted_state::State,
    },
    daemon::{
        preflight,
        startup::{self, StartOptions},
        takeover::{self, Fate, Handoff, Predecessor, Successor, TakeoverListener},
    },
    dataplane::{maps::Maps, object::Object, pins::Pins},
    flows::log::{self, FlowLog, Reports},
    host::{self, prepare},
    network::cell_thread,
    proxy::{Acceptors, Legs, Listeners},
    system::{
        privileges,
        systemd::{self, Account},
    },
};

/// What `lb run` was asked for.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) config: PathBuf,
    pub(super) instance: String,
    pub(super) takeover: bool,
    pub(super) migrate: bool,
    pub(super) confirm: Option<Duration>,
    /// Whether to refuse interfaces of the operator's own way in; none: [`is_careful`] says so.
    pub(super) careful: Option<bool>,
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
    Heir(Successor),
}

/// What is said of a process that has taken over and is gone.
const NO_HEIR: &str = "the process that has taken over is not up: the data plane goes on, without a control \
                       plane until the next start";
/// What the line begins with that says that all is up.
pub(super) const READY: &str = "ready: ";
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
            if options.takeover
                || crate::control::applied::applied(&Pins::new(&options.instance)).is_err()
            {
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
    let begun = Instant::now();
    host::check()?;
    let pins = Pins::new(&options.instance);
    let manner = StartOptions {
        log_level: if options.trace_drops { TRACE_DROPS } else { 0 },
        migrate: options.migrate,
    };
    let (file, loaded) = accepted(options, file, &pins, manner)?;
    prepare::check(&pins, None)?;
    let (mut lock, listeners, giver) = hold(options, &pins)?;
    prepare::take_over(&pins)?;
    ensure!(
        options.confirm.is_none() || !pins.exist(),
        "--confirm undoes a first start, and instance {} is up already: run without it, or after \
         `lb down --instance {}`",
        options.instance,
        options.instance
    );
    let state = kept_state(&pins);
    let refused = file.as_ref().err().map(|error| format!("{error:#}"));
    let applied = crate::control::applied::applied(&pins).ok();
    let Chosen {
        config,
        text,
        source,
    } = confirm::choose(file, &state, applied.as_deref())?;
    refuse_access_interfaces(options, &pins, &config)?;
    let before = applied
        .as_ref()
        .and_then(|text| config::parse("applied.yaml", text).ok());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start tokio")?;
    // Before anything is attached: from here on a signal ends `watch`, never the process.
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let mut deadline = options
        .confirm
        .map(|patience| time::Instant::now() + patience);
    let (reporter, reports) = log::channel();
    let mut running = startup::start(
        &config,
        &text,
        &pins,
        manner,
        &runtime,
        loaded,
        (reporter, &state, listeners),
    )?;
    // Until somebody has confirmed it, this thread has to be able to take everything down again.
    if deadline.is_none() {
        running.keep()?;
        privileges::give_up(privileges::KEPT)?;
    }
    let file = path::absolute(&options.config)?;
    let before = before.as_ref().unwrap_or(&config);
    let mut control = Control::new(running, state, &file, before);
    if let Some(reason) = refused {
        control.started_without(&reason);
    }
    match source {
        Source::File => control.started_another(),
        Source::After | Source::Applied => {}
        Source::Before => control.went_back(),
    }
    let inside = runtime.enter();
    let mut sources = (listen(&pins)?, TakeoverListener::open(&pins)?);
    let mut flow_log = (config.flow_log.as_ref()).and_then(|path| open_log(path, &pins, reports));
    drop(inside);
    let rest = begun
        .elapsed()
        .saturating_sub(control.running.object.verified_in());
    tracing::debug!("the rest of the start took {} ms", rest.as_millis());
    if let Some(giver) = &giver {
        giver.prepare();
    }
    systemd::is_ready(&control.summary());
    if let Some(giver) = giver {
        giver.hear();
    }
    println!(
        "{READY}instance {}, {} networks, {} services",
        options.instance,
        config.networks.len(),
        config.services.len()
    );
    io::stdout().flush().context("write to standard output")?;
    if options.takeover {
        // With --detach no process reads any more, and a print to a pipe like that would panic.
        let nothing = File::options().write(true).open("/dev/null");
        dup2_stdout(nothing.context("open /dev/null")?).context("leave standard output")?;
    }
    runtime.block_on(async {
        loop {
            match watch(
                &mut control,
                (&mut flow_log, sources),
                options,
                &mut signals,
                deadline,
            )
            .await?
            {
                Stop::End(End::Unconfirmed) => {
                    systemd::stops();
                    drop(control);
                    startup::remove(&pins)?;
                    startup::put_back(&pins, applied.as_deref())?;
                    return Ok(End::Unconfirmed);
                }
                Stop::End(end) => {
                    systemd::stops();
                    stop(&mut control)?;
                    return Ok(end);
                }
                Stop::Heir(heir) => {
                    let holds = (control, lock);
                    match give_way(holds, heir, &mut flow_log, &mut signals).await? {
                        None => return Ok(End::GaveWay),
                        Some(holds) => (control, lock) = holds,
                    }
                    sources = (listen(&pins)?, TakeoverListener::open(&pins)?);
                    systemd::is_ready(&control.summary());
                    // It was confirmed before.
                    deadline = None;
                }
            }
        }
    })
}

/// The file, or why it cannot be used where what was applied can go on instead; and the programs, if they
/// are loaded already. Nothing is changed yet: a process that is to be taken over from goes on where the file is
/// refused.
fn accepted(
    options: &Options,
    file: Result<Loaded, Problems>,
    pins: &Pins,
    manner: StartOptions,
) -> Result<(Result<Loaded>, Option<Object>)> {
    let mut object = None;
    let mut rehearse = |config: &Config| match options.takeover {
        true => {
            refuse_access_interfaces(options, pins, config)?;
            object = preflight::take_over(config, pins, manner)?;
            Ok(())
        }
        false => preflight::start(config, pins),
    };
    let file = file
        .map_err(Error::from)
        .and_then(|loaded| rehearse(&loaded.config).map(|()| loaded));
    let goes_on = !options.takeover && crate::control::applied::applied(pins).is_ok();
    match file {
        Err(error) if !goes_on => Err(error),
        file => Ok((file, object)),
    }
}

/// Refuses interfaces that carry this session or the default route, where that may lock the operator out.
fn refuse_access_interfaces(options: &Options, pins: &Pins, config: &Config) -> Result<()> {
    let was_applied = pins.exist() || crate::control::applied::applied(pins).is_ok();
    let careful = is_careful(options.careful, io::stdin().is_terminal(), was_applied);
    if !careful || options.confirm.is_some() {
        return Ok(());
    }
    let problems = host::access_interfaces(config);
    // What is up already is not undone.
    let confirm = match pins.exist() {
        true => "",
        false => "`--confirm 60s`: everything is taken down again unless you confirm, or ",
    };
    ensure!(
        problems.is_empty(),
        "{}; add {confirm}`--no-careful`: it is taken as any other",
        problems.join("\n")
    );
    Ok(())
}

/// Whether such interfaces are refused, where the operator may have `asked` for that or not: on a terminal, and
/// where nothing was ever applied. What has no terminal is a unit or a script, which must come up again over what it has
/// made.
fn is_careful(asked: Option<bool>, on_terminal: bool, was_applied: bool) -> bool {
    asked.unwrap_or(on_terminal || !was_applied)
}

/// Makes this process the control plane of the instance; with `--takeover`, in the place of the one that is
/// it now.
fn hold(options: &Options, pins: &Pins) -> Result<(host::Lock, Listeners, Option<Predecessor>)> {
    if options.takeover
        && let Some(Handoff {
            lock,
            listeners,
            giver,
        }) = takeover::inherit(pins)?
    {
        // Nobody else says so any more.
        systemd::is_alive();
        return Ok((lock, Listeners::new(listeners), Some(giver)));
    }
    let kept = systemd::kept();
    Ok((host::Lock::take(pins)?, Listeners::new(kept), None))
}

/// Hands the instance over, and goes on until the connections that this process carries have ended. Where
/// the next process dies before it is up, this one has everything back.
async fn give_way(
    (mut control, lock): (Control, host::Lock),
    heir: Successor,
    flow_log: &mut Option<FlowLog>,
    signals: &mut Signals,
) -> Result<Option<(Control, host::Lock)>> {
    if let Some(log) = flow_log {
        log.leave_data_plane();
    }
    let pins = control.running.pins().clone();
    let applied = control.rest().await?;
    if let Err(error) = heir.give(&lock, control.give()) {
        tracing::error!("the next process does not take over: {error:#}");
    }
    tracing::info!(
        "handed over; {} connections of shared VIPs are finished here",
        control.carried()
    );
    let fate = tokio::select! {
        fate = heir.fate() => fate,
        () = end(signals) => return Ok(None),
        () = drain_all(flow_log) => return Ok(None),
    };
    if fate == Fate::Gone {
        match control.go_on(&applied).await {
            Ok(()) => {
                lock.sign();
                if let Some(log) = flow_log
                    && let Err(error) = log.take_data_plane_back(&pins.maps())
                {
                    tracing::error!("flows are no longer written to a file: {error:#}");
                    *flow_log = None;
                }
                return Ok(Some((control, lock)));
            }
            Err(error) => tracing::error!("this process cannot go on: {error:#}"),
        }
    }
    if fate != Fate::Up {
        // It starts the next one only when this one has ended.
        ensure!(!systemd::is_there(), NO_HEIR);
        tracing::error!("{NO_HEIR}");
    }
    // Only the next process has it any more.
    drop(lock);
    finish(control.leave(), &pins, flow_log, signals).await;
    Ok(None)
}

/// Goes on until the connections that this process carries have ended.
async fn finish(
    (front, legs): (Acceptors, Legs),
    pins: &Pins,
    flow_log: &mut Option<FlowLog>,
    signals: &mut Signals,
) {
    let mut looks = time::interval(TICK);
    let is_done = async {
        loop {
            looks.tick().await;
            // Nothing goes on without the data plane.
            if legs.all().is_empty() && front.is_idle() || !pins.exist() {
                return;
            }
        }
    };
    tokio::select! {
        () = is_done => {}
        () = end(signals) => {}
        () = drain_all(flow_log) => {}
    }
}

/// Waits for a signal to end; a reload is the next process's.
async fn end(signals: &mut Signals) {
    while signals.any().await {}
}

/// Writes flow events, for ever.
async fn drain_all(flow_log: &mut Option<FlowLog>) {
    while flow_log.is_some() {
        drain(flow_log).await;
    }
    future::pending().await
}

/// What an earlier process has left beside its data plane; without one, after a reboot, only what operators have
/// said.
fn kept_state(pins: &Pins) -> State {
    match pins.exist() {
        true => State::load(pins),
        false => State {
            overrides: State::of_operators(pins),
            ..State::default()
        },
    }
}

/// Opens the admin socket. Needs to be inside of the runtime.
fn listen(pins: &Pins) -> Result<mpsc::Receiver<Order>> {
    let server = Server::open(&pins.socket())?;
    let (sender, orders) = mpsc::channel(ORDERS);
    tokio::spawn(async move {
        if let Err(error) = server.serve(sender).await {
            tracing::error!("the admin socket is closed: {error:#}");
        }
    });
    Ok(orders)
}

/// Makes the sockets anew that something has removed.
fn mend_sockets(
    control: &mut Control,
    orders: &mut mpsc::Receiver<Order>,
    door: &mut TakeoverListener,
) {
    let pins = control.running.pins().clone();
    if !pins.socket().exists() {
        let opened = listen(&pins).map(|opened| *orders = opened);
        control.note_socket(&pins.socket().display().to_string(), opened);
    }
    if !door.is_there() {
        let opened = TakeoverListener::open(&pins).map(|opened| *door = opened);
        control.note_socket(&pins.heirs().display().to_string(), opened);
    }
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
    (flow_log, (mut orders, mut door)): (
        &mut Option<FlowLog>,
        (mpsc::Receiver<Order>, TakeoverListener),
    ),
    options: &Options,
    signals: &mut Signals,
    deadline: Option<time::Instant>,
) -> Result<Stop> {
    let mut logger = match options.trace_drops {
        true => Some(control.running.object.log()?),
        false => None,
    };
    let mut log = time::interval(LOG_POLL);
    // Not at once: packets that were on their way when the plan was applied may still open flows.
    let mut sweep = time::interval_at(time::Instant::now() + SWEEP, SWEEP);
    let mut ticks = time::interval(TICK);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut sockets = time::interval(MEND_INTERVAL);
    sockets.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut confirmed = deadline
        .map(|deadline| ask(deadline - time::Instant::now()))
        .transpose()?;
    let mut account = Account::new(control.summary());
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
                if let Err(error) = control.running.live.set_next_hop(&neighbour) {
                    tracing::error!("a next hop is not as it was found: {error:#}");
                }
            }
            Some(report) = control.running.checks.reports.recv() => {
                said(control.report(report).await);
            }
            Some(order) = orders.recv() => control.order(order).await,
            heir = door.heir(), if confirmed.is_none() => {
                if let Some(heir) = heir.greeted().await { return Ok(Stop::Heir(heir)); }
            }
            Some(()) = control.running.changes.recv() => control.look().await,
            _ = ticks.tick() => {
                said(control.tick().await);
                account.go_on(|| control.summary());
            }
            _ = sockets.tick() => mend_sockets(control, &mut orders, &mut door),
            _ = log.tick(), if logger.is_some() => {
                if let Some(flush) = &mut logger { flush(); }
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
                privileges::give_up(privileges::KEPT)?;
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
    Ok(Stop::End(End::Stopped))
}

/// Leaves the data plane as it is configured for that.
fn stop(control: &mut Control) -> Result<()> {
    match control.running.config().on_stop {
        OnStop::Forward => tracing::info!("stopped; the data plane goes on (`lb down` ends it)"),
        OnStop::Drop => {
            control.running.close().context("end all service")?;
            tracing::warn!("stopped; everything is dropped until the next start (on_stop: drop)");
        }
    }
    Ok(())
}

/// What the kernel refuses is tried again with the next change.
fn said(result: Result<()>) {
    if let Err(error) = result {
        tracing::error!("a change of the pools was not made: {error:#}");
    }
}

/// Asks on the terminal; the answer arrives from a thread that reads one line.
fn ask(patience: Duration) -> Result<oneshot::Receiver<bool>> {
    eprintln!(
        "Press Enter within {} s to keep this; otherwise everything is taken down again.",
        patience.as_secs()
    );
    let (answer, asked) = oneshot::channel();
    let work = move |()| {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        if matches!(read, Ok(bytes) if bytes > 0) {
            // Nobody waits any more: the time is over.
            let _late: Result<(), bool> = answer.send(true);
        } else {
            // Without a terminal nobody can confirm: the deadline decides.
            thread::sleep(patience);
        }
    };
    cell_thread::start("confirm".to_owned(), None, || Ok(()), work)
        .context("start the thread that waits for Enter")?;
    Ok(asked)
}

async fn wait(confirmed: &mut Option<oneshot::Receiver<bool>>) -> bool {
    match confirmed {
        Some(answer) => answer.await.unwrap_or(false),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_asked_and_a_unit_comes_up_again() {
        for (asked, on_terminal, was_applied, careful) in [
            (None, true, true, true),
            (None, true, false, true),
            (None, false, false, true),
            (None, false, true, false),
            (Some(true), false, true, true),
            (Some(false), true, false, false),
            (Some(false), false, false, false),
        ] {
            assert_eq!(is_careful(asked, on_terminal, was_applied), careful);
        }
    }
}
