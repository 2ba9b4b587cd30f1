//! A Prometheus beside `lb`, with the alerts that are shipped, for which a minute is a second.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::{netns::Netns, poll, process::Process, topology::Topology};
use serde_json::Value;

use crate::metrics::page::{LISTEN, curl};

/// The file that is shipped.
pub(super) const RULES: &str = include_str!("../../../../config/prometheus/alerts.yaml");
const ADDRESS: &str = "127.0.0.1:9090";
/// From a fault until its alert fires, at most: the longest `for` is 10 s.
const FIRES: Duration = Duration::from_secs(30);
/// Between two faults that are events.
const FAULT_INTERVAL: Duration = Duration::from_secs(1);
/// Between two scrapes, and what each may take.
pub(super) const SCRAPE: &str = "1s";

/// See the module.
pub(super) struct Prometheus<'t> {
    topology: &'t Topology,
    process: Process,
    /// Names of the alerts that were waited for.
    made: BTreeSet<String>,
    /// Alerts that may fire at any time.
    coming: Vec<&'static str>,
}

impl<'t> Prometheus<'t> {
    /// Starts it in the namespace of `lb`, which it scrapes so often, and returns when it has done so, and no alert
    /// fires or is about to, but these.
    pub(super) fn start(topology: &'t Topology, scrape: &str, but: &[&str]) -> Result<Self> {
        topology.write("alerts.yaml", &seconds_for_minutes(RULES))?;
        let file = topology.write("prometheus.yml", &config(scrape))?;
        let data = topology.dir().join("prometheus");
        let arguments = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address={ADDRESS}"),
            "--log.level=warn".to_owned(),
        ];
        let process = Process::start(
            &topology.lb.path(),
            topology.dir(),
            "prometheus",
            "prometheus",
            &arguments,
        )?;
        let prometheus = Self {
            topology,
            process,
            made: BTreeSet::new(),
            coming: Vec::new(),
        };
        let begun = poll::until("a scrape without an alert", FIRES, || {
            let Ok(found) = prometheus.query("lb_build_info") else {
                return Ok(None);
            };
            let others = prometheus.alerts(&["pending", "firing"])?;
            let is_quiet = others.iter().all(|alert| but.contains(&alert.as_str()));
            Ok((!found.is_empty() && is_quiet).then_some(()))
        });
        begun.with_context(|| {
            let alerts = prometheus.alerts(&["pending", "firing"]);
            format!("{alerts:?}; {}", prometheus.process.stderr())
        })?;
        Ok(prometheus)
    }

    fn netns(&self) -> &Netns {
        &self.topology.lb
    }

    /// What a query finds now.
    pub(super) fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let parameter = format!("query={expression}");
        let url = format!("http://{ADDRESS}/api/v1/query");
        let (status, body) = curl(self.netns(), &["-G", "--data-urlencode", &parameter, &url])?;
        ensure!(status == 200, "{expression}: {body}");
        let mut answer: Value = serde_json::from_str(&body)?;
        let found = serde_json::from_value(answer["data"]["result"].take());
        found.with_context(|| format!("{expression}: {body}"))
    }

    /// The alerts in these states, as `LbNoCarrier network=mgmt`: what it scrapes is one job and one instance.
    fn alerts(&self, states: &[&str]) -> Result<BTreeSet<String>> {
        let url = format!("http://{ADDRESS}/api/v1/alerts");
        let (status, body) = curl(self.netns(), &[&url])?;
        ensure!(status == 200, "{status}: {body}");
        let answer: Value = serde_json::from_str(&body)?;
        let alerts = answer["data"]["alerts"].as_array().context("alerts")?;
        let alerts = alerts
            .iter()
            .filter(|alert| states.iter().any(|state| alert["state"] == *state));
        alerts.map(text).collect()
    }

    /// The fault of an alert is made, which is waited for later.
    pub(super) fn note_coming(&mut self, alert: &'static str) {
        self.coming.push(alert);
    }

    /// Waits until each of these alerts has fired, of faults that stay; no other one begins to meanwhile.
    pub(super) fn wait_for(&mut self, expected: &[&str]) -> Result<()> {
        self.wait_while(|| Ok(()), expected)
    }

    /// The same for faults that are events: they are made once a second, as a real fault goes on. Of a single one an
    /// alert may fire for less than a second, which is as long as it takes to ask for it on a slow machine.
    pub(super) fn wait_while(
        &mut self,
        mut fault: impl FnMut() -> Result<()>,
        expected: &[&str],
    ) -> Result<()> {
        let earlier = self.alerts(&["firing"])?;
        let mut missing = expected.to_vec();
        let mut next = Instant::now();
        let fire = poll::until("the alerts", FIRES, || {
            if Instant::now() >= next {
                fault().context("make the fault")?;
                next = Instant::now() + FAULT_INTERVAL;
            }
            let firing = self.alerts(&["firing"])?;
            for alert in firing.difference(&earlier) {
                let mut wanted = expected.iter().chain(&self.coming);
                ensure!(wanted.any(|wanted| wanted == alert), "{alert} fires");
            }
            missing.retain(|alert| !firing.contains(*alert));
            Ok(missing.is_empty().then_some(()))
        });
        fire.with_context(|| format!("{missing:?} of {expected:?} do not fire"))?;
        let names = expected.iter().filter_map(|alert| alert.split(' ').next());
        self.made.extend(names.map(str::to_owned));
        Ok(())
    }

    /// Waits until no alert fires or is about to, but these.
    pub(super) fn wait_for_rest(&self, but: &[&str]) -> Result<()> {
        let mut others = BTreeSet::new();
        let rest = poll::until("no alert", FIRES, || {
            others = self.alerts(&["pending", "firing"])?;
            others.retain(|alert| !but.contains(&alert.as_str()));
            Ok(others.is_empty().then_some(()))
        });
        rest.with_context(|| format!("{others:?}"))
    }

    /// All that a test was to make has fired.
    pub(super) fn ensure_made(&self, names: &[&str]) -> Result<()> {
        let made: Vec<&str> = self.made.iter().map(String::as_str).collect();
        let mut names = names.to_vec();
        names.sort_unstable();
        ensure!(made == names, "{made:?} were made, and not {names:?}");
        Ok(())
    }
}

