//! What the page gets: overviews, once and as they are made.

use std::{
    fs::{self, Permissions},
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    process::{Child, ChildStdout, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    netns::Netns,
    poll,
    product::lb::Lb,
    topology::{ECHO, Topology, VIP},
    traffic::client,
};
use serde_json::Value;

use super::page::{LISTEN, curl, is_open, page};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, wait_for},
};

/// Connections that stay open.
const OPEN: u16 = 5;
/// Pages that may be open.
const PAGES: usize = 4;
/// Descriptors of maps in maps that the process goes on to hold, once it has looked at them.
const CACHED: usize = 4;
const TOKEN: &str = "0123456789abcdef0123";

/// A page that is open: curl, which takes the chunks apart.
struct OpenPage {
    curl: Child,
    lines: BufReader<ChildStdout>,
}

impl OpenPage {
    fn open(netns: &Netns) -> Result<Self> {
        let mut command = netns.command("curl");
        command.args(["-sSN", "--max-time", "60"]);
        let url = format!("http://{LISTEN}/v1/live");
        let mut curl = command.arg(url).stdout(Stdio::piped()).spawn()?;
        let stdout = curl.stdout.take().context("the output of curl")?;
        Ok(Self {
            curl,
            lines: BufReader::new(stdout),
        })
    }

    /// The next overview.
    fn next(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            ensure!(self.lines.read_line(&mut line)? > 0, "the stream has ended");
            if let Some(json) = line.strip_prefix("data: ") {
                return Ok(serde_json::from_str(json)?);
            }
            let is_known = matches!(line.trim_end(), "" | ":" | ": " | "event: overview");
            ensure!(is_known, "{line:?}");
        }
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.curl.kill();
        let _gone = self.curl.wait();
    }
}

/// An answer without times, what depends on the look before, and what checks count.
fn timeless(mut value: Value) -> Value {
    forget_times(&mut value);
    value
}

fn forget_times(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(forget_times),
        Value::Object(fields) => {
            fields.retain(|name, _| {
                let is_counted = ["connect_seconds", "first_byte_seconds"].contains(&name.as_str());
                let is_time = name.ends_with("_seconds") && !is_counted;
                // Checks go on.
                !is_time && !["since_last", "verdicts"].contains(&name.as_str())
            });
            fields.values_mut().for_each(forget_times);
        }
        _ => {}
    }
}

/// Asserts that an overview has what each command answers.
fn assert_is_of(overview: &Value, lb: &Lb<'_>) -> Result<()> {
    let answer = |words: &[&str]| Ok::<Value, anyhow::Error>(timeless(lb.ask_json(words)?));
    for name in ["services", "backends", "drops", "events"] {
        assert_eq!(overview[name], answer(&[name])?[name], "{name}");
    }
    assert_eq!(overview["names"], answer(&["drops", "--names"])?["names"]);
    let mut status = answer(&["status"])?;
    let version = status.as_object_mut().and_then(|all| all.remove("version"));
    assert_eq!(version, Some(1.into()));
    assert_eq!(overview["status"], status);
    Ok(())
}

/// The page and `lb top` have what the commands say.
#[privileged_test]
fn an_overview_is_what_the_commands_report() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("").set("admin.http.listen", LISTEN);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    page(&topology.lb)?;
    let client = &topology.client().netns;
    let open = client.inside(|| {
        let open = (0..OPEN).map(|_| client::open(None, ECHO));
        open.collect::<Result<Vec<_>>>()
    })??;
    assert!(!client.inside(|| is_open(VIP, 9))?);
    lb.tell(&["backend", "drain", topology.nodes[1].name])?
        .done()?;

    let url = format!("http://{LISTEN}/v1/overview");
    // An answer may be a second old, and flows become established a moment after their clients find so.
    poll::until("the overview of now", LIMIT, || {
        let (status, text) = curl(&topology.lb, &[&url])?;
        ensure!(status == 200, "{status}: {text}");
        let overview = timeless(serde_json::from_str(&text)?);
        let is_now = overview["services"] == timeless(lb.ask_json(&["services"])?)["services"]
            && overview["drops"] == timeless(lb.ask_json(&["drops"])?)["drops"]
            && overview["events"] == lb.ask_json::<Value>(&["events"])?["events"];
        Ok(is_now.then_some(()))
    })?;
    let (_, text) = curl(&topology.lb, &[&url])?;
    let overview = timeless(serde_json::from_str(&text)?);
    assert_eq!(overview["version"], 1);
    assert_eq!(overview["services"][0]["flows"], OPEN);
    assert_eq!(overview["services"][0]["backends_up"], 1);
    assert_eq!(overview["backends"][1]["state"], "up, drained");
    assert_is_of(&overview, &lb)?;
    assert_is_of(&timeless(lb.ask_json(&["top"])?), &lb)?;
    drop(open);
    lb.down()
}

