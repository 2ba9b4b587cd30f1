//! Random faults, one after the other, while connections talk.

use std::{
    fs,
    net::SocketAddrV4,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::links::{detach, links},
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    seeded_rng::{Dice, SEED},
    servers::{answers::Answers, echo::EchoServer},
    topology::{ECHO, ECHO_NODE_PORT, MGMT_NIC, Topology},
    traffic::load::Load,
};
use lb_user::dataplane::object::MAPS;
use serde_json::json;

use crate::{
    flows::life::{LIMIT, ensure_all_ids_are_free},
    health::verdicts::{HEALTH_PORT, wait_for},
    lifecycle::mend::{MENDED, STREAMS, cell, link_pins, maps, move_silently},
};

/// Connections, or turns of one, that show that traffic goes on.
const FEW: u64 = 10;
/// A SYN that was lost while a program was detached is sent again after 1, 3 and 7 s (RFC 6298).
const SENT_AGAIN: Duration = Duration::from_secs(8);
/// Maps whose pins are removed.
const REMOVED: [&str; 5] = ["FLOWS", "REGISTRY", "FREE_IDS", "SPLICES", "VERDICTS"];
/// What is done in cells.
const IN_CELLS: [(&str, &str); 7] = [
    ("tenant-a", "ip addr del 192.168.203.110/32 dev cell"),
    ("mgmt", "ip addr del 10.32.96.50/32 dev cell"),
    ("mgmt", "ip link set cell down"),
    ("tenant-a", "ip link set cell down"),
    ("mgmt", "ip route del 10.32.96.0/20"),
    ("mgmt", "sysctl -qw net.ipv4.conf.all.arp_ignore=0"),
    ("tenant-a", "ip link del cell"),
];

/// One backend, which checks find dead in 10 s: faster than the kernel's neighbour probe (15 s), but slower than
/// it takes to mend two faults in a row. Of a program that is detached nothing comes back until then.
const TIMES: &str =
    "interval: 2s, timeout: 500ms, fast_interval: 2s, rise: 2, fall: 5, on_dead: reset";

fn config(topology: &Topology) -> Config {
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    let health = Keys::from(TIMES).set("tcp.port", HEALTH_PORT);
    Config::poc()
        .pool("echo-a", |pool| {
            let backend = json!({ "name": node.name, "address": address });
            pool.on("mgmt")
                .set("health", health)
                .push("backends", backend)
        })
        .tcp_service("echo-a", ECHO)
}

/// What serves at the backend, and what is checked there.
fn servers(topology: &Topology) -> Result<(EchoServer<'_>, Answers)> {
    let node = &topology.nodes[0];
    let at = |port| SocketAddrV4::new(node.address, port);
    Ok((
        EchoServer::start(&node.netns, at(ECHO_NODE_PORT), node.name)?,
        Answers::start(&node.netns, at(HEALTH_PORT))?,
    ))
}

/// What can be done to an instance.
struct Faults<'t> {
    topology: &'t Topology,
    config: Config,
    maps: PathBuf,
    links: PathBuf,
    pins: Vec<String>,
    dice: Dice,
    /// The last byte of the backend's MAC.
    last: u8,
}

impl Faults<'_> {
    fn one_of(&mut self, count: usize) -> Result<usize> {
        Ok(usize::try_from(self.dice.below(u32::try_from(count)?))?)
    }

    /// Makes one, and says which.
    fn make(&mut self, lb: &mut Lb<'_>) -> Result<String> {
        Ok(match self.dice.below(7) {
            0 => {
                let pin = self.pin()?;
                // A pair that was made anew has another index.
                let _other = fs::remove_file(self.links.join(&pin));
                format!("rm {pin}")
            }
            1 => {
                let pin = self.pin()?;
                let _other = detach(&self.links.join(&pin));
                format!("detach {pin}")
            }
            2 => {
                let map = REMOVED[self.one_of(REMOVED.len())?];
                fs::remove_file(self.maps.join(map))?;
                format!("rm {map}")
            }
            3 => {
                let socket = ["lb.sock", "heirs.sock"][self.one_of(2)?];
                let runtime = PathBuf::from("/run/lb").join(self.topology.run());
                fs::remove_file(runtime.join(socket))?;
                format!("rm {socket}")
            }
            4 => {
                lb.kill()?;
                lb.restart(&self.config)?;
                "kill -9".to_owned()
            }
            5 => {
                self.last = self.last % 200 + 1;
                let ours = self.topology.mac(MGMT_NIC)?;
                move_silently(&self.topology.nodes[0].netns, ours, self.last)?;
                format!("the backend at another MAC, {:02x}", self.last)
            }
            _ => {
                let (network, fault) = IN_CELLS[self.one_of(IN_CELLS.len())?];
                let words: Vec<&str> = fault.split(' ').collect();
                cell(self.topology, network, &words)?;
                format!("{network}: {fault}")
            }
        })
    }

    fn pin(&mut self) -> Result<String> {
        let index = self.one_of(self.pins.len())?;
        Ok(self.pins[index].clone())
    }
}

