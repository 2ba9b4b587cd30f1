//! Established connections in great number, and segments of them in an order.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
};

use anyhow::{Context as _, Result};
use lb_common::{
    addr::Be16,
    maps::{flow::FlowKey, snat::PAGE},
};
use lb_tests::{
    frames::packet::flags::*,
    product::{
        program::DataPlane,
        vary_prog_run::{Turn, Varied},
    },
};
use lb_user::dataplane::object::Build;

use super::{
    hubs::{HUBS, Hub, NODE_PORT, VIP, config},
    stand::{Leg, Stand},
};
use crate::path::reference_nat::Translated;

/// Most flows of a hub.
const HALF: u32 = 500_000;
/// Packets of one hub after another: fewer than there are places for half-open flows, and so many that to
/// change the hub costs nothing.
const BLOCK: u32 = 50_000;
/// Clients have so many connections each.
const PER_CLIENT: u32 = 10_000;
/// An odd prime, for a walk through all flows in leaps.
const LEAP: u64 = 611_953;

/// What a connection consists of.
#[derive(Clone, Copy)]
struct Flow {
    client: SocketAddrV4,
    snat: SocketAddrV4,
    backend: Ipv4Addr,
}

/// Segments of which end, in which order: the rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: &'static str,
    is_reply: bool,
    is_random: bool,
}

pub(super) const ROWS: [Row; 4] = [
    row("request, creation order", false, false),
    row("request, random order", false, true),
    row("reply, creation order", true, false),
    row("reply, random order", true, true),
];

const fn row(name: &'static str, is_reply: bool, is_random: bool) -> Row {
    Row {
        name,
        is_reply,
        is_random,
    }
}

/// The connections.
pub(super) struct Crowd {
    pub(super) stand: Stand,
    hubs: Vec<Vec<Flow>>,
    /// The first place of the table of turns that is free.
    free: u32,
}

impl Crowd {
    /// None yet, and at most so many, through this build of the programs. The tables have room for a million in any case: their size alone says how
    /// far apart connections are.
    pub(super) fn new(build: Build, most: u32) -> Result<Self> {
        let mut plane = DataPlane::of_build(build, &config())?;
        plane.draw_ports()?;
        let rows = u32::try_from(ROWS.len())?;
        Ok(Self {
            stand: Stand::new(plane, 2 * BLOCK + rows * most)?,
            hubs: vec![Vec::new(), Vec::new()],
            free: 2 * BLOCK,
        })
    }

    /// Makes it so many established connections. Segments of fewer are of no use any more.
    ///
    /// No column is measured with more than its own: the index looks at later connections first, so that the
    /// earliest ones of a million cost more than all of them do on average.
    pub(super) fn grow(&mut self, flows: u32) -> Result<()> {
        self.free = 2 * BLOCK;
        for (index, hub) in HUBS.iter().enumerate() {
            let before = u32::try_from(index)? * HALF;
            let wanted = flows.saturating_sub(before).min(HALF);
            while let there = u32::try_from(self.hubs[index].len())?
                && there < wanted
            {
                let made = self.establish(hub, there, BLOCK.min(wanted - there));
                let made = made.with_context(|| format!("establish flows of {}", hub.name))?;
                self.hubs[index].extend(made);
            }
        }
        Ok(())
    }

    /// Opens connections, numbered from `first` on, and completes their handshakes, each packet through the
    /// program.
    fn establish(&mut self, hub: &Hub, first: u32, count: u32) -> Result<Vec<Flow>> {
        let clients: Vec<_> = (first..first + count).map(client).collect();
        let turns = clients.iter().map(|&end| Turn { end, other: VIP });
        let requests = self.stand.vary.write_turns(0, turns)?;
        let varied = Some((Varied::Source, requests));
        let syn = hub.request(SYN_ONLY).numbers(1000, 0);
        self.stand
            .send_all(&[hub.leg(&syn, varied.clone(), count)])?;

        let flows = self.find(hub, &clients)?;
        let replies = self
            .stand
            .vary
            .write_turns(BLOCK, flows.iter().map(reply_turn))?;
        let syn_ack = hub.reply(SYN_ACK).numbers(5000, 1001);
        let answered = Some((Varied::Destination, replies));
        self.stand.send_all(&[hub.leg(&syn_ack, answered, count)])?;
        let ack = hub.request(ACK_ONLY).numbers(1001, 5001);
        self.stand.send_all(&[hub.leg(&ack, varied, count)])?;
        Ok(flows)
    }

