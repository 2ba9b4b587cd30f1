//! A ClientHello that comes to a shared VIP in pieces: FEATURES B4, B5.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::{config::Keys, lb::Lb},
    servers::teller,
    topology::Topology,
    traffic::hello::{CAPTURED_NAME, Captured, captured, captured_of, in_records, with_name_last},
};
use serde_json::json;

use crate::proxy::{
    bind,
    guard::teller,
    sni::{SHARED, config},
};

/// Between two pieces, so that one is read before the next one comes; and between a byte and the next.
const PAUSE: Duration = Duration::from_millis(3);
const SHORT_PAUSE: Duration = Duration::from_micros(100);
/// Whose hellos are taken in the short run: one that fits into a segment, one that does not, and one that
/// does not fit into a record.
const CLIENTS: [&str; 3] = ["python-ssl", "like-chrome131", "openssl-two-records"];
/// Whose name is put behind a first segment, and how many bytes that has.
const LATE: &str = "chromium";
const SEGMENT: usize = 1460;
/// Bytes of the heads of a record, and of the message in it.
const RECORD_HEAD: usize = 5;
const HEADS: usize = RECORD_HEAD + 4;
/// Splits of a hello in the short run, beside those that may matter.
const SPREAD: usize = 40;

/// A hello in two pieces, byte by byte and in many records goes to the node that has its name, and arrives as it was
/// sent. One whose name was missed, or misread, would go to another node.
#[privileged_test]
fn b4_a_hello_in_pieces_goes_where_it_goes_whole() -> Result<()> {
    all_pieces("never")
}

/// The same where XDP opens the connections of whole hellos itself.
#[privileged_test]
fn b4_a_hello_in_pieces_goes_where_it_goes_whole_with_late_binding() -> Result<()> {
    all_pieces("always")
}

fn all_pieces(late_binding: &str) -> Result<()> {
    let is_long = std::env::var_os("LB_TEST_LONG").is_some();
    let topology = Topology::poc()?;
    let tellers = ["nameless", "unknown", "right"].iter().zip(&topology.nodes);
    let _tellers = tellers
        .map(|(name, node)| teller(node, name))
        .collect::<Result<Vec<_>>>()?;
    let sni = "hello_timeout: 1m, no_name: { pool: a }, no_match: { pool: b }";
    let routes = json!([{ "names": [CAPTURED_NAME], "pool": "c" }]);
    let config = config(
        &topology,
        Keys::from(sni)
            .set("late_binding", late_binding)
            .set("routes", routes),
    );
    let lb = Lb::start(&topology, &config)?;
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
    let ends = bind::hellos(&lb)?;
    println!("{late_binding}: {ends:?}");
    ensure!(
        ends.contains_key("bound") == (late_binding == "always"),
        "{ends:?}"
    );
    Ok(())
}

/// Those of some clients, or of all who ask for the name, and one whose name comes late.
fn hellos(all: bool) -> Result<Vec<Captured>> {
    let mut hellos = match all {
        true => captured()?.into_iter().filter(Captured::has_name).collect(),
        false => CLIENTS
            .into_iter()
            .map(captured_of)
            .collect::<Result<Vec<_>>>()?,
    };
    let mut late = captured_of(LATE)?;
    late.bytes = with_name_last(&late.bytes);
    late.client += ", name last";
    ensure!(name_in(&late.bytes)? > SEGMENT, "not late");
    hellos.push(late);
    Ok(hellos)
}

/// Where the name stands in a hello.
fn name_in(hello: &[u8]) -> Result<usize> {
    let mut places = hello.windows(CAPTURED_NAME.len());
    let name = places.position(|place| place == CAPTURED_NAME.as_bytes());
    name.context("no name in a hello")
}

/// Where a hello is split: everywhere, or in the heads, in the name, behind a segment, in the head of the
/// second record, and here and there.
fn splits(hello: &[u8], everywhere: bool) -> Result<BTreeSet<usize>> {
    let all = 1..hello.len();
    if everywhere {
        return Ok(all.collect());
    }
    let name = name_in(hello)?;
    let record = RECORD_HEAD + usize::from(u16::from_be_bytes([hello[3], hello[4]]));
    let here_and_there = all.clone().step_by(hello.len() / SPREAD);
    let places = (1..=HEADS)
        .chain(name..=name + CAPTURED_NAME.len())
        .chain([SEGMENT])
        .chain(record..=record + RECORD_HEAD)
        .chain(here_and_there);
    Ok(places.filter(|place| all.contains(place)).collect())
}
