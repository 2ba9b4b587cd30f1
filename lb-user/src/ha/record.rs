//! A flow as the boxes of a group tell each other: nothing in it is a box's own but the ids of objects, which a dictionary translates.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use lb_common::{
    addr::{Be16, Be32, Be128, Mac},
    conntrack::FlowState,
    maps::flow::Flow,
};
use serde::{Deserialize, Serialize};

use super::{clock::PeerClock, dictionary::Dictionary, numbers::NumbersRecord};
use crate::{
    dataplane::{
        replicas::{ClientEnd, Replica},
        splices::FlowNumbers,
    },
    model::registry::{Ids, Kind},
};

/// A flow of TCP or UDP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// The port of a SNAT address that it has.
    pub snat: SnatEnd,
    /// Id of its client's network.
    pub network: u32,
    /// Id of its service.
    pub service: u32,
    /// Id of its backend.
    pub backend: u32,
    /// Its client.
    pub client: SocketAddr,
    /// The VIP and its port.
    pub vip: SocketAddr,
    /// The address and port of its backend.
    pub to: SocketAddr,
    /// State, protocol and FINs; the generation is the sender's.
    pub word: u32,
    /// The client's next hop.
    pub client_mac: [u8; 6],
    /// When its latest packet was forwarded, by the coarse time of the sender.
    pub last_seen: u32,
    /// The next number that the client expects, and the backend.
    pub acknowledged: [u32; 2],
    /// What its numbers are translated by, if they are.
    pub numbers: Option<NumbersRecord>,
    /// The name that its client has requested; or nothing.
    pub name: String,
}

/// A port of a SNAT address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SnatEnd {
    /// Id of the address.
    pub address: u32,
    /// Its port.
    pub port: u16,
}

/// The end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// The port that it had.
    pub snat: SnatEnd,
    /// Its client.
    pub client: SocketAddr,
    /// The VIP and its port.
    pub vip: SocketAddr,
    /// When it was over, by the coarse time of the sender.
    pub since: u32,
}

impl EndRecord {
    /// What stands for its client and VIP here; none if the VIP is not known.
    pub fn client_end(&self, ids: &Ids, hash: impl Fn(Be128) -> Be32) -> Option<ClientEnd> {
        let client = match self.client.ip() {
            IpAddr::V4(client) => client.into(),
            IpAddr::V6(client) => hash(client.into()),
        };
        Some(ClientEnd {
            client: (client, Be16::new(self.client.port())),
            vip: (ids.stands_for(self.vip.ip())?, Be16::new(self.vip.port())),
        })
    }
}

/// What a flow of this box is described by.
pub struct Described<'a> {
    /// Its word.
    pub word: FlowState,
    /// Its entry.
    pub flow: &'a Flow,
    /// Its client's address.
    pub client: IpAddr,
    /// The SNAT address and port.
    pub snat: SnatEnd,
    /// What its numbers are translated by, if they are.
    pub numbers: Option<FlowNumbers>,
    /// The name that its client has requested; or nothing.
    pub name: String,
    /// What addresses of records mean.
    pub address: &'a dyn Fn(Be32) -> Option<IpAddr>,
}

impl FlowRecord {
    /// Of a flow of this box; none if an address of it means nothing any more.
    pub fn of(described: &Described<'_>) -> Option<Self> {
        let Described { flow, word, .. } = described;
        let end =
            |address, port: Be16| Some(SocketAddr::new((described.address)(address)?, port.get()));
        Some(Self {
            snat: described.snat,
            network: flow.network.into(),
            service: flow.service.into(),
            backend: flow.backend_id.into(),
            client: SocketAddr::new(described.client, flow.client_port.get()),
            vip: end(flow.vip, flow.vip_port)?,
            to: end(flow.backend, flow.backend_port)?,
            word: word.raw(),
            client_mac: flow.client_mac.bytes(),
            last_seen: flow.last_seen,
            acknowledged: [flow.ack_request.get(), flow.ack_reply.get()],
            numbers: described.numbers.map(NumbersRecord::from),
            name: described.name.clone(),
        })
    }

