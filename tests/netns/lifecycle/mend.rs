//! What a running process owns is taken away: it mends it, and says so.

use std::{
    fs,
    net::SocketAddrV4,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::abi::ABI_VERSION;
use lb_common::addr::Mac;
use lb_tests::{
    netns::Netns,
    oracle::{
        links::{detach, links, pins},
        observe,
    },
    poll, process,
    product::{config::Keys, lb::Lb},
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, MGMT_NIC, SNAT, SNAT6, TENANT_NIC, Topology},
    traffic::load::Load,
};
use nix::sys::signal::Signal;

use crate::{
    flows::life::{LIMIT, config, ensure_all_ids_are_free, line},
    health::verdicts::{HEALTH_PORT, Site, wait_for},
};

/// From the fault until it is mended and logged.
pub(crate) const MENDED: Duration = Duration::from_secs(4);
/// The longest that those get no answer whose backend is at another MAC: two checks, and what TCP waits.
const MOVED: Duration = Duration::from_secs(6);
/// How many connections talk all the time.
pub(crate) const STREAMS: usize = 8;

/// The latest event of something mended, if it has these words.
fn mended(lb: &Lb<'_>, words: &[&str]) -> Result<Option<String>> {
    let events = lb.events()?.into_iter().rev();
    let said = events.filter(|event| event.kind == "mend");
    let mut said = said.map(|event| format!("{}: {}", event.object, event.words));
    Ok(said.find(|said| words.iter().all(|words| said.contains(words))))
}

/// Does something, waits until it is mended and logged in these words, and prints how long that took.
fn ensure_mended(
    lb: &Lb<'_>,
    fault: &str,
    words: &[&str],
    make: impl FnOnce() -> Result<()>,
) -> Result<()> {
    ensure!(
        mended(lb, words)?.is_none(),
        "{fault}: it is logged before it is"
    );
    let since = Instant::now();
    make().with_context(|| fault.to_owned())?;
    let event = poll::until("the event", LIMIT, || mended(lb, words))
        .with_context(|| format!("{fault}: {words:?}, not among {:?}", lb.events()))?;
    let after = since.elapsed();
    println!("{fault}: mended after {after:?}: {event}");
    ensure!(after < MENDED, "{fault}: {after:?}");
    Ok(())
}

/// The names of the pins of all links, and the folder that they are in.
pub(crate) fn link_pins(topology: &Topology) -> Result<(PathBuf, Vec<String>)> {
    let folder = pins(topology.run()).join("links");
    Ok((folder, links(topology.run())?.into_keys().collect()))
}

/// The program of a pin, and the interface that it is on.
fn program(topology: &Topology, pin: &str) -> Result<(String, String)> {
    let (program, index) = pin.split_once('-').context("a program and an index")?;
    let all = topology.lb.run("ip -o link")?;
    let line = all
        .lines()
        .find(|line| line.starts_with(&format!("{index}: ")));
    let name = line.and_then(|line| line.split([':', '@']).nth(1));
    Ok((
        program.to_owned(),
        name.context("its interface")?.trim().to_owned(),
    ))
}

/// One lost connection, one wrong byte of those that talk all the time, is one too many.
fn ensure_none_lost(load: &Load) -> Result<()> {
    let tally = load.take();
    println!("{}: {tally:?}", load.name);
    ensure!(tally.failed == 0 && tally.done > 100, "{tally:?}");
    Ok(())
}

/// A pin of a link is removed: the program stays, the pin comes back, and outlives a kill.
#[privileged_test]
fn a_removed_link_pin_stops_nothing_and_is_there_again() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let _echo = EchoServer::start(
        &node.netns,
        SocketAddrV4::new(node.address, ECHO_NODE_PORT),
        node.name,
    )?;
    let config = config();
    let mut lb = Lb::start(&topology, &config)?;
    let load = Load::streams(topology.client(), ECHO, STREAMS)?;
    let before = links(topology.run())?;
    thread::sleep(MENDED);
    let (folder, names) = link_pins(&topology)?;
    ensure!(names.len() == 4, "{names:?}");
    for name in &names {
        let (program, interface) = program(&topology, name)?;
        let words = [interface.as_str(), &program, "is there again"];
        ensure_mended(&lb, &format!("rm {name}"), &words, || {
            Ok(fs::remove_file(folder.join(name))?)
        })?;
    }
    assert_eq!(links(topology.run())?, before, "the same links");
    lb.kill()?;
    lb.restart(&config)?;
    ensure_none_lost(&load)?;
    load.end()
}

