//! A ClientHello that comes to a shared VIP in pieces: FEATURES B4, B5.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    hello::{CAPTURED_NAME, Captured, captured, captured_of, in_records},
    lb::Lb,
    teller,
    topology::Topology,
};

use crate::{
    shared::{SHARED, config},
    shared_guard::teller,
};

/// Between two pieces, so that one is read before the next one comes; and between a byte and the next.
const PAUSE: Duration = Duration::from_millis(3);
const SHORT_PAUSE: Duration = Duration::from_micros(100);
/// Whose hellos are taken in the short run: one that fits into a segment, and one that does not.
const CLIENTS: [&str; 2] = ["python-ssl", "like-chrome131"];
/// Bytes of the heads of a record and of the message in it.
const HEADS: usize = 5 + 4;
/// Splits of a hello in the short run, beside those that may matter.
const SPREAD: usize = 40;

/// A hello in two pieces, byte by byte and in many records goes to who has its name, and arrives as it was
/// sent. One whose name was missed, or misread, would go to somebody else.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn b4_a_hello_in_pieces_goes_where_it_goes_whole() -> Result<()> {
    let is_long = std::env::var_os("LB_TEST_LONG").is_some();
    let topology = Topology::poc()?;
    let tellers = ["nameless", "unknown", "right"].iter().zip(&topology.nodes);
    let _tellers = tellers
        .map(|(name, node)| teller(node, name))
        .collect::<Result<Vec<_>>>()?;
    let routes = format!(
        "hello_timeout: 1m, no_name: {{ pool: a }}, no_match: {{ pool: b }}, \
        routes: [{{ names: [{CAPTURED_NAME}], pool: c }}]"
    );
    let _lb = Lb::start(&topology, &config(&topology, &routes))?;
    let goes = |what: &str, pieces: &[&[u8]], pause| -> Result<()> {
        let ask = || teller::ask(SHARED, pieces, pause);
        let reached = topology.client().netns.inside(ask)?;
        let reached = reached.with_context(|| what.to_owned())?;
        ensure!(reached.as_deref() == Some("right"), "{what}: {reached:?}");
        Ok(())
    };
    for Captured { client, bytes, .. } in hellos(is_long)? {
        for split in splits(&bytes, is_long)? {
            let (one, other) = bytes.split_at(split);
            goes(&format!("{client} split at {split}"), &[one, other], PAUSE)?;
        }
        let each: Vec<&[u8]> = bytes.chunks(1).collect();
        goes(&format!("{client} byte by byte"), &each, SHORT_PAUSE)?;
        for count in [2, 3, 10, 50] {
            let records = in_records(&bytes, count);
            goes(&format!("{client} in {count} records"), &[&records], PAUSE)?;
        }
    }
    Ok(())
}

/// Those of some clients, or of all who ask for the name.
fn hellos(all: bool) -> Result<Vec<Captured>> {
    match all {
        true => Ok(captured()?.into_iter().filter(Captured::has_name).collect()),
        false => CLIENTS.into_iter().map(captured_of).collect(),
    }
}

/// Where a hello is split: everywhere, or in the heads and in the name and here and there.
fn splits(hello: &[u8], everywhere: bool) -> Result<BTreeSet<usize>> {
    let all = 1..hello.len();
    if everywhere {
        return Ok(all.collect());
    }
    let mut places = hello.windows(CAPTURED_NAME.len());
    let name = places.position(|place| place == CAPTURED_NAME.as_bytes());
    let name = name.context("no name in a hello")?;
    let of_name = name..=name + CAPTURED_NAME.len();
    let here_and_there = all.step_by(hello.len() / SPREAD);
    Ok((1..=HEADS).chain(of_name).chain(here_and_there).collect())
}
