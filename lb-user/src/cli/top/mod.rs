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
    os::fd::AsFd as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
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
            if is_over(signals, Duration::ZERO)? {
                return Ok(());
            }
            if event::poll(Duration::ZERO).context("look for a key")? {
                match event::read().context("read a key")? {
                    Event::Key(key) if key.kind != KeyEventKind::Release && state.press(key) => {
                        return Ok(());
                    }
                    _ => break,
                }
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if is_over(signals, left)? {
                return Ok(());
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

/// Waits for a key or a resize, for `timeout` at most; whether a signal has come or the terminal is gone instead.
///
/// crossterm waits for nothing itself: from a terminal that has hung up it reads 0 bytes for ever.
fn is_over(signals: &SignalFd, timeout: Duration) -> Result<bool> {
    let keys = io::stdin();
    let mut sources =
        [signals.as_fd(), keys.as_fd()].map(|source| PollFd::new(source, PollFlags::POLLIN));
    match poll(&mut sources, PollTimeout::try_from(timeout)?) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("wait for a key"),
    }
    let [signal, key] = sources.map(|source| source.revents().unwrap_or(PollFlags::empty()));
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    Ok(!signal.is_empty() || key.intersects(gone))
}
