//! A frame of the terminal.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Paragraph, Row, Table},
};

use super::{
    rows::{self, TopRow, TopRows},
    state::{TopState, View},
};
use crate::{
    cli::color::{self, Standing},
    model::ago::ago_seconds,
    reports::health::State,
    system::escape::escaped,
};

/// Lines of the networks at most: the view below has the rest.
const MAX_NETWORKS: u16 = 9;
/// Of a column that has others behind it.
const MAX_WIDTH: u16 = 44;
/// Lines of problems at most.
const MAX_PROBLEMS: usize = 5;
const KEYS: &str = "1-6, Tab views   n network   / text   p problems   arrows, PgUp, PgDn scroll   Esc all   q quit";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &TopState) {
    let head = head(state);
    let networks = rows::networks(state);
    let height = u16::try_from(networks.rows.len() + 1).unwrap_or(u16::MAX);
    let parts = [
        Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
        Constraint::Length(1),
        Constraint::Length(height.min(MAX_NETWORKS)),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ];
    let [top, _, above, _, views, below, keys] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    table(frame, above, &networks, 0);
    let rows = state.rows();
    frame.render_widget(Paragraph::new(line_of_views(state, &rows)), views);
    table(frame, below, &rows, state.first);
    frame.render_widget(Paragraph::new(foot(state)), keys);
}

/// The instance, how it is, and where its configuration stands.
fn head(state: &TopState) -> Vec<Line<'static>> {
    let status = &state.overview.status;
    let health = &status.health;
    let standing = match health.state {
        State::Ok => Standing::Good,
        State::Degraded => Standing::Bad,
        State::Unknown => Standing::Doubtful,
    };
    let words = health.lines();
    let mut words = words.iter().map(|line| escaped(line).into_owned());
    let first = words.next().unwrap_or_default();
    let instance = &status.status.instance;
    let mut lines = vec![Line::from(vec![
        Span::styled(first, paint(standing)),
        Span::raw(format!(
            "   {instance}, lb {}   {}",
            status.status.lb_version, state.overview.time
        )),
    ])];
    let problems = words.len();
    let shown = words.take(MAX_PROBLEMS);
    lines.extend(shown.map(|problem| Line::styled(problem, paint(standing))));
    if problems > MAX_PROBLEMS {
        let more = problems - MAX_PROBLEMS;
        lines.push(Line::raw(format!("  and {more} more: `lb status`")));
    }
    if let Some(config) = &status.config {
        let file = config.file.display().to_string();
        let age = ago_seconds(config.age_seconds);
        let generation = config.generation;
        lines.push(Line::raw(format!(
            "{}, generation {generation}, applied {age} ago",
            escaped(&file)
        )));
    }
    if let Some(stale) = &health.stale {
        let words = format!("stale: {}", escaped(stale));
        lines.push(Line::styled(words, paint(Standing::Doubtful)));
    }
    if let Some(failure) = &state.failure {
        let words = format!("no newer data: {}", escaped(failure));
        lines.push(Line::styled(words, paint(Standing::Bad)));
    }
    lines
}

/// The views, the one that is shown marked, and what is chosen of its rows.
fn line_of_views(state: &TopState, rows: &TopRows) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, view) in (1..).zip(View::ALL) {
        let style = match view == state.view {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        spans.push(Span::styled(format!(" {number} {} ", view.title()), style));
    }
    let shown = rows.rows.len();
    let mut chosen = match shown == rows.of {
        true => format!("  {shown} rows"),
        false => format!("  {shown} of {} rows", rows.of),
    };
    if let Some(network) = &state.filter.network {
        chosen.push_str(&format!(", network {network}"));
    }
    if state.filter.problems {
        chosen.push_str(", problems only");
    }
    spans.push(Span::raw(chosen));
    Line::from(spans)
}

fn foot(state: &TopState) -> Line<'static> {
    let text = &state.filter.text;
    match (state.is_typing, text.is_empty()) {
        (true, _) => Line::raw(format!("/{text}_   Enter keeps it, Esc clears it")),
        (false, false) => Line::raw(format!("/{text}   {KEYS}")),
        (false, true) if state.has_help => Line::raw(KEYS),
        (false, true) => Line::raw("? keys   q quit"),
    }
}

fn table(frame: &mut Frame<'_>, area: Rect, rows: &TopRows, first: usize) {
    let header = Row::new(rows.columns.iter().copied());
    let header = header.style(Style::new().add_modifier(Modifier::BOLD));
    let shown = rows.rows.iter().skip(first).take(area.height.into());
    let shown: Vec<&TopRow> = shown.collect();
    let widths = widths(rows.columns, &shown);
    let shown = shown.into_iter().map(|row| {
        let cells = row.cells.iter().map(String::as_str);
        Row::new(cells).style(paint_row(row.standing))
    });
    frame.render_widget(Table::new(shown, widths).header(header), area);
}

/// As much as what is shown needs; the last column has what is left.
fn widths(columns: &[&str], rows: &[&TopRow]) -> Vec<Constraint> {
    let last = columns.len().saturating_sub(1);
    let widths = columns.iter().enumerate().map(|(at, header)| {
        let cells = rows.iter().filter_map(|row| row.cells.get(at));
        let widest = cells.map(|cell| Span::raw(cell).width()).max();
        let width = widest.unwrap_or_default().max(header.len());
        let width = u16::try_from(width).unwrap_or(u16::MAX);
        match at == last {
            true => Constraint::Fill(1),
            false => Constraint::Length(width.min(MAX_WIDTH)),
        }
    });
    widths.collect()
}

/// A row that is well has no colour.
fn paint_row(standing: Standing) -> Style {
    match standing {
        Standing::Good => Style::new(),
        other => paint(other),
    }
}

fn paint(standing: Standing) -> Style {
    let color = match standing {
        Standing::Good => Color::Green,
        Standing::Doubtful => Color::Yellow,
        Standing::Bad => Color::Red,
    };
    match color::is_on() {
        true => Style::new().fg(color),
        false => Style::new(),
    }
}
