//! `lb flows` and `lb who`: the flows, and their end.

pub(super) mod who_at;

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::{Format, Show},
    ask::{self, RefusedCommand},
    observed, print, table,
};
use crate::{
    api::{Filter, FlowLine, Request},
    config::time_text,
    observe::{Observer, WhoLine},
};

/// The answer of `lb flows -o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FlowsReport {
    /// The live flows that were chosen.
    flows: Vec<FlowLine>,
}

/// The answer of `lb who -o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WhoReport {
    /// The flows that have the port, or else had it last: one in each network that has the address.
    flows: Vec<WhoLine>,
}

/// The live flows that are meant, in any state or one.
pub(super) fn show(filter: &Filter, state: Option<&str>, wide: bool, show: &Show) -> Result<()> {
    let observer = observed::open(&show.instance.name)?;
    let legs = ask::legs(&show.instance.name, filter);
    let flows = match observer.choose(filter) {
        Ok(choices) => observer.flows(&choices)?,
        // A port that no flow has may be that of a shared VIP's connection.
        Err(_) if filter.snat.is_some() && !legs.is_empty() => Vec::new(),
        Err(reason) => return Err(RefusedCommand::usage(reason).into()),
    };
    let flows = flows.into_iter().chain(legs);
    let flows = flows.filter(|flow| state.is_none_or(|state| flow.state == state));
    let flows: Vec<FlowLine> = flows.collect();
    if show.output.format == Format::Json {
        return print::report(&FlowsReport { flows });
    }
    print::line(text(flows, wide))
}

/// Ends the flows that are meant.
pub(super) fn kill(filter: Filter, show: &Show) -> Result<()> {
    if filter.is_empty() && !filter.all {
        let words = "--kill without a filter ends every flow: say --all if that is meant";
        return Err(RefusedCommand::usage(words.to_owned()).into());
    }
    ask::order(&Request::Kill(filter), false, show).map(drop)
}

pub(super) fn who(snat: SocketAddr, show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let flows = live_lines(&observed::open(instance)?, instance, snat)?;
    let report = WhoReport { flows };
    let is_json = show.output.format == Format::Json;
    if is_json {
        print::report(&report)?;
    }
    ensure_found(&report.flows, snat)?;
    if is_json {
        return Ok(());
    }
    let flows = report.flows.into_iter().map(|line| line.flow);
    print::line(text(flows.collect(), true))
}

/// The flows that have a SNAT port, or had it last, and the connection of a shared VIP that has it.
fn live_lines(observer: &Observer, instance: &str, snat: SocketAddr) -> Result<Vec<WhoLine>> {
    let filter = Filter {
        snat: Some(snat.to_string()),
        ..Filter::default()
    };
    let legs = ask::legs(instance, &filter).into_iter();
    let legs: Vec<WhoLine> = legs.map(|flow| WhoLine { live: true, flow }).collect();
    match observer.who(snat) {
        Ok(lines) => Ok(lines.into_iter().chain(legs).collect()),
        Err(_) if !legs.is_empty() => Ok(legs),
        Err(error) => Err(error),
    }
}

/// Fails for a SNAT port that no flow has or had: a script that goes by the exit code must not take that for an answer.
fn ensure_found(lines: &[WhoLine], snat: SocketAddr) -> Result<()> {
    ensure!(
        !lines.is_empty(),
        "no flow has the SNAT port {snat}, and none had it since the data plane was made"
    );
    Ok(())
}

/// A line for each flow; one that is not wide fits into 100 columns with addresses of IPv4.
fn text(flows: Vec<FlowLine>, wide: bool) -> String {
    let is_named = flows.iter().any(|flow| flow.name.is_some());
    let columns = [
        ("NETWORK", wide),
        ("SERVICE", true),
        ("PROTO", wide),
        ("CLIENT", true),
        ("VIP", wide),
        ("SNAT", true),
        ("BACKEND", true),
        ("STATE", true),
        ("NAME", wide || is_named),
        ("TO", true),
        ("FROM", true),
        ("IDLE", true),
        ("EXPIRES IN", wide),
    ];
    table::text_columns(columns, flows.into_iter().map(row))
}

