//! The disk is full, and the state on it is torn: RELIABILITY 34. More of it is in [`churn`](crate::churn).

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{lb::Lb, poll, topology::Topology};

use crate::{
    churn::Disk,
    health::{Site, alive, connect, wait_for},
    life::LIMIT,
};

/// Lines of the flow log that are lost are told of once in this time.
const TOLD: Duration = Duration::from_secs(15);

/// RELIABILITY 34: with no room for state and flow log, flows live and begin, and what is lost of the log is
/// told. What the operator has said outlives a kill and a state file of which a half is left.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn r34_a_full_disk_and_a_torn_state_cost_no_flow() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let folder = format!("/run/lb/{}", topology.run());
    fs::create_dir_all(&folder)?;
    let disk = Disk::mount(&folder)?;
    let log = format!("{folder}/flows.log");
    let config = format!("{}log: {{ flows: {log} }}\n", site.http(""));
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let flows = connect(&topology, 4)?;
    let drained = topology.nodes[1].name;
    lb.tell(&["backend", "drain", drained])?.done()?;

    let room = format!("{folder}/room");
    let filled = fs::write(&room, vec![1; 4 << 20]);
    ensure!(filled.is_err(), "the disk is not full");
    // More lines than the last page of the log has room for.
    assert_eq!(site.who(100)?.len(), 1);
    let told = lb
        .process()
        .wait_for_stderr("lines of the flow log", TOLD)?;
    println!("{told}");
    ensure!(told.contains("No space left"), "{told}");
    flows.iter().try_for_each(alive)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;

    lb.kill()?;
    let state = format!("{folder}/state.json");
    let text = fs::read(&state)?;
    fs::OpenOptions::new()
        .write(true)
        .open(&state)?
        .set_len(u64::try_from(text.len() / 2)?)?;
    lb.restart(&config)?;
    lb.process().wait_for_stderr("so its copy", LIMIT)?;
    assert_eq!(site.who(20)?.len(), 1, "{drained} is drained still");
    flows.iter().try_for_each(alive)?;

    fs::remove_file(&room)?;
    let before = fs::metadata(&log)?.len();
    assert_eq!(site.who(20)?.len(), 1);
    poll::until("the log goes on", LIMIT, || {
        Ok((fs::metadata(&log)?.len() > before).then_some(()))
    })?;
    lb.process().stop()?;
    drop(disk);
    lb.down()
}
