//! `lb flows` and `lb who`: the flows, and their end.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;

use super::{
    arguments::{Format, Show},
    ask::{self, Refused},
    print, table,
};
use crate::{
    admin::api::{Filter, Request},
    config::time_text,
    observe::{FlowLine, Observer},
};

/// The live flows that are meant.
pub(super) fn show(filter: &Filter, show: &Show) -> Result<()> {
    let observer = Observer::open(&show.instance.name)?;
    let choices = observer.choose(filter).map_err(Refused::usage)?;
    let flows = observer.flows(&choices)?;
    if show.output.format == Format::Json {
        return print::json(&flows);
    }
    print_flows(flows)
}

/// Ends the flows that are meant.
pub(super) fn kill(filter: Filter, show: &Show) -> Result<()> {
    if filter.is_empty() && !filter.all {
        let words = "--kill without a filter ends every flow: say --all if that is meant";
        return Err(Refused::usage(words.to_owned()).into());
    }
    ask::order(&Request::Kill(filter), show)
}

pub(super) fn who(snat: SocketAddrV4, show: &Show) -> Result<()> {
    let lines = Observer::open(&show.instance.name)?.who(snat)?;
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
                line.protocol.to_owned(),
                line.client,
                line.vip,
                line.snat,
                line.backend,
                line.state.to_owned(),
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
        None if matches!(line.state, "closed" | "ended") => "-".to_owned(),
        None => "never".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_flow_ends_or_never_does() {
        let shown = |state, expires_in_seconds| {
            expires_in(&FlowLine {
                network: String::new(),
                service: String::new(),
                protocol: "tcp",
                client: String::new(),
                vip: String::new(),
                snat: String::new(),
                backend: String::new(),
                state,
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
