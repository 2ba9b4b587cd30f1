//! As many connections are handed over at a time as `limits.handed_over` says: those beyond are copied.

use anyhow::{Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology};

use crate::{
    handoff::connections::{copied, handed_over, wait_for_no_sockets},
    proxy::{
        pipe::carry,
        relayed::{NAME, SOON, config, fast_line},
    },
};

/// The number of connections that may be handed over.
const ROOM: usize = 3;

/// Each of the connections beyond the limit carries what the others do; one that has ended makes room for the next one, and
/// each flow has the name that its client has requested.
#[privileged_test]
fn beyond_the_limit_connections_are_copied_until_others_end() -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let config = config(&topology).set("limits.handed_over", ROOM);
    let lb = Lb::start(&topology, &config)?;
    let mut pairs = line.open_many(ROOM)?;
    wait_for_no_sockets(&topology)?;
    let beyond = line.open_many(2)?;
    assert_eq!((handed_over(&lb)?, copied(&lb, "no_room")?), (3, 2));
    for pair in pairs.iter().chain(&beyond) {
        carry(&pair.client, &pair.server, 1 << 16)?;
        carry(&pair.server, &pair.client, 1 << 16)?;
    }
    let names =
        || -> Result<Vec<_>> { Ok(lb.flows()?.into_iter().map(|flow| flow.name).collect()) };
    ensure!(
        names()? == vec![Some(NAME.to_owned()); ROOM + beyond.len()],
        "{:?}",
        names()?
    );

    drop(pairs.pop());
    poll::until("room for one", SOON, || {
        let pair = line.open()?;
        let is_handed_over = handed_over(&lb)? == 4;
        carry(&pair.server, &pair.client, 1 << 16)?;
        pairs.push(pair);
        Ok(is_handed_over.then_some(()))
    })?;
    let names = names()?;
    ensure!(names.iter().flatten().all(|name| name == NAME), "{names:?}");
    Ok(())
}
