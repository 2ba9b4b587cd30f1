//! Many connections of two tenants at a time, who have the same addresses and ports and ask for the same
//! names: FEATURES B15, and how long clients are held by a hand-over.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::teller::{Teller, ask_on},
    topology::{Host, Trunk},
    traffic::{client::open_from, hello::named},
};
use serde_json::json;

use crate::{
    handoff::connections::wait_for_no_sockets_in,
    proxy::{
        relayed::wait_for,
        sni::{NAMES, PORT, SHARED},
    },
};

/// Clients of each tenant at a time.
const AT_ONCE: u16 = 25;
/// The first port of a client.
const FIRST: u16 = 20_000;
/// The nodes serve the tenants at ports of their own.
const TENANTS: [(&str, u16); 2] = [("t1", PORT), ("t2", PORT + 1)];
/// What tells how long a client was held.
const LOG: &str = "LB_LOG=info,lb_user::proxy::splice::port_lease=debug";
const HELD: &str = "the client's segments were held during the hand-over microseconds=";

/// B15: every client reaches the server that it names, and nearly every connection is handed over.
#[privileged_test]
fn b15_two_tenants_are_handed_over_side_by_side() -> Result<()> {
    let trunk = Trunk::build()?;
    let _tellers = tellers(&trunk)?;
    let mut lb = Lb::start_through(&trunk, &config(&trunk.nodes, "never"), &["env", LOG])?;
    let all = all();
    let each = all / 2 / AT_ONCE;
    come_all(&trunk, each)?;

    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    for (tenant, _) in TENANTS {
        let counted = &status["shared"][format!("of-{tenant}")];
        let of = |counter: &str| counted[counter].as_u64().context("a count");
        let (routed, handed_over) = (of("routed")?, of("handed_over")?);
        println!(
            "{tenant}: {handed_over} of {routed}, copied {}",
            counted["copied"]
        );
        assert_eq!(routed, u64::from(each * AT_ONCE));
        ensure!(handed_over * 100 > routed * 99, "{handed_over} of {routed}");
    }
    let held = held(&lb.process().stderr())?;
    ensure!(
        held.len() >= usize::from(all) * 99 / 100,
        "{} held",
        held.len()
    );
    let at = |of_1000: usize| held[held.len() * of_1000 / 1000];
    println!(
        "held: {} times, p50 {:?}, p90 {:?}, p99 {:?}, p99.9 {:?}, most {:?}",
        held.len(),
        at(500),
        at(900),
        at(990),
        at(999),
        held.last().context("a client")?
    );
    wait_for_no_sockets_in(&trunk, &["t1", "t2", "mgmt"])?;
    wait_for(&lb, 0)
}

/// The same where XDP opens the connections, from VLANs of one NIC: the process has nothing to do with any.
#[privileged_test]
fn two_tenants_are_bound_side_by_side() -> Result<()> {
    let trunk = Trunk::build()?;
    let _tellers = tellers(&trunk)?;
    let lb = Lb::start(&trunk, &config(&trunk.nodes, "always"))?;
    let each = all() / 2 / AT_ONCE;
    come_all(&trunk, each)?;
    let bound = BTreeMap::from([("bound".to_owned(), u64::from(each * AT_ONCE))]);
    let status = lb.status()?;
    for (tenant, _) in TENANTS {
        let mut networks = status.networks.iter();
        let found = networks.find(|network| network.name == tenant);
        assert_eq!(found.context("the tenant's network")?.hellos, bound);
    }
    wait_for(&lb, 0)
}

/// Connections in a test.
fn all() -> u16 {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 10_000,
        None => 1000,
    }
}

/// A server for each name of each tenant.
fn tellers(trunk: &Trunk) -> Result<Vec<Teller>> {
    let mut tellers = Vec::new();
    for (tenant, port) in TENANTS {
        for (node, name) in trunk.nodes.iter().zip(NAMES) {
            let at = SocketAddrV4::new(node.address, port);
            let called = format!("{name} of {tenant}");
            tellers.push(Teller::start_listening(&node.netns, at, &called)?);
        }
    }
    Ok(tellers)
}

/// Clients of both tenants come at the same time, each with so many connections.
fn come_all(trunk: &Trunk, each: u16) -> Result<()> {
    thread::scope(|scope| {
        let load = |(tenant, number): (usize, u16)| {
            let (called, _) = TENANTS[tenant];
            let client = trunk.tenants[tenant].client();
            let come = move || ask_all(client.address, called, number * each..(number + 1) * each);
            scope.spawn(move || client.netns.inside(come)?)
        };
        let both = (0..AT_ONCE).flat_map(|number| [(0, number), (1, number)]);
        let loads: Vec<_> = both.map(load).collect();
        let mut ended = loads.into_iter().map(|load| {
            let ended = load.join();
            ended.map_err(|_| anyhow!("a client panicked"))?
        });
        ended.try_for_each(|ended| ended)
    })
}

/// The pools of both tenants, and a service for each on one VIP.
fn config(nodes: &[Host], late_binding: &str) -> Config {
    let networks = Config::new()
        .mgmt()
        .network("t1", |t1| t1.tenant(2003, "192.168.203.0/24"))
        .network("t2", |t2| t2.tenant(2004, "192.168.203.0/24"));
    let tenants = TENANTS.into_iter();
    tenants.fold(networks, |config, (tenant, port)| {
        let pool = |name: &str| format!("{}-{tenant}", &name[..1]);
        let pools = nodes.iter().zip(NAMES);
        let config = pools.fold(config, |config, (node, name)| {
            config.mgmt_pool(&pool(name), [SocketAddrV4::new(node.address, port)])
        });
        config.service(&format!("of-{tenant}"), |service| {
            let route = |name: &str| json!({ "names": [name], "pool": pool(name) });
            let routes = NAMES.map(route);
            let service = service.on(tenant).tcp(SHARED);
            let service = service.set("sni.late_binding", late_binding);
            service.set("sni.routes", routes)
        })
    })
}

/// One connection after the other, from one port after the other, to one name after the other.
fn ask_all(address: Ipv4Addr, tenant: &str, numbers: std::ops::Range<u16>) -> Result<()> {
    for number in numbers {
        let name = NAMES[usize::from(number) % NAMES.len()];
        let from = SocketAddrV4::new(address, FIRST + number);
        let stream = open_from(Some(from), SHARED)?;
        let who = ask_on(stream, &[&named(name.as_bytes())], Duration::ZERO);
        let who = who.with_context(|| format!("{tenant}, {from}: {name}"))?;
        let wanted = format!("{name} of {tenant}");
        ensure!(who.as_ref() == Some(&wanted), "{who:?}, not {wanted}");
    }
    Ok(())
}

/// How long clients were held, the shortest first.
fn held(log: &str) -> Result<Vec<Duration>> {
    let micros = log.lines().filter_map(|line| line.split(HELD).nth(1));
    let held = micros.map(|micros| Ok(Duration::from_micros(micros.trim().parse()?)));
    let mut held = held.collect::<Result<Vec<_>>>()?;
    held.sort_unstable();
    Ok(held)
}
