//! A process from its start to its end.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, ensure};
use tokio::time;

use super::{
    careful::refuse_access_interfaces,
    drop_log::DropLog,
    event_loop::{EventLoop, Stop},
    grow,
    hand_over::hand_over,
    preflight,
    signals::Signals,
    sockets::Sockets,
    stages::{Start, StartOptions},
    startup,
    takeover::{self, Handoff, Predecessor},
    way_back::WayBack,
    web_port::WebPort,
};
use crate::{
    config::{Config, Loaded, OnStop, Problems},
    control::{
        applied::{applied, is_applied},
        apply::read_ids,
        beginning::Beginning,
        confirm::{self, Chosen, ChosenFrom},
        control_loop::Control,
        discovered::{self, KeptDiscovery},
        persisted_state::State,
    },
    dataplane::{maps::Maps, object::Object, pins::Pins},
    flows::log::{self, FlowLog, Reports},
    host::{self, prepare},
    proxy::Listeners,
    sources::file::File,
    system::{output, privileges, systemd},
};

/// The options of `lb run`.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) config: PathBuf,
    pub(crate) instance: String,
    pub(crate) takeover: bool,
    pub(crate) migrate: bool,
    pub(crate) confirm: Option<Duration>,
    /// Whether to refuse interfaces of the operator's own way in; none: see [`careful`](super::careful).
    pub(crate) careful: Option<bool>,
    pub(crate) trace_drops: bool,
}

/// How the control plane ended.
pub(crate) enum End {
    /// By a signal, confirmed; the data plane goes on.
    Stopped,
    /// The operator has not confirmed in time, or a signal came before.
    Unconfirmed,
    /// The next process has taken over, and what this one carried has ended.
    GaveWay,
}

/// The beginning of the line that reports that all is up.
pub(crate) const READY: &str = "ready: ";
/// The message for a start that ended before the operator could confirm it.
const TAKEN_DOWN: &str = "not confirmed, and taken down again";
/// Level of aya-log in the programs: debug, where the dropped packets are.
const TRACE_DROPS: u8 = 4;

