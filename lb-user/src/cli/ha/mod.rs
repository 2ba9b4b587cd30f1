//! `lb ha`: which box of a pair serves, and whether the flows of each stand ready on the other; [`fence`] silences a box, and [`leave`]
//! has it leave the service.

pub(super) mod fence;
pub(super) mod leave;

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{
    arguments::{Format, Show},
    ask::{OTHER_ANSWER, RefusedCommand},
    print,
};
use crate::{
    admin::client,
    api::{
        Answer, Request,
        ha::{HaStatus, SessionStatus},
    },
    model::ago::ago_seconds,
};

/// Names of objects that are listed; of more only the number.
const MAX_NAMES: usize = 10;

/// Prints it; the exit code says whether the flows of each box stand ready on the other.
pub(super) fn show(show: &Show) -> Result<ExitCode> {
    let status = status(&show.instance.name)?;
    match show.output.format {
        Format::Json => print::report(&status)?,
        Format::Table => {
            for line in lines(&status) {
                print::line(line)?;
            }
        }
    }
    Ok(match is_complete(&status) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// As the process has it.
fn status(instance: &str) -> Result<HaStatus> {
    match client::ask(instance, &Request::Ha)? {
        Answer::Ha(status) => Ok(*status),
        Answer::Refused { reasons, .. } => Err(RefusedCommand::usage(reasons.join(", ")).into()),
        _ => bail!(OTHER_ANSWER),
    }
}

/// Whether the flows of each box stand ready on the other.
const fn is_complete(status: &HaStatus) -> bool {
    status.sending.session.complete && status.receiving.session.complete
}

/// For people.
fn lines(status: &HaStatus) -> Vec<String> {
    let role = match status.active {
        true => "active: it has the marker address",
        false => "standby: it does not have the marker address",
    };
    let (sending, receiving) = (&status.sending, &status.receiving);
    let lost = match status.lost_connections {
        0 => String::new(),
        lost => format!("; {lost} connections of the peer ended when it took over"),
    };
    let mut lines = vec![
        format!(
            "box {}: {role} {}; it carries {}{}{lost}",
            status.r#box,
            status.marker,
            networks(status.carried),
            connections(status.connections)
        ),
        peer(status),
        format!(
            "flows to it: {}; {} sent, {} ended, a pass takes {} us",
            session(&sending.session),
            sending.flows,
            sending.ends,
            sending.pass_us
        ),
        format!(
            "flows from it: {}; {} stand ready, {} ended, {} later here, {} unknown, {} waiting",
            session(&receiving.session),
            receiving.ready,
            receiving.ended,
            receiving.later,
            receiving.unknown,
            receiving.waiting
        ),
    ];
    for (names, of) in [
        (&status.only_there, "only the peer has"),
        (&status.only_here, "only this box has"),
        (&status.down_only_there, "down at the peer alone:"),
        (&status.down_only_here, "down at this box alone:"),
    ] {
        let listed = names.iter().take(MAX_NAMES);
        lines.extend(listed.map(|name| format!("{of} {name}")));
        if let Some(more @ 1..) = names.len().checked_sub(MAX_NAMES) {
            lines.push(format!("{of} {more} more"));
        }
    }
    lines
}

fn peer(status: &HaStatus) -> String {
    let HaStatus { peer, sync, .. } = status;
    match (status.peer_active, status.peer_carried) {
        (Some(is_active), Some(carried)) => {
            let role = if is_active { "active" } else { "standby" };
            format!(
                "peer {peer} at {sync}: {role}; it carries {}{}",
                networks(carried),
                connections(status.peer_connections.unwrap_or_default())
            )
        }
        _ => format!("peer {peer} at {sync}: not heard"),
    }
}

fn networks(count: u16) -> String {
    match count {
        1 => "1 network".to_owned(),
        _ => format!("{count} networks"),
    }
}

/// Those that are of no flow, and end with their box.
fn connections(count: u32) -> String {
    match count {
        0 => String::new(),
        count => format!(", and {count} connections that end with it"),
    }
}

fn session(session: &SessionStatus) -> String {
    let error = session.error.as_deref();
    match (session.since_seconds, session.complete) {
        (Some(seconds), true) => format!("complete, for {}", ago_seconds(seconds)),
        (Some(_), false) => "not complete yet".to_owned(),
        (None, _) => format!("none: {}", error.unwrap_or("not begun yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ha::{ReceivingStatus, SendingStatus};

    #[test]
    fn a_pair_is_shown_in_a_few_lines() {
        let status = HaStatus {
            r#box: "lb1".to_owned(),
            active: true,
            marker: "10.32.96.60".to_owned(),
            carried: 1,
            connections: 3,
            lost_connections: 4,
            peer_active: Some(false),
            peer_carried: Some(2),
            peer_connections: Some(5),
            peer: "lb2".to_owned(),
            sync: "10.99.0.2:7433".to_owned(),
            sending: SendingStatus {
                session: SessionStatus {
                    since_seconds: Some(90),
                    complete: true,
                    ..SessionStatus::default()
                },
                flows: 7,
                ends: 2,
                pass_us: 800,
            },
            receiving: ReceivingStatus {
                session: SessionStatus {
                    error: Some("no answer".to_owned()),
                    ..SessionStatus::default()
                },
                ready: 5,
                ..ReceivingStatus::default()
            },
            only_there: (0..12).map(|number| format!("pool {number}")).collect(),
            only_here: vec!["service api".to_owned()],
            down_only_there: vec!["kas/node-1".to_owned()],
            ..HaStatus::default()
        };
        let lines = lines(&status);
        assert_eq!(
            lines[..5],
            [
                "box lb1: active: it has the marker address 10.32.96.60; it carries 1 network, and 3 connections that end with it; \
                 4 connections of the peer ended when it took over",
                "peer lb2 at 10.99.0.2:7433: standby; it carries 2 networks, and 5 connections that end with it",
                "flows to it: complete, for 1m30s; 7 sent, 2 ended, a pass takes 800 us",
                "flows from it: none: no answer; 5 stand ready, 0 ended, 0 later here, 0 unknown, 0 waiting",
                "only the peer has pool 0",
            ]
        );
        assert_eq!(lines[14], "only the peer has 2 more");
        assert_eq!(lines[15], "only this box has service api");
        assert_eq!(lines[16], "down at the peer alone: kas/node-1");
        assert_eq!(lines.len(), 17);
    }
}
