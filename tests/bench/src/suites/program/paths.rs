//! Every way that a packet can go through the programs, with one packet each.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::SystemTime,
};

use anyhow::{Context as _, Result};
use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Frame, arp, flags::*, icmp, tag, tcp, udp, untagged},
    product::{
        program::{Action, CLIENT, MGMT_NIC, Port, TENANT_NIC, node_mac},
        vary_prog_run::{Packets, Turn, Varied, padded},
    },
};
use lb_user::dataplane::{cookie_secret::CookieSecret, cookies::Cookies};

use super::{
    handed::hand_over,
    paths6,
    stand::{Counted, Leg, Stand},
};

pub(super) const CONFIG: &str = r#"
version: 1
defaults: { service: { syn_cookies: never } }
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20, "fd00:32::/64"], snat: [10.32.96.50, "fd00:32::50"] }
  mgmt-v:   { role: mgmt,   interface: eth1, vlan: 100, prefixes: [10.33.96.0/20], snat: [10.33.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.0.0/16, "fd00:203::/64"], snat: [192.168.203.9] }
  tenant-v: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24] }
pools:
  kas:   { network: mgmt, backends: ["10.32.96.105:30918"] }
  dns:   { network: mgmt, backends: ["10.32.96.106:30053"] }
  kas-6: { network: mgmt, backends: ["[fd00:32::105]:30918"] }
  dns-6: { network: mgmt, backends: ["[fd00:32::106]:30053"] }
  apps:  { network: tenant-a, backends: ["192.168.203.101:30190"] }
  kas-v: { network: mgmt-v, backends: ["10.33.96.105:30918"] }
services:
  api:    { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas }
  dns:    { network: tenant-a, listen: ["192.168.203.110:53/udp"], pool: dns }
  api-6:  { network: tenant-a, listen: ["[fd00:203::110]:6443/tcp"], pool: kas-6 }
  dns-6:  { network: tenant-a, listen: ["[fd00:203::110]:53/udp"], pool: dns-6 }
  apps:   { network: tenant-a, listen: ["192.168.203.112:443/tcp"], pool: apps }
  closed: { network: tenant-a, listen: ["192.168.203.110:7443/tcp"], pool: kas, allow: [192.168.203.51/32] }
  cookie: { network: tenant-a, listen: ["192.168.203.110:9443/tcp"], pool: kas, syn_cookies: always }
  names:  { network: tenant-a, listen: ["192.168.203.110:8443/tcp"], sni: { routes: [{ names: [a.lab], pool: kas }] } }
  api-v:  { network: tenant-v, listen: ["192.168.203.110:6443/tcp"], pool: kas-v }
"#;

pub(super) const HOST: &str = "192.168.203.50:40000";
pub(super) const API: &str = "192.168.203.110:6443";
pub(super) const KAS: &str = "10.32.96.105:30918";
const KAS_V: &str = "10.33.96.105:30918";
const DNS: &str = "192.168.203.110:53";
const RESOLVER: &str = "10.32.96.106:30053";
const APPS: &str = "192.168.203.112:443";
const WORKER: &str = "192.168.203.101:30190";
pub(super) const NODE: Mac = node_mac(Ipv4Addr::new(10, 32, 96, 105));
const VLAN: [u16; 2] = [2003, 100];

/// Clients that open a connection, one after the other: when it is a client's turn again, its last one
/// has been over for long, and another one has its id.
pub(super) const NEW: u32 = 100_000;
/// Packets of a leg; [`NEW`] is a multiple of it.
const LEG: u32 = 10_000;
/// The same of those that are answered: a CPU may give 1000 answers in one go.
const ANSWERS: u32 = 900;

const REQUEST: Counted = ("nic", "tenant-a", "forwarded");
const REPLY: Counted = ("nic", "mgmt", "forwarded");

/// A way through the programs.
pub(super) struct Path {
    pub(super) name: &'static str,
    pub(super) legs: Vec<Leg>,
}

