//! `lb ha fence`: silences a box that has lost the marker and whose process does not follow.

use std::time::Duration;

use anyhow::Result;

use super::super::{ask::RefusedCommand, print};
use crate::{
    admin::client,
    api::{Answer, Request},
    control::{applied::applied, fence, promotion::host_addresses},
    dataplane::pins::Pins,
};

/// How long the process may take: keepalived waits for none of its scripts.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Has the process follow the marker, or closes the networks in its place.
pub(in crate::cli) fn fence(instance: &str) -> Result<()> {
    let pins = Pins::new(instance);
    if !pins.exist() {
        return print::line(format_args!("instance {instance} is not up: it is silent"));
    }
    let Some(ha) = applied(&pins)?.ha else {
        let words = format!("instance {instance} is no box of a pair: its file has no `ha`");
        return Err(RefusedCommand::usage(words).into());
    };
    if host_addresses()?.contains(&ha.marker) {
        return print::line(format_args!(
            "box {} stays active: its host has the marker {}",
            ha.box_name, ha.marker
        ));
    }
    let why = match client::ask_within(instance, &Request::FollowMarker, ANSWER_TIMEOUT) {
        Ok(Answer::Ha(status)) if !status.active => {
            return print::line(format_args!("box {} stands by", ha.box_name));
        }
        Ok(_) => "its process has not become a standby".to_owned(),
        Err(failure) => failure.to_string(),
    };
    fence::fence(&pins)?;
    print::line(format_args!(
        "box {} is fenced: it drops everything until its process runs again and stands by ({why})",
        ha.box_name
    ))
}
