//! The families of IP: a configuration for each, its addresses by name, and what frames of it look like.

use std::net::{Ipv4Addr, Ipv6Addr};

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC, node_mac, node_mac6},
};

use super::given::{forwarded, request};

/// The client's first sequence number in [`Family::establish`]; the backend's is [`BACKEND_ISN`].
pub(crate) const CLIENT_ISN: u32 = 1000;
/// See [`CLIENT_ISN`].
pub(crate) const BACKEND_ISN: u32 = 5000;

/// What a test of both families takes of the one that it runs for.
#[derive(Debug)]
pub(crate) struct Family {
    /// One TCP and one UDP service with one backend each, and a service without backends.
    pub(crate) config: &'static str,
    /// The prefix of the tenant's network.
    pub(crate) tenant: &'static str,
    /// A client's address.
    pub(crate) host: &'static str,
    /// A port of it.
    pub(crate) client_a: &'static str,
    /// The same port of another one.
    pub(crate) client_b: &'static str,
    /// The address of all services.
    pub(crate) vip: &'static str,
    /// The TCP service.
    pub(crate) api: &'static str,
    /// The UDP service.
    pub(crate) dns: &'static str,
    /// The service without backends.
    pub(crate) empty: &'static str,
    /// The address that all flows have towards backends.
    pub(crate) snat: &'static str,
    /// The address of the backend of the TCP service.
    pub(crate) node: &'static str,
    /// Its port.
    pub(crate) kas: &'static str,
    /// Its MAC.
    pub(crate) kas_mac: Mac,
    /// The address of the backend of the UDP service.
    pub(crate) resolver_node: &'static str,
    /// Its port.
    pub(crate) resolver: &'static str,
    /// Its MAC.
    pub(crate) resolver_mac: Mac,
    /// Bytes of a header without options and extension headers.
    pub(crate) header: usize,
    /// Type and code of an echo request.
    pub(crate) ping: (u8, u8),
    /// Of its answer.
    pub(crate) pong: (u8, u8),
    /// Of errors: there is no way, no socket, no room, no hop left, no sense in a header.
    pub(crate) no_route: (u8, u8),
    pub(crate) port_unreachable: (u8, u8),
    pub(crate) too_big: (u8, u8),
    pub(crate) time_exceeded: (u8, u8),
    pub(crate) parameter: (u8, u8),
}

impl Family {
    pub(crate) const V4: Self = Self {
        config: CONFIG_V4,
        tenant: "192.168.203.0/24",
        host: "192.168.203.50",
        client_a: "192.168.203.50:40000",
        client_b: "192.168.203.51:40000",
        vip: "192.168.203.110",
        api: "192.168.203.110:6443",
        dns: "192.168.203.110:53",
        empty: "192.168.203.110:80",
        snat: "10.32.96.50",
        node: "10.32.96.105",
        kas: "10.32.96.105:30918",
        kas_mac: node_mac(Ipv4Addr::new(10, 32, 96, 105)),
        resolver_node: "10.32.96.106",
        resolver: "10.32.96.106:30053",
        resolver_mac: node_mac(Ipv4Addr::new(10, 32, 96, 106)),
        header: 20,
        ping: (8, 0),
        pong: (0, 0),
        no_route: (3, 0),
        port_unreachable: (3, 3),
        too_big: (3, 4),
        time_exceeded: (11, 0),
        parameter: (12, 0),
    };

