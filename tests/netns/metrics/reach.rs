//! FEATURES C16: clients do not reach what the control plane answers.

use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Result, ensure};
use lb_tests::{
    poll,
    product::lb::{Lb, check},
    topology::{ECHO, MGMT_NIC, SNAT, TENANT_NIC, Topology, VIP},
};

use super::page::{curl, is_open};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
};

/// An address of the host on the network of management.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 7);
const PORT: u16 = 9180;
const TOKEN: &str = "0123456789abcdef0123";
/// Ports that a scan tries, beside those of services.
const PORTS: [std::ops::RangeInclusive<u16>; 3] = [20..=30, 9170..=9190, 9090..=9100];
/// How many at a time.
const SCANNERS: usize = 32;

/// The addresses and ports that a client of the tenant gets a connection to.
fn scan(topology: &Topology) -> Result<BTreeSet<(Ipv4Addr, u16)>> {
    let ports: Vec<u16> = PORTS
        .into_iter()
        .flatten()
        .chain([ECHO.port(), 6443, 53])
        .collect();
    let targets: Vec<_> = [VIP, SNAT, OWN]
        .into_iter()
        .flat_map(|address| ports.iter().map(move |port| (address, *port)))
        .collect();
    let next = AtomicUsize::new(0);
    let scanner = || {
        let mut open = Vec::new();
        while let Some((address, port)) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            open.extend(is_open(*address, *port).then_some((*address, *port)));
        }
        open
    };
    let netns = &topology.client().netns;
    thread::scope(|scope| {
        let scanners: Vec<_> = (0..SCANNERS)
            .map(|_| scope.spawn(|| netns.inside(scanner)))
            .collect();
        let mut open = BTreeSet::new();
        for scanner in scanners {
            let found = scanner
                .join()
                .map_err(|_| anyhow::anyhow!("a scanner panicked"))?;
            open.extend(found?);
        }
        Ok(open)
    })
}

/// C16: on every address of `lb` and its host a tenant finds its services, and nothing else; a node of the hub reaches the
/// metrics with the token.
#[privileged_test]
fn c16_a_scan_from_a_tenant_finds_no_admin_port() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    topology
        .lb
        .run(&format!("ip address add {OWN}/20 dev {MGMT_NIC}"))?;
    // What the tenant sends to these addresses comes to its NIC.
    let mac = topology.mac(TENANT_NIC)?;
    let client = &topology.client().netns;
    for address in [OWN, SNAT] {
        client.run(&format!("ip route add {address}/32 dev eth0"))?;
        client.run(&format!(
            "ip neigh add {address} lladdr {mac} dev eth0 nud permanent"
        ))?;
    }
    let token = topology.write("token", TOKEN)?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let config = site
        .http("")
        .set("admin.http.listen", format!("{OWN}:{PORT}"))
        .set("admin.http.token_file", token.display().to_string());
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"], LIMIT)?;

    let node = &topology.nodes[0].netns;
    let url = format!("http://{OWN}:{PORT}/metrics");
    let authorization = format!("Authorization: Bearer {TOKEN}");
    poll::until("the metrics for a node", LIMIT, || {
        let got = curl(node, &["-H", &authorization, &url]).ok();
        Ok(got.filter(|(status, _)| *status == 200).map(drop))
    })?;
    assert_eq!(curl(node, &[&url])?.0, 401);
    let dropped = lb.dropped("not_declared")?;
    assert_eq!(scan(&topology)?, BTreeSet::from([(VIP, ECHO.port())]));
    let dropped = lb.dropped("not_declared")? - dropped;
    ensure!(dropped > 0, "the scan came to the NIC");
    lb.down()
}

/// C16: an address that tenants reach is refused with its line, and where only the host knows that it is one, the port stays
/// closed.
#[privileged_test]
fn c16_an_address_that_tenants_reach_needs_an_override() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let token = topology.write("token", TOKEN)?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let at = |address: &str| {
        site.http("")
            .set("admin.http.listen", format!("{address}:{PORT}"))
            .set("admin.http.token_file", token.display().to_string())
    };
    for (address, words) in [
        ("192.168.203.110", "is a VIP of service echo-a"),
        ("192.168.203.9", "a prefix of network tenant-a (tenant)"),
        ("0.0.0.0", "every address of the host"),
    ] {
        let said = check(&at(address))?;
        assert_eq!(said.code, Some(2), "{said:?}");
        let all = format!("{}{}", said.stdout, said.stderr);
        let is_named = all.contains("admin.http.listen: ") && all.contains(words);
        ensure!(is_named, "{all}");
        let allowed = at(address).set("admin.http.allow_tenant", true);
        assert_eq!(check(&allowed)?.code, Some(0));
    }

    let hidden = Ipv4Addr::new(198, 51, 100, 1);
    topology
        .lb
        .run(&format!("ip address add {hidden}/32 dev {TENANT_NIC}"))?;
    let lb = Lb::start(&topology, &at(&hidden.to_string()))?;
    wait_for(&lb, &["up"], LIMIT)?;
    poll::until("the event", LIMIT, || {
        let said = lb.tell(&["events"])?.done()?;
        let words = format!("clients reach that address of interface {TENANT_NIC}");
        Ok(said.contains(&words).then_some(()))
    })?;
    assert!(!topology.lb.inside(|| is_open(hidden, PORT))?);
    assert_eq!(site.who(1)?.len(), 1);

    lb.write(&at(&hidden.to_string()).set("admin.http.allow_tenant", true))?;
    lb.tell(&["reload"])?.done()?;
    poll::until("the port", LIMIT, || {
        let is_open = topology.lb.inside(|| is_open(hidden, PORT))?;
        Ok(is_open.then_some(()))
    })?;
    lb.down()
}
