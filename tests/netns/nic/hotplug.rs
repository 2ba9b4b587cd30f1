//! NICs that go and come back as others: RELIABILITY 27.

use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::observe,
    poll,
    product::{config::Config, lb::Lb},
    topology::{MGMT_NIC, TENANT_NIC, Topology},
    traffic::{
        conn_pair::{Line, Pair, hear},
        hello::named,
    },
};
use lb_user::control::mend::MEND_INTERVAL;
use serde_json::json;

use crate::{
    flows::life::{self, LIMIT, line},
    health::verdicts::{SOON, Site, alive, connect, wait_for},
    proxy::relayed,
};

/// RELIABILITY 27: from the NIC to our program on it.
const TAKEN_IN: Duration = Duration::from_secs(1);
/// A client that has sent into the void sends again in this time, and has heard by then where the VIP is.
const RESUMED: Duration = Duration::from_secs(4);
/// A backend that has moved to another MAC is found again in this time.
const MOVED: Duration = Duration::from_secs(20);

/// A service for nodes alone, so that its flows never come near the tenant's NIC.
const ARM: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 32, 96, 60), 7000);
const ARM_SHARED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 32, 96, 62), 443);
const NAME: &str = "a.lab";
const ARM_PORT: u16 = 31_700;

fn config() -> Config {
    let node = SocketAddrV4::new(Ipv4Addr::new(10, 32, 96, 105), ARM_PORT);
    life::config()
        .mgmt_pool("arm", [node])
        .service("arm", |arm| arm.on("mgmt").tcp(ARM).pool("arm"))
}

/// How the programs run on the NICs, in the order of the file.
fn modes(lb: &Lb<'_>) -> Result<Vec<String>> {
    let networks = lb.status()?.networks.into_iter();
    Ok(networks.map(|network| network.mode).collect())
}

fn wait_for_program(topology: &Topology, nic: &str) -> Result<()> {
    let start = Instant::now();
    poll::until("our program on the new NIC", TAKEN_IN, || {
        Ok(observe::link(&topology.lb, nic)?.xdp)
    })?;
    println!(
        "{nic}: taken in {:?} after it was plugged in",
        start.elapsed()
    );
    Ok(())
}

/// Links that are pinned: a cell and a NIC of each network.
fn ensure_no_link_is_left(topology: &Topology) -> Result<()> {
    let folder = format!("/sys/fs/bpf/lb/{}/links", topology.run());
    let links = fs::read_dir(&folder).context(folder)?;
    assert_eq!(links.count(), 4);
    let outer = topology.lb.run("ip -o link show type veth")?;
    assert_eq!(outer.matches(": lbc").count(), 2, "{outer}");
    Ok(())
}

/// The tenant's NIC is pulled out, and another one is put in. What the client has sent meanwhile arrives,
/// and the flows of others notice nothing.
#[privileged_test]
fn reliability_27_a_tenants_nic_that_comes_back_is_taken_in() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let (line, [n1, n2]) = (line(&topology)?, [&topology.nodes[0], &topology.nodes[1]]);
    let pair = line.open()?;
    let other = Line::new(n2, ARM, n1, ARM_PORT)?.open()?;
    let before = topology.mac(TENANT_NIC)?;

    for round in 1..=2 {
        topology.unplug(TENANT_NIC)?;
        poll::until("the alarm", TAKEN_IN, || {
            Ok((lb.process().stderr().matches("is gone").count() == round).then_some(()))
        })?;
        assert_eq!(modes(&lb)?, ["native", "missing"]);
        (&pair.client).write_all(b"into the void").context("send")?;
        other.talk()?;

        topology.plug(TENANT_NIC)?;
        wait_for_program(&topology, TENANT_NIC)?;
        other.talk()?;
        let start = Instant::now();
        hear(&pair.server, b"into the void")?;
        println!("resumed {:?} after that", start.elapsed());
        ensure!(start.elapsed() < RESUMED, "after {:?}", start.elapsed());
        pair.talk()?;
        line.open()?.talk()?;
        assert_eq!(modes(&lb)?, ["native", "native"]);
        ensure_no_link_is_left(&topology)?;
    }
    assert_ne!(topology.mac(TENANT_NIC)?, before, "it is another NIC");

    lb.process().stop()?;
    lb.restart(&config())?;
    pair.talk()?;
    other.talk()
}

/// The same with the NIC of the backends: no backend is found dead, next hops are followed in the new cell, and
/// checks go on there.
#[privileged_test]
fn reliability_27_a_nic_of_backends_that_comes_back_is_taken_in() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http_reset("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, 20)?;
    let transitions = |lb: &Lb<'_>| -> Result<Vec<u64>> {
        let health = lb.health()?.into_iter();
        Ok(health.map(|one| one.transitions).collect())
    };
    let before = transitions(&lb)?;

    topology.unplug(MGMT_NIC)?;
    std::thread::sleep(SOON);
    assert_eq!(modes(&lb)?, ["missing", "native"]);
    topology.plug(MGMT_NIC)?;
    wait_for_program(&topology, MGMT_NIC)?;
    connections.iter().try_for_each(alive)?;
    std::thread::sleep(SOON);
    assert_eq!(transitions(&lb)?, before);
    assert_eq!(site.who(40)?.len(), 2);

    // What it did not see is found out now, and who moves is found again.
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], SOON)?;
    let moved = "02:00:00:00:77:01";
    let node = &topology.nodes[0].netns;
    node.run(&format!("ip link set dev eth0 address {moved}"))?;
    poll::until("the new MAC of the first node", MOVED, || {
        let hops = lb.backends()?.into_iter();
        let mut hops = hops.filter_map(|backend| backend.next_hop);
        Ok(hops.find(|hop| hop == moved))
    })?;
    wait_for(&lb, &["up", "dead"], LIMIT)?;
    let log = lb.process().stderr();
    assert!(!log.contains("neighbours are not watched"), "{log}");
    assert_eq!(site.who(20)?.len(), 1);
    Ok(())
}