    /// The flows of these clients, as the data plane has them.
    fn find(&self, hub: &Hub, clients: &[SocketAddrV4]) -> Result<Vec<Flow>> {
        let network = self.stand.network("clients")?;
        let maps = &self.stand.plane.maps;
        let table = self.stand.plane.flow_table();
        let find = |&client: &SocketAddrV4| -> Result<Flow> {
            let key = FlowKey {
                client: (*client.ip()).into(),
                vip: VIP.into(),
                client_port: Be16::new(client.port()),
                vip_port: Be16::new(hub.service),
                network,
                protocol: 6,
            };
            let id = maps.flow_lines.find(&key)?.context("no flow")?;
            let (_, flow) = table.flow(id).context("no flow")?;
            let page = maps.snat_pages.get(&(id / PAGE), 0)?;
            Ok(Flow {
                client,
                snat: SocketAddrV4::new(page.address.into(), flow.snat_port.get()),
                backend: flow.backend.into(),
            })
        };
        let clients = clients.iter();
        let found = clients.map(|client| find(client).with_context(|| format!("find {client}")));
        found.collect()
    }

    /// Segments of the first `flows` connections, at least `packets` and each connection's as often.
    pub(super) fn segments(&mut self, row: Row, flows: u32, packets: u32) -> Result<Vec<Leg>> {
        let hubs = if flows > HALF { 2 } else { 1 };
        let of_hub = flows / hubs;
        let mut turns = Vec::new();
        for (index, hub) in HUBS.iter().enumerate().take(hubs as usize) {
            turns.push((hub, self.turns(row, index, of_hub)?));
        }
        let block = of_hub / of_hub.div_ceil(BLOCK);
        let times = BLOCK / block * block;
        let mut pass = Vec::new();
        for first in (0..of_hub).step_by(block as usize) {
            for (hub, turns) in &turns {
                let first = turns.start + first;
                let last = turns.end.min(first + block);
                pass.push(hub.segments(row.is_reply, first..last, times));
            }
        }
        let sent: u32 = pass.iter().map(|leg| leg.times).sum();
        let passes = packets.div_ceil(sent) as usize;
        Ok(pass
            .iter()
            .cycle()
            .take(pass.len() * passes)
            .cloned()
            .collect())
    }

    /// All of them, for another program that is to know the same ones.
    pub(super) fn translated(&self) -> impl Iterator<Item = Translated> {
        let hubs = HUBS.iter().zip(&self.hubs);
        hubs.flat_map(|(hub, flows)| {
            flows.iter().map(|flow| Translated {
                client: flow.client,
                vip: SocketAddrV4::new(VIP, hub.service),
                snat: flow.snat,
                backend: SocketAddrV4::new(flow.backend, NODE_PORT),
            })
        })
    }

    /// Writes the turns of a hub's first `count` flows.
    fn turns(&mut self, row: Row, hub: usize, count: u32) -> Result<Range<u32>> {
        let flows = &self.hubs[hub];
        let leap = if row.is_random { LEAP } else { 1 };
        let order = (0..u64::from(count)).map(|index| index * leap % u64::from(count));
        let turns = order.filter_map(|index| {
            let flow = flows.get(usize::try_from(index).ok()?)?;
            Some(if row.is_reply {
                reply_turn(flow)
            } else {
                let (end, other) = (flow.client, VIP);
                Turn { end, other }
            })
        });
        let places = self.stand.vary.write_turns(self.free, turns)?;
        self.free = places.end;
        Ok(places)
    }
}

const fn reply_turn(flow: &Flow) -> Turn {
    Turn {
        end: flow.snat,
        other: flow.backend,
    }
}

/// The client's end of the connection with this number.
fn client(number: u32) -> SocketAddrV4 {
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(192, 168, 1, 1)) + number / PER_CLIENT);
    let port = 20_000 + number % PER_CLIENT;
    SocketAddrV4::new(address, u16::try_from(port).unwrap_or(u16::MAX))
}
