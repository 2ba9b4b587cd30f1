//! What the boxes say on the LANs: the active one all, the other one nothing but what is its own.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::wire::{Wire, ipv4},
    poll,
    topology::{BoxName, Host, MGMT_NIC, PEER_SNAT, SNAT, TENANT_NIC, Topology, TwoBoxes, VIP},
    traffic::conn_pair::Line,
};

use super::{Boxes, IDLE, IDLE_PORT, PROBE, seen_as, seen_within};
use crate::nic::announce::announces;

/// How long a question by ARP and an announcement may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// How many new connections come while a box must be silent.
const MANY: usize = 20;
/// In this time a box makes many checks: if they came from its SNAT address nodes would know it to be there again.
pub(super) const CHECKED: Duration = Duration::from_secs(2);
/// Where nothing listens.
const DISCARD: u16 = 9;

/// A client comes through the box with the marker, then through the other one; the one without it says nothing that
/// is of the service, and answers for no address but its own.
#[privileged_test]
fn the_box_with_the_marker_serves_and_the_other_one_is_silent() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    ensure_only_speaks(&pair, BoxName::Lb1)?;

    let (client, node) = (pair.client(), &pair.nodes[0]);
    let on_tenant_lan = Wire::received(&client.netns, "eth0", "arp", pair.dir())?;
    let on_mgmt_lan = Wire::received(&node.netns, "eth0", "arp", pair.dir())?;
    boxes.move_to(BoxName::Lb2)?;
    let taker = pair.site(BoxName::Lb2);
    for (wire, nic, address) in [
        (&on_tenant_lan, TENANT_NIC, VIP),
        (&on_mgmt_lan, MGMT_NIC, SNAT),
        (&on_mgmt_lan, MGMT_NIC, PEER_SNAT),
    ] {
        let mac = taker.mac(nic)?;
        let what = format!("{address} announced by lb2");
        wire.wait_for(&what, 1, LIMIT, |frame| announces(frame, address, mac))?;
    }
    ensure_only_speaks(&pair, BoxName::Lb2)
}

/// A connection that the first box has opened comes through the second one alone when that is active, though its SNAT
/// address is the first one's in the file, which goes on with its checks.
#[privileged_test]
fn a_connection_does_not_come_through_the_box_that_opened_it() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
    let open = line.open()?;
    boxes.wait_for_replicas(BoxName::Lb2, 1)?;
    boxes.move_to(BoxName::Lb2)?;
    open.talk()?;
    let said = Said::listen(&pair, BoxName::Lb1)?;
    let start = Instant::now();
    while start.elapsed() < CHECKED {
        open.talk()?;
        seen_as(pair.client(), PROBE)?;
    }
    let senders = said.ensure_nothing_as(&[VIP, SNAT, PEER_SNAT])?;
    ensure!(senders.contains(&BoxName::Lb1.checks_from()), "{senders:?}");
    Ok(())
}

/// The box that was active is stopped, and starts when the other one is: it says nothing of the service until the marker comes back, and
/// connections outlive both moves.
#[privileged_test]
fn a_box_that_starts_again_is_silent_until_the_marker_comes_back() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
    let open = line.open()?;
    boxes.wait_for_replicas(BoxName::Lb2, 1)?;
    boxes.first.process().stop()?;
    boxes.move_to(BoxName::Lb2)?;
    open.talk()?;

    let said = Said::listen(&pair, BoxName::Lb1)?;
    let config = boxes.group.config(super::config(&pair), BoxName::Lb1);
    boxes.first.restart(&config)?;
    boxes.wait_for_replicas(BoxName::Lb1, 1)?;
    let start = Instant::now();
    while start.elapsed() < CHECKED {
        open.talk()?;
        let seen = seen_within(pair.client(), PROBE, LIMIT)?;
        ensure!(seen == Some(PEER_SNAT), "{seen:?}");
    }
    said.ensure_nothing_as(&[VIP, SNAT, PEER_SNAT])?;
    boxes.move_to(BoxName::Lb1)?;
    open.talk()
}

/// New connections come through this box; the other one answers for the address of its checks alone, and says nothing as the
/// VIP or with a SNAT address, its own one neither.
fn ensure_only_speaks(pair: &TwoBoxes, active: BoxName) -> Result<()> {
    let (client, node) = (pair.client(), &pair.nodes[0]);
    let other = active.other();
    let said = Said::listen(pair, other)?;
    for number in 0..MANY {
        let seen = seen_within(client, PROBE, LIMIT)?;
        ensure!(
            seen == Some(active.snat()),
            "connection {number} comes as {seen:?} with {} active",
            active.name()
        );
    }
    for (host, address, name, nic) in [
        (client, VIP, active, TENANT_NIC),
        (node, active.snat(), active, MGMT_NIC),
        (node, other.snat(), active, MGMT_NIC),
        (node, active.checks_from(), active, MGMT_NIC),
        (node, other.checks_from(), other, MGMT_NIC),
    ] {
        let answered = answered_by(host, address)?;
        let mac = pair.site(name).mac(nic)?.to_string();
        ensure!(
            answered == mac,
            "{address} is at {answered}, not at {mac} of {}",
            name.name()
        );
    }
    let senders = said.ensure_nothing_as(&[VIP, active.snat(), other.snat()])?;
    // Else the wires have shown nothing at all.
    ensure!(senders.contains(&other.checks_from()), "{senders:?}");
    Ok(())
}

/// The MAC that a question by ARP is answered with.
pub(super) fn answered_by(host: &Host, address: Ipv4Addr) -> Result<String> {
    // There may be none.
    host.netns
        .try_run(&format!("ip neigh del {address} dev eth0"))?;
    host.netns.inside(|| -> Result<usize> {
        let socket = UdpSocket::bind((host.address, 0))?;
        Ok(socket.send_to(b"?", (address, DISCARD))?)
    })??;
    poll::until(&format!("an answer for {address}"), LIMIT, || {
        let found = host
            .netns
            .run(&format!("ip neigh show {address} dev eth0"))?;
        let mut words = found.split_ascii_whitespace();
        words.find(|word| *word == "lladdr");
        Ok(words.next().map(str::to_owned))
    })
}

/// All that a box sends on both LANs, as its switch ports take it in.
pub(super) struct Said {
    name: BoxName,
    wires: [Wire; 2],
}

impl Said {
    pub(super) fn listen(pair: &TwoBoxes, name: BoxName) -> Result<Self> {
        let listen = |lan| Wire::received(lan, name.port(), "arp or ip", pair.dir());
        Ok(Self {
            name,
            wires: [listen(&pair.tenant_lan)?, listen(&pair.mgmt_lan)?],
        })
    }

    /// Ends, and fails if a frame had one of these addresses as its sender; the senders that there were.
    pub(super) fn ensure_nothing_as(self, addresses: &[Ipv4Addr]) -> Result<BTreeSet<Ipv4Addr>> {
        let mut senders = BTreeSet::new();
        for wire in self.wires {
            for frame in wire.stop()? {
                let sender = sender(&frame);
                ensure!(
                    sender.is_none_or(|sender| !addresses.contains(&sender)),
                    "{} sends as {sender:?}: {frame:02x?}",
                    self.name.name()
                );
                senders.extend(sender);
            }
        }
        Ok(senders)
    }
}

/// The sender of a packet of IPv4 or ARP.
fn sender(frame: &[u8]) -> Option<Ipv4Addr> {
    let of_arp = || {
        (frame.get(12..14)? == [8, 6]).then_some(())?;
        let bytes: [u8; 4] = frame.get(28..32)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    ipv4(frame).map(|(source, _)| source).or_else(of_arp)
}