fn row(flow: FlowLine) -> [String; 13] {
    let expires_in = expires_in(&flow);
    [
        flow.network,
        flow.service,
        flow.protocol.into_owned(),
        flow.client,
        flow.vip,
        flow.snat,
        flow.backend,
        flow.state.into_owned(),
        flow.name.unwrap_or_else(|| "-".to_owned()),
        bytes(flow.bytes_request),
        bytes(flow.bytes_reply),
        time_text(Duration::from_secs(flow.idle_seconds)),
        expires_in,
    ]
}

/// Bytes in at most four digits, and a letter for a thousand, a million and so on.
fn bytes(count: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let mut count = count;
    for unit in units {
        if count < 10_000 {
            return format!("{count}{unit}");
        }
        count /= 1000;
    }
    format!("{count}Z")
}

fn expires_in(line: &FlowLine) -> String {
    match line.expires_in_seconds {
        Some(seconds) => time_text(Duration::from_secs(seconds)),
        None if matches!(&*line.state, "closed" | "ended") => "-".to_owned(),
        None => "never".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> FlowLine {
        FlowLine {
            network: "tenant-a".to_owned(),
            service: "ingress-a".to_owned(),
            protocol: "tcp".into(),
            client: "192.168.203.50:40000".to_owned(),
            vip: "192.168.203.110:443".to_owned(),
            snat: "10.32.96.50:1024".to_owned(),
            backend: "10.32.96.105:30443".to_owned(),
            state: "established".into(),
            name: None,
            bytes_request: 1234,
            bytes_reply: 12_345_678,
            idle_seconds: 59,
            expires_in_seconds: Some(7000),
        }
    }

    #[test]
    fn a_line_fits_into_a_hundred_columns_and_a_wide_one_has_all() {
        let line = |flow, wide| text(vec![flow], wide).lines().nth(1).unwrap().to_owned();
        let narrow = line(flow(), false);
        let words: Vec<&str> = narrow.split_ascii_whitespace().collect();
        let wanted = "ingress-a 192.168.203.50:40000 10.32.96.50:1024 10.32.96.105:30443 established 1234 12M 59s";
        assert_eq!(words.join(" "), wanted);
        assert!(narrow.len() <= 100, "{}: {narrow}", narrow.len());
        let wide = line(flow(), true);
        for part in ["tenant-a", "tcp", "192.168.203.110:443", "1h56m"] {
            assert!(
                wide.contains(part) && !narrow.contains(part),
                "{part}: {wide}"
            );
        }
        let named = FlowLine {
            name: Some("api.a.example".to_owned()),
            ..flow()
        };
        assert!(line(named, false).contains("api.a.example"));
    }

    #[test]
    fn a_port_that_no_flow_had_is_an_error() {
        let snat = "10.32.96.50:2000".parse().unwrap();
        let line = WhoLine {
            live: false,
            flow: flow(),
        };
        assert!(ensure_found(&[line], snat).is_ok());
        assert_eq!(
            ensure_found(&[], snat).unwrap_err().to_string(),
            "no flow has the SNAT port 10.32.96.50:2000, and none had it since the data plane was made"
        );
    }

    #[test]
    fn bytes_have_four_digits_at_most() {
        for (count, text) in [(0, "0"), (9999, "9999"), (10_000, "10k"), (u64::MAX, "18E")] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn only_a_live_flow_ends_or_never_does() {
        let shown = |state: &'static str, expires_in_seconds| {
            expires_in(&FlowLine {
                state: state.into(),
                expires_in_seconds,
                ..flow()
            })
        };
        assert_eq!(shown("established", Some(90)), "1m30s");
        assert_eq!(shown("established", None), "never");
        assert_eq!(shown("closed", None), "-");
        assert_eq!(shown("ended", None), "-");
    }
}
