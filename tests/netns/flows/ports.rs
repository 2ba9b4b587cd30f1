//! SNAT ports cannot be foreseen: an address gives them out in an order of its own, whether a start sets it up
//! or a reload, which may do no more than any process that runs.

use std::{collections::BTreeMap, net::Ipv4Addr};

use anyhow::{Result, ensure};
use lb_common::maps::snat::{FIRST_FLOW_PORT, FIRST_LEG_PORT};
use lb_tests::{
    oracle::ids,
    product::lb::{Lb, USER},
    topology::{SNAT, Topology},
};

use crate::{
    flows::life::config,
    lifecycle::privileges::{ALL, KEPT, ensure_kept},
};

const ONE: &[Ipv4Addr] = &[SNAT];
const TWO: &[Ipv4Addr] = &[SNAT, Ipv4Addr::new(10, 32, 96, 51)];

/// The ports that wait, in the order in which they will come; by the slot of the address. Each is
/// there once, and hardly one comes next to its neighbour: two are to be expected of so many.
fn waiting(topology: &Topology) -> Result<BTreeMap<u16, Vec<u16>>> {
    let all = ids::ports_by_slot(topology.run())?;
    for ports in all.values() {
        let mut sorted = ports.clone();
        sorted.sort_unstable();
        ensure!(sorted.into_iter().eq(FIRST_FLOW_PORT..FIRST_LEG_PORT));
        ensure!(alike(ports.windows(2).map(|pair| (pair[0] + 1, pair[1]))) <= 20);
        ensure!(alike(ports.windows(2).map(|pair| (pair[0], pair[1] + 1))) <= 20);
    }
    Ok(all)
}

fn alike(pairs: impl Iterator<Item = (u16, u16)>) -> usize {
    pairs.filter(|(one, other)| one == other).count()
}

#[privileged_test]
fn the_order_of_ports_is_another_one_for_each_address_and_each_time() -> Result<()> {
    let topology = Topology::poc()?;
    let config = |snat: &[Ipv4Addr]| config().network("mgmt", |mgmt| mgmt.set("snat", snat));
    let mut lb = Lb::start_unprivileged(&topology, &config(ONE), ALL)?;
    ensure_kept(&topology, lb.process().id(), USER, KEPT)?;
    let first = waiting(&topology)?;
    lb.reload(&config(TWO))?;
    let both = waiting(&topology)?;
    ensure!(first.len() == 1 && both.len() == 2 && first[&0] == both[&0]);
    // One that stays as it is keeps its order, also over a restart: what was used last comes last.
    lb.process().stop()?;
    lb.restart(&config(TWO))?;
    let mut after = waiting(&topology)?;
    for (slot, ports) in &mut after {
        // It was turned around by one.
        ports.rotate_right(1);
        ensure!(both[slot] == *ports, "slot {slot}");
    }
    drop(lb);
    let _lb = Lb::start(&topology, &config(TWO))?;
    let anew = waiting(&topology)?;
    for (one, other) in [
        (&both[&0], &both[&1]),
        (&both[&0], &anew[&0]),
        (&both[&1], &anew[&1]),
    ] {
        let same = alike(one.iter().copied().zip(other.iter().copied()));
        ensure!(same <= 20, "{same} ports have the same place");
    }
    Ok(())
}
