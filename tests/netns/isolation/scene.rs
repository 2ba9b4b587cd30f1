//! Two tenants with the same services on one machine: a load balancer for plain TCP, for UDP, a VIP shared by
//! SNI and one shared by Host. All of their connections come from one SNAT address with a thousand ports.

use std::net::{IpAddr, Ipv6Addr, SocketAddrV4};

use anyhow::Result;
use lb_common::addr::Mac;
use lb_tests::{
    oracle::observe,
    product::lb::Lb,
    servers::{echo::EchoServer, teller::Teller, web::Web},
    topology::{DNS, ECHO, ECHO6, Host, TENANT_NIC, Trunk, VIP, address6, mac_of},
    traffic::load::Mirror,
};

/// The VIP that is shared by SNI, and the one that is shared by Host.
pub(super) const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
pub(super) const WEB: SocketAddrV4 = SocketAddrV4::new(VIP, 80);
/// The name that both tenants have at their shared VIPs, and one whose backend is not there.
pub(super) const NAME: &str = "shared.lab";
pub(super) const ABSENT: &str = "absent.lab";
/// NodePorts of the first tenant; the second one has the next ones.
const ECHO_PORT: u16 = 30_700;
const DNS_PORT: u16 = 30_053;
const SNI_PORT: u16 = 31_443;
const WEB_PORT: u16 = 31_080;
/// How the tenants are called, in configurations and in answers.
pub(super) const TENANTS: [&str; 2] = ["tenant-a", "tenant-b"];

/// What is unusual about a scene; what is more of a network begins with a comma.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'w> {
    /// The ports of the SNAT address.
    pub(super) ports: &'w str,
    /// More prefixes of the first tenant.
    pub(super) prefixes: &'w str,
    /// More of its network.
    pub(super) network: &'w str,
    /// Top-level keys.
    pub(super) top: &'w str,
    /// What `lb` is started by.
    pub(super) through: &'w [&'w str],
    /// Which node has the backends of each tenant.
    pub(super) nodes: [usize; 2],
    /// Whether there is IPv6 as well.
    pub(super) six: bool,
}

impl Default for Words<'_> {
    fn default() -> Self {
        Self {
            ports: "20000-20999",
            prefixes: "",
            network: "",
            top: "",
            through: &[],
            nodes: [0, 1],
            six: false,
        }
    }
}

/// The servers of a tenant.
type Servers<'t> = (Vec<EchoServer<'t>>, Mirror, Teller, Web);

/// The tenants, their servers, and `lb` between them.
pub(super) struct Scene<'t> {
    pub(super) trunk: &'t Trunk,
    _lb: Lb<'t>,
    _servers: Vec<Servers<'t>>,
}

impl<'t> Scene<'t> {
    pub(super) fn start(trunk: &'t Trunk, words: Words<'_>) -> Result<Self> {
        if words.six {
            add_ipv6(trunk)?;
        }
        let servers = (0..).zip(TENANTS).map(|(number, name)| {
            let node = &trunk.nodes[words.nodes[usize::from(number)]];
            servers(node, number, name, words.six)
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let config = config(trunk, &words);
        Ok(Self {
            trunk,
            _lb: Lb::start_through(trunk, &config, words.through)?,
            _servers: servers,
        })
    }

    /// The host of the first tenant that attacks.
    pub(super) fn attacker(&self) -> &'t Host {
        self.trunk.tenants[0].client()
    }

    /// The stations of a frame from the attacker to `lb`.
    pub(super) fn hops(&self) -> Result<[Mac; 2]> {
        let from = mac_of(&self.attacker().netns, "eth0")?;
        Ok([from, self.trunk.mac(TENANT_NIC)?])
    }

    /// Frames that have come to the NIC of the tenants, as the driver counts them.
    pub(super) fn arrived(&self) -> Result<u64> {
        Ok(observe::link(&self.trunk.lb, TENANT_NIC)?.rx_packets)
    }

    /// Connections to a tenant's TCP backend that stand, as the kernel of the node counts them.
    pub(super) fn standing(&self, tenant: u16) -> Result<usize> {
        let node = &self.trunk.nodes[usize::from(tenant)];
        let port = ECHO_PORT + tenant;
        let line = format!("ss -Htn state established sport = :{port}");
        Ok(node.netns.run(&line)?.lines().count())
    }
}

fn servers<'t>(node: &'t Host, number: u16, name: &str, six: bool) -> Result<Servers<'t>> {
    let at = |port| SocketAddrV4::new(node.address, port);
    let mut echo = vec![EchoServer::start(
        &node.netns,
        at(ECHO_PORT + number),
        name,
    )?];
    if six {
        let at = (IpAddr::from(address6(node)), ECHO_PORT + number);
        echo.push(EchoServer::start(&node.netns, at, name)?);
    }
    Ok((
        echo,
        Mirror::start(node, DNS_PORT + number)?,
        Teller::start_listening(&node.netns, at(SNI_PORT + number), name)?,
        Web::start(node, WEB_PORT + number, name)?,
    ))
}

