//! The rest of the page in Chromium, with `--long`: widths and schemes, a large installation, a minute with traffic, and silence.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{ECHO, Trunk},
    traffic::client,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{
    chromium::{Browser, target},
    page::LISTEN,
};

/// Of the installation that an update is measured with: services, backends of each, and updates.
const SERVICES: u64 = 1000;
const BACKENDS: u64 = 10;
const UPDATES: u64 = 10;
/// Milliseconds of script that such an update may take: the time to the next one. Some 50 are usual.
const MAX_UPDATE_MS: u64 = 1000;
/// How long the page is open beside connections that come and go, in seconds.
const OPEN_SECONDS: u64 = 60;
/// How many more nodes there may be then: a text that was empty is one, and a row that has come, as of an event, so many.
const MAX_MORE: u64 = 10;
const MAX_NODES_OF_ROW: u64 = 30;
/// Bytes by which the heap may be larger then: of values, not of what was forgotten.
const MAX_GROWTH: u64 = 1 << 20;

/// All of it.
pub(super) fn long(
    browser: &mut Browser,
    trunk: &Trunk,
    lb: &Lb<'_>,
    overview: &Value,
) -> Result<()> {
    let url = format!("http://{LISTEN}/");
    let folder = target("page")?;
    fs::create_dir_all(&folder).context("make the folder of pictures")?;
    browser.expect_none(&json!({ "do": "looks", "url": url, "folder": folder }))?;
    update(browser, &url, overview)?;
    browser.ask(&json!({ "do": "open", "url": url }))?;
    grow(browser, trunk)?;
    silent(browser, lb)?;
    browser.ask(&json!({ "do": "busy" }))?;
    browser.expect_none(&json!({ "do": "faults" }))
}

/// A large installation shows its first rows, in little time.
fn update(browser: &mut Browser, url: &str, overview: &Value) -> Result<()> {
    let order = json!({
        "do": "update", "url": url, "overview": overview,
        "services": SERVICES, "each": BACKENDS, "updates": UPDATES,
    });
    let said = browser.ask(&order)?;
    println!(
        "milliseconds of script of updates: {}",
        said["milliseconds"]
    );
    assert_eq!(said["shown"], 200);
    assert_eq!(said["note"], "9800 more: filter");
    let times = said["milliseconds"].as_array().context("times")?;
    let mut times: Vec<u64> = times.iter().filter_map(Value::as_u64).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).context("updates")?;
    ensure!(*median <= MAX_UPDATE_MS, "{times:?}");
    Ok(())
}

/// Nothing is left of the overviews of a minute with traffic.
fn grow(browser: &mut Browser, trunk: &Trunk) -> Result<()> {
    let stop = AtomicBool::new(false);
    let clients = &trunk.tenants[1].client().netns;
    let said = thread::scope(|scope| {
        let churn = scope.spawn(|| {
            clients.inside(|| {
                while !stop.load(Ordering::Relaxed) {
                    client::echo(ECHO, "once more")?;
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            })
        });
        let said = browser.ask(&json!({ "do": "grow", "seconds": OPEN_SECONDS }));
        stop.store(true, Ordering::Relaxed);
        let churned: Result<()> = churn.join().ok().context("the thread panicked")??;
        churned.and(said)
    })?;
    println!("nodes, listeners and heap: {said}");
    let count = |when: &str, what: &str| said[when][what].as_u64().context("a count");
    let more_rows = count("last", "rows")?.saturating_sub(count("first", "rows")?);
    for (what, of_rows) in [("nodes", more_rows * MAX_NODES_OF_ROW), ("listeners", 0)] {
        let [first, last] = [count("first", what)?, count("last", what)?];
        ensure!(
            last <= first + MAX_MORE + of_rows,
            "{what}: {last} after {first}, with {more_rows} rows more"
        );
    }
    let grown = count("last", "heap")?.saturating_sub(count("first", "heap")?);
    ensure!(grown < MAX_GROWTH, "{grown} bytes more");
    Ok(())
}

/// A process that stands still is shown as one, with the time since its last overview; then it goes on.
fn silent(browser: &mut Browser, lb: &Lb<'_>) -> Result<()> {
    let id = Pid::from_raw(i32::try_from(lb.id())?);
    kill(id, Signal::SIGSTOP)?;
    let said = browser.ask(&json!({ "do": "link", "state": "silent" }));
    kill(id, Signal::SIGCONT)?;
    let said = said?;
    let words = said.as_str().context("words")?;
    ensure!(words.starts_with("no data for "), "{words}");
    browser
        .ask(&json!({ "do": "link", "state": "live" }))
        .map(drop)
}