/// A link of ours that cannot be removed is the last step of all, which is not forgotten.
#[privileged_test]
fn reliability_27_a_nic_that_was_not_wholly_taken_in_is_taken_in_again() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let line = line(&topology)?;
    let stuck = format!("/sys/fs/bpf/lb/{}/links/lb_nic-999999", topology.run());
    topology.unplug(TENANT_NIC)?;
    lb.process().wait_for_stderr("is gone", LIMIT)?;
    fs::create_dir(&stuck)?;
    topology.plug(TENANT_NIC)?;
    lb.process().wait_for_stderr("trying again", LIMIT)?;
    line.open()?.talk()?;
    let folder = format!("/proc/{}/fd", lb.process().id());
    // The least of some looks: the process has sockets for a moment.
    let descriptors = || -> Result<usize> {
        let looks = (0..20).map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Ok(fs::read_dir(&folder)?.count())
        });
        let looks = looks.collect::<Result<Vec<usize>>>()?;
        looks.into_iter().min().context("a look")
    };
    // By then each link has been looked at, and is held.
    std::thread::sleep(2 * MEND_INTERVAL);
    let before = descriptors()?;
    std::thread::sleep(5 * TAKEN_IN);
    let after = descriptors()?;
    ensure!(after <= before + 2, "{before} descriptors, then {after}");
    ensure!(!lb.process().stderr().contains("was taken in"));
    fs::remove_dir(&stuck)?;
    lb.process().wait_for_stderr("was taken in", LIMIT)?;
    line.open()?.talk()?;
    ensure_no_link_is_left(&topology)
}

/// The connections of a shared VIP end in the cells, which get new interfaces: they go on, and new ones are
/// accepted there.
#[privileged_test]
fn reliability_27_legs_outlive_both_nics() -> Result<()> {
    let topology = Topology::poc()?;
    let line = relayed::line(&topology)?;
    let _lb = Lb::start(&topology, &relayed::config(&topology))?;
    let pair = line.open()?;
    for nic in [TENANT_NIC, MGMT_NIC] {
        topology.unplug(nic)?;
        (&pair.client).write_all(b"into the void").context("send")?;
        topology.plug(nic)?;
        wait_for_program(&topology, nic)?;
        let start = Instant::now();
        hear(&pair.server, b"into the void").context(nic)?;
        println!("{nic}: resumed {:?} after that", start.elapsed());
        ensure!(start.elapsed() < RESUMED, "{nic}: {:?}", start.elapsed());
        pair.talk()?;
        line.open()?.talk()?;
    }
    Ok(())
}

/// The process is killed, a NIC is pulled out, and the next process starts without it: the other network
/// goes on, of the data plane and of a shared VIP, and the NIC is taken in when it is back.
#[privileged_test]
fn reliability_27_a_start_without_a_nic_goes_on_with_the_others() -> Result<()> {
    let topology = Topology::poc()?;
    let [n1, n2] = [&topology.nodes[0], &topology.nodes[1]];
    let config = config().service("arm-shared", |arm| {
        let routes = json!([{ "names": [NAME], "pool": "arm" }]);
        arm.on("mgmt").tcp(ARM_SHARED).set("sni.routes", routes)
    });
    let more = config
        .clone()
        .service("more-a", |more| {
            more.on("mgmt").tcp("10.32.96.61:7000").pool("arm")
        })
        .tcp_service_to("more-b", "192.168.203.61:7000", "arm");
    let mut lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let arm = Line::new(n2, ARM, n1, ARM_PORT)?.saying(named(NAME.as_bytes()));
    let pairs = [line.open()?, arm.open()?];
    for (nic, missing) in [
        (TENANT_NIC, ["native", "missing"]),
        (MGMT_NIC, ["missing", "native"]),
    ] {
        lb.kill()?;
        topology.unplug(nic)?;
        lb.restart(&config)?;
        assert_eq!(modes(&lb)?, missing);
        let log = lb.process().stderr();
        ensure!(log.contains("the interface is gone"), "{log}");
        // Of what is configured meanwhile nothing is made until it is there.
        lb.reload(&more)?;
        lb.reload(&config)?;
        if nic == TENANT_NIC {
            pairs[1].talk()?;
            arm.open()?.talk()?;
            arm.open_at(ARM_SHARED)?.talk()?;
        }
        topology.plug(nic)?;
        wait_for_program(&topology, nic)?;
        poll::until("connections as before", RESUMED, || {
            let again = || -> Result<()> {
                let again = [line.open()?, arm.open()?, arm.open_at(ARM_SHARED)?];
                again.iter().try_for_each(Pair::talk)
            };
            Ok(again().ok())
        })?;
        pairs.iter().try_for_each(Pair::talk).context(nic)?;
        assert_eq!(modes(&lb)?, ["native", "native"]);
        ensure_no_link_is_left(&topology)?;
    }
    Ok(())
}
