//! Much data through connections that are handed over, or that XDP opens: FEATURES B15.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{product::lb::Lb, topology::Topology};

use crate::{
    handoff::{connections::wait_for_no_sockets, opener::Opener},
    proxy::{
        pipe::carry,
        relayed::{fast_line, wait_for},
    },
};

/// What a flow may count more than its bytes: headers, and acknowledgments.
const MORE_PERCENT: u64 = 15;

/// B15: all of it up, and all of it down; no byte through a socket of a cell.
#[privileged_test]
fn b15_much_goes_up_and_comes_down() -> Result<()> {
    much_goes_up_and_comes_down(Opener::Process)
}

/// The same through connections that XDP opens.
#[privileged_test]
fn b15_much_goes_up_and_comes_down_bound_connections() -> Result<()> {
    much_goes_up_and_comes_down(Opener::Xdp)
}

fn much_goes_up_and_comes_down(opener: Opener) -> Result<()> {
    let bytes: u64 = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 1 << 30,
        None => 64 << 20,
    };
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    let pairs = line.open_many(2)?;
    let [up, down] = [&pairs[0], &pairs[1]];
    wait_for_no_sockets(&topology)?;
    assert_eq!(opener.count(&lb)?, 2);
    for (from, to, way) in [
        (&up.client, &up.server, "up"),
        (&down.server, &down.client, "down"),
    ] {
        let begun = Instant::now();
        carry(from, to, bytes)?;
        let rate = u128::from(bytes) / begun.elapsed().as_micros();
        println!("{bytes} bytes {way}, {rate} MB/s");
    }
    wait_for_no_sockets(&topology)?;
    let flows = lb.flows()?;
    for (pair, is_up) in [(up, true), (down, false)] {
        let snat = pair.snat.to_string();
        let flow = flows.iter().find(|flow| flow.snat == snat);
        let flow = flow.with_context(|| format!("no {snat} in {flows:?}"))?;
        let (much, little) = match is_up {
            true => (flow.bytes_request, flow.bytes_reply),
            false => (flow.bytes_reply, flow.bytes_request),
        };
        let likely = bytes..bytes + bytes * MORE_PERCENT / 100;
        ensure!(likely.contains(&much), "{flow:?}");
        ensure!(little < bytes * MORE_PERCENT / 100, "{flow:?}");
    }
    drop(pairs);
    wait_for(&lb, 0)
}
