//! Which clients may use a service: FEATURES C1, RELIABILITY 39 and 40.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, TcpStream},
    ops::Range,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_common::{
    addr::Mac,
    wire::{
        checksum::full,
        header::{ACK, SYN},
    },
};
use lb_tests::{
    frames::{
        packet::{self, Frame},
        raw::{self, RawPort},
    },
    oracle::wire::{self, Wire},
    poll,
    product::{
        config::{Config, Keys},
        lb::{Lb, check},
    },
    servers::peers::Peers,
    topology::{CONFIG, DNS_NODE_PORT, ECHO, Host, LB_PORT, TENANT_NIC, Topology, VIP, mac_of},
    traffic::client,
};

use crate::oracle::Oracle;

const OPENS: u64 = 25;
const CONFIGURATION: i32 = 2;
const LIMIT: Duration = Duration::from_secs(10);

/// More than 500 allowed prefixes, and inside one of them a longer one that is denied.
#[privileged_test]
fn the_longest_prefix_decides_and_the_denied_reach_nobody() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, &config(long_list()))?;
    let [insider, outsider] = [&topology.clients[0], &topology.clients[1]];
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), insider, DNS_NODE_PORT)?;
    let before = lb.dropped("denied")?;

    let port = RawPort::open(&outsider.netns, "eth0")?;
    for number in 0..OPENS {
        let from = SocketAddrV4::new(outsider.address, 20_000 + u16::try_from(number)?);
        port.send(&open(&topology, outsider, from)?.bytes())?;
    }
    // A kernel sends its SYN once more after a second.
    let second = Duration::from_millis(500);
    let refused = outsider
        .netns
        .inside(|| TcpStream::connect_timeout(&ECHO.into(), second))?;
    assert!(refused.is_err(), "{refused:?}");

    oracle.saw_nothing_else()?;
    assert_eq!(lb.dropped("denied")? - before, OPENS + 1);
    assert_eq!(
        lb.flows()?.len(),
        lb.flows()?.iter().filter(|f| f.protocol == "udp").count()
    );
    // The same prefix lets the neighbour in, and so do addresses on both sides of the denied one.
    insider.netns.inside(|| client::who(None, ECHO))??;
    for octet in [52, 60] {
        let address = Ipv4Addr::new(192, 168, 203, octet);
        outsider
            .netns
            .run(&format!("ip address add {address}/24 dev eth0"))?;
        outsider
            .netns
            .inside(|| client::who(Some(address), ECHO))??;
    }
    Ok(())
}

