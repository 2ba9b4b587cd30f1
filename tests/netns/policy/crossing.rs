//! No way across but the declared ones: RELIABILITY 41, 42 and 44.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use lb_common::{addr::Mac, wire::header::SYN};
use lb_tests::{
    frames::{
        packet,
        raw::{self, DOT1AD, DOT1Q, RawPort},
    },
    netns::Netns,
    oracle::wire::{self, Wire},
    product::lb::Lb,
    servers::peers::{DNS_NAME, Peers},
    topology::{
        CONFIG, DNS, DNS_NODE_PORT, ECHO_NODE_PORT, Host, LAB_CONFIG, LB_PORT, MGMT_NIC, SNAT,
        TENANT_NIC, Topology, Trunk, VIP, mac_of,
    },
    traffic::{
        ping::{Ping, ping},
        programs,
    },
};

use crate::oracle::{self, Oracle};

const LIMIT: Duration = Duration::from_secs(10);
/// The load balancer's own address on the management LAN.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 10);
/// A tenant address that no host has: a host that resolves it wants to forward to it.
const UNUSED: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 77);

/// RELIABILITY 41: tags in every order, and the addresses of the other side, from a tenant's port
/// and from the trunk itself, on a host that forwards. Nothing reaches the hub or the other tenant.
#[privileged_test]
fn reliability_41_tags_and_foreign_addresses_lead_nowhere() -> Result<()> {
    let trunk = Trunk::build()?;
    give_the_host_a_mgmt_address(&trunk.lb)?;
    trunk.lb.set_sysctl("ipv4/ip_forward", "1")?;
    let [a, b] = &trunk.tenants;
    let _of_a = Peers::start_tenant(&trunk, a)?;
    let _of_b = Peers::start_tenant(&trunk, b)?;
    let lb = Lb::start(&trunk, LAB_CONFIG)?;
    let attacker = a.client();
    let [mac, nic, mgmt] = [
        mac_of(&attacker.netns, "eth0")?,
        trunk.mac(TENANT_NIC)?,
        trunk.mac(MGMT_NIC)?,
    ];
    let oracle = Oracle::start(&trunk.mgmt_lan, trunk.dir(), &a.clients[1], a.ports.dns)?;
    let bystander = Wire::received(&b.client().netns, "eth0", "not arp", trunk.dir())?;

    // To the other tenant's VIP and host, to a node, to the host itself: by either MAC.
    let targets = [VIP, b.worker().address, trunk.nodes[0].address, HOST, SNAT];
    let mut frames = Vec::new();
    for hop in [nic, mgmt, Mac::BROADCAST] {
        for to in targets {
            let syn = packet::tcp("192.168.203.50:20000", &format!("{to}:7000"), SYN);
            frames.push(syn.between(mac, hop).bytes());
            frames.push(raw::echo_request([mac, hop], attacker.address, to));
        }
    }
    let from_host = RawPort::open(&attacker.netns, "eth0")?;
    let from_trunk = RawPort::open(&trunk.trunk, LB_PORT)?;
    for frame in &frames {
        let inner = raw::tagged(frame, DOT1Q, b.vlan);
        // The access port puts tenant-a's tag in front of what its host has put there.
        from_host.send(&inner)?;
        from_host.send(&raw::tagged(frame, DOT1AD, b.vlan))?;
        from_host.send(&raw::tagged(frame, DOT1Q, 0xe000))?;
        for control in [a.vlan, a.vlan | 0xe000, b.vlan] {
            from_trunk.send(&raw::tagged(&inner, DOT1Q, control))?;
        }
        from_trunk.send(&raw::tagged(&inner, DOT1AD, a.vlan))?;
        from_trunk.send(&raw::tagged(&inner, DOT1Q, 0xe000))?;
        from_trunk.send(&raw::tagged(&inner, DOT1AD, 0))?;
        let triple = raw::tagged(&raw::tagged(&inner, DOT1Q, 0), DOT1Q, a.vlan);
        from_trunk.send(&triple)?;
    }
    // With one tag, but for the other side's addresses.
    for frame in frames.iter().filter(|frame| !is_for(frame, VIP)) {
        from_host.send(frame)?;
    }

    oracle.saw_nothing_else()?;
    let crossed = bystander.stop()?;
    ensure!(crossed.is_empty(), "tenant-b got {crossed:02x?}");
    let stacked = lb.dropped("stacked_tag")?;
    let handled = u64::try_from(frames.len() * 5)?;
    assert!(stacked >= handled, "{stacked} of {handled} double tags");
    Ok(())
}

/// RELIABILITY 42, the routing hole: a client with a route to the hub through us, with every
/// protocol to every address there, whether the host forwards or not.
#[privileged_test]
fn reliability_42_there_is_no_route_through_us() -> Result<()> {
    let topology = Topology::poc()?;
    give_the_host_a_mgmt_address(&topology.lb)?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let [friend, attacker] = [&topology.clients[0], &topology.clients[1]];
    attacker
        .netns
        .run(&format!("ip route add 10.32.96.0/20 via {VIP}"))?;
    let mut targets: Vec<Ipv4Addr> = topology.nodes.iter().map(|node| node.address).collect();
    targets.extend([HOST, SNAT, Ipv4Addr::new(10, 32, 111, 255)]);

    for forwarding in ["0", "1"] {
        topology.lb.set_sysctl("ipv4/ip_forward", forwarding)?;
        let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), friend, DNS_NODE_PORT)?;
        // The kernel's own way; what follows is the same and more, without its patience.
        for target in [targets[0], HOST] {
            assert_eq!(ping(&attacker.netns, target)?, Ping::Lost, "{target}");
        }
        let hops = [mac_of(&attacker.netns, "eth0")?, topology.mac(TENANT_NIC)?];
        send_everything(attacker, attacker.address, hops, &targets)?;
        oracle.saw_nothing_else()?;
    }
    assert_eq!(
        lb.flows()?
            .iter()
            .filter(|flow| flow.protocol == "tcp")
            .count(),
        0
    );
    Ok(())
}