/// Traffic goes on after a fault, and nothing of it was lost.
fn ensure_goes_on(load: &Load, fault: &str) -> Result<()> {
    let mut tally = load.take();
    if tally.failed == 0 && tally.done <= FEW {
        thread::sleep(SENT_AGAIN);
        tally = load.take();
    }
    ensure!(
        tally.failed == 0 && tally.done > FEW,
        "{fault}: {}: {tally:?}",
        load.name
    );
    println!("{fault}: {}: longest {:?}", load.name, tally.longest);
    Ok(())
}

/// A check that cannot leave its cell says nothing of the backend, however fast checks are: `on_dead: reset` ends no
/// connection.
#[privileged_test]
fn a_cell_that_is_down_makes_no_backend_dead() -> Result<()> {
    let topology = Topology::poc()?;
    let (_echo, _checked) = servers(&topology)?;
    let fast = |pool: Keys| {
        let timeout = pool.set("health.timeout", "150ms");
        timeout
            .set("health.interval", "200ms")
            .set("health.fast_interval", "200ms")
    };
    let fast = config(&topology).pool("echo-a", fast);
    let lb = Lb::start(&topology, &fast)?;
    wait_for(&lb, &["up"], LIMIT)?;
    let load = Load::streams(topology.client(), ECHO, STREAMS)?;
    for fault in ["ip link set cell down", "ip route del 10.32.96.0/20"] {
        let words: Vec<&str> = fault.split(' ').collect();
        cell(&topology, "mgmt", &words)?;
        let begun = Instant::now();
        while begun.elapsed() < MENDED + Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(100));
            let health = lb.health()?;
            ensure!(health[0].verdict == "up", "{fault}: {health:?}");
        }
        ensure_goes_on(&load, fault)?;
    }
    load.end()
}

/// Faults in an order that the printed seed gives: no connection is lost, no byte is wrong, and in the end nothing is
/// left to mend and every id is free.
#[privileged_test]
fn random_faults_lose_nothing() -> Result<()> {
    let faults = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 200,
        None => 12,
    };
    let topology = Topology::poc()?;
    let (echo, _checked) = servers(&topology)?;
    let config = config(&topology);
    let mut lb = Lb::start(&topology, &config)?;
    let loads = [
        Load::streams(topology.client(), ECHO, STREAMS)?,
        Load::connects("new connections", topology.client(), ECHO)?,
    ];
    let (links_folder, pins) = link_pins(&topology)?;
    let mut random = Faults {
        topology: &topology,
        config,
        maps: maps(&topology)?,
        links: links_folder,
        pins,
        dice: Dice::from_environment(),
        last: 0,
    };
    println!("{SEED}={}", random.dice.seed());
    for number in 1..=faults {
        let fault = format!("{number}, {}", random.make(&mut lb)?);
        thread::sleep(MENDED);
        for load in &loads {
            ensure_goes_on(load, &fault)?;
        }
    }
    let is_lost = |map: &&str| !random.maps.join(map).exists();
    let lost: Vec<&str> = MAPS.into_iter().filter(is_lost).collect();
    ensure!(lost.is_empty(), "{lost:?}");
    assert_eq!(links(topology.run())?.len(), random.pins.len());
    ensure!(echo.mixed_up().is_empty(), "{:?}", echo.mixed_up());
    for load in loads {
        load.end()?;
    }
    ensure_all_ids_are_free(&topology, &lb)
}