/// RELIABILITY 39: nothing about the shape of a packet opens a way around the list.
#[privileged_test]
fn reliability_39_fragments_and_options_are_no_way_around_the_list() -> Result<()> {
    const MORE: u16 = 0x2000;
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, &config(long_list()))?;
    let [insider, outsider] = [&topology.clients[0], &topology.clients[1]];
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), insider, DNS_NODE_PORT)?;

    let from = SocketAddrV4::new(outsider.address, 20_000);
    let open = |flags| frame(&topology, outsider, from, flags);
    let with = |options: &[u8]| open(SYN).map(|frame| frame.options(options).bytes());
    let whole = open(SYN)?.payload(&[7; 64]).bytes();
    let frames = [
        ("a SYN", open(SYN)?.bytes()),
        ("an ACK of no flow", open(ACK)?.bytes()),
        ("a SYN with an ACK", open(SYN | ACK)?.bytes()),
        (
            "a first fragment",
            open(SYN)?.fragment(MORE).payload(&[7; 24]).bytes(),
        ),
        ("a tiny first fragment", cut(&whole, 0..8, MORE)),
        (
            "the flags in a second fragment",
            cut(&whole, 8..24, MORE | 1),
        ),
        ("the rest", cut(&whole, 24..84, 3)),
        ("a last fragment that overlaps", cut(&whole, 8..84, 1)),
        ("only a last fragment", cut(&whole, 16..84, 0x1fff)),
        ("record route", with(&[7, 7, 4, 0, 0, 0, 0, 0])?),
        (
            "loose source route",
            with(&[131, 7, 4, 10, 32, 96, 105, 0])?,
        ),
        (
            "strict source route",
            with(&[137, 7, 4, 10, 32, 96, 105, 0])?,
        ),
        ("time stamp", with(&[68, 8, 5, 0, 0, 0, 0, 0])?),
        ("forty bytes of options", with(&[1; 40])?),
        ("router alert", with(&[148, 4, 0, 0])?),
    ];
    let port = RawPort::open(&outsider.netns, "eth0")?;
    let before = lb.status()?.verdicts.nic;
    for (_what, frame) in &frames {
        port.send(frame)?;
    }

    oracle.saw_nothing_else()?;
    let after = lb.status()?.verdicts.nic;
    assert_eq!(after.dropped - before.dropped, u64::try_from(frames.len())?);
    assert_eq!(lb.dropped("record_missing")?, 0);

    // The same parts of a neighbour's SYN pass: it was the list that stopped them.
    let wire = Wire::received(
        &topology.mgmt_lan,
        LB_PORT,
        "tcp or ip[6:2] & 0x1fff != 0",
        topology.dir(),
    )?;
    let from = SocketAddrV4::new(insider.address, 20_000);
    let whole = frame(&topology, insider, from, SYN)?
        .payload(&[7; 64])
        .bytes();
    let port = RawPort::open(&insider.netns, "eth0")?;
    let parts = [cut(&whole, 0..24, MORE), cut(&whole, 24..84, 3)];
    parts.iter().try_for_each(|part| port.send(part))?;
    wire.wait_for("both parts", 2, LIMIT, |frame| wire::ipv4(frame).is_some())
        .with_context(|| format!("{:?}", lb.drops()))?;
    wire.stop().map(drop)
}