/// A program is detached: it is attached and pinned again.
#[privileged_test]
fn a_detached_program_is_attached_again() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let _echo = EchoServer::start(
        &node.netns,
        SocketAddrV4::new(node.address, ECHO_NODE_PORT),
        node.name,
    )?;
    let lb = Lb::start(&topology, &config())?;
    let load = Load::streams(topology.client(), ECHO, STREAMS)?;
    let (folder, names) = link_pins(&topology)?;
    for name in &names {
        let (program, interface) = program(&topology, name)?;
        let words = [interface.as_str(), &program, "is attached again"];
        ensure_mended(&lb, &format!("detach {name}"), &words, || {
            detach(&folder.join(name))
        })?;
        thread::sleep(Duration::from_millis(500));
    }
    for nic in [TENANT_NIC, MGMT_NIC] {
        assert!(observe::link(&topology.lb, nic)?.xdp.is_some(), "{nic}");
    }
    assert_eq!(link_pins(&topology)?.1, names);
    ensure_none_lost(&load)?;
    load.end()
}

/// Runs a command in the cell of a network.
pub(crate) fn cell(topology: &Topology, network: &str, words: &[&str]) -> Result<String> {
    let cell = format!("--net=/run/netns/lb.{}.{network}", topology.run());
    process::succeed(Command::new("nsenter").arg(cell).args(words))
}

/// What is in a cell is taken away or changed: it is as before, and logged.
#[privileged_test]
fn a_cell_is_mended() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    let node = &topology.nodes[0];
    let _echo = EchoServer::start(
        &node.netns,
        SocketAddrV4::new(node.address, ECHO_NODE_PORT),
        node.name,
    )?;
    let config = config().network("mgmt", |mgmt| {
        mgmt.push("prefixes", "fd00:32::/64").push("snat", SNAT6)
    });
    let lb = Lb::start(&topology, &config)?;
    let load = Load::streams(topology.client(), ECHO, STREAMS)?;
    let faults = [
        (
            "tenant-a",
            "ip addr del 192.168.203.110/32 dev cell",
            "address 192.168.203.110 was missing",
        ),
        (
            "mgmt",
            "ip addr del 10.32.96.50/32 dev cell",
            "address 10.32.96.50 was missing",
        ),
        (
            "mgmt",
            "ip addr del fd00:32::50/128 dev cell",
            "address fd00:32::50 was missing",
        ),
        ("mgmt", "ip link set cell down", "cell was down"),
        ("tenant-a", "ip link set cell down", "cell was down"),
        (
            "mgmt",
            "ip link set cell mtu 1400",
            "the MTU of cell was 1400",
        ),
        (
            "mgmt",
            "ip route del 10.32.96.0/20",
            "the route to 10.32.96.0/20 was missing",
        ),
        (
            "mgmt",
            "sysctl -qw net.ipv4.conf.all.arp_ignore=0",
            "sysctl net/ipv4/conf/all/arp_ignore was 0 instead of 1",
        ),
        (
            "mgmt",
            "sysctl -qw net.ipv4.ip_forward=1",
            "sysctl net/ipv4/ip_forward was 1 instead of 0",
        ),
        (
            "mgmt",
            "sysctl -qw net.ipv6.conf.cell.disable_ipv6=1",
            "sysctl net/ipv6/conf/cell/disable_ipv6 was 1 instead of 0",
        ),
    ];
    for (network, fault, words) in faults {
        let arguments: Vec<&str> = fault.split(' ').collect();
        let words = [&format!("network {network}: its cell is mended"), words];
        if mended(&lb, &words)?.is_none() {
            ensure_mended(&lb, fault, &words, || {
                cell(&topology, network, &arguments).map(drop)
            })?;
        }
        // Of the client, which asks where the VIP is.
        topology.client().netns.run("ip neigh flush dev eth0")?;
    }
    for network in ["tenant-a", "mgmt"] {
        let words = [
            &format!("network {network}: "),
            "the pair of its cell was gone",
        ];
        ensure_mended(&lb, "ip link del cell", &words, || {
            cell(&topology, network, &["ip", "link", "del", "cell"]).map(drop)
        })?;
        poll::until("another pair, and its program", LIMIT, || {
            Ok((link_pins(&topology)?.1.len() == 4).then_some(()))
        })?;
    }
    thread::sleep(MENDED);
    let inside = cell(&topology, "mgmt", &["ip", "addr", "show", "dev", "cell"])?;
    for address in ["10.32.96.50/32", "fd00:32::50/128", "fe80::"] {
        ensure!(inside.contains(address), "{address}: {inside}");
    }
    Load::connects("new connections", topology.client(), ECHO)?.end()?;
    ensure_none_lost(&load)?;
    load.end()
}

