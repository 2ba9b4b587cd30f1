//! What an operator reads on a terminal, and what a pipe or a file gets of it.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{ECHO, Topology},
};

use crate::flows::{
    account::send_syn,
    life::{LIMIT, config},
};

/// Each dropped packet is logged with the names of `lb drops`, and with its ends where it was sampled.
#[privileged_test]
fn a_dropped_packet_is_logged_with_names() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| {
        service.with("deny: [192.168.203.51/32]")
    });
    let mut lb = Lb::start_with(&topology, &config, &["--trace-drops"])?;
    let denied = &topology.clients[1];
    for port in [20_001, 20_002] {
        let from = SocketAddrV4::new(denied.address, port);
        send_syn(&topology, denied, from)?;
        let words = format!("nic tenant-a denied: tcp {from} > {ECHO} SYN, 54 bytes");
        lb.process().wait_for_stderr(&words, LIMIT)?;
    }
    let log = lb.process().stderr();
    let lines = log.lines().filter(|line| line.contains(" denied"));
    assert_eq!(lines.count(), 2, "{log}");
    ensure!(!log.contains("hook 0"), "{log}");
    Ok(())
}