/// RELIABILITY 40: a denied address stays denied in every other form of it.
#[privileged_test]
fn reliability_40_forms_of_a_denied_address_are_denied() -> Result<()> {
    for form in [
        "::ffff:c0a8:cb33",
        "2002:c0a8:cb33::/48",
        "64:ff9b::192.168.203.51/128",
        "192.168.203.51",
        "192.168.203.051/32",
        "3232287539/32",
        "0xc0a8cb33/32",
        "192.168.52019/32",
        "192.168.203.51/24",
    ] {
        let failure = check(&config(Keys::default().set("deny", [form])))?;
        assert_eq!(failure.code, Some(CONFIGURATION), "{form}: {failure:?}");
        assert!(failure.stderr.contains("deny"), "{form}: {failure:?}");
    }

    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    // The one form that has a meaning for IPv4 means the same.
    let mapped_rule = r#"allow: ["::ffff:192.168.203.0/120"], deny: ["::ffff:c0a8:cb33/128"]"#;
    let lb = Lb::start(&topology, &config(mapped_rule))?;
    let [insider, outsider] = [&topology.clients[0], &topology.clients[1]];
    insider.netns.inside(|| client::who(None, ECHO))??;
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), insider, DNS_NODE_PORT)?;
    let port = RawPort::open(&outsider.netns, "eth0")?;
    let source = SocketAddrV4::new(outsider.address, 20_000);
    port.send(&open(&topology, outsider, source)?.bytes())?;
    poll::until("a denied SYN", LIMIT, || {
        Ok((lb.dropped("denied")? == 1).then_some(()))
    })?;
    let hops = [mac_of(&outsider.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let before = lb.status()?.verdicts.nic;
    let forms = [mapped, six_to_four, nat64];
    for source in forms.map(|form| form(outsider.address)) {
        for destination in forms.map(|form| form(VIP)) {
            port.send(&ipv6_open(hops, source, destination))?;
        }
    }
    // 6to4 as routers do it: IPv6 inside IPv4, to the VIP.
    let [source, destination] = [outsider.address, VIP];
    let inner = ipv6_open(hops, six_to_four(source), six_to_four(destination));
    port.send(&in_ipv4(hops, [source, destination], &inner[14..]))?;

    oracle.saw_nothing_else()?;
    let after = lb.status()?.verdicts.nic;
    assert_eq!(lb.dropped("denied")?, 1);
    assert_eq!(after.dropped - before.dropped, 10);
    Ok(())
}

/// The echo service of the configuration with these rules.
fn config(rules: impl Into<Keys>) -> Config {
    Config::read(CONFIG).service("echo-a", |echo| echo.with(rules))
}

/// 541 prefixes: hosts and networks that do not exist, and the tenant's own; one host of it is denied.
fn long_list() -> Keys {
    let hosts = (0..256).map(|number| format!("10.99.{number}.{}/32", 255 - number));
    let nets = (0..256).map(|number| format!("172.20.{number}.0/24"));
    let wide = (0..28).map(|number| format!("100.{}.0.0/16", 64 + number));
    let own = ["192.168.203.0/24".to_owned()].into_iter();
    let all: Vec<String> = hosts.chain(nets).chain(wide).chain(own).collect();
    Keys::default()
        .set("allow", all)
        .set("deny", ["192.168.203.51/32"])
}

fn open(topology: &Topology, from: &Host, source: SocketAddrV4) -> Result<Frame> {
    frame(topology, from, source, SYN)
}

/// A segment of `from` to the echo service.
fn frame(topology: &Topology, from: &Host, source: SocketAddrV4, flags: u8) -> Result<Frame> {
    let hops = [mac_of(&from.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let frame = packet::tcp(&source.to_string(), &ECHO.to_string(), flags);
    Ok(frame.between(hops[0], hops[1]))
}

/// A part of an IPv4 frame's payload as a fragment with this field.
pub(crate) fn cut(frame: &[u8], part: Range<usize>, field: u16) -> Vec<u8> {
    const HEADERS: usize = 34;
    let length = u16::try_from(20 + part.len()).expect("a short packet");
    let mut fragment = frame[..HEADERS].to_vec();
    fragment[16..18].copy_from_slice(&length.to_be_bytes());
    fragment[20..22].copy_from_slice(&field.to_be_bytes());
    fragment[24..26].copy_from_slice(&[0, 0]);
    let sum = full(&fragment[14..], 0).get().to_be_bytes();
    fragment[24..26].copy_from_slice(&sum);
    fragment.extend(&frame[HEADERS + part.start..HEADERS + part.end]);
    fragment
}

fn mapped(address: Ipv4Addr) -> Ipv6Addr {
    address.to_ipv6_mapped()
}

fn six_to_four(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    let words = [[a, b], [c, d]].map(u16::from_be_bytes);
    Ipv6Addr::new(0x2002, words[0], words[1], 0, 0, 0, 0, 1)
}

fn nat64(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    let words = [[a, b], [c, d]].map(u16::from_be_bytes);
    Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, words[0], words[1])
}

/// A SYN to the echo service over IPv6; no stage gets as far as its checksum.
fn ipv6_open(hops: [Mac; 2], from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(20_000_u16.to_be_bytes());
    packet.extend(ECHO.port().to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    raw::ethernet(hops[0], hops[1], 0x86dd, &packet)
}

/// A packet inside IPv4 (RFC 4213).
fn in_ipv4(hops: [Mac; 2], [from, to]: [Ipv4Addr; 2], inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + inner.len()).expect("a short packet");
    let [high, low] = length.to_be_bytes();
    let mut packet = vec![0x45, 0, high, low, 0, 1, 0x40, 0, 64, 41, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = full(&packet, 0).get().to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(inner);
    raw::ethernet(hops[0], hops[1], 0x0800, &packet)
}