/// All of them, each with at least so many packets.
pub(super) fn paths(stand: &mut Stand, packets: u32) -> Result<Vec<Path>> {
    let mut all = Vec::new();
    let mut add = |name, leg: Leg, times: u32| {
        let leg = Leg { times, ..leg };
        let legs = in_legs(&leg, packets.div_ceil(times));
        all.push(Path { name, legs });
    };
    let [tcp6, udp6] = paths6::flows(stand).context("by IPv6")?;
    let both = [
        tcp_flow(stand)?,
        udp_flow(stand)?,
        tcp6,
        udp6,
        handed_over(stand)?,
    ];
    for [request, reply] in both {
        add(request.0, request.1, LEG);
        add(reply.0, reply.1, LEG);
    }
    add("new TCP flow", new_flow(stand)?, LEG);
    add("TCP request, VLAN to VLAN", tagged(stand)?, LEG);
    add("TCP request, one-arm", one_arm(stand)?, LEG);
    add("UDP fragments, first and last", fragments(), LEG);
    add("ICMP error to a client", icmp_error(stand)?, LEG);
    add("ARP answered", arp_in(), ANSWERS);
    add("ARP out of a cell (lb_cell)", arp_out(), LEG);
    let closed = "192.168.203.110:7443";
    add("denied by a rule", denied(closed, "denied"), LEG);
    let unknown = "192.168.203.110:81";
    add("no such service", denied(unknown, "no_service"), LEG);
    add("not ours, passes", passes(), LEG);
    add("echo answered", echo(), ANSWERS);
    add("SYN answered by a cookie", cookie(stand)?, ANSWERS);
    add("reset answered", reset(), ANSWERS);
    Ok(all)
}

/// So many legs like this one. Where packets differ, each has the next of them.
fn in_legs(leg: &Leg, count: u32) -> Vec<Leg> {
    let legs = (0..count).map(|number| {
        let mut leg = leg.clone();
        if let Some((_, turns)) = &mut leg.packets.varied {
            let first = turns.start + number * leg.times % (turns.end - turns.start);
            *turns = first..first + leg.times;
        }
        leg
    });
    legs.collect()
}

/// One packet, again and again.
fn same(port: Port, frame: Vec<u8>, action: Action, counted: Counted) -> Leg {
    Leg {
        port,
        packets: Packets {
            frames: vec![padded(frame)],
            varied: None,
        },
        times: 0,
        action,
        counted,
    }
}

pub(super) fn request(frame: &Frame) -> Leg {
    same(Port::Tenant, frame.bytes(), Action::Redirect, REQUEST)
}

pub(super) fn reply(frame: &Frame) -> Leg {
    same(Port::Mgmt, frame.bytes(), Action::Redirect, REPLY)
}

pub(super) fn from_client(client: &str, vip: &str, flags: u8) -> Frame {
    tcp(client, vip, flags).between(CLIENT, TENANT_NIC)
}

/// The source of a frame.
fn source(frame: &[u8]) -> Result<SocketAddrV4> {
    let (_, frame) = untagged(frame);
    let address = frame.get(26..30).context("no address")?;
    let port = frame.get(34..36).context("no port")?;
    let address: [u8; 4] = address.try_into()?;
    let port = u16::from_be_bytes(port.try_into()?);
    Ok(SocketAddrV4::new(address.into(), port))
}