/// RELIABILITY 44: the hub opens nothing to a tenant, by our addresses, by the host's, with the host
/// as a router that knows the way.
#[privileged_test]
fn reliability_44_the_hub_opens_no_flow_to_a_tenant() -> Result<()> {
    let topology = Topology::poc()?;
    give_the_host_a_mgmt_address(&topology.lb)?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    topology
        .lb
        .run(&format!("ip route add 192.168.203.0/24 dev {TENANT_NIC}"))?;
    let targets = [client.address, topology.workers[0].address, VIP, UNUSED];
    // The host would not even have to ask.
    let mac = mac_of(&client.netns, "eth0")?.to_string();
    topology.lb.run(&format!(
        "ip neigh replace {} lladdr {mac} dev {TENANT_NIC} nud permanent",
        client.address
    ))?;

    for (forwarding, gateway) in [("0", SNAT), ("0", HOST), ("1", SNAT), ("1", HOST)] {
        topology.lb.set_sysctl("ipv4/ip_forward", forwarding)?;
        node.netns
            .run(&format!("ip route replace 192.168.203.0/24 via {gateway}"))?;
        let to_tenant = Wire::received(&topology.tenant_lan, LB_PORT, "", topology.dir())?;
        see_an_answer(&to_tenant, client, 1)?;

        let kernel = ping(&node.netns, client.address)?;
        assert_eq!(kernel, Ping::Lost, "{} via {gateway}", client.address);
        let hops = [mac_of(&node.netns, "eth0")?, topology.mac(MGMT_NIC)?];
        send_everything(node, node.address, hops, &targets)?;

        see_an_answer(&to_tenant, client, 2)?;
        std::thread::sleep(Duration::from_millis(300));
        let frames = to_tenant.stop()?;
        let crossed = oracle::of(&frames, node.address);
        ensure!(
            crossed.is_empty(),
            "forwarding {forwarding}: {crossed:02x?}"
        );
        let answers = frames.iter().filter(|frame| is_answer(frame)).count();
        let packets = frames
            .iter()
            .filter(|frame| wire::ipv4(frame).is_some())
            .count();
        assert_eq!(
            [answers, packets],
            [2, 2],
            "only the answers: {frames:02x?}"
        );
        let asked = frames
            .iter()
            .filter(|frame| asks_for(frame, UNUSED))
            .count();
        assert_eq!(asked, 0, "a host wants to forward to {UNUSED}");
    }
    assert!(lb.dropped("to_tenant")? > 0, "{:?}", lb.drops()?);
    Ok(())
}

fn give_the_host_a_mgmt_address(host: &Netns) -> Result<()> {
    host.run(&format!("ip address add {HOST}/20 dev {MGMT_NIC}"))
        .map(drop)
}

/// ICMP, TCP and UDP to well-known ports and to those of services, with right checksums.
fn send_everything(
    from: &Host,
    source: Ipv4Addr,
    [mac, nic]: [Mac; 2],
    targets: &[Ipv4Addr],
) -> Result<()> {
    let port = RawPort::open(&from.netns, "eth0")?;
    for &target in targets {
        for hop in [nic, Mac::BROADCAST] {
            port.send(&raw::echo_request([mac, hop], source, target))?;
            for number in [22, 53, 443, 1024, DNS_NODE_PORT, ECHO_NODE_PORT, 60_000] {
                let [from, to] = [format!("{source}:20000"), format!("{target}:{number}")];
                port.send(&packet::tcp(&from, &to, SYN).between(mac, hop).bytes())?;
                let udp = packet::udp(&from, &to).between(mac, hop);
                port.send(&udp.payload(b"probe").bytes())?;
            }
        }
    }
    Ok(())
}

fn see_an_answer(to_tenant: &Wire, client: &Host, count: usize) -> Result<()> {
    programs::dig(client, DNS, DNS_NAME, "TXT")?;
    to_tenant.wait_for("an answer to a client", count, LIMIT, is_answer)
}

/// From the VIP's DNS service.
fn is_answer(frame: &[u8]) -> bool {
    wire::ipv4(frame).is_some_and(|(from, _)| from == VIP)
        && frame.get(34..36) == Some(&DNS.port().to_be_bytes())
}

/// An ARP request for `address`.
fn asks_for(frame: &[u8], address: Ipv4Addr) -> bool {
    frame.get(12..14) == Some(&[8, 6])
        && frame.get(20..22) == Some(&[0, 1])
        && frame.get(38..42) == Some(&address.octets())
}

fn is_for(frame: &[u8], address: Ipv4Addr) -> bool {
    wire::ipv4(frame).is_some_and(|(_, to)| to == address)
}