    /// The replica that it is here, by this box's own numbers and clock. None if it refers to what is not here, which the dictionary
    /// notes.
    ///
    /// # Errors
    ///
    /// If it makes no sense: the peer is of another version, or broken.
    pub fn replica(
        &self,
        dictionary: &mut Dictionary,
        ids: &Ids,
        hash: impl Fn(Be128) -> Be32,
        clock: PeerClock,
    ) -> Result<Option<Replica>> {
        let word = FlowState::from_raw(self.word);
        anyhow::ensure!(
            word.is_replicated(),
            "a flow in the state {:?}",
            word.state()
        );
        anyhow::ensure!(
            word.is_spliced() == self.numbers.is_some(),
            "a splice without its numbers, or numbers without a splice"
        );
        let mut own = |kind, id| dictionary.id(kind, id).map(u16::try_from);
        let (Some(network), Some(service), Some(backend_id)) = (
            own(Kind::Network, self.network),
            own(Kind::Service, self.service),
            own(Kind::Backend, self.backend),
        ) else {
            return Ok(None);
        };
        let (Some(vip), Some(backend)) =
            (ids.stands_for(self.vip.ip()), ids.stands_for(self.to.ip()))
        else {
            return Ok(None);
        };
        let (client, beside) = match self.client.ip() {
            IpAddr::V4(client) => (client.into(), None),
            IpAddr::V6(client) => {
                let client = Be128::from(client);
                (hash(client), Some(client))
            }
        };
        let [ack_request, ack_reply] = self.acknowledged.map(Be32::new);
        let flow = Flow {
            client,
            vip,
            client_port: Be16::new(self.client.port()),
            vip_port: Be16::new(self.vip.port()),
            backend,
            backend_port: Be16::new(self.to.port()),
            network: network.context("the id of a network")?,
            backend_id: backend_id.context("the id of a backend")?,
            service: service.context("the id of a service")?,
            client_mac: Mac::new(self.client_mac),
            last_seen: clock.here(self.last_seen),
            ack_request,
            ack_reply,
            ..Flow::default()
        };
        Ok(Some(Replica {
            word,
            flow,
            client: beside,
            numbers: self.numbers.map(FlowNumbers::from),
            name: self.name.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::ha::dictionary::{objects, tests::ids};

    const NAMES: [(Kind, &str); 4] = [
        (Kind::Network, "tenant-a"),
        (Kind::Service, "api"),
        (Kind::Backend, "kas/10.32.96.105:30918@mgmt/10.32.96.105"),
        (Kind::Snat, "mgmt/10.32.96.50:1024-57343"),
    ];

    #[test]
    fn a_flow_is_the_same_with_the_numbers_of_another_box() {
        let theirs = ids(&NAMES);
        let mut ours = vec![
            (Kind::Network, "mgmt"),
            (Kind::Service, "a"),
            (Kind::Backend, "b"),
        ];
        ours.extend(NAMES);
        let ours = ids(&ours);
        let word = FlowState::from_raw(0x1234_5400).claim(false).establish();
        let id = |kind, name| u16::try_from(theirs.get(kind, name).unwrap()).unwrap();
        let flow = Flow {
            client: Ipv4Addr::new(192, 168, 203, 50).into(),
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            client_port: Be16::new(40_000),
            vip_port: Be16::new(6443),
            backend: Ipv4Addr::new(10, 32, 96, 105).into(),
            backend_port: Be16::new(30_918),
            network: id(Kind::Network, "tenant-a"),
            service: id(Kind::Service, "api"),
            backend_id: id(NAMES[2].0, NAMES[2].1),
            client_mac: Mac::new([2, 0, 0, 0, 0, 1]),
            last_seen: 3,
            ack_request: Be32::new(7),
            ack_reply: Be32::new(8),
            traffic_request: 9,
            ..Flow::default()
        };
        let address = |address| Some(Ipv4Addr::from(address).into());
        let record = FlowRecord::of(&Described {
            word,
            flow: &flow,
            client: Ipv4Addr::new(192, 168, 203, 50).into(),
            snat: SnatEnd {
                address: 1,
                port: 2000,
            },
            numbers: None,
            name: String::new(),
            address: &address,
        });
        let record = record.unwrap();
        let mut clock = PeerClock::default();
        clock.note(10, 4);
        let mut dictionary = Dictionary::default();
        for named in objects(&theirs) {
            dictionary.add(named, &ours);
        }
        let hash = |_| unreachable!("no client of IPv6");
        let replica = record
            .replica(&mut dictionary, &ours, hash, clock)
            .unwrap()
            .unwrap();
        let id = |kind, name| u16::try_from(ours.get(kind, name).unwrap()).unwrap();
        let wanted = Flow {
            network: id(Kind::Network, "tenant-a"),
            service: id(Kind::Service, "api"),
            backend_id: id(NAMES[2].0, NAMES[2].1),
            last_seen: 4_u32.wrapping_sub(7),
            traffic_request: 0,
            ..flow
        };
        assert_eq!(replica.flow, wanted);
        assert_ne!(replica.flow.network, flow.network);
        let strange = FlowRecord {
            service: 99,
            ..record.clone()
        };
        assert!(
            strange
                .replica(&mut dictionary, &ours, hash, clock)
                .unwrap()
                .is_none()
        );
        let closed = FlowRecord {
            word: word.close().raw(),
            ..record
        };
        assert!(closed.replica(&mut dictionary, &ours, hash, clock).is_err());
    }
}
