//! `lb top`: what the page of `admin.http` shows, in a terminal.

mod draw;
mod history;
mod look;
mod numbers;
mod rows;
mod state;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IsTerminal as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};

use self::{draw::draw, look::Looker, state::TopState};
use super::{
    arguments::{Format, Show},
    ask::RefusedCommand,
    print,
};

/// How often the instance is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A look may take so many parts of the time between looks.
const IDLE_PARTS: u32 = 10;
/// How long a key is waited for, before signals are looked at again.
const KEY_INTERVAL: Duration = Duration::from_millis(100);

/// Shows it until the user quits; as JSON once, with the rates of a second.
pub(super) fn show(show: &Show) -> Result<()> {
    let mut looker = Looker::new(&show.instance.name);
    // Before the terminal is touched: an instance that is not up is an error as of any command.
    let first = looker.look()?;
    if show.output.format == Format::Json {
        thread::sleep(LOOK_INTERVAL);
        return print::report(&looker.look()?);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let words = "`lb top` needs a terminal; `lb top -o json` prints one look at everything";
        return Err(RefusedCommand::usage(words.to_owned()).into());
    }
    let signals = ending_signals()?;
    let mut terminal = ratatui::try_init().context("prepare the terminal")?;
    let mut state = TopState::new(first);
    let result = watch(&mut terminal, &mut looker, &mut state, &signals);
    ratatui::try_restore().context("restore the terminal")?;
    result
}

/// The signals that end it, which would leave the terminal as it is.
fn ending_signals() -> Result<SignalFd> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT]);
    signals.thread_block().context("block signals")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("receive signals")
}

/// Looks and draws until the user quits, a signal comes, or the terminal goes.
fn watch(
    terminal: &mut DefaultTerminal,
    looker: &mut Looker,
    state: &mut TopState,
    signals: &SignalFd,
) -> Result<()> {
    let mut next = Instant::now() + LOOK_INTERVAL;
    loop {
        terminal
            .draw(|frame| draw(frame, state))
            .context("draw on the terminal")?;
        loop {
            if signals.read_signal().context("read a signal")?.is_some() {
                return Ok(());
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if event::poll(left.min(KEY_INTERVAL)).context("wait for a key")? {
                match event::read().context("read a key")? {
                    Event::Key(key) if key.kind != KeyEventKind::Release && state.press(key) => {
                        return Ok(());
                    }
                    _ => break,
                }
            }
        }
        if next <= Instant::now() {
            let begun = Instant::now();
            match looker.look() {
                Ok(overview) => state.show(overview),
                Err(error) => state.fail(&error),
            }
            next = Instant::now() + LOOK_INTERVAL.max(begun.elapsed() * IDLE_PARTS);
        }
    }
}