    pub(crate) const V6: Self = Self {
        config: CONFIG_V6,
        tenant: "fd00:203::/64",
        host: "fd00:203::50",
        client_a: "[fd00:203::50]:40000",
        client_b: "[fd00:203::51]:40000",
        vip: "fd00:203::110",
        api: "[fd00:203::110]:6443",
        dns: "[fd00:203::110]:53",
        empty: "[fd00:203::110]:80",
        snat: "fd00:32::50",
        node: "fd00:32::105",
        kas: "[fd00:32::105]:30918",
        kas_mac: node_mac6(Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x105)),
        resolver_node: "fd00:32::106",
        resolver: "[fd00:32::106]:30053",
        resolver_mac: node_mac6(Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x106)),
        header: 40,
        ping: (128, 0),
        pong: (129, 0),
        no_route: (1, 0),
        port_unreachable: (1, 4),
        too_big: (2, 0),
        time_exceeded: (3, 0),
        parameter: (4, 1),
    };

    /// What is this family's.
    pub(crate) fn pick<T>(&self, v4: T, v6: T) -> T {
        match self.header {
            20 => v4,
            _ => v6,
        }
    }

    /// Offset of the layer-4 header of a frame without a tag.
    pub(crate) const fn l4(&self) -> usize {
        14 + self.header
    }

    /// `address:port`, or `[address]:port`.
    pub(crate) fn end(&self, address: &str, port: u16) -> String {
        self.pick(format!("{address}:{port}"), format!("[{address}]:{port}"))
    }

    /// This port of the SNAT address.
    pub(crate) fn snat(&self, port: u16) -> String {
        self.end(self.snat, port)
    }

    /// A TCP frame of the API backend to a SNAT port, as it arrives at the mgmt NIC.
    pub(crate) fn reply(&self, port: u16, flags: u8) -> Frame {
        let frame = tcp(self.kas, &self.snat(port), flags);
        frame.between(self.kas_mac, MGMT_NIC)
    }

    /// A UDP frame of a client to the DNS VIP.
    pub(crate) fn query(&self, client: &str) -> Frame {
        udp(client, self.dns).between(CLIENT, TENANT_NIC)
    }

    /// A UDP frame of the DNS backend to a SNAT port.
    pub(crate) fn answer(&self, port: u16) -> Frame {
        udp(self.resolver, &self.snat(port)).between(self.resolver_mac, MGMT_NIC)
    }

    /// As a packet of our own is: over IPv4 without an identification, because it cannot be fragmented.
    pub(crate) fn of_ours(&self, packet: Frame) -> Frame {
        match self.header {
            20 => packet.identification(0).fragment(0x4000),
            _ => packet,
        }
    }

    /// A data plane of [`Self::config`] in which `client_a` has a flow on SNAT port 1024.
    pub(crate) fn established(&self) -> DataPlane {
        let mut lb = DataPlane::new(self.config);
        self.establish(&mut lb, self.client_a, 1024);
        lb
    }

    /// Opens a TCP flow of `client` on SNAT `port` and completes its handshake.
    pub(crate) fn establish(&self, lb: &mut DataPlane, client: &str, port: u16) {
        let syn = request(client, self.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
        forwarded(lb, Port::Tenant, &syn);
        let syn_ack = self
            .reply(port, SYN_ACK)
            .numbers(BACKEND_ISN, CLIENT_ISN + 1);
        forwarded(lb, Port::Mgmt, &syn_ack);
        let ack = request(client, self.api, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
        forwarded(lb, Port::Tenant, &ack);
    }
}

const CONFIG_V4: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a:  { network: mgmt, backends: ["10.32.96.105:30918"] }
  dns-a:  { network: mgmt, backends: ["10.32.96.106:30053"] }
  none-a: { network: mgmt, backends: [] }
services:
  api-a:   { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a }
  dns-a:   { network: tenant-a, listen: ["192.168.203.110:53/udp"], pool: dns-a }
  empty-a: { network: tenant-a, listen: ["192.168.203.110:80/tcp"], pool: none-a }
"#;

const CONFIG_V6: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: ["fd00:32::/64"], snat: ["fd00:32::50"] }
  tenant-a: { role: tenant, interface: eth0, prefixes: ["fd00:203::/64"] }
pools:
  kas-a:  { network: mgmt, backends: ["[fd00:32::105]:30918"] }
  dns-a:  { network: mgmt, backends: ["[fd00:32::106]:30053"] }
  none-a: { network: mgmt, backends: [] }
services:
  api-a:   { network: tenant-a, listen: ["[fd00:203::110]:6443/tcp"], pool: kas-a }
  dns-a:   { network: tenant-a, listen: ["[fd00:203::110]:53/udp"], pool: dns-a }
  empty-a: { network: tenant-a, listen: ["[fd00:203::110]:80/tcp"], pool: none-a }
"#;
