//! Flows of IPv6 in the configuration of every path, with one packet each way.

use std::net::{Ipv6Addr, SocketAddrV6};

use anyhow::{Context as _, Result};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp, udp},
    product::program::{Action, CLIENT, MGMT_NIC, Port, TENANT_NIC, node_mac6},
};

use super::{
    paths::{Both, from_client, reply, request},
    stand::Stand,
};

const HOST: &str = "[fd00:203::50]:40000";
const API: &str = "[fd00:203::110]:6443";
const DNS: &str = "[fd00:203::110]:53";
const KAS: &str = "[fd00:32::105]:30918";
const RESOLVER: &str = "[fd00:32::106]:30053";

/// A connection of TCP, and a flow of UDP.
pub(super) fn flows(stand: &mut Stand) -> Result<[Both; 2]> {
    Ok([tcp_flow(stand)?, udp_flow(stand)?])
}

fn tcp_flow(stand: &mut Stand) -> Result<Both> {
    let syn = from_client(HOST, API, SYN_ONLY).numbers(1000, 0);
    let snat = sent_from(stand, &syn)?;
    let from_node = |flags| from_node(tcp(KAS, &snat, flags));
    let syn_ack = from_node(SYN_ACK).numbers(5000, 1001);
    stand.send(Port::Mgmt, &syn_ack.bytes(), Action::Redirect)?;
    let data = from_client(HOST, API, ACK_ONLY).numbers(1001, 5001);
    stand.send(Port::Tenant, &data.bytes(), Action::Redirect)?;
    let answer = from_node(ACK_ONLY).numbers(5001, 1001);
    Ok([
        ("TCP request, IPv6", request(&data)),
        ("TCP reply, IPv6", reply(&answer)),
    ])
}

fn udp_flow(stand: &mut Stand) -> Result<Both> {
    let query = udp(HOST, DNS).between(CLIENT, TENANT_NIC);
    let snat = sent_from(stand, &query)?;
    let answer = from_node(udp(RESOLVER, &snat));
    stand.send(Port::Mgmt, &answer.bytes(), Action::Redirect)?;
    Ok([
        ("UDP request, IPv6", request(&query)),
        ("UDP reply, IPv6", reply(&answer)),
    ])
}

/// Sends a flow's first packet; address and port that the backend sees.
fn sent_from(stand: &mut Stand, first: &Frame) -> Result<String> {
    let sent = stand.send(Port::Tenant, &first.bytes(), Action::Redirect)?;
    let address: [u8; 16] = sent.get(22..38).context("no address")?.try_into()?;
    let port = sent.get(54..56).context("no port")?.try_into()?;
    let end = SocketAddrV6::new(Ipv6Addr::from(address), u16::from_be_bytes(port), 0, 0);
    Ok(end.to_string())
}

fn from_node(frame: Frame) -> Frame {
    let node = node_mac6(Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x105));
    frame.between(node, MGMT_NIC)
}