/// Gives the first client of each tenant and the nodes IPv6: `fd00:203::50`, `fd00:32::105`.
fn add_ipv6(trunk: &Trunk) -> Result<()> {
    let clients = trunk.tenants.iter().map(lb_tests::topology::Tenant::client);
    for host in clients.chain(&trunk.nodes) {
        let address: Ipv6Addr = address6(host);
        let [.., last] = address.segments();
        let addresses = [format!("{address}/64"), format!("fe80::{last:x}/64")];
        host.netns.add_ipv6("eth0", &addresses)?;
    }
    Ok(())
}

fn config(trunk: &Trunk, words: &Words<'_>) -> String {
    let Words {
        ports,
        prefixes,
        network,
        top,
        ..
    } = words;
    let [mgmt6, snat6, tenant6] = match words.six {
        true => [
            ", \"fd00:32::/64\"",
            ", \"fd00:32::50\"",
            ", \"fd00:203::/64\"",
        ],
        false => [""; 3],
    };
    let (mut pools, mut services) = (String::new(), String::new());
    for (number, tenant) in (0_u16..).zip(TENANTS) {
        let node = &trunk.nodes[words.nodes[usize::from(number)]];
        let mut pool = |kind: &str, backend: String| {
            pools +=
                &format!("  {kind}-{tenant}: {{ network: mgmt, backends: [\"{backend}\"] }}\n");
        };
        for (kind, port) in [
            ("echo", ECHO_PORT),
            ("dns", DNS_PORT),
            ("sni", SNI_PORT),
            ("web", WEB_PORT),
        ] {
            pool(kind, format!("{}:{}", node.address, port + number));
        }
        pool("absent", format!("10.32.96.200:{SNI_PORT}"));
        let mut service = |kind: &str, listen: String, leads: String| {
            services += &format!(
                "  {kind}-{tenant}: {{ network: {tenant}, listen: [\"{listen}\"], {leads} }}\n"
            );
        };
        if words.six {
            let backend = format!("[{}]:{}", address6(node), ECHO_PORT + number);
            pool("echo6", backend);
            let leads = format!("pool: echo6-{tenant}");
            service("echo6", format!("{ECHO6}/tcp"), leads);
        }
        service(
            "echo",
            format!("{ECHO}/tcp"),
            format!("pool: echo-{tenant}"),
        );
        service("dns", format!("{DNS}/udp"), format!("pool: dns-{tenant}"));
        let routes = format!(
            "routes: [{{ names: [{NAME}], pool: sni-{tenant} }}, {{ names: [{ABSENT}], pool: absent-{tenant} }}]"
        );
        service(
            "sni",
            format!("{SHARED}/tcp"),
            format!("sni: {{ {routes} }}"),
        );
        let routes = format!("routes: [{{ names: [{NAME}], pool: web-{tenant} }}]");
        service("web", format!("{WEB}/tcp"), format!("http: {{ {routes} }}"));
    }
    format!(
        "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.96.0/20{mgmt6}], snat: [{{ address: 10.32.96.50, ports: {ports} }}{snat6}] }}
  tenant-a: {{ role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24{prefixes}{tenant6}]{network} }}
  tenant-b: {{ role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24{tenant6}] }}
pools:
{pools}services:
{services}{top}
"
    )
}
