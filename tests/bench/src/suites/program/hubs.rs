//! The networks of many flows, and what comes from them.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
};

use lb_tests::{
    frames::packet::{Frame, flags::ACK_ONLY, tcp},
    product::{
        config::{Config, Keys},
        program::{Action, CLIENT, MGMT_NIC, Port, TENANT_NIC, node_mac},
        vary_prog_run::{Packets, Varied, padded},
    },
};

use super::stand::Leg;

/// Where all clients go to.
pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 255, 1);
/// SNAT addresses of a hub: each has 56,320 flows.
const ADDRESSES: u8 = 10;
const BACKENDS: u8 = 32;
pub(super) const NODE_PORT: u16 = 30_000;

/// Where backends are: each has half of the SNAT addresses, with 56,320 flows each.
pub(super) struct Hub {
    pub(super) name: &'static str,
    port: Port,
    /// Second octet of all its addresses.
    octet: u8,
    /// Port of the service whose backends are there.
    pub(super) service: u16,
}

pub(super) const HUBS: [Hub; 2] = [
    Hub {
        name: "hub-a",
        port: Port::Mgmt,
        octet: 1,
        service: 6443,
    },
    Hub {
        name: "hub-b",
        port: Port::SecondMgmt,
        octet: 2,
        service: 6444,
    },
];

impl Hub {
    /// Adds its network, and a service for it.
    fn add_to(
        config: Config,
        &Self {
            name,
            octet,
            service,
            ..
        }: &Self,
    ) -> Config {
        let interface = if octet == 1 { "eth1" } else { "eth2" };
        let snat = (1..=ADDRESSES).map(|host| Ipv4Addr::new(10, octet, 1, host));
        let backends = (1..=BACKENDS).map(|host| Ipv4Addr::new(10, octet, 2, host));
        let backends = backends.map(|address| SocketAddrV4::new(address, NODE_PORT));
        config
            .network(name, |network| {
                let network = network.nic("mgmt", interface, &format!("10.{octet}.0.0/16"));
                network.snat(snat)
            })
            .pool(name, |pool| pool.on(name).backends(backends))
            .service(name, |each| {
                let at = SocketAddrV4::new(VIP, service);
                each.on("clients").tcp(at).pool(name)
            })
    }

    /// Data of any client; see [`Packets::frames`].
    pub(super) fn request(&self, flags: u8) -> Frame {
        let [a, b, ..] = VIP.octets();
        let vip = format!("{a}.{b}.0.0:{}", self.service);
        tcp("0.0.0.0:0", &vip, flags).between(CLIENT, TENANT_NIC)
    }

    /// Data of any backend.
    pub(super) fn reply(&self, flags: u8) -> Frame {
        let backend = format!("10.{}.0.0:{NODE_PORT}", self.octet);
        let node = node_mac(Ipv4Addr::new(10, self.octet, 2, 1));
        tcp(&backend, "0.0.0.0:0", flags).between(node, MGMT_NIC)
    }

    pub(super) fn segments(&self, is_reply: bool, turns: Range<u32>, times: u32) -> Leg {
        if is_reply {
            let data = self.reply(ACK_ONLY).numbers(5001, 1001);
            self.leg(&data, Some((Varied::Destination, turns)), times)
        } else {
            let data = self.request(ACK_ONLY).numbers(1001, 5001);
            self.leg(&data, Some((Varied::Source, turns)), times)
        }
    }

    pub(super) fn leg(
        &self,
        frame: &Frame,
        varied: Option<(Varied, Range<u32>)>,
        times: u32,
    ) -> Leg {
        let is_reply = matches!(varied, Some((Varied::Destination, _)));
        let (port, network) = if is_reply {
            (self.port, self.name)
        } else {
            (Port::Tenant, "clients")
        };
        Leg {
            port,
            packets: Packets {
                frames: vec![padded(frame.bytes())],
                varied,
            },
            times,
            action: Action::Redirect,
            counted: ("nic", network, "forwarded"),
        }
    }
}

/// The configuration of all.
pub(super) fn config() -> Config {
    let clients = |clients: Keys| {
        let clients = clients.nic("tenant", "eth0", "192.168.0.0/16");
        clients.set("half_open", 65_536)
    };
    let config = Config::new().network("clients", clients);
    let config = HUBS.iter().fold(config, Hub::add_to);
    config.set("limits.snat_addresses", 2 * ADDRESSES)
}
