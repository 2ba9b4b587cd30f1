//! The TLS alert for a client whose name no route has.

use std::net::SocketAddrV4;

use anyhow::bail;
use lb_tests::topology::Host;

use crate::table::Seen;

/// The alert that answers a hello with this name, or without one; it holds if it says that no route has
/// the name.
pub(crate) fn alert(from: &Host, to: SocketAddrV4, name: Option<&str>) -> Seen {
    let name = name.map_or_else(
        || "-noservername".to_owned(),
        |name| format!("-servername {name}"),
    );
    let line = format!("timeout 10 openssl s_client -connect {to} {name}");
    let output = from.netns.try_run(&line)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let alert = said.lines().find(|line| line.contains("alert"));
    let Some(alert) = alert else {
        bail!("no alert: {said}")
    };
    let words = alert
        .split(':')
        .find(|word| word.contains("alert"))
        .unwrap_or(alert);
    Ok((words.to_owned(), alert.contains("unrecognized name")))
}
