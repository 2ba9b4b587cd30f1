//! `lb top` on a terminal: what it shows, what keys do, and how it leaves the terminal.

use std::{
    fs,
    io::{Read as _, Write as _},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::query::Event,
    poll,
    product::lb::Lb,
    topology::{ECHO, Topology},
    traffic::client,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use vt100::Parser;

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, wait_for},
};

/// Lines and columns of the terminal.
const SIZE: (u16, u16) = (40, 160);
/// Connections that stay open.
const OPEN: u16 = 3;

/// `lb top` on a pseudo-terminal, which script(1) makes.
struct Top {
    script: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Parser>>,
}

impl Top {
    fn start(topology: &Topology, lb: &Lb<'_>) -> Result<Self> {
        let (rows, columns) = SIZE;
        let words = lb.line(&["top"])?;
        let line = format!("stty rows {rows} cols {columns}; exec {words}");
        let mut command = topology.lb.command("script");
        command.args([
            "--quiet",
            "--return",
            "--flush",
            "--command",
            &line,
            "/dev/null",
        ]);
        command.env("TERM", "xterm-256color").stdin(Stdio::piped());
        let mut script = command.stdout(Stdio::piped()).spawn()?;
        let keys = script.stdin.take().context("its keys")?;
        let mut output = script.stdout.take().context("its screen")?;
        let screen = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let of_reader = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                let mut screen = of_reader.lock().unwrap_or_else(PoisonError::into_inner);
                screen.process(&bytes[..read]);
            }
        });
        Ok(Self {
            script,
            keys,
            screen,
        })
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        Ok(self.keys.flush()?)
    }

    /// Ends it by a key.
    fn quit(&mut self) -> Result<()> {
        self.press("q")?;
        let status = poll::until("the end of lb top", LIMIT, || Ok(self.script.try_wait()?))?;
        assert_eq!(status.code(), Some(0));
        Ok(())
    }

    /// The lines of the screen.
    fn lines(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen().rows(0, SIZE.1).collect()
    }

    /// Waits until the view of events shows each event once, the latest first.
    fn shows_events_of(&self, lb: &Lb<'_>) -> Result<()> {
        let shown = poll::until("each event once", LIMIT, || {
            let mut events = lb.events()?;
            events.reverse();
            let lines = self.lines();
            let rows: Vec<&String> = lines.iter().filter(|line| line.starts_with("20")).collect();
            let is_of = |(row, event): (&&String, &Event)| {
                let words: Vec<&str> = row.split_whitespace().collect();
                words.get(1) == Some(&&*event.kind) && row.contains(&event.object)
            };
            let all = !events.is_empty()
                && rows.len() == events.len()
                && rows.iter().zip(&events).all(is_of);
            Ok(all.then_some(()))
        });
        shown.with_context(|| format!("{:?} in {:#?}", lb.events(), self.lines()))
    }

    /// The words of the line that begins like this and has all of these words, as soon as there is one.
    fn row(&self, begin: &str, words: &[&str]) -> Result<Vec<String>> {
        let found = poll::until(begin, LIMIT, || {
            let row = self.lines().into_iter().find(|line| {
                let has = |word: &&str| line.split_whitespace().any(|found| found == *word);
                line.starts_with(begin) && words.iter().all(has)
            });
            Ok(row)
        });
        let row = found.with_context(|| format!("{words:?} in {:#?}", self.lines()))?;
        Ok(row.split_whitespace().map(str::to_owned).collect())
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.script.kill();
        let _gone = self.script.wait();
    }
}

#[privileged_test]
fn top_shows_what_there_is_and_leaves_the_terminal_as_it_was() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let mut lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let client = &topology.client().netns;
    let open = client.inside(|| {
        let open = (0..OPEN).map(|_| client::open(None, ECHO));
        open.collect::<Result<Vec<_>>>()
    })??;
    let mut top = Top::start(&topology, &lb)?;
    top.row("ok: 2 of 2 backends up", &[])?;
    let flows = OPEN.to_string();
    top.row("echo-a", &["2/2", &flows])?;
    top.row("tenant-a", &["tenant", "native", &flows])?;

    // What changes is seen, in another view as well.
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], SOON)?;
    top.row("echo-a", &["1/2"])?;
    top.press("2")?;
    top.row("echo-a", &[topology.nodes[1].name, "dead"])?;
    top.row("echo-a", &[topology.nodes[0].name, "up"])?;
    top.press("p")?;
    poll::until("problems alone", LIMIT, || {
        let lines = top.lines();
        let of_first = lines
            .iter()
            .any(|line| line.contains(topology.nodes[0].name));
        Ok((!of_first).then_some(()))
    })?;
    // The data plane goes on without its control plane, and so does this.
    lb.kill()?;
    top.row("unknown: no control plane runs", &[])?;
    top.press("1\u{1b}p")?;
    poll::until("all services again", LIMIT, || {
        let lines = top.lines();
        let row = lines.iter().find(|line| line.starts_with("echo-a"));
        let row = row.map(|line| line.split_whitespace().collect::<Vec<_>>());
        Ok(row
            .filter(|row| row.get(3..5) == Some(&["-", &flows]))
            .map(drop))
    })?;
    drop(open);
    ensure!(
        top.screen
            .lock()
            .is_ok_and(|screen| screen.screen().alternate_screen()),
        "no screen of its own"
    );
    top.quit()?;
    thread::sleep(Duration::from_millis(100));
    let screen = top.screen.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(!screen.screen().alternate_screen() && !screen.screen().hide_cursor());
    drop(screen);
    lb.down()
}

/// It goes on with the events of the next process, which it shows once, as those of before.
#[privileged_test]
fn top_goes_on_with_events_over_a_kill() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let mut top = Top::start(&topology, &lb)?;
    top.press("5")?;
    top.shows_events_of(&lb)?;
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], SOON)?;
    top.shows_events_of(&lb)?;

    lb.kill()?;
    top.row("unknown: no control plane runs", &[])?;
    top.shows_events_of(&lb)?;
    lb.restart(&config)?;
    site.health[1].answer(200);
    wait_for(&lb, &["up", "up"], LIMIT)?;

    top.shows_events_of(&lb)?;
    top.quit()?;
    lb.down()
}

/// Without a terminal it says so, and one that goes ends it, whether or not there is a signal.
#[privileged_test]
fn top_needs_a_terminal() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let lb = Lb::start(&topology, &site.http(""))?;
    let said = lb.tell(&["top"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    ensure!(
        said.stderr.contains("`lb top` needs a terminal"),
        "{said:?}"
    );
    let words = lb.line(&["top"])?.replace(' ', "\0");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut top = Top::start(&topology, &lb)?;
        top.row("ok:", &[])?;
        let id = i32::try_from(top.script.id())?;
        kill(Pid::from_raw(id), signal)?;
        poll::until("the end of script", LIMIT, || {
            Ok(top.script.try_wait()?.map(drop))
        })?;
        poll::until(
            &format!("no process of lb top after {signal}"),
            LIMIT,
            || Ok((!is_running(&words)?).then_some(())),
        )?;
    }
    lb.down()
}

/// Whether a process has these words, each with a zero byte behind it but for the last.
fn is_running(words: &str) -> Result<bool> {
    for entry in fs::read_dir("/proc")? {
        // It may end meanwhile.
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).starts_with(words) {
            return Ok(true);
        }
    }
    Ok(false)
}
