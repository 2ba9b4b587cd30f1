//! Faults of the process, its host and its operator.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    fault::stop_thread::freeze,
    process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{LB_PORT, MGMT_NIC, Topology},
    traffic::{
        client::open,
        hello::{CAPTURED_NAME, named},
    },
};
use serde_json::json;

use super::{board, prometheus::Prometheus};
use crate::{
    metrics::page::LISTEN,
    proxy::{
        guard::tellers,
        relayed::have_copied,
        sni::{PORT, SHARED},
    },
};

/// The alerts whose faults are made here.
pub(super) const MADE: &[&str] = &[
    "LbConfigUnconfirmed",
    "LbControlSilent",
    "LbDescriptorsNearlyUsed",
    "LbDown",
    "LbGenericMode",
    "LbSharedVipStarved",
    "LbUnmended",
];

const GENERIC: [&str; 2] = [
    "LbGenericMode network=mgmt",
    "LbGenericMode network=tenant-a",
];
const STARVED: &str = "LbSharedVipStarved service=shared";

/// Rows of the board that have something to show at the end, and metrics that have not: the data plane alone serves none.
const ROWS: [&str; 3] = ["Services", "Shared VIPs", "Process"];
const EMPTY: [&str; 2] = [
    "lb_service_refused_total",
    "lb_shared_requests_refused_total",
];
/// Between two scrapes, and what each may take: a control plane has 2 s to answer.
const PATIENT_SCRAPE: &str = "3s";
/// Descriptors that the process may have.
const FEW: &[&str] = &["prlimit", "--nofile=280"];
/// Clients of the shared VIP: more than there are descriptors for.
const CLIENTS: usize = 60;

/// A shared VIP, and one node behind it.
fn config(topology: &Topology) -> Config {
    let node = SocketAddrV4::new(topology.nodes[0].address, PORT);
    let routes = json!([{ "names": [CAPTURED_NAME], "pool": "a" }]);
    let sni = Keys::default().set("routes", routes);
    Config::poc()
        .mgmt_pool("a", [node])
        .service("shared", |shared| {
            shared.on("tenant-a").tcp(SHARED).set("sni", sni)
        })
        .set("admin.http.listen", LISTEN)
}

/// Clients of the shared VIP that stay, until one is refused.
fn take_all_descriptors(topology: &Topology) -> Result<Vec<TcpStream>> {
    let netns = &topology.client().netns;
    let served: Vec<TcpStream> =
        netns.inside(|| (0..CLIENTS).map_while(|_| connect().ok()).collect())?;
    ensure!((1..CLIENTS).contains(&served.len()), "{}", served.len());
    Ok(served)
}

/// A client of the shared VIP that is served.
fn connect() -> Result<TcpStream> {
    let mut client = open(None, SHARED)?;
    client.write_all(&named(CAPTURED_NAME.as_bytes()))?;
    client.read_exact(&mut [0])?;
    Ok(client)
}

/// Leaves the process only a few descriptors more than it has.
fn take_limit_down(lb: &Lb<'_>) -> Result<()> {
    let open = fs::read_dir(format!("/proc/{}/fd", lb.id()))?.count();
    let limit = format!("--nofile={}", open + open / 10);
    let mut command = Command::new("prlimit");
    process::succeed(command.arg(format!("--pid={}", lb.id())).arg(limit)).map(drop)
}

/// Where the socket for the next process was is a folder, so that it cannot be made anew.
fn put_a_folder_in_the_way(topology: &Topology) -> Result<()> {
    let socket = PathBuf::from("/run/lb")
        .join(topology.run())
        .join("heirs.sock");
    fs::remove_file(&socket).context("remove the socket")?;
    fs::create_dir(&socket).context("make a folder in its place")
}

/// Jumbo frames, with which a veth refuses native programs.
fn take_native_mode_away(topology: &Topology) -> Result<()> {
    for (netns, port) in [(&topology.lb, MGMT_NIC), (&topology.mgmt_lan, LB_PORT)] {
        netns.run(&format!("ip link set dev {port} mtu 9000"))?;
    }
    Ok(())
}

#[privileged_test]
fn a_process_that_is_silent_starved_or_down_raises_its_alerts() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = tellers(&topology)?;
    have_copied(&topology)?;
    take_native_mode_away(&topology)?;
    let config = config(&topology);
    let mut lb = Lb::start_through(&topology, &config, FEW)?;
    let mut prometheus = Prometheus::start(&topology, PATIENT_SCRAPE, &GENERIC)?;

    lb.write(&config.clone().set("timeouts.half_open", "20s"))?;
    lb.tell(&["reload", "--confirm", "60s"])?.done()?;
    prometheus.note_coming("LbConfigUnconfirmed");
    put_a_folder_in_the_way(&topology)?;
    let mut served = take_all_descriptors(&topology)?;
    prometheus.wait_while(
        || {
            let client = topology.client().netns.inside(connect)?;
            served.extend(client.ok());
            Ok(())
        },
        &[&GENERIC[..], &[STARVED, "LbUnmended"]].concat(),
    )?;
    take_limit_down(&lb)?;
    let frozen = freeze(lb.process(), "lb")?;
    prometheus.wait_for(&[
        "LbConfigUnconfirmed",
        "LbControlSilent",
        "LbDescriptorsNearlyUsed",
    ])?;
    drop(frozen);
    board::ensure_filled(&prometheus, &ROWS, &EMPTY)?;
    drop(served);

    lb.kill()?;
    prometheus.wait_for(&["LbDown"])?;
    prometheus.wait_for_rest(&["LbDown"])?;
    prometheus.ensure_made(MADE)?;
    lb.down()
}
