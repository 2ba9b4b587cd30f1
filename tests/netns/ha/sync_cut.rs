//! Boxes that do not hear each other for a while, and then have the same flows again.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    topology::{BoxName, Topology, TwoBoxes},
    traffic::conn_pair::{Line, Pair},
};

use super::{Boxes, IDLE, IDLE_PORT, SYNCED, Tuple, flows};

/// How many connections are opened in each round, before and while the boxes do not hear each other.
const EACH: usize = 20;

/// What happens to the sync LAN.
type Trouble = fn(&TwoBoxes) -> Result<()>;

/// Cut, cut one way, with loss: what was opened and closed meanwhile is on both boxes afterwards.
#[privileged_test]
fn both_have_the_same_flows_after_a_cut() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
    let troubles: [(&str, Trouble); 4] = [
        ("cut", |pair| pair.sync.cut()),
        ("cut from lb1", |pair| pair.sync.cut_from(BoxName::Lb1)),
        ("cut from lb2", |pair| pair.sync.cut_from(BoxName::Lb2)),
        ("one frame of five is lost", |pair| pair.sync.lose_some(20)),
    ];
    let mut open = line.open_many(EACH)?;
    wait_until_equal(&boxes, &open).context("before any trouble")?;
    for (what, begin) in troubles {
        begin(&pair)?;
        let closed = open.split_off(EACH / 2);
        open.extend(line.open_many(EACH / 2)?);
        drop(closed);
        open.iter().try_for_each(Pair::talk).context(what)?;
        pair.sync.mend()?;
        wait_until_equal(&boxes, &open).context(what)?;
    }
    Ok(())
}

/// Waits until both boxes have the flows of these connections, and no others.
pub(super) fn wait_until_equal(boxes: &Boxes<'_>, open: &[Pair]) -> Result<()> {
    let wanted: BTreeSet<String> = open.iter().map(|pair| pair.snat.to_string()).collect();
    let mut tables = [BTreeSet::new(), BTreeSet::new()];
    let waited = poll::until("the same flows on both boxes", SYNCED, || {
        let [first, second] = BoxName::ALL.map(|name| flows(boxes.lb(name)));
        tables = [first?, second?];
        let [first, second] = &tables;
        let snat = |flow: &Tuple| flow.snat.clone();
        let is_wanted = first.iter().map(snat).collect::<BTreeSet<_>>() == wanted;
        Ok((is_wanted && first == second).then_some(()))
    });
    let [first, second] = &tables;
    waited.with_context(|| {
        let only = |one: &BTreeSet<Tuple>, other| one.difference(other).cloned().collect();
        let [only_first, only_second]: [Vec<_>; 2] = [only(first, second), only(second, first)];
        format!("only at lb1: {only_first:?}; only at lb2: {only_second:?}")
    })?;
    ensure!(first.len() == open.len(), "{first:?}");
    Ok(())
}
