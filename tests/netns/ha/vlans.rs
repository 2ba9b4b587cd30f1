//! A box that takes over is found in every VLAN.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lb_common::{
    addr::Mac,
    wire::header::{ACK, SYN},
};
use lb_tests::{
    frames::{packet, raw::RawPort, segment::Segment},
    oracle::wire::Wire,
    poll,
    product::config::{Config, Keys},
    topology::{BoxName, TENANT_NIC, Topology, TwoBoxes, VIP, mac_of},
};

use super::{Boxes, SYNCED, TAKEN_OVER, config};
use crate::nic::announce::announces;

const VLAN: u16 = 2004;
/// The service of the probes in that VLAN, and its client.
const TAGGED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 204, 110), 7011);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 168, 204, 50);
/// What a connection says first, and what it says then.
const FIRST_LINE: &[u8] = b"secret tagged\n";
const NEXT_LINE: &[u8] = b"tagged 1\n";
/// How long an answer may take; a lost segment is sent again until then.
const HEARD: Duration = Duration::from_secs(3);

fn with_a_vlan(pair: &TwoBoxes) -> Config {
    let service = |service: Keys| service.on("tenant-b").tcp(TAGGED).pool("probe");
    config(pair)
        .network("tenant-b", |tenant| tenant.tenant(VLAN, "192.168.204.0/24"))
        .service("tagged", service)
}

/// What a host of the VLAN sends and receives: the kernel of the test may know no tags.
struct TaggedHost {
    port: RawPort,
    wire: Wire,
    mac: Mac,
}

/// One of its connections.
struct Conversation<'h> {
    host: &'h TaggedHost,
    from: SocketAddrV4,
    sequence: u32,
    acknowledgment: u32,
}

impl TaggedHost {
    fn new(pair: &TwoBoxes) -> Result<Self> {
        let netns = &pair.client().netns;
        Ok(Self {
            port: RawPort::open(netns, "eth0")?,
            wire: Wire::received(netns, "eth0", "arp or vlan", pair.dir())?,
            mac: mac_of(netns, "eth0")?,
        })
    }

    /// What has come with this tag, or without one, but for the tag.
    fn received(&self, tag: Option<u16>) -> Result<Vec<Vec<u8>>> {
        let frames = self.wire.frames()?.into_iter();
        let frames = frames.map(|frame| packet::untagged(&frame));
        let tagged = frames.filter(|(tci, _)| *tci == tag);
        Ok(tagged.map(|(_, frame)| frame).collect())
    }

    /// Waits for the announcement of `address` with this tag.
    fn wait_for(&self, tag: Option<u16>, address: Ipv4Addr, mac: Mac) -> Result<()> {
        let what = format!("{address} announced with the tag {tag:?}");
        poll::until(&what, TAKEN_OVER, || {
            let frames = self.received(tag)?;
            let is_there = frames.iter().any(|frame| announces(frame, address, mac));
            Ok(is_there.then_some(()))
        })
    }

    /// A new connection from this port, through the box with this MAC.
    fn open(&self, port: u16, box_mac: Mac) -> Result<Conversation<'_>> {
        let mut conversation = Conversation {
            host: self,
            from: SocketAddrV4::new(CLIENT, port),
            sequence: 0,
            acknowledgment: 0,
        };
        let answer = conversation.ask(SYN, &[], box_mac, |segment| {
            segment.flags == SYN | ACK && segment.acknowledgment == 1
        })?;
        conversation.sequence = 1;
        conversation.acknowledgment = answer.sequence.wrapping_add(1);
        conversation.talk(FIRST_LINE, box_mac)?;
        Ok(conversation)
    }
}

impl Conversation<'_> {
    /// Sends a line, and waits for its answer.
    fn talk(&mut self, line: &[u8], box_mac: Mac) -> Result<()> {
        let next = self.acknowledgment;
        let answer = self.ask(ACK, line, box_mac, |segment| {
            segment.payload > 0 && segment.sequence == next
        })?;
        self.sequence += u32::try_from(line.len())?;
        self.acknowledgment = answer.next();
        Ok(())
    }

    /// Sends a segment until it is answered by one that is wanted, from this box.
    fn ask(
        &self,
        flags: u8,
        payload: &[u8],
        box_mac: Mac,
        is_wanted: impl Fn(&Segment) -> bool,
    ) -> Result<Segment> {
        let frame = packet::tcp(&self.from.to_string(), &TAGGED.to_string(), flags)
            .numbers(self.sequence, self.acknowledgment)
            .payload(payload)
            .between(self.host.mac, box_mac);
        let frame = packet::tag(&frame.bytes(), VLAN);
        poll::until("an answer in the VLAN", HEARD, || {
            self.host.port.send(&frame)?;
            let frames = self.host.received(Some(VLAN))?;
            let from_box = frames
                .iter()
                .filter(|frame| frame[6..12] == box_mac.bytes());
            let mut segments = from_box.filter_map(|frame| Segment::read(frame));
            Ok(segments.find(|one| one.from == TAGGED && one.to == self.from && is_wanted(one)))
        })
        .with_context(|| format!("{} to {TAGGED}, {} bytes", self.from, payload.len()))
    }
}

/// New connections come in each VLAN within three seconds, and what was open there goes on.
#[privileged_test]
fn a_box_that_takes_over_is_found_in_every_vlan() -> Result<()> {
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let mut boxes = Boxes::start_with(&pair, &with_a_vlan(&pair))?;
    let [first, second] = BoxName::ALL.map(|name| pair.site(name).mac(TENANT_NIC));
    let (first, second) = (first?, second?);
    let host = TaggedHost::new(&pair)?;
    let mut open = host.open(5000, first)?;
    poll::until("the connection at lb2", SYNCED, || {
        let there = boxes.second.flows()?;
        let mut there = there.iter().filter(|flow| flow.service == "tagged");
        Ok(there.next().map(drop))
    })?;

    pair.power_off(BoxName::Lb1)?;
    boxes.first.kill()?;
    let start = Instant::now();
    pair.give_marker(BoxName::Lb2)?;
    for (tag, address) in [(None, VIP), (Some(VLAN), *TAGGED.ip())] {
        host.wait_for(tag, address, second)?;
    }
    boxes.wait_until_served_by(BoxName::Lb2, TAKEN_OVER)?;
    host.open(5001, second)?;
    println!("lb2 serves both VLANs after {:.0?}", start.elapsed());
    open.talk(NEXT_LINE, second)
}
