//! The configuration of every carrier of connections, in its own language.

use lb_tests::{product::config::Config, topology::path, traffic::hello::CAPTURED_NAME};
use serde_json::json;

use crate::path::configurations::{BACKENDS, NODE_PORT, PORT, VIP};

/// The chain of nftables that gives connections to backends a source address of the load balancer's host.
const MASQUERADE: &str = "  chain postrouting {
    type nat hook postrouting priority srcnat;
    oifname eth1 masquerade
  }
";
/// `nf_conntrack_tcp_loose` beside [`synproxy`]: an ACK that returns a cookie is of no connection yet, and opens none.
pub(crate) const TCP_LOOSE: &str = "0";

/// The addresses of the backends, with their port.
fn backends() -> impl Iterator<Item = String> {
    (1..=BACKENDS).map(|last| format!("{}:{NODE_PORT}", path::address(1, 1, last)))
}

/// `lb`: a service that looks at addresses, or one that looks at the name in the hello, or that of the request: `sni`
/// and `http`.
pub(crate) fn lb(by_name: Option<&str>) -> Config {
    let [tenant, mgmt, ..] = path::NETWORKS.map(|network| format!("{network}/16"));
    let snat = (1..=10).map(|last| path::address(1, 2, last));
    let routes = json!([{ "names": [CAPTURED_NAME], "pool": "one" }]);
    Config::new()
        .network("tenant", |network| network.nic("tenant", "eth0", &tenant))
        .network("mgmt", |network| {
            network.nic("mgmt", "eth1", &mgmt).snat(snat)
        })
        .pool("one", |pool| pool.on("mgmt").backends(backends()))
        .service("shared", |service| {
            let service = service.on("tenant").tcp(format!("{VIP}:{PORT}"));
            match by_name {
                Some(way) => service.set(&format!("{way}.routes"), routes),
                None => service.pool("one"),
            }
        })
        .set("limits.snat_addresses", 10)
}

/// The same by addresses alone; `syn_cookies` says when SYNs are answered by cookies.
pub(crate) fn lb_by_address(syn_cookies: &str) -> Config {
    lb(None).service("shared", |service| service.set("syn_cookies", syn_cookies))
}

/// The kernel's NAT: DNAT by a hash of the client to all backends, and masquerade.
pub(crate) fn nft(flowtable: bool) -> String {
    let fast = if flowtable {
        "  flowtable fast { hook ingress priority 0; devices = { eth0, eth1 }; }
  chain forward {
    type filter hook forward priority 0;
    ct state established flow add @fast
  }
"
    } else {
        ""
    };
    format!(
        "table ip nat {{
{fast}  chain prerouting {{
    type nat hook prerouting priority dstnat;
    {to_vip} {dnat}
  }}
{MASQUERADE}}}
",
        to_vip = to_vip(),
        dnat = dnat(),
    )
}

/// The same behind synproxy, which answers SYNs by cookies. These are not tracked and get no DNAT, so that they and what returns
/// the cookies go to the host itself, where synproxy takes them. The SYN that it makes for the backend then passes the output hook and
/// not prerouting: there the connection gets its DNAT, that of its later packets too.
///
/// It offers no TCP timestamps, and so neither window scaling nor SACK: with them the first ACK that synproxy sends to a backend
/// echoes a timestamp that is not the backend's, which Linux refuses (`TcpExtTSEcrRejected`), and a hundredth of connections waits
/// until the backend repeats its SYN-ACK.
pub(crate) fn synproxy() -> String {
    format!(
        "# sysctl net.netfilter.nf_conntrack_tcp_loose={TCP_LOOSE}
table ip nat {{
  chain prerouting {{
    type filter hook prerouting priority raw;
    {to_vip} tcp flags syn notrack
  }}
  chain input {{
    type filter hook input priority filter;
    {to_vip} ct state invalid,untracked synproxy mss 1460
    ct state invalid drop
  }}
  chain output {{
    type nat hook output priority -100;
    {to_vip} {dnat}
  }}
{MASQUERADE}}}
",
        to_vip = to_vip(),
        dnat = dnat(),
    )
}

/// What nftables finds of the clients' packets.
fn to_vip() -> String {
    format!("ip daddr {VIP} tcp dport {PORT}")
}

/// Where nftables takes them.
fn dnat() -> String {
    let backends = (0..BACKENDS).map(|place| {
        let address = path::address(1, 1, 1 + place);
        format!("{place} : {address}")
    });
    format!(
        "dnat to jhash ip saddr . tcp sport mod {BACKENDS} map {{ {backends} }} : {NODE_PORT}",
        backends = backends.collect::<Vec<_>>().join(", "),
    )
}

/// IPVS by the hash of the source, and masquerade.
pub(crate) fn ipvs() -> String {
    let backends =
        backends().map(|backend| format!("ipvsadm -a -t {VIP}:{PORT} -r {backend} -m\n"));
    format!(
        "set -e
ipvsadm -A -t {VIP}:{PORT} -s mh -b mh-port
{backends}nft add table ip nat
nft 'add chain ip nat out {{ type nat hook postrouting priority srcnat; }}'
nft 'add rule ip nat out oifname eth1 masquerade'
",
        backends = backends.collect::<String>(),
    )
}

/// HAProxy with so many threads.
pub(crate) fn haproxy(splices: bool, by_name: bool, threads: usize) -> String {
    let splice = if splices {
        "  option splice-auto\n"
    } else {
        ""
    };
    let to = if by_name {
        format!(
            "  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  use_backend one if {{ req_ssl_sni -i {CAPTURED_NAME} }}"
        )
    } else {
        "  default_backend one".to_owned()
    };
    let servers = backends().enumerate();
    let servers = servers.map(|(number, backend)| format!("  server s{number} {backend}\n"));
    format!(
        "global
  nbthread {threads}
  maxconn 2000
defaults
  mode tcp
{splice}  timeout connect 10s
  timeout client 1m
  timeout server 1m
frontend clients
  bind {VIP}:{PORT}
{to}
backend one
{servers}",
        servers = servers.collect::<String>(),
    )
}

/// nginx with one process; `module` is its line that loads `stream`, where that is a module.
pub(crate) fn nginx(module: &str, by_name: bool) -> String {
    let servers = backends().map(|backend| format!("    server {backend};\n"));
    let servers: String = servers.collect();
    let (map, pass) = if by_name {
        (
            format!("  map $ssl_preread_server_name $to {{ {CAPTURED_NAME} one; }}\n"),
            "ssl_preread on; proxy_pass $to;",
        )
    } else {
        (String::new(), "proxy_pass one;")
    };
    format!(
        "{module}daemon off;
master_process off;
user root;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
stream {{
{map}  upstream one {{
{servers}  }}
  server {{ listen {VIP}:{PORT} backlog=4096; {pass} }}
}}
"
    )
}
