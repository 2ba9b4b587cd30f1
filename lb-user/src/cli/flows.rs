//! `lb flows` and `lb who`: the flows, and their end.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;

use super::{
    arguments::{Format, Show},
    ask::{self, RefusedCommand},
    print, table,
};
use crate::{
    api::{Filter, FlowLine, Request},
    config::time_text,
    observe::{Observer, WhoLine},
};

/// The live flows that are meant.
pub(super) fn show(filter: &Filter, show: &Show) -> Result<()> {
    let observer = Observer::open(&show.instance.name)?;
    let legs = ask::legs(&show.instance.name, filter);
    let flows = match observer.choose(filter) {
        Ok(choices) => observer.flows(&choices)?,
        // A port that no flow has may be that of a shared VIP's connection.
        Err(_) if filter.snat.is_some() && !legs.is_empty() => Vec::new(),
        Err(reason) => return Err(RefusedCommand::usage(reason).into()),
    };
    let flows: Vec<FlowLine> = flows.into_iter().chain(legs).collect();
    if show.output.format == Format::Json {
        return print::json(&flows);
    }
    print_flows(flows)
}

/// Ends the flows that are meant.
pub(super) fn kill(filter: Filter, show: &Show) -> Result<()> {
    if filter.is_empty() && !filter.all {
        let words = "--kill without a filter ends every flow: say --all if that is meant";
        return Err(RefusedCommand::usage(words.to_owned()).into());
    }
    ask::order(&Request::Kill(filter), show)
}

pub(super) fn who(snat: SocketAddr, show: &Show) -> Result<()> {
    let filter = Filter {
        snat: Some(snat.to_string()),
        ..Filter::default()
    };
    let legs = ask::legs(&show.instance.name, &filter).into_iter();
    let legs: Vec<WhoLine> = legs.map(|flow| WhoLine { live: true, flow }).collect();
    let lines = match Observer::open(&show.instance.name)?.who(snat) {
        Ok(lines) => lines.into_iter().chain(legs).collect(),
        Err(_) if !legs.is_empty() => legs,
        Err(error) => return Err(error),
    };
    if show.output.format == Format::Json {
        return print::json(&lines);
    }
    if lines.is_empty() {
        return print::line(format_args!("no flow has {snat}, and none had it"));
    }
    print_flows(lines.into_iter().map(|line| line.flow))
}

fn print_flows(flows: impl IntoIterator<Item = FlowLine>) -> Result<()> {
    table::print(
        [
            "NETWORK",
            "SERVICE",
            "PROTO",
            "CLIENT",
            "VIP",
            "SNAT",
            "BACKEND",
            "STATE",
            "NAME",
            "BYTES TO",
            "BYTES FROM",
            "IDLE S",
            "EXPIRES IN",
        ],
        flows.into_iter().map(|line| {
            let expires_in = expires_in(&line);
            [
                line.network,
                line.service,
                line.protocol.into_owned(),
                line.client,
                line.vip,
                line.snat,
                line.backend,
                line.state.into_owned(),
                line.name.unwrap_or_else(|| "-".to_owned()),
                line.bytes_request.to_string(),
                line.bytes_reply.to_string(),
                line.idle_seconds.to_string(),
                expires_in,
            ]
        }),
    )
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

    #[test]
    fn only_a_live_flow_ends_or_never_does() {
        let shown = |state: &'static str, expires_in_seconds| {
            expires_in(&FlowLine {
                network: String::new(),
                service: String::new(),
                protocol: "tcp".into(),
                client: String::new(),
                vip: String::new(),
                snat: String::new(),
                backend: String::new(),
                state: state.into(),
                name: None,
                bytes_request: 0,
                bytes_reply: 0,
                idle_seconds: 0,
                expires_in_seconds,
            })
        };
        assert_eq!(shown("established", Some(90)), "1m30s");
        assert_eq!(shown("established", None), "never");
        assert_eq!(shown("closed", None), "-");
        assert_eq!(shown("ended", None), "-");
    }
}