/// Pins of maps are removed: they are there again, and a kill then loses no flow.
#[privileged_test]
fn a_removed_map_pin_is_there_again() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let _echo = EchoServer::start(
        &node.netns,
        SocketAddrV4::new(node.address, ECHO_NODE_PORT),
        node.name,
    )?;
    let config = config();
    let mut lb = Lb::start(&topology, &config)?;
    let load = Load::streams(topology.client(), ECHO, STREAMS)?;
    let maps = maps(&topology)?;
    for map in ["FLOWS", "REGISTRY", "FREE_IDS", "VERDICTS", "FLOW_EVENTS"] {
        ensure_mended(&lb, &format!("rm {map}"), &["maps: ", map], || {
            Ok(fs::remove_file(maps.join(map))?)
        })?;
    }
    lb.kill()?;
    lb.restart(&config)?;
    ensure_none_lost(&load)?;
    load.end()
}

/// The folder of the pinned maps.
pub(crate) fn maps(topology: &Topology) -> Result<PathBuf> {
    let entries = fs::read_dir(pins(topology.run()))?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut maps = folders.filter(|folder| folder.ends_with(format!("v{ABI_VERSION}")));
    maps.next().context("the pinned maps")
}

/// A pin is lost while no process runs: a start says which flows would be lost, and loses none unless it may.
#[privileged_test]
fn a_start_over_lost_pins_asks_first() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config();
    let mut lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let pair = line.open()?;
    lb.kill()?;
    fs::remove_file(maps(&topology)?.join("FLOWS"))?;
    let refused = lb.restart(&config);
    let said = lb.process().stderr();
    ensure!(refused.is_err(), "it has begun anew: {said}");
    for words in ["FLOWS", "--migrate"] {
        ensure!(said.contains(words), "{said}");
    }
    pair.talk().context("the programs that run still have it")?;
    lb.restart_with(&config, &["--migrate"])?;
    line.open()?.talk()?;
    drop((pair, line));
    ensure_all_ids_are_free(&topology, &lb)
}

/// The admin socket is removed: what asks meanwhile hears what is the matter, and there is another one.
#[privileged_test]
fn a_removed_admin_socket_is_made_anew() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let socket = format!("/run/lb/{}/lb.sock", topology.run());
    // It does nothing until it has been asked.
    lb.process().signal(Signal::SIGSTOP)?;
    fs::remove_file(&socket)?;
    let said = lb.tell(&["reload"])?;
    lb.process().signal(Signal::SIGCONT)?;
    let since = Instant::now();
    println!("meanwhile: {said:?}");
    let said = format!("{said:?}");
    let pid = format!("process {}", lb.id());
    ensure!(said.contains(&pid) && said.contains("lb.sock"), "{said}");
    poll::until("another socket", LIMIT, || {
        Ok(fs::exists(&socket)?.then_some(()))
    })?;
    println!("made anew after {:?}", since.elapsed());
    ensure!(since.elapsed() < MENDED);
    ensure!(mended(&lb, &["lb.sock"])?.is_some(), "{:?}", lb.events());
    lb.tell(&["reload"])?.done()?;
    // So is that of the next process.
    let heirs = format!("/run/lb/{}/heirs.sock", topology.run());
    ensure_mended(&lb, "rm heirs.sock", &["heirs.sock"], || {
        Ok(fs::remove_file(&heirs)?)
    })?;
    let mut before = lb.take_over(&config())?;
    before.wait_for_end(LIMIT).map(drop)
}