/// Runs until a signal; `file` was `read`.
///
/// # Errors
///
/// If it cannot start, or what it must leave behind cannot be left.
pub(crate) fn run(options: &Options, file: File, read: Result<Loaded, Problems>) -> Result<End> {
    let begun = Instant::now();
    host::check()?;
    let pins = Pins::new(&options.instance);
    let manner = StartOptions {
        log_level: if options.trace_drops { TRACE_DROPS } else { 0 },
        migrate: options.migrate,
        grow: options.migrate && !options.takeover,
    };
    grow::settle(&pins)?;
    let (accepted, loaded) = accepted(options, read, &pins, manner)?;
    prepare::check(&pins, None)?;
    let (mut lock, listeners, giver) = hold(options, &pins)?;
    let beginning = match giver {
        Some(_) => Beginning::TakeOver,
        None => Beginning::Start,
    };
    prepare::take_over(&pins)?;
    ensure!(
        options.confirm.is_none() || !pins.exist(),
        "--confirm undoes a first start, and instance {} is up already: run without it, or after \
         `lb down --instance {}`",
        options.instance,
        options.instance
    );
    let state = kept_state(&pins);
    let refused = accepted.as_ref().err();
    let refused = refused.map(|error| format!("{error:#}"));
    let applied = applied(&pins).ok();
    let Chosen { config, source } = confirm::choose(accepted, &state, applied.as_ref())?;
    let clusters = KeptDiscovery::load(&pins.state());
    let config = discovered::started(&config, applied.as_ref(), &clusters);
    refuse_access_interfaces(options, &pins, &config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start tokio")?;
    // Before anything is attached: from here on a signal ends `watch`, never the process.
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let (reporter, reports) = log::channel();
    let mut running = startup::start(
        &Start {
            config: &config,
            pins: &pins,
            options: manner,
            runtime: &runtime,
            reporter,
            state: &state,
            listeners,
        },
        loaded,
    )?;
    // From here on: an operator has this time for a look at what is up, however long it took to come up.
    let mut deadline = options
        .confirm
        .map(|patience| time::Instant::now() + patience);
    let waits = state.unconfirmed.as_ref();
    let waits = waits.filter(|waits| source == ChosenFrom::After && waits.needs_process(&config));
    let mut way_back = waits
        .map(|_| WayBack::open(&options.instance))
        .transpose()?;
    // Until the operator has confirmed it, this thread has to be able to take everything down again.
    if deadline.is_none() {
        running.data_plane.keep()?;
        privileges::give_up(privileges::KEPT)?;
    }
    let before = applied.as_ref().unwrap_or(&config);
    let mut control = Control::new(running, state, file, before, beginning, clusters);
    if let Some(reason) = refused {
        control.started_without(&reason);
    }
    match source {
        ChosenFrom::File => control.started_another(),
        ChosenFrom::After | ChosenFrom::Applied => {}
        ChosenFrom::Before => control.went_back(),
    }
    let inside = runtime.enter();
    let mut sockets = match Sockets::open(&pins, control.running.config()) {
        Err(error) if deadline.is_some() => {
            take_down(control, &pins, applied.as_ref())?;
            return Err(error.context(TAKEN_DOWN));
        }
        opened => opened?,
    };
    let mut flow_log = (config.flow_log.as_ref()).and_then(|path| open_log(path, &pins, reports));
    drop(inside);
    let mut drop_log = match options.trace_drops {
        true => open_drop_log(&mut control),
        false => None,
    };
    let rest = begun
        .elapsed()
        .saturating_sub(control.running.data_plane.object.verified_in());
    tracing::debug!("the rest of the start took {} ms", rest.as_millis());
    let mut web = WebPort::new();
    web.follow(&mut control);
    if let Some(giver) = &giver {
        giver.prepare();
    }
    systemd::is_ready(&control.summary());
    if let Some(giver) = giver {
        giver.hear();
    }
    // The reader may be gone, or the disk full: what is up goes on.
    let printed = output::print(format_args!(
        "{READY}instance {}, {} networks, {} services",
        options.instance,
        config.networks.len(),
        config.services.len()
    ));
    if let Err(error) = printed {
        tracing::warn!("`ready` cannot be written to standard output: {error}");
    }
    runtime.block_on(async {
        loop {
            let events = EventLoop {
                control: &mut control,
                flow_log: &mut flow_log,
                sockets,
                web: &mut web,
                signals: &mut signals,
                drop_log: &mut drop_log,
                deadline: &mut deadline,
                way_back: &mut way_back,
            };
            let stopped = match events.run().await {
                Err(error) if deadline.is_some() => {
                    take_down(control, &pins, applied.as_ref())?;
                    return Err(error.context(TAKEN_DOWN));
                }
                stopped => stopped?,
            };
            match stopped {
                Stop::Unconfirmed => {
                    take_down(control, &pins, applied.as_ref())?;
                    return Ok(End::Unconfirmed);
                }
                Stop::Signal => {
                    systemd::stops();
                    control.note_stop();
                    stop(&mut control)?;
                    return Ok(End::Stopped);
                }
                Stop::Successor(successor) => {
                    web.close();
                    let holds = (control, lock);
                    match hand_over(holds, successor, &mut flow_log, &mut signals, &mut way_back)
                        .await?
                    {
                        None => return Ok(End::GaveWay),
                        Some(holds) => (control, lock) = holds,
                    }
                    sockets = Sockets::open(&pins, control.running.config())?;
                    systemd::is_ready(&control.summary());
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
        false => preflight::start(config, pins, manner),
    };
    let file = file
        .map_err(Error::from)
        .and_then(|loaded| rehearse(&loaded.config).map(|()| loaded));
    let goes_on = !options.takeover && is_applied(pins);
    match file {
        Err(error) if !goes_on => Err(error),
        file => Ok((file, object)),
    }
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
        // The process before gives the supervisor no signs of life any more.
        systemd::is_alive();
        return Ok((lock, Listeners::new(listeners), Some(giver)));
    }
    let kept = systemd::kept();
    Ok((host::Lock::take(pins)?, Listeners::new(kept), None))
}

/// What an earlier process has left beside its data plane; without one, after a reboot, only the overrides of
/// operators.
fn kept_state(pins: &Pins) -> State {
    match pins.exist() {
        true => State::load(pins),
        false => State {
            overrides: State::of_operators(pins),
            ..State::default()
        },
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
        .inspect_err(|error| {
            tracing::error!("open the flow log (log.flows): {error:#}; lb runs without it")
        })
        .ok()
}

/// The programs' log, or what is wrong with it: packets go on without.
fn open_drop_log(control: &mut Control) -> Option<DropLog> {
    DropLog::open(control)
        .inspect_err(|error| tracing::error!("dropped packets are not logged: {error:#}"))
        .ok()
}

/// Undoes a first start that the operator has not confirmed: nothing of it is left, and `before` is what was applied, if
/// anything was.
fn take_down(control: Control, pins: &Pins, before: Option<&Config>) -> Result<()> {
    systemd::stops();
    drop(control);
    startup::remove(pins)?;
    startup::put_back(pins, before)
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
