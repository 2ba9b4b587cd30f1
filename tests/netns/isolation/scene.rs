//! Two tenants with the same services on one machine: a load balancer for plain TCP, for UDP, a VIP shared by
//! SNI and one shared by Host. All of their connections come from one SNAT address with a thousand ports.

use std::net::{IpAddr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use anyhow::Result;
use lb_common::addr::Mac;
use lb_tests::{
    oracle::observe,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::{echo::EchoServer, teller::Teller, web::Web},
    topology::{DNS, ECHO, ECHO6, Host, TENANT_NIC, Trunk, VIP, address6, mac_of},
    traffic::load::Mirror,
};
use serde_json::json;

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

/// What is unusual about a scene.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup<'s> {
    /// What is more in its configuration.
    pub(super) config: fn(Config) -> Config,
    /// What `lb` is started by.
    pub(super) through: &'s [&'s str],
    /// Which node has the backends of each tenant.
    pub(super) nodes: [usize; 2],
    /// Whether there is IPv6 as well.
    pub(super) six: bool,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            config: |config| config,
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
    pub(super) fn start(trunk: &'t Trunk, setup: Setup<'_>) -> Result<Self> {
        if setup.six {
            add_ipv6(trunk)?;
        }
        let servers = (0..).zip(TENANTS).map(|(number, name)| {
            let node = &trunk.nodes[setup.nodes[usize::from(number)]];
            servers(node, number, name, setup.six)
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let config = (setup.config)(config(trunk, &setup));
        Ok(Self {
            trunk,
            _lb: Lb::start_through(trunk, &config, setup.through)?,
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

fn config(trunk: &Trunk, setup: &Setup<'_>) -> Config {
    let prefix = "192.168.203.0/24";
    let networks = Config::new()
        .mgmt()
        .network("mgmt", |mgmt| mgmt.snat_ports(20_000, 20_999))
        .network(TENANTS[0], |tenant| tenant.tenant(2003, prefix))
        .network(TENANTS[1], |tenant| tenant.tenant(2004, prefix));
    let networks = match setup.six {
        true => networks.with_ipv6(&TENANTS),
        false => networks,
    };
    (0_u16..)
        .zip(TENANTS)
        .zip(setup.nodes)
        .fold(networks, |config, ((number, tenant), node)| {
            let config = services(config, &trunk.nodes[node], number, tenant);
            match setup.six {
                true => six(config, &trunk.nodes[node], number, tenant),
                false => config,
            }
        })
}

/// Adds the pools and the services of a tenant.
fn services(config: Config, node: &Host, number: u16, tenant: &str) -> Config {
    let of = |kind: &str| format!("{kind}-{tenant}");
    let at = |port: u16| [SocketAddrV4::new(node.address, port + number)];
    let route = |name: &str, kind: &str| json!({ "names": [name], "pool": of(kind) });
    let service = |service: Keys| service.on(tenant);
    config
        .mgmt_pool(&of("echo"), at(ECHO_PORT))
        .mgmt_pool(&of("dns"), at(DNS_PORT))
        .mgmt_pool(&of("sni"), at(SNI_PORT))
        .mgmt_pool(&of("web"), at(WEB_PORT))
        .mgmt_pool(&of("absent"), ["10.32.96.200:31443"])
        .service(&of("echo"), |echo| {
            service(echo).tcp(ECHO).pool(&of("echo"))
        })
        .service(&of("dns"), |dns| service(dns).udp(DNS).pool(&of("dns")))
        .service(&of("sni"), |sni| {
            let routes = [route(NAME, "sni"), route(ABSENT, "absent")];
            service(sni).tcp(SHARED).set("sni.routes", routes)
        })
        .service(&of("web"), |web| {
            let routes = [route(NAME, "web")];
            service(web).tcp(WEB).set("http.routes", routes)
        })
}

/// Adds the service of a tenant by IPv6.
fn six(config: Config, node: &Host, number: u16, tenant: &str) -> Config {
    let name = format!("echo6-{tenant}");
    let backend = SocketAddrV6::new(address6(node), ECHO_PORT + number, 0, 0);
    config
        .mgmt_pool(&name, [backend])
        .service(&name, |echo| echo.on(tenant).tcp(ECHO6).pool(&name))
}
