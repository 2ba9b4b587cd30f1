//! `lb who --at`: the flow that had a SNAT port at a time, by the flow log.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::Serialize;

use super::{bytes, live_lines};
use crate::{
    cli::{
        arguments::{Format, Show},
        ask, observed, print, table,
    },
    flows::log::{
        history::{LogFiles, PastFlow, PastFlows},
        moment::Moment,
    },
    observe::WhoLine,
};

/// The answer of `lb who --at WHEN -o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WhoAtReport {
    /// The files that were read, the oldest first.
    files: Vec<PathBuf>,
    /// The flows that had the port at that time: one in each network that has the address, or several in turn where the
    /// time is a whole second.
    flows: Vec<PastFlow>,
}

pub(in crate::cli) fn show(snat: SocketAddr, at: Moment, text: &str, show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let observer = observed::open(instance)?;
    let Some(path) = observer.flow_log() else {
        anyhow::bail!(
            "instance {instance} writes no flow log, so it is not known which flow had {snat} at {text}: set \
             log.flows and have `lb run --takeover` start anew, which ends no flow; `{}` has the latest one",
            ask::command(&format!("who {snat}"), instance)
        );
    };
    let files = LogFiles::of(path)?;
    let PastFlows { mut flows, since } = files.search(snat, at)?;
    // A port that is configured no more has no live flow.
    let live = live_lines(&observer, instance, snat).unwrap_or_default();
    flows.iter_mut().for_each(|flow| note_live(flow, &live));
    let report = WhoAtReport {
        files: files.plain.clone(),
        flows,
    };
    let is_json = show.output.format == Format::Json;
    if is_json {
        print::report(&report)?;
    }
    ensure!(
        !report.flows.is_empty(),
        "no flow had the SNAT port {snat} at {text}, by {}",
        searched(&files, since.as_deref(), path)
    );
    if is_json {
        return Ok(());
    }
    print::line(self::text(report.flows))
}

/// The files that were searched, and those that were not.
fn searched(files: &LogFiles, since: Option<&str>, path: &Path) -> String {
    let names = |paths: &[PathBuf]| {
        let names = paths.iter().map(|path| path.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    let mut words = match since {
        Some(since) => format!("{}, which begin at {since}", names(&files.plain)),
        None => format!("{}, which has no lines yet", path.display()),
    };
    if !files.compressed.is_empty() {
        let compressed = names(&files.compressed);
        words.push_str(&format!(
            "; compressed, and not read: {compressed} (gunzip them beside it)"
        ));
    }
    words
}

/// Notes that a flow without an end goes on, and how many bytes it has had.
fn note_live(flow: &mut PastFlow, live: &[WhoLine]) {
    let is_it = |line: &&WhoLine| {
        line.live
            && Some(&line.flow.client) == flow.client.as_ref()
            && line.flow.network == flow.network
    };
    if let Some(line) = live.iter().find(is_it).filter(|_| flow.ended.is_none()) {
        flow.live = true;
        flow.bytes_request = line.flow.bytes_request;
        flow.bytes_reply = line.flow.bytes_reply;
    }
}

fn text(flows: Vec<PastFlow>) -> String {
    let header = [
        "NETWORK", "SERVICE", "CLIENT", "VIP", "BACKEND", "NAME", "BEGAN", "ENDED", "REASON", "TO",
        "FROM",
    ];
    table::text(header, flows.into_iter().map(row))
}

fn row(flow: PastFlow) -> [String; 11] {
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let ended = match flow.live {
        true => "live".to_owned(),
        false => known(flow.ended),
    };
    [
        flow.network,
        flow.service,
        known(flow.client),
        known(flow.vip),
        known(flow.backend),
        known(flow.name),
        known(flow.began),
        ended,
        known(flow.reason),
        bytes(flow.bytes_request),
        bytes(flow.bytes_reply),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_searched_is_named() {
        let path = PathBuf::from("/var/log/lb/flows.json");
        let mut files = LogFiles {
            plain: vec!["/var/log/lb/flows.json.1".into(), path.clone()],
            compressed: Vec::new(),
        };
        assert_eq!(
            searched(&files, Some("2026-11-26T11:28:42.332Z"), &path),
            "/var/log/lb/flows.json.1, /var/log/lb/flows.json, which begin at 2026-11-26T11:28:42.332Z"
        );
        files.compressed.push("/var/log/lb/flows.json.2.gz".into());
        assert_eq!(
            searched(&files, None, &path),
            "/var/log/lb/flows.json, which has no lines yet; compressed, and not read: \
             /var/log/lb/flows.json.2.gz (gunzip them beside it)"
        );
    }

    #[test]
    fn a_flow_that_goes_on_is_live() {
        let flow = |client: &str| PastFlow {
            client: Some(client.to_owned()),
            network: "n".to_owned(),
            ..PastFlow::default()
        };
        let row_of = |flow| row(flow).join(" ");
        assert_eq!(row_of(flow("c:1")), "n  c:1 - - - - - - 0 0");
        let live = PastFlow {
            live: true,
            began: Some("then".to_owned()),
            ..flow("c:1")
        };
        assert_eq!(row_of(live), "n  c:1 - - - then live - 0 0");
    }
}
