//! `lb discover --dry-run FILE`: what clusters of Kubernetes say to a file. Nothing is applied or written, and no running
//! `lb` is asked.

use std::{mem, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::Serialize;

use super::{USAGE, arguments::Format, print};
use crate::{
    config,
    control::dry_run::{DryRun, DryStatus, dry_run},
    system::output,
};

/// How long the clusters have for their answers.
const LIMIT: Duration = Duration::from_secs(10);

/// The answer of `-o json`.
#[derive(Serialize, JsonSchema)]
pub(super) struct DiscoverReport {
    /// The clusters of the file.
    clusters: Vec<DiscoveredCluster>,
    /// The hosted clusters that would be there.
    hosted: Vec<DiscoveredHosted>,
    /// The pools that want backends of them.
    pools: Vec<DiscoveredPool>,
    /// What would be left out of what they say, and why.
    refused: Vec<String>,
    /// The Services that are to have VIPs in their status, of the clusters that answer.
    services: Vec<DiscoveredService>,
}

/// A cluster.
#[derive(Serialize, JsonSchema)]
struct DiscoveredCluster {
    /// Its name.
    name: String,
    /// Why its API does not answer; null if it does.
    unanswered: Option<String>,
}

/// A hosted cluster.
#[derive(Serialize, JsonSchema)]
struct DiscoveredHosted {
    /// Its name and hub, in words.
    name: String,
    /// The VIP that it would have if none was chosen yet.
    vip: String,
}

/// A pool.
#[derive(Serialize, JsonSchema)]
struct DiscoveredPool {
    /// Its name.
    name: String,
    /// The backends that it would have beside those of the file.
    backends: Vec<DiscoveredBackend>,
}

/// A backend.
#[derive(Serialize, JsonSchema)]
struct DiscoveredBackend {
    /// The name of its node.
    name: String,
    /// Address and port.
    address: String,
}

/// A Service.
#[derive(Serialize, JsonSchema)]
struct DiscoveredService {
    /// Its cluster.
    cluster: String,
    /// `NAMESPACE/NAME`.
    name: String,
    /// The VIPs that would be written into its status; none are if it stays as it is.
    write: Vec<String>,
    /// Why nothing would be; null if it has what is wanted, or would be written.
    left: Option<String>,
}

/// Exit code 0: all clusters answer; 1: not all do; 2: the file is wrong.
pub(super) fn discover(path: &Path, expand: bool, format: Format) -> ExitCode {
    let config = match config::load(path) {
        Ok(config) => config,
        Err(problems) => {
            output::print_error(problems);
            return ExitCode::from(USAGE);
        }
    };
    let shown = dry_run(&config, LIMIT).and_then(|found| match (expand, format) {
        (true, Format::Table) => show_expanded(found),
        _ => {
            let report = DiscoverReport::from(found);
            show(&report, format).map(|()| report)
        }
    });
    match shown {
        Ok(report) if report.clusters.iter().all(|one| one.unanswered.is_none()) => {
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            output::print_error(format_args!("lb: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

impl From<DryRun> for DiscoverReport {
    fn from(found: DryRun) -> Self {
        let clusters = found.clusters.into_iter();
        let pools = found.pools.into_iter().map(|(name, backends)| {
            let backends = backends
                .into_iter()
                .map(|(name, address)| DiscoveredBackend {
                    name,
                    address: address.to_string(),
                });
            DiscoveredPool {
                name,
                backends: backends.collect(),
            }
        });
        let services = found.statuses.into_iter().map(|((cluster, name), status)| {
            let (write, left) = match status {
                DryStatus::Stays => (Vec::new(), None),
                DryStatus::IsWritten(vips) => (vips, None),
                DryStatus::IsLeft(why) => (Vec::new(), Some(why)),
                DryStatus::Missing => (Vec::new(), Some("there is no such Service".to_owned())),
            };
            DiscoveredService {
                cluster,
                name,
                write: write.iter().map(ToString::to_string).collect(),
                left,
            }
        });
        let hosted = found
            .hosted
            .into_iter()
            .map(|(name, vip)| DiscoveredHosted {
                name,
                vip: vip.to_string(),
            });
        Self {
            hosted: hosted.collect(),
            clusters: clusters
                .map(|(name, unanswered)| DiscoveredCluster { name, unanswered })
                .collect(),
            pools: pools.collect(),
            refused: found.refused.into_iter().collect(),
            services: services.collect(),
        }
    }
}

/// The file with all that was found written out; why something of it is missing is said beside it.
fn show_expanded(mut found: DryRun) -> Result<DiscoverReport> {
    let text = mem::replace(&mut found.expanded, Ok(String::new()));
    let text = text.context("write the configuration out")?;
    let report = DiscoverReport::from(found);
    let clusters = report.clusters.iter();
    for cluster in clusters.filter(|cluster| cluster.unanswered.is_some()) {
        let why = cluster.unanswered.as_deref().unwrap_or_default();
        output::print_error(format_args!("lb: cluster {}: {why}", cluster.name));
    }
    for words in &report.refused {
        output::print_error(format_args!("lb: refused: {words}"));
    }
    print::line(text.trim_end())?;
    Ok(report)
}

fn show(report: &DiscoverReport, format: Format) -> Result<()> {
    match format {
        Format::Json => print::report(report),
        Format::Table => lines(report).iter().try_for_each(print::line),
    }
}

/// For people.
fn lines(report: &DiscoverReport) -> Vec<String> {
    let DiscoverReport {
        clusters,
        hosted,
        pools,
        refused,
        services,
    } = report;
    let clusters = clusters.iter().map(|cluster| match &cluster.unanswered {
        None => format!("cluster {}: answers", cluster.name),
        Some(why) => format!("cluster {}: does not answer: {why}", cluster.name),
    });
    let hosted = hosted
        .iter()
        .map(|one| format!("{}: {}", one.name, one.vip));
    let pools = pools.iter().map(|pool| {
        let backends = pool.backends.iter();
        let backends = backends.map(|one| format!("{} at {}", one.name, one.address));
        let backends: Vec<String> = backends.collect();
        match backends.is_empty() {
            true => format!("pool {}: no backend", pool.name),
            false => format!("pool {}: {}", pool.name, backends.join(", ")),
        }
    });
    let refused = refused.iter().map(|words| format!("refused: {words}"));
    let services = services.iter().map(|service| {
        let DiscoveredService { cluster, name, .. } = service;
        let becomes = match (&service.left, service.write.as_slice()) {
            (Some(why), _) => format!("is left as it is: {why}"),
            (None, []) => "has its VIPs".to_owned(),
            (None, vips) => format!("would get {}", vips.join(", ")),
        };
        format!("service {name} of {cluster}: its status {becomes}")
    });
    clusters
        .chain(hosted)
        .chain(pools)
        .chain(refused)
        .chain(services)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_has_a_line() {
        let status = |name: &str, status| (("hub".to_owned(), name.to_owned()), status);
        let found = DryRun {
            clusters: [
                ("a".to_owned(), Some("refused".to_owned())),
                ("hub".to_owned(), None),
            ]
            .into(),
            pools: [
                (
                    "kas".to_owned(),
                    vec![
                        ("n1".to_owned(), "10.0.0.1:30918".parse().unwrap()),
                        ("n2".to_owned(), "[fd00::2]:30918".parse().unwrap()),
                    ],
                ),
                ("none".to_owned(), Vec::new()),
            ]
            .into(),
            hosted: [(
                "HostedCluster a/b of hub".to_owned(),
                "10.0.0.8".parse().unwrap(),
            )]
            .into(),
            expanded: Ok(String::new()),
            refused: ["node n3: 127.0.0.1".to_owned()].into(),
            statuses: [
                status("a/gone", DryStatus::Missing),
                status("a/has", DryStatus::Stays),
                status(
                    "a/new",
                    DryStatus::IsWritten(vec!["10.0.0.9".parse().unwrap()]),
                ),
                status("a/other", DryStatus::IsLeft("it is of a cloud".to_owned())),
            ]
            .into(),
        };
        let wanted = [
            "cluster a: does not answer: refused",
            "cluster hub: answers",
            "HostedCluster a/b of hub: 10.0.0.8",
            "pool kas: n1 at 10.0.0.1:30918, n2 at [fd00::2]:30918",
            "pool none: no backend",
            "refused: node n3: 127.0.0.1",
            "service a/gone of hub: its status is left as it is: there is no such Service",
            "service a/has of hub: its status has its VIPs",
            "service a/new of hub: its status would get 10.0.0.9",
            "service a/other of hub: its status is left as it is: it is of a cloud",
        ];
        assert_eq!(lines(&found.into()), wanted);
    }
}
