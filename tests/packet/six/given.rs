//! What tests of IPv6 alone need of [`Family::V6`], by name.

use std::net::Ipv6Addr;

use lb_common::addr::Mac;

pub(crate) use super::super::given::{
    BACKEND_ISN, CLIENT_ISN, Family, assert_dropped, assert_frame, assert_passed, assert_refused,
    forwarded, passed_on, request, set_mtu,
};
pub(crate) use lb_tests::{
    frames::packet::{Frame, flags::*, icmp, tcp, udp},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC},
};

pub(crate) const CONFIG: &str = Family::V6.config;
pub(crate) const VIP: &str = Family::V6.vip;
pub(crate) const SNAT: &str = Family::V6.snat;
pub(crate) const HOST: &str = Family::V6.host;
pub(crate) const NODE: &str = Family::V6.node;
pub(crate) const CLIENT_A: &str = Family::V6.client_a;
pub(crate) const CLIENT_B: &str = Family::V6.client_b;
pub(crate) const API: &str = Family::V6.api;
pub(crate) const DNS: &str = Family::V6.dns;
pub(crate) const KAS: &str = Family::V6.kas;
pub(crate) const RESOLVER: &str = Family::V6.resolver;
pub(crate) const KAS_MAC: Mac = Family::V6.kas_mac;
pub(crate) const RESOLVER_MAC: Mac = Family::V6.resolver_mac;

/// The link-local address that the cell of a network has whose NIC has this MAC.
pub(crate) fn link_local(mac: Mac) -> String {
    let [a, b, c, d, e, f] = mac.bytes();
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..].copy_from_slice(&[a ^ 2, b, c, 0x6c, 0x62, d, e, f]);
    Ipv6Addr::from(octets).to_string()
}

/// See [`Family::snat`].
pub(crate) fn snat(port: u16) -> String {
    Family::V6.snat(port)
}

/// See [`Family::reply`].
pub(crate) fn reply(port: u16, flags: u8) -> Frame {
    Family::V6.reply(port, flags)
}

/// See [`Family::query`].
pub(crate) fn query(client: &str) -> Frame {
    Family::V6.query(client)
}

/// See [`Family::answer`].
pub(crate) fn answer(port: u16) -> Frame {
    Family::V6.answer(port)
}

/// See [`Family::establish`].
pub(crate) fn establish(lb: &mut DataPlane, client: &str, port: u16) {
    Family::V6.establish(lb, client, port);
}
