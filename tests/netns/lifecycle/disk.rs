//! The disk is full, and the state on it is torn: RELIABILITY 34. More of it is in [`churn`](crate::operate::churn).

use std::{fs, thread, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, alive, connect, wait_for},
    operate::churn::Disk,
};

/// Lines of the flow log that are lost are logged once in this time.
const LOGGED: Duration = Duration::from_secs(15);

/// RELIABILITY 34: with no room for state and flow log, flows live and begin, and what is lost of the log is
/// logged. What the operator has ordered outlives a kill and a state file of which a half is left.
#[privileged_test]
fn r34_a_full_disk_and_a_torn_state_cost_no_flow() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let folder = format!("/run/lb/{}", topology.run());
    fs::create_dir_all(&folder)?;
    let disk = Disk::mount(&folder)?;
    let log = format!("{folder}/flows.log");
    let config = site.http("").set("log.flows", &log);
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
        .wait_for_stderr("lines of the flow log", LOGGED)?;
    println!("{told}");
    ensure!(told.contains("No space left"), "{told}");
    flows.iter().try_for_each(alive)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    // A verdict changes, and cannot be kept: that is tried four times a second, and said once.
    site.health[0].answer(503);
    wait_for(&lb, &["not_ready", "up"], LIMIT)?;
    lb.process().wait_for_stderr("are not kept", LIMIT)?;
    thread::sleep(Duration::from_secs(2));
    let said = lb.process().stderr();
    assert_eq!(said.matches("are not kept").count(), 1, "{said}");
    site.health[0].answer(200);
    wait_for(&lb, &["up", "up"], LIMIT)?;

    // A start over it takes in an edited file all the same.
    lb.kill()?;
    let edited = config
        .clone()
        .service("echo-a", |service| service.set("idle_timeout", "1h"));
    lb.restart(&edited)?;
    flows.iter().try_for_each(alive)?;
    let applied = fs::read_to_string(format!("/var/lib/lb/{}/applied.json", topology.run()))?;
    ensure!(applied.contains("\"idle_timeout\":\"1h\""), "{applied}");
    assert_eq!(site.who(20)?.len(), 1, "{drained} is drained still");

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

/// A reboot leaves neither pins nor what is in /run: what operators have said of backends holds all the same, and a
/// file that is broken by then leaves what was applied.
#[privileged_test]
fn after_a_reboot_what_was_applied_and_said_holds() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 3)?;
    let config = site.http("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    let [disabled, drained, left] = [0, 1, 2].map(|node| topology.nodes[node].name);
    lb.tell(&["backend", "disable", disabled])?.done()?;
    lb.tell(&["backend", "drain", drained])?.done()?;
    lb.kill()?;
    let lasting = format!("/var/lib/lb/{}", topology.run());
    let kept = ["applied.json", "overrides.json"].map(|name| format!("{lasting}/{name}"));
    let texts = kept.each_ref().map(fs::read);
    let said = lb.tell(&["down"])?;
    for name in [disabled, drained] {
        ensure!(said.stdout.contains(name), "{said:?}");
    }
    ensure!(!fs::exists(&lasting)?, "`lb down` leaves {lasting}");

    // As the power cut has left it.
    fs::create_dir_all(&lasting)?;
    for (path, text) in kept.iter().zip(texts) {
        fs::write(path, text?)?;
    }
    lb.restart("version: [")?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    assert_eq!(
        site.who(20)?.into_keys().collect::<Vec<_>>(),
        [left.to_string()]
    );
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("stale"), "{status}");
    lb.tell(&["backend", "enable", drained])?.done()?;
    lb.process().stop()?;
    lb.restart(&config)?;
    assert_eq!(site.who(40)?.len(), 2, "{disabled} is disabled still");

    // Versions of before have had it as text, there or in /run: it is read, and kept as data from then on.
    let run = format!("/run/lb/{}", topology.run());
    for before in [lasting, run].map(|folder| format!("{folder}/applied.yaml")) {
        lb.process().stop()?;
        fs::remove_file(&kept[0])?;
        fs::write(&before, &*config)?;
        lb.restart("version: [")?;
        assert_eq!(site.who(40)?.len(), 2, "{disabled} is disabled still");
        ensure!(lb.tell(&["status"])?.done()?.contains("stale"));
        ensure!(fs::exists(&kept[0])? && !fs::exists(&before)?, "{before}");
    }
    lb.down()
}