/// Gives a node another MAC, of which it says nothing: it knows where we are, so it asks for nothing either.
pub(crate) fn move_silently(node: &Netns, ours: Mac, last: u8) -> Result<()> {
    node.ip_batch(&format!(
        "link set eth0 address 02:00:00:00:99:{last:02x}\n\
         neigh replace {SNAT} lladdr {ours} dev eth0 nud permanent\n"
    ))
}

/// A backend is at another MAC, and does not say so: checks that are faster than the kernel's look there first,
/// so none of its connections is reset.
#[privileged_test]
fn a_backend_at_another_mac_is_asked_there_before_it_is_dead() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let often = Keys::from("interval: 1s, timeout: 500ms, fast_interval: 1s, rise: 2")
        .set("tcp.port", HEALTH_PORT);
    for (fall, last) in [(3, 1), (1, 2)] {
        let health = often.clone().set("fall", fall).set("on_dead", "reset");
        let lb = Lb::start(&topology, &site.config(health, ""))?;
        wait_for(&lb, &["up"], LIMIT)?;
        let load = Load::streams(topology.client(), ECHO, STREAMS)?;
        let node = &topology.nodes[0].netns;
        let ours = topology.mac(MGMT_NIC)?;
        // Long enough that the kernel does not ask by chance just then.
        thread::sleep(Duration::from_secs(1));
        load.take();
        move_silently(node, ours, last)?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(200));
            let health = lb.health()?;
            ensure!(health[0].verdict == "up", "fall {fall}: {health:?}");
        }
        let tally = load.take();
        println!("fall {fall}: nothing heard for {:?}", tally.longest);
        ensure!(
            tally.failed == 0 && tally.longest < MOVED,
            "fall {fall}: {tally:?}"
        );
        load.end()?;
        drop(lb);
    }
    Ok(())
}

/// A backend that flaps is held back no longer because the process is another one.
#[privileged_test]
fn a_flap_hold_goes_on_in_the_next_process() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site
        .http("")
        .pool("echo-a", |pool| pool.set("health.flap_hold", "8s"));
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    for _ in 0..3 {
        site.health[1].answer(500);
        wait_for(&lb, &["up", "not_ready"], LIMIT)?;
        site.health[1].answer(200);
        if wait_for(&lb, &["up", "up"], Duration::from_secs(2)).is_err() {
            break;
        }
    }
    site.health[1].answer(500);
    wait_for(&lb, &["up", "not_ready"], LIMIT)?;
    site.health[1].answer(200);
    let begun = Instant::now();
    for restart in 0..4 {
        thread::sleep(Duration::from_secs(2));
        lb.kill()?;
        lb.restart(&config)?;
        println!(
            "restart {restart} after {:?}: {:?}",
            begun.elapsed(),
            lb.health()?[1].verdict
        );
    }
    wait_for(&lb, &["up", "up"], Duration::from_secs(4))?;
    println!("up again after {:?}", begun.elapsed());
    Ok(())
}

/// `lb status` from another network namespace knows the NICs that the process sees; without a process, that an
/// interface of that name is another one.
#[privileged_test]
fn status_from_another_namespace_knows_the_nics() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let here = lb.tell(&["status"])?.done()?;
    ensure!(!here.contains("another network namespace"), "{here}");
    let program = std::env::var("LB_BIN").context("LB_BIN")?;
    let from_elsewhere = || {
        let mut elsewhere = topology.client().netns.command(&program);
        elsewhere.args(["status", "--instance", topology.run()]);
        process::succeed(&mut elsewhere)
    };
    let said = from_elsewhere()?;
    println!("{said}");
    ensure!(
        said.matches("native").count() == 2 && !said.contains("missing"),
        "{said}"
    );
    ensure!(said.contains("another network namespace"), "{said}");

    lb.kill()?;
    let here = lb.tell(&["status"])?.done()?;
    ensure!(here.matches("native").count() == 2, "{here}");
    let said = from_elsewhere()?;
    println!("{said}");
    ensure!(
        said.matches("in another network namespace than this command")
            .count()
            == 2
            && said.matches("elsewhere").count() == 2
            && !said.contains("no program"),
        "{said}"
    );
    Ok(())
}
