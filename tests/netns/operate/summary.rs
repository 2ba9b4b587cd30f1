//! What an operator, or monitoring, sees at a glance: FEATURES K8.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{ECHO, ECHO_NODE_PORT, Topology},
    traffic::conn_pair::{Line, refused},
};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, wait_for},
};

/// The row of a table with this word in it, by its words.
fn row(table: &str, word: &str) -> Vec<String> {
    let row = table.lines().find(|row| row.contains(word));
    let words = row.unwrap_or_default().split_ascii_whitespace();
    words.map(ToOwned::to_owned).collect()
}

/// `lb health` is 0 while everything serves, 1 with the name of a pool that does not, also while its clients are
/// refused, and 3 where no control plane knows; `lb status` begins with the same, and `lb services` counts.
#[privileged_test]
fn a_pool_without_backends_is_named_and_the_exit_code_is_for_monitoring() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let mut lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let health = |lb: &Lb<'_>| -> Result<(Option<i32>, String)> {
        let said = lb.tell(&["health"])?;
        Ok((said.code, said.stdout.trim_end().to_owned()))
    };
    assert_eq!(health(&lb)?, (Some(0), "ok: 2 of 2 backends up".to_owned()));

    site.health[0].refuse();
    wait_for(&lb, &["dead", "up"], SOON)?;
    assert_eq!(health(&lb)?, (Some(0), "ok: 1 of 2 backends up".to_owned()));
    let services = lb.tell(&["services"])?.done()?;
    assert_eq!(row(&services, "echo-a")[4..], ["1/2", "0"], "{services}");

    // One that is up takes no new flows below `min_up`.
    lb.reload(&site.http("min_up: 60%"))?;
    refused(topology.client(), ECHO)?;
    let line = "degraded: pool echo-a: 1/2 backends up, less than min_up: new clients are refused; \
                0 of 2 backends up";
    assert_eq!(health(&lb)?, (Some(1), line.to_owned()));
    lb.reload(&site.http(""))?;
    assert_eq!(health(&lb)?, (Some(0), "ok: 1 of 2 backends up".to_owned()));

    site.health[1].refuse();
    wait_for(&lb, &["dead", "dead"], SOON)?;
    refused(topology.client(), ECHO)?;
    let line = "degraded: pool echo-a: 0/2 backends up; 0 of 2 backends up";
    assert_eq!(health(&lb)?, (Some(1), line.to_owned()));
    let status = lb.tell(&["status"])?.done()?;
    let begin = "degraded: 0 of 2 backends up\n  pool echo-a: 0/2 backends up\n";
    ensure!(status.starts_with(begin), "{status}");
    let json = lb.tell(&["health", "-o", "json"])?;
    ensure!(
        json.code == Some(1) && json.stdout.contains("\"degraded\""),
        "{json:?}"
    );

    lb.kill()?;
    let (code, line) = health(&lb)?;
    assert_eq!(code, Some(3), "{line}");
    ensure!(line.starts_with("unknown: no control plane runs"), "{line}");
    Ok(())
}

/// Backends and flows are chosen by pool and state, and their tables fit into 100 columns.
#[privileged_test]
fn tables_are_of_what_is_wanted_and_no_wider_than_a_terminal() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let node = &topology.nodes[2];
    let other = SocketAddrV4::new(*ECHO.ip(), 7070);
    let config = site
        .http("")
        .mgmt_pool("other", [SocketAddrV4::new(node.address, ECHO_NODE_PORT)])
        .tcp_service("other", other);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    site.health[0].refuse();
    wait_for(&lb, &["dead", "up", "up"], SOON)?;
    let count = |words: &[&str]| -> Result<usize> {
        let table = lb.tell(words)?.done()?;
        let longest = table.lines().map(|line| line.chars().count()).max();
        ensure!(longest <= Some(100), "{words:?}: {table}");
        Ok(table.lines().count() - 1)
    };
    for (words, rows) in [
        (&["backends"][..], 3),
        (&["backends", "--pool", "echo-a"], 2),
        (&["backends", "--pool", "echo-a", "--state", "dead"], 1),
        (&["backends", "--state", "unchecked"], 1),
        (&["backends", "--state", "disabled"], 0),
    ] {
        assert_eq!(count(words)?, rows, "{words:?}");
    }
    assert_eq!(lb.tell(&["backends", "--pool", "nope"])?.code, Some(2));

    let line = Line::new(topology.client(), other, node, ECHO_NODE_PORT)?;
    let _pairs = [line.open()?, line.open()?];
    for (words, rows) in [
        (&["flows"][..], 2),
        (&["flows", "--pool", "other"], 2),
        (&["flows", "--pool", "other", "--state", "established"], 2),
        (&["flows", "--pool", "other", "--state", "half_closed"], 0),
        (&["flows", "--pool", "echo-a"], 0),
    ] {
        assert_eq!(count(words)?, rows, "{words:?}");
    }
    assert_eq!(lb.tell(&["flows", "--pool", "nope"])?.code, Some(2));
    let services = lb.tell(&["services"])?.done()?;
    assert_eq!(row(&services, "other")[4..], ["1/1", "2"], "{services}");
    Ok(())
}
