//! What a user sees of an overview, on a terminal of these tests.

use anyhow::anyhow;
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{
    draw::draw,
    state::{TopState, View},
};
use crate::reports::samples::overview;

fn state() -> TopState {
    let mut state = TopState::new(overview());
    state.show(overview());
    state
}

/// The lines of a terminal of this width that are not empty.
fn screen(state: &TopState, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content().chunks(width.into());
    let lines = cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let lines = lines.map(|line| line.trim_end().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

fn press(state: &mut TopState, keys: &str) -> bool {
    let keys = keys.chars().map(|key| match key {
        '\n' => KeyCode::Enter,
        '\t' => KeyCode::Tab,
        '\u{1b}' => KeyCode::Esc,
        key => KeyCode::Char(key),
    });
    let pressed = keys.map(|key| state.press(KeyEvent::new(key, KeyModifiers::NONE)));
    pressed.collect::<Vec<_>>().contains(&true)
}

/// The words of the line that begins like this.
fn row(screen: &[String], begin: &str) -> Vec<String> {
    let found = screen.iter().find(|line| line.starts_with(begin));
    let found = found.unwrap_or_else(|| panic!("no line begins with {begin} in {screen:#?}"));
    found.split_whitespace().map(ToOwned::to_owned).collect()
}

#[test]
fn everything_is_seen_at_a_glance() {
    let screen = screen(&state(), 140);
    assert_eq!(
        screen[0],
        "ok: 1 of 1 backends up   main, lb 1.2.3   2026-01-02T03:04:05Z"
    );
    let blue = [
        "blue", "tenant", "eth0.7", "yes", "native", "3", "-", "-", "-", "-",
    ];
    assert_eq!(row(&screen, "blue"), blue);
    let api = [
        "api",
        "blue",
        "192.168.203.110:6443/tcp",
        "2/2",
        "3",
        "250",
        "1000k",
        "0",
        "0",
        "-",
        "█",
    ];
    assert_eq!(row(&screen, "api"), api);
    assert_eq!(
        row(&screen, "shop")[3..],
        ["1/2", "3", "-", "-", "-", "-", "-"]
    );
}

#[test]
fn keys_choose_the_view_and_the_rows() {
    let mut state = state();
    assert!(!press(&mut state, "2"));
    assert_eq!(state.view, View::Backends);
    assert_eq!(state.rows().rows.len(), 2);
    press(&mut state, "n");
    let blue = screen(&state, 140);
    assert!(blue.iter().any(|line| line.starts_with("pool-api")));
    assert!(
        !blue
            .iter()
            .any(|line| line.contains("pool-shop") || line.starts_with("red"))
    );
    press(&mut state, "nn");
    assert_eq!((&state.filter.network, state.rows().rows.len()), (&None, 2));
    press(&mut state, "p");
    assert_eq!(row(&screen(&state, 140), "pool-")[2], "dead");
    assert_eq!(state.rows().rows.len(), 1);
    press(&mut state, "\u{1b}/ODE-of-api\n");
    assert_eq!(row(&screen(&state, 140), "pool-")[0], "pool-api");
    assert_eq!((state.rows().rows.len(), state.rows().of), (1, 2));
    press(&mut state, "/q");
    assert!(state.is_typing, "a letter of the text quits nothing");
    press(&mut state, "\u{1b}\t");
    assert_eq!(state.view, View::Shared);
    assert!(press(&mut state, "q"));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(state.press(control_c));
}

#[test]
fn what_a_client_has_sent_moves_no_cursor() {
    let mut state = state();
    press(&mut state, "3");
    let screen = screen(&state, 140);
    let name = "no_match: a\\u{1b}[2Jb, 192.168.7.8 2s ago";
    assert!(
        screen.iter().any(|line| line.ends_with(name)),
        "{screen:#?}"
    );
}

#[test]
fn a_look_that_fails_leaves_the_one_before() {
    let mut state = state();
    state.fail(&anyhow!("instance main is not up"));
    let shown = screen(&state, 100);
    assert!(shown.contains(&"no newer data: instance main is not up".to_owned()));
    row(&shown, "api");
    state.show(overview());
    assert!(
        !screen(&state, 100)
            .iter()
            .any(|line| line.starts_with("no newer data"))
    );
}

#[test]
fn every_view_fits_into_any_terminal() {
    let mut state = state();
    for (view, width) in ["1", "2", "3", "4", "5", "6"]
        .into_iter()
        .zip([1, 20, 40, 80, 200, 7])
    {
        press(&mut state, view);
        state.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        assert!(!screen(&state, width).is_empty());
    }
}
