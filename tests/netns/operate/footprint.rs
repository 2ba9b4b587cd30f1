//! What `lb check` says of the maps' memory is what the kernel accounts for them.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::map_memory::{self, Accounted},
    process,
    product::{
        config::{Config, Keys},
        lb::{Lb, binary},
    },
    topology::{ECHO, ECHO_NODE_PORT, ECHO6, Topology},
};
use lb_user::dataplane::pins::Pins;
use serde::Deserialize;
use serde_json::json;

use crate::proxy::sni::SHARED;

/// How far the two may be apart, in bytes and in percent, whichever is more: the records of the kernel that stand in front
/// of a map's entries are of another size in other kernels.
const OFF: (u64, u64) = (512, 2);
/// What the process has maps of beside those that are pinned: the constants of the programs and their log.
const UNPINNED: u64 = 300_000;
/// So many clients are allowed: each is a node of a trie.
const PREFIXES: u8 = 100;

/// The answer of `lb check -o json`, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Answer {
    memory: Memory,
}

#[derive(Debug, Deserialize)]
struct Memory {
    bytes: u64,
    maps: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    bytes: u64,
    inner_maps: usize,
    inner_bytes: u64,
}

/// Two families, tables of two sizes, and a shared VIP.
fn dual() -> Config {
    let nodes = [105, 106, 107].map(|last| format!("10.32.96.{last}:{ECHO_NODE_PORT}"));
    let allow: Vec<String> = (0..PREFIXES).map(|at| format!("10.9.{at}.0/24")).collect();
    let allow6: Vec<String> = (0..PREFIXES)
        .map(|at| format!("fd00:9:{at}::/48"))
        .collect();
    Config::poc_dual()
        .network("tenant-a", |tenant| {
            tenant.set("sources", ["0.0.0.0/0", "::/0"])
        })
        .mgmt_pool("four", nodes)
        .mgmt_pool("six", [format!("[fd00:32::105]:{ECHO_NODE_PORT}")])
        .pool("four", |pool| pool.set("balance", "round-robin"))
        .tcp_service("four", ECHO)
        .tcp_service("six", ECHO6)
        .service("four", |service| service.set("allow", &allow))
        .service("six", |service| service.set("allow", &allow6))
        .service("shared", |service| {
            let routes = Keys::from("routes: [{ names: [a.lab], pool: four }]");
            service.on("tenant-a").tcp(SHARED).set("sni", routes)
        })
}

/// Other limits, none of them a power of two, and backends of more than one block of counters.
fn limited() -> Config {
    let limits = json!({
        "snat_addresses": 3, "services": 300, "backends": 700, "pools": 33, "handed_over": 5000,
    });
    let ports = |first: u16| (first..first + 150).map(|port| format!("10.32.96.105:{port}"));
    let pools = (0..4_u16).map(|number| (format!("p{number}"), 2000 + 200 * number));
    pools.fold(
        Config::poc()
            .set("limits", limits)
            .network("mgmt", |mgmt| mgmt.snat_ports(2000, 2999))
            .network("mgmt", |mgmt| mgmt.set("half_open", 100))
            .network("tenant-a", |tenant| tenant.set("udp_flows", 77)),
        |config, (name, first)| {
            let at = format!("192.168.203.110:{first}");
            config.mgmt_pool(&name, ports(first)).tcp_service(&name, at)
        },
    )
}

/// What `lb check` says of `config`.
fn said(topology: &Topology, config: &Config) -> Result<Memory> {
    let file = topology.write("check.yaml", config)?;
    let mut command = Command::new(binary("LB_BIN", "lb")?);
    command.arg("check").arg(&file);
    let line = process::finish(&mut command)?;
    let json = process::finish(command.args(["-o", "json"]))?;
    ensure!(json.status.success(), "{json:?}");
    let Answer { memory } = serde_json::from_slice(&json.stdout).context("read lb check")?;
    let tenths = memory.bytes.div_ceil(100_000);
    let mb = format!(
        "\nmaps: {}.{} MB of the kernel's memory",
        tenths / 10,
        tenths % 10
    );
    let line = String::from_utf8_lossy(&line.stdout);
    ensure!(line.contains(&mb), "no {mb:?} in {line}");
    Ok(memory)
}

fn ensure_near(what: &str, said: u64, accounted: u64) -> Result<()> {
    let (bytes, percent) = OFF;
    let off = bytes.max(accounted * percent / 100);
    ensure!(
        said.abs_diff(accounted) <= off,
        "{what}: lb check says {said} bytes, the kernel {accounted}"
    );
    Ok(())
}

/// Each map, and the maps in it, with two configurations and other limits; and the process has no other maps that would
/// matter.
#[privileged_test]
fn check_says_what_the_kernel_accounts_for_each_map() -> Result<()> {
    if !map_memory::is_by_type()? {
        println!(
            "not tested: before Linux 6.4 the kernel accounts for maps by their keys and values alone"
        );
        return Ok(());
    }
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    for config in [dual(), limited()] {
        let memory = said(&topology, &config)?;
        let lb = Lb::start(&topology, &config)?;
        let accounted = map_memory::pinned(&Pins::new(topology.run()).maps())?;
        let mut pinned: BTreeMap<String, Accounted> = accounted.pinned;
        let mut total = 0;
        for Row {
            name,
            bytes,
            inner_maps,
            inner_bytes,
        } in memory.maps
        {
            let found = pinned.remove(&name);
            let found = found.with_context(|| format!("{name} is not pinned"))?;
            let inner: u64 = found.inner.iter().sum();
            eprintln!("{name}: {bytes} {inner_bytes}: {} {inner}", found.bytes);
            ensure_near(&name, bytes, found.bytes)?;
            ensure!(
                inner_maps == found.inner.len(),
                "{name} has {} maps, not {inner_maps}",
                found.inner.len()
            );
            ensure_near(&format!("maps in {name}"), inner_bytes, inner)?;
            total += found.bytes + inner;
        }
        ensure!(pinned.is_empty(), "lb check does not know {pinned:?}");
        ensure_near("all maps", memory.bytes, total)?;

        let mut held = map_memory::of_process(lb.id())?;
        held.retain(|id, _| !accounted.ids.contains(id));
        eprintln!("unpinned: {held:?}");
        let unpinned: u64 = held.values().sum();
        ensure!(unpinned < UNPINNED, "maps that are not pinned: {held:?}");
        lb.down()?;
    }
    Ok(())
}