/// Requests and replies of a flow.
pub(super) type Both = [(&'static str, Leg); 2];

fn tcp_flow(stand: &mut Stand) -> Result<Both> {
    let syn = from_client(HOST, API, SYN_ONLY).numbers(1000, 0);
    let sent = stand.send(Port::Tenant, &syn.bytes(), Action::Redirect)?;
    let snat = source(&sent)?.to_string();
    let from_node = |flags| tcp(KAS, &snat, flags).between(NODE, MGMT_NIC);
    let syn_ack = from_node(SYN_ACK).numbers(5000, 1001);
    stand.send(Port::Mgmt, &syn_ack.bytes(), Action::Redirect)?;
    let data = from_client(HOST, API, ACK_ONLY).numbers(1001, 5001);
    stand.send(Port::Tenant, &data.bytes(), Action::Redirect)?;
    let answer = from_node(ACK_ONLY).numbers(5001, 1001);
    Ok([
        ("TCP request", request(&data)),
        ("TCP reply", reply(&answer)),
    ])
}

fn udp_flow(stand: &mut Stand) -> Result<Both> {
    let query = udp(HOST, DNS).between(CLIENT, TENANT_NIC);
    let sent = stand.send(Port::Tenant, &query.bytes(), Action::Redirect)?;
    let snat = source(&sent)?.to_string();
    let answer = udp(RESOLVER, &snat).between(NODE, MGMT_NIC);
    stand.send(Port::Mgmt, &answer.bytes(), Action::Redirect)?;
    Ok([
        ("UDP request", request(&query)),
        ("UDP reply", reply(&answer)),
    ])
}

fn handed_over(stand: &mut Stand) -> Result<Both> {
    let [data, answer] = hand_over(stand).context("hand a connection over")?;
    Ok([
        ("TCP request, handed over", request(&data)),
        ("TCP reply, handed over", reply(&answer)),
    ])
}

fn new_flow(stand: &mut Stand) -> Result<Leg> {
    let first = u32::from(Ipv4Addr::new(192, 168, 1, 0));
    let other = Ipv4Addr::new(192, 168, 203, 110);
    let turns = (0..NEW).map(|number| {
        let port = u16::try_from(10_000 + number % 10_000).unwrap_or(u16::MAX);
        let end = SocketAddrV4::new((first + number / 10_000).into(), port);
        Turn { end, other }
    });
    let turns = stand.vary.write_turns(0, turns)?;
    let syn = from_client("0.0.0.0:0", "192.168.0.0:6443", SYN_ONLY);
    let mut leg = request(&syn.numbers(1000, 0));
    leg.packets.varied = Some((Varied::Source, turns));
    Ok(leg)
}

fn cookie(stand: &Stand) -> Result<Leg> {
    let secret = CookieSecret::new(b"of the bench");
    Cookies::open(&stand.plane.maps_folder(), secret)?.follow(SystemTime::now());
    let syn = from_client(HOST, "192.168.203.110:9443", SYN_ONLY);
    let counted = ("nic", "tenant-a", "transmitted");
    Ok(same(Port::Tenant, syn.bytes(), Action::Transmit, counted))
}

fn tagged(stand: &mut Stand) -> Result<Leg> {
    let from_client = |flags| from_client(HOST, API, flags).tagged(0x8100, VLAN[0]);
    let syn = from_client(SYN_ONLY).numbers(1000, 0);
    let sent = stand.send(Port::Tenant, &syn.bytes(), Action::Redirect)?;
    let snat = source(&sent)?.to_string();
    let syn_ack = tcp(KAS_V, &snat, SYN_ACK).numbers(5000, 1001);
    let syn_ack = tag(&syn_ack.between(NODE, MGMT_NIC).bytes(), VLAN[1]);
    stand.send(Port::Mgmt, &syn_ack, Action::Redirect)?;
    let data = from_client(ACK_ONLY).numbers(1001, 5001);
    let counted = ("nic", "tenant-v", "forwarded");
    Ok(same(Port::Tenant, data.bytes(), Action::Redirect, counted))
}

fn one_arm(stand: &mut Stand) -> Result<Leg> {
    let syn = from_client(HOST, APPS, SYN_ONLY).numbers(1000, 0);
    let sent = stand.send(Port::Tenant, &syn.bytes(), Action::Transmit)?;
    let snat = source(&sent)?.to_string();
    let worker = node_mac(Ipv4Addr::new(192, 168, 203, 101));
    let syn_ack = tcp(WORKER, &snat, SYN_ACK).numbers(5000, 1001);
    let syn_ack = syn_ack.between(worker, TENANT_NIC).bytes();
    stand.send(Port::Tenant, &syn_ack, Action::Transmit)?;
    let data = from_client(HOST, APPS, ACK_ONLY).numbers(1001, 5001);
    let counted = ("nic", "tenant-a", "transmitted");
    Ok(same(Port::Tenant, data.bytes(), Action::Transmit, counted))
}

/// A query in two parts. Behind the last one it is forgotten, and then begins anew.
fn fragments() -> Leg {
    const MORE: u16 = 0x2000;
    const FIRST: usize = 24;
    let whole = udp(HOST, DNS).payload(&[7; 24]).fragment(0);
    let whole = whole.between(CLIENT, TENANT_NIC).bytes();
    let part = |field: u16, body: &[u8]| {
        let mut frame = whole[..34].to_vec();
        let length = u16::try_from(20 + body.len()).unwrap_or(0);
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        frame[24..26].fill(0);
        let sum = lb_common::wire::checksum::full(&frame[14..], 0);
        frame[24..26].copy_from_slice(&sum.get().to_be_bytes());
        frame.extend(body);
        padded(frame)
    };
    let (first, last) = whole[34..].split_at(FIRST);
    let frames = vec![part(MORE, first), part(3, last)];
    let packets = Packets {
        frames,
        varied: None,
    };
    let leg = same(Port::Tenant, Vec::new(), Action::Redirect, REQUEST);
    Leg { packets, ..leg }
}

/// A router that says of a client's data that it was too big.
fn icmp_error(stand: &mut Stand) -> Result<Leg> {
    let client = "192.168.203.52:40000";
    let syn = from_client(client, API, SYN_ONLY).numbers(1000, 0);
    let sent = stand.send(Port::Tenant, &syn.bytes(), Action::Redirect)?;
    let snat = source(&sent)?;
    let quoted = tcp(&snat.to_string(), KAS, SYN_ONLY)
        .numbers(1000, 0)
        .ttl(63);
    let quote = quoted.bytes();
    let error = icmp("10.32.100.1", &snat.ip().to_string(), (3, 4), 1280)
        .between(NODE, MGMT_NIC)
        .payload(quote.get(14..42).context("a quote")?);
    Ok(same(Port::Mgmt, error.bytes(), Action::Redirect, REPLY))
}

fn arp_in() -> Leg {
    let asks = arp(
        1,
        CLIENT,
        "192.168.203.50",
        Mac::default(),
        "192.168.203.110",
    );
    let counted = ("nic", "tenant-a", "transmitted");
    same(Port::Tenant, asks, Action::Transmit, counted)
}

fn arp_out() -> Leg {
    let says = arp(2, TENANT_NIC, "192.168.203.110", CLIENT, "192.168.203.50");
    let counted = ("cell", "tenant-a", "forwarded");
    same(Port::Cell("tenant-a"), says, Action::Redirect, counted)
}

fn denied(vip: &str, reason: &'static str) -> Leg {
    let syn = from_client(HOST, vip, SYN_ONLY).bytes();
    same(Port::Tenant, syn, Action::Drop, ("nic", "tenant-a", reason))
}

fn passes() -> Leg {
    let ssh = tcp("10.32.96.7:50000", "10.32.96.10:22", ACK_ONLY).between(NODE, MGMT_NIC);
    same(
        Port::Mgmt,
        ssh.bytes(),
        Action::Pass,
        ("nic", "mgmt", "passed"),
    )
}

fn echo() -> Leg {
    let ping = icmp("192.168.203.50", "192.168.203.110", (8, 0), 7);
    let ping = ping.between(CLIENT, TENANT_NIC).bytes();
    let counted = ("nic", "tenant-a", "transmitted");
    same(Port::Tenant, ping, Action::Transmit, counted)
}

/// A segment of a connection that there is not.
fn reset() -> Leg {
    let data = from_client("192.168.203.59:40000", API, ACK_ONLY).numbers(1001, 5001);
    let counted = ("nic", "tenant-a", "refused: no_flow");
    same(Port::Tenant, data.bytes(), Action::Transmit, counted)
}
