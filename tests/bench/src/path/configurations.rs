//! How the contestants of a path are set up, in their own languages.

use std::net::Ipv4Addr;

use lb_common::maps::snat::FLOWS_PER_ADDRESS;
use lb_tests::{product::config::Config, topology::path};

/// What clients send to, on the two ports from `PORT` on.
pub(crate) const VIP: Ipv4Addr = path::address(0, 0, 10);
pub(crate) const PORT: u16 = 7000;
/// Backends of each of the two networks behind the load balancer, and where they listen.
pub(crate) const BACKENDS: u8 = 32;
pub(crate) const NODE_PORT: u16 = 30700;

/// SNAT addresses of lb in each of both networks behind it.
const SNAT: u8 = 10;
/// Flows that lb has room for.
pub(crate) const ROOM: u32 = 2 * SNAT as u32 * FLOWS_PER_ADDRESS as u32;

/// Two services, each with a network of backends behind it: a network has room for 16 SNAT addresses of 56,320
/// flows each.
pub(crate) fn lb() -> Config {
    let [tenant, one, two] = path::NETWORKS.map(|network| format!("{network}/16"));
    let snat = |network| (1..=SNAT).map(move |last| path::address(network, 2, last));
    let backends = |network| {
        let addresses = (1..=BACKENDS).map(move |last| path::address(network, 1, last));
        addresses.map(|address| format!("{address}:{NODE_PORT}"))
    };
    let listen = |port| format!("{VIP}:{port}");
    Config::new()
        .network("tenant", |network| {
            network
                .nic("tenant", "eth0", &tenant)
                .set("half_open", 65_536)
        })
        .network("mgmt", |network| {
            network.nic("mgmt", "eth1", &one).snat(snat(1))
        })
        .network("mgmt-2", |network| {
            network.nic("mgmt", "eth2", &two).snat(snat(2))
        })
        .pool("one", |pool| pool.on("mgmt").backends(backends(1)))
        .pool("two", |pool| pool.on("mgmt-2").backends(backends(2)))
        .service("one", |service| {
            service.on("tenant").tcp(listen(PORT)).pool("one")
        })
        .service("two", |service| {
            service.on("tenant").tcp(listen(PORT + 1)).pool("two")
        })
        .set("limits.snat_addresses", 2 * SNAT)
}

pub(crate) const FLOWTABLE_PROBE: &str =
    "add table ip probe; add flowtable ip probe f { hook ingress priority 0; devices = { lo }; }";

/// DNAT by a hash of the client to all backends of both networks, and masquerade.
pub(crate) fn nft(flowtable: bool) -> String {
    let backends: Vec<String> = (0..2 * BACKENDS)
        .map(|place| {
            let network = 1 + usize::from(place / BACKENDS);
            format!(
                "{place} : {}",
                path::address(network, 1, 1 + place % BACKENDS)
            )
        })
        .collect();
    let (table, forward) = if flowtable {
        (
            "  flowtable fast { hook ingress priority 0; devices = { eth0, eth1, eth2 }; }\n",
            "  chain forward {
    type filter hook forward priority 0;
    ct state established flow add @fast
  }\n",
        )
    } else {
        ("", "")
    };
    format!(
        "table ip nat {{
{table}{forward}  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {VIP} tcp dport {PORT}-{last} dnat to jhash ip saddr . tcp sport mod {count} map {{ {backends} }} : {NODE_PORT}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    oifname {{ eth1, eth2 }} masquerade
  }}
}}
",
        last = PORT + 1,
        count = backends.len(),
        backends = backends.join(", "),
    )
}

/// IPVS by the hash of the source, and masquerade.
pub(crate) fn ipvs() -> String {
    let mut lines = String::from("set -e\n");
    for (port, network) in [(PORT, 1), (PORT + 1, 2)] {
        lines += &format!("ipvsadm -A -t {VIP}:{port} -s mh -b mh-port\n");
        for last in 1..=BACKENDS {
            let backend = path::address(network, 1, last);
            lines += &format!("ipvsadm -a -t {VIP}:{port} -r {backend}:{NODE_PORT} -m\n");
        }
    }
    lines
        + "nft add table ip nat\n\
        nft 'add chain ip nat out { type nat hook postrouting priority srcnat; }'\n\
        nft 'add rule ip nat out oifname { eth1, eth2 } masquerade'\n"
}