/// A page sees a backend that fails, and new flows a second; there is room for scrapers beside all pages.
#[privileged_test]
fn a_page_gets_overviews_as_they_are_made() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("").set("admin.http.listen", LISTEN);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    page(&topology.lb)?;
    let descriptors =
        || Ok::<_, anyhow::Error>(fs::read_dir(format!("/proc/{}/fd", lb.id()))?.count());
    let before = descriptors()?;
    let mut open = OpenPage::open(&topology.lb)?;
    assert!(open.next()?["rates"].is_null(), "there was none before");
    let begun = Instant::now();
    let second = open.next()?;
    let between = begun.elapsed();
    println!("the second overview came {between:?} after the first");
    ensure!(between > Duration::from_millis(500), "{between:?}");
    assert_eq!(second["rates"]["services"]["echo-a"]["flows"], 0.0);

    site.health[1].refuse();
    let begun = Instant::now();
    wait_for(&lb, &["up", "dead"], SOON)?;
    let known = begun.elapsed();
    loop {
        let overview = open.next()?;
        if overview["backends"][1]["state"] == "dead" {
            assert_eq!(overview["services"][0]["backends_up"], 1);
            break;
        }
        ensure!(begun.elapsed() < known + SOON, "{overview:#}");
    }
    println!(
        "dead after {known:?}, on the page after {:?}",
        begun.elapsed()
    );
    assert_eq!(site.who(20)?.len(), 1);
    let flows = |overview: &Value| overview["rates"]["services"]["echo-a"]["flows"].as_f64();
    poll::until("new flows a second", LIMIT, || {
        Ok((flows(&open.next()?) > Some(0.0)).then_some(()))
    })?;

    let mut others = (1..PAGES).map(|_| OpenPage::open(&topology.lb));
    let mut others = others.by_ref().collect::<Result<Vec<_>>>()?;
    others
        .iter_mut()
        .try_for_each(|page| page.next().map(drop))?;
    let live = format!("http://{LISTEN}/v1/live");
    let (status, words) = curl(&topology.lb, &[&live])?;
    assert_eq!(
        (status, words.as_str()),
        (503, "4 pages are open already\n")
    );
    page(&topology.lb)?;
    // The place of one that is closed is free again.
    drop(others.pop());
    poll::until("a place for a page", LIMIT, || {
        Ok(OpenPage::open(&topology.lb)?.next().ok().map(drop))
    })?;

    // What they look at is closed with the last one.
    let meanwhile = descriptors()?;
    println!("{before} descriptors, with pages {meanwhile}");
    ensure!(
        meanwhile > before,
        "{meanwhile} descriptors, {before} before"
    );
    drop(others);
    drop(open);
    let rest = poll::until("no more descriptors", LIMIT, || {
        Ok((descriptors()? <= before + CACHED).then_some(()))
    });
    rest.with_context(|| format!("{:?} descriptors", descriptors()))?;
    lb.down()
}

/// What the page is of has nothing of the instance, and all else needs the token. A browser loads nothing from elsewhere.
#[privileged_test]
fn the_page_needs_a_token_for_its_data_alone() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let token = topology.write("token", TOKEN)?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let config = site
        .http("")
        .set("admin.http.listen", LISTEN)
        .set("admin.http.token_file", token.display().to_string());
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"], LIMIT)?;
    let get = |path: &str, with: &[&str]| {
        let url = format!("http://{LISTEN}{path}");
        curl(&topology.lb, &[with, &[url.as_str()]].concat())
    };
    poll::until("the page", LIMIT, || {
        let got = get("/", &[]).ok();
        Ok(got.filter(|(status, _)| *status == 200).map(drop))
    })?;
    let (_, head) = get("/", &["--head"])?;
    for line in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
        "x-content-type-options: nosniff",
    ] {
        ensure!(head.to_lowercase().contains(line), "{line}: {head}");
    }
    let (_, html) = get("/", &[])?;
    ensure!(
        !html.contains("http:") && !html.contains("https:"),
        "{html}"
    );
    let authorization = format!("Authorization: Bearer {TOKEN}");
    for path in ["/v1/overview", "/v1/live", "/metrics", "/healthz", "/v1/"] {
        assert_eq!(get(path, &["--head"])?.0, 401, "{path}");
    }
    for (path, status) in [("/v1/overview", 200), ("/v1/live", 200), ("/v1/", 404)] {
        assert_eq!(
            get(path, &["--head", "-H", &authorization])?.0,
            status,
            "{path}"
        );
    }
    for path in ["/", "/v1/overview"] {
        assert_eq!(get(path, &["-H", "Host: evil.example"])?.0, 421, "{path}");
        assert_eq!(
            get(path, &["-H", &authorization, "-d", "x"])?.0,
            405,
            "{path}"
        );
    }
    lb.down()
}
