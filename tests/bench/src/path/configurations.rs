//! How the contestants of a path are set up, in their own languages.

use std::net::{Ipv4Addr, Ipv6Addr};

use lb_common::maps::snat::FLOWS_PER_ADDRESS;
use lb_tests::{
    product::config::{Config, Keys},
    topology::path::{self, six},
};

/// What clients send to, on the two ports from `PORT` on.
pub(crate) const VIP: Ipv4Addr = path::address(0, 0, 10);
pub(crate) const PORT: u16 = 7000;
/// Backends of each of the two networks behind the load balancer, and where they listen.
pub(crate) const BACKENDS: u8 = 32;
pub(crate) const NODE_PORT: u16 = 30700;

/// SNAT addresses of lb in each of both networks behind it, and of IPv6: room for a million flows of TCP, and for
/// 65,536 each of UDP, of TCP by IPv6, and of new ones.
const SNAT: u8 = 11;
const SNAT6: u8 = 1;
/// Flows that lb has room for.
pub(crate) const ROOM: u32 = 2 * (SNAT + SNAT6) as u32 * FLOWS_PER_ADDRESS as u32;
/// Of those by IPv4 in each network.
pub(crate) const ROOM4: u32 = SNAT as u32 * FLOWS_PER_ADDRESS as u32;

/// Two services, each with a network of backends behind it, by TCP, UDP, and by IPv6.
pub(crate) fn lb() -> Config {
    let config = Config::new().network("tenant", |network| {
        on_link(network, "tenant", 0)
            .set("half_open", 65_536)
            .set("udp_flows", 65_536)
    });
    let config = [("mgmt", 1), ("mgmt-2", 2)]
        .into_iter()
        .fold(config, |config, (name, place)| {
            config.network(name, |network| {
                let snat = |count| (1..=count).map(move |last| path::address(place, 2, last));
                let network = on_link(network, "mgmt", place).snat(snat(SNAT));
                snat(SNAT6).fold(network, |network, address| {
                    network.push("snat", six(address).to_string())
                })
            })
        });
    let services = [("one", "mgmt", 1), ("two", "mgmt-2", 2)];
    let config =
        services
            .into_iter()
            .zip(PORT..)
            .fold(config, |config, ((name, network, place), port)| {
                let addresses = || (1..=BACKENDS).map(move |last| path::address(place, 1, last));
                let four = addresses().map(|address| format!("{address}:{NODE_PORT}"));
                let by_six = addresses().map(|address| format!("[{}]:{NODE_PORT}", six(address)));
                let (name6, listen) = (format!("{name}-six"), format!("{VIP}:{port}"));
                let listen6 = format!("[{}]:{port}", six(VIP));
                config
                    .pool(name, |pool| pool.on(network).backends(four))
                    .pool(&name6, |pool| pool.on(network).backends(by_six))
                    .service(name, |service| {
                        let service = service.on("tenant").tcp(&listen).udp(&listen);
                        // New flows are half-open for good here, which is a flood.
                        service.pool(name).set("syn_cookies", "never")
                    })
                    .service(&name6, |service| {
                        service.on("tenant").tcp(listen6).pool(&name6)
                    })
            });
    config.set("limits.snat_addresses", 2 * (SNAT + SNAT6))
}

/// A network of both families at the NIC with this number.
fn on_link(network: Keys, role: &str, place: usize) -> Keys {
    let (prefix, (nic, _)) = (path::NETWORKS[place], path::NICS[place]);
    let network = network.nic(role, nic, &format!("{prefix}/16"));
    network.push("prefixes", format!("{}/64", net6(prefix)))
}

pub(crate) const FLOWTABLE_PROBE: &str =
    "add table ip probe; add flowtable ip probe f { hook ingress priority 0; devices = { lo }; }";

/// The network of IPv6 beside one of IPv4.
fn net6(network: Ipv4Addr) -> Ipv6Addr {
    let [prefix, a, b, own, ..] = six(network).segments();
    Ipv6Addr::new(prefix, a, b, own, 0, 0, 0, 0)
}

/// DNAT by a hash of the client to all backends of both networks, and masquerade; of IPv6 TCP alone.
pub(crate) fn nft(flowtable: bool) -> String {
    let backends = |text: fn(Ipv4Addr) -> String| {
        let all = (0..2 * BACKENDS).map(|place| {
            let network = 1 + usize::from(place / BACKENDS);
            let backend = path::address(network, 1, 1 + place % BACKENDS);
            format!("{place} : {}", text(backend))
        });
        all.collect::<Vec<_>>().join(", ")
    };
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
    let dnat = |family: &str, vip: String, protocol: &str, backends: &str| {
        format!(
            "    {family} daddr {vip} {protocol} dport {PORT}-{last} dnat to jhash {family} saddr . {protocol} sport \
             mod {count} map {{ {backends} }} : {NODE_PORT}\n",
            last = PORT + 1,
            count = 2 * u16::from(BACKENDS),
        )
    };
    let four = backends(|address| address.to_string());
    let by_six = backends(|address| six(address).to_string());
    let vip6 = six(VIP).to_string();
    [
        (
            "ip",
            dnat("ip", VIP.to_string(), "tcp", &four) + &dnat("ip", VIP.to_string(), "udp", &four),
        ),
        ("ip6", dnat("ip6", vip6, "tcp", &by_six)),
    ]
    .map(|(family, rules)| {
        format!(
            "table {family} nat {{
{table}{forward}  chain prerouting {{
    type nat hook prerouting priority dstnat;
{rules}  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    oifname {{ eth1, eth2 }} masquerade
  }}
}}
"
        )
    })
    .concat()
}

/// IPVS by the hash of the source, and masquerade.
pub(crate) fn ipvs() -> String {
    let mut lines = String::from("set -e\n");
    for (port, network) in [(PORT, 1), (PORT + 1, 2)] {
        for protocol in ["-t", "-u"] {
            lines += &format!("ipvsadm -A {protocol} {VIP}:{port} -s mh -b mh-port\n");
            for last in 1..=BACKENDS {
                let to = format!("{}:{NODE_PORT}", path::address(network, 1, last));
                lines += &format!("ipvsadm -a {protocol} {VIP}:{port} -r {to} -m\n");
            }
        }
    }
    lines
        + "nft add table ip nat\n\
        nft 'add chain ip nat out { type nat hook postrouting priority srcnat; }'\n\
        nft 'add rule ip nat out oifname { eth1, eth2 } masquerade'\n"
}
