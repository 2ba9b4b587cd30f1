//! How the contestants of a path are set up, in their own languages.

use std::net::Ipv4Addr;

use lb_common::maps::snat::FLOWS_PER_ADDRESS;
use lb_tests::topology::path;

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
pub(crate) fn lb() -> String {
    let snat = |network: usize| {
        let addresses = (1..=SNAT).map(|last| path::address(network, 2, last).to_string());
        addresses.collect::<Vec<_>>().join(", ")
    };
    let backends = |network: usize| {
        let backends = (1..=BACKENDS)
            .map(|last| format!("\"{}:{NODE_PORT}\"", path::address(network, 1, last)));
        backends.collect::<Vec<_>>().join(", ")
    };
    format!(
        "version: 1
networks:
  tenant: {{ role: tenant, interface: eth0, prefixes: [{tenant}/16], half_open: 65536 }}
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [{one}/16], snat: [{one_snat}] }}
  mgmt-2: {{ role: mgmt, interface: eth2, prefixes: [{two}/16], snat: [{two_snat}] }}
pools:
  one: {{ network: mgmt, backends: [{one_backends}] }}
  two: {{ network: mgmt-2, backends: [{two_backends}] }}
services:
  one: {{ network: tenant, listen: [\"{VIP}:{PORT}/tcp\"], pool: one }}
  two: {{ network: tenant, listen: [\"{VIP}:{other}/tcp\"], pool: two }}
limits: {{ snat_addresses: {} }}
",
        2 * SNAT,
        tenant = path::NETWORKS[0],
        one = path::NETWORKS[1],
        two = path::NETWORKS[2],
        one_snat = snat(1),
        two_snat = snat(2),
        one_backends = backends(1),
        two_backends = backends(2),
        other = PORT + 1,
    )
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
