//! What is chosen to be seen, and how keys change that.

use anyhow::Error;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{
    history::Curves,
    rows::{self, TopRows},
};
use crate::reports::overview::Overview;

/// How far a page key goes.
const PAGE: usize = 10;
/// The longest text to search for.
const MAX_TEXT: usize = 64;

/// A table below the networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Services,
    Backends,
    Shared,
    Drops,
    Events,
    Snat,
}

impl View {
    pub(super) const ALL: [Self; 6] = [
        Self::Services,
        Self::Backends,
        Self::Shared,
        Self::Drops,
        Self::Events,
        Self::Snat,
    ];

    /// As the line of views has it.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Backends => "backends",
            Self::Shared => "shared VIPs",
            Self::Drops => "drops",
            Self::Events => "events",
            Self::Snat => "SNAT",
        }
    }

    fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|view| *view == self);
        Self::ALL[(at.unwrap_or_default() + by) % Self::ALL.len()]
    }
}

/// Which rows are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowFilter {
    /// Of this network alone.
    pub(super) network: Option<String>,
    /// With this text in any case, wherever it stands.
    pub(super) text: String,
    /// Those alone that are not well.
    pub(super) problems: bool,
}

/// See the module.
pub(super) struct TopState {
    pub(super) overview: Overview,
    /// Why there is no newer one.
    pub(super) failure: Option<String>,
    pub(super) history: Curves,
    pub(super) view: View,
    pub(super) filter: RowFilter,
    /// Whether keys are letters of the text.
    pub(super) is_typing: bool,
    pub(super) has_help: bool,
    /// The first row that is shown.
    pub(super) first: usize,
}

impl TopState {
    /// Of the first look.
    pub(super) fn new(overview: Overview) -> Self {
        Self {
            overview,
            failure: None,
            history: Curves::default(),
            view: View::default(),
            filter: RowFilter::default(),
            is_typing: false,
            has_help: false,
            first: 0,
        }
    }

    /// Shows a newer look.
    pub(super) fn show(&mut self, overview: Overview) {
        if let Some(rates) = &overview.rates {
            self.history.add(rates);
        }
        self.overview = overview;
        self.failure = None;
    }

    /// Shows why there is no newer look, with the one before.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failure = Some(format!("{error:#}"));
    }

    /// The rows of the view, those alone that are shown.
    pub(super) fn rows(&self) -> TopRows {
        rows::of(self)
    }

    /// Takes a key; returns whether the user quits.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        match self.is_typing {
            true => self.type_key(key.code),
            false => return self.command(key.code),
        }
        false
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.text.clear();
            }
            KeyCode::Backspace => drop(self.filter.text.pop()),
            KeyCode::Char(letter) if self.filter.text.len() < MAX_TEXT => {
                self.filter.text.push(letter);
            }
            _ => {}
        }
        self.first = 0;
    }

    fn command(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('n') => self.next_network(),
            KeyCode::Char('p') => {
                self.filter.problems = !self.filter.problems;
                self.first = 0;
            }
            KeyCode::Esc => {
                self.filter = RowFilter::default();
                self.has_help = false;
                self.first = 0;
            }
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.view.step(1)),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(self.view.step(View::ALL.len() - 1)),
            KeyCode::Char(digit) => {
                let at = digit.to_digit(10).and_then(|digit| digit.checked_sub(1));
                let view = at.and_then(|at| View::ALL.get(usize::try_from(at).ok()?));
                if let Some(view) = view {
                    self.turn_to(*view);
                }
            }
            KeyCode::Down => self.scroll(1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(PAGE),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.scroll(usize::MAX),
            _ => {}
        }
        false
    }

    fn turn_to(&mut self, view: View) {
        self.view = view;
        self.first = 0;
    }

    fn scroll(&mut self, by: usize) {
        let last = self.rows().rows.len().saturating_sub(1);
        self.first = self.first.saturating_add(by).min(last);
    }

    /// The one behind the chosen network, or all of them behind the last.
    fn next_network(&mut self) {
        let networks = &self.overview.status.status.networks;
        let mut names = networks.iter().map(|network| &network.name);
        let next = match &self.filter.network {
            None => names.next(),
            Some(chosen) => {
                names.find(|name| *name == chosen);
                names.next()
            }
        };
        self.filter.network = next.cloned();
        self.first = 0;
    }
}