/// The name of an alert, and its labels beside that of the severity.
fn text(alert: &Value) -> Result<String> {
    let labels = alert["labels"].as_object().context("labels")?;
    let mut text = alert["labels"]["alertname"]
        .as_str()
        .context("a name")?
        .to_owned();
    for (label, value) in labels {
        let value = value.as_str().context("a value")?;
        match label.as_str() {
            "alertname" => {}
            "severity" => ensure!(["critical", "warning"].contains(&value), "{alert}"),
            "job" => ensure!(value == "lb", "{alert}"),
            "instance" => ensure!(value == LISTEN, "{alert}"),
            label => text += &format!(" {label}={value}"),
        }
    }
    for text in ["summary", "description"] {
        let words = alert["annotations"][text].as_str().unwrap_or_default();
        let is_whole =
            !words.is_empty() && !words.contains("<error") && !words.contains("<no value>");
        if !is_whole || words.contains("  ") {
            bail!("{text} of {alert}");
        }
    }
    Ok(text)
}

fn config(scrape: &str) -> String {
    format!(
        "global: {{ scrape_interval: {scrape}, scrape_timeout: {scrape}, evaluation_interval: 250ms }}\n\
         rule_files: [alerts.yaml]\n\
         scrape_configs: [{{ job_name: lb, static_configs: [{{ targets: [\"{LISTEN}\"] }}] }}]\n"
    )
}

/// Rules, or a query, with seconds for the minutes of durations and windows, and nothing else changed.
pub(super) fn seconds_for_minutes(text: &str) -> String {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let pieces = text.split_inclusive(|letter| !is_of_word(letter));
    let changed = pieces.map(|piece| {
        let word = piece.trim_end_matches(|letter| !is_of_word(letter));
        let minutes = word.strip_suffix('m');
        match minutes.filter(|minutes| minutes.parse::<u32>().is_ok()) {
            Some(minutes) => format!("{minutes}s{}", &piece[word.len()..]),
            None => piece.to_owned(),
        }
    });
    changed.collect()
}

#[test]
fn minutes_become_seconds_and_nothing_else_does() {
    assert_eq!(
        seconds_for_minutes("rate(a5m_b:b5m[5m] offset 10m) for: 2m, x5mm 30s"),
        "rate(a5m_b:b5m[5s] offset 10s) for: 2s, x5mm 30s"
    );
    assert_eq!(seconds_for_minutes(RULES).len(), RULES.len());
}
