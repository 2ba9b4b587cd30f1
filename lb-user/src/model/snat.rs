//! SNAT addresses: their slots, by a name that has all that a flow relies on.

use std::net::{IpAddr, SocketAddr};

use lb_common::{
    addr::Be32,
    maps::{
        network::{Address, KIND_SNAT},
        snat::{SnatPage, base},
    },
};

use super::registry::{Ids, Kind};
use crate::config::{Config, Network, Snat};

/// A SNAT address and the slot that holds its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatSlot {
    /// Index of its queue of free ids.
    pub slot: u16,
    /// The address and its ports.
    pub snat: Snat,
    /// What stands for the address in records; 0 if nothing does, which no packet comes from.
    pub record: Be32,
}

/// What becomes of the flows of a SNAT address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnatUse {
    /// New flows have it.
    InUse,
    /// It is another box's: this one carries the flows that it takes over, and gives it to no new one.
    Peer,
    /// It is configured no more, and finishes its flows.
    Draining,
}

impl SnatUse {
    /// That of an address of this network; none of a network that is configured no more.
    pub fn of(network: Option<&Network>, snat: &Snat) -> Self {
        match network {
            Some(network) if network.snat.contains(snat) => Self::InUse,
            Some(network) if network.peer_snat.contains(snat) => Self::Peer,
            _ => Self::Draining,
        }
    }
}

/// The id of a flow, which stands for a port of a SNAT address.
#[derive(Clone, Copy, Debug)]
pub struct SnatFlowId<'s> {
    /// The id.
    pub id: u32,
    /// The address that the port is of.
    pub slot: &'s SnatSlot,
}

impl SnatSlot {
    /// The address `snat` in `slot`.
    pub fn new(slot: u16, snat: Snat, ids: &Ids) -> Self {
        let record = ids.stands_for(snat.address).unwrap_or_default();
        Self { slot, snat, record }
    }

    /// Its record in the map `ADDRESSES`.
    pub const fn address(&self) -> Address {
        Address {
            kind: KIND_SNAT,
            base: base(self.slot),
            first_port: self.snat.first_port,
            count: self.snat.ports,
        }
    }

    /// The record of its pages of flow ids.
    pub fn page(&self) -> SnatPage {
        SnatPage {
            address: self.record,
            slot: self.slot,
            ..SnatPage::default()
        }
    }

    /// Its flow ids, one per port.
    pub fn flow_ids(&self) -> std::ops::Range<u32> {
        let first = base(self.slot);
        first..first + u32::from(self.snat.ports)
    }

    /// Whether this is one of its ports, or of an IPv4 address as IPv6 writes it.
    pub fn has(&self, tuple: SocketAddr) -> bool {
        let here = self.snat.address == tuple.ip().to_canonical();
        here && self.address().is_of_flow(tuple.port())
    }

    /// Its last port.
    pub const fn last_port(&self) -> u16 {
        last_port(&self.snat)
    }

    /// Its ports, as in its name.
    pub fn range(&self) -> String {
        range(&self.snat)
    }
}

/// The registry's name of a SNAT address: `network/address:first-last`. With other ports it is another one,
/// because a flow's id determines its port.
pub fn snat_name(network: &str, snat: &Snat) -> String {
    let address = match snat.address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    format!("{network}/{address}:{}", range(snat))
}

/// The reverse of [`snat_name`].
pub fn parse_name(name: &str) -> Option<(&str, Snat)> {
    let (network, rest) = name.split_once('/')?;
    let (address, ports) = rest.rsplit_once(':')?;
    let bare = address.strip_prefix('[');
    let bare = bare.and_then(|address| address.strip_suffix(']'));
    let (first, last) = ports.split_once('-')?;
    let (first_port, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    let snat = Snat {
        address: bare.unwrap_or(address).parse().ok()?,
        first_port,
        ports: last.checked_sub(first_port)?.checked_add(1)?,
    };
    Some((network, snat))
}

/// SNAT addresses that `config` does not have any more, of networks that it has: they give no new
/// flows, but finish those that flows hold. With their network's name.
pub fn draining<'a>(config: &Config, ids: &'a Ids) -> Vec<(&'a str, SnatSlot)> {
    let mut draining = Vec::new();
    for (name, id) in ids.of(Kind::Snat) {
        let Some((network, snat)) = parse_name(name) else {
            continue;
        };
        let configured = config.network(network);
        let slot = id.checked_sub(1).and_then(|slot| u16::try_from(slot).ok());
        if let (Some(network_config), Some(slot)) = (configured, slot)
            && SnatUse::of(Some(network_config), &snat) == SnatUse::Draining
        {
            draining.push((network, SnatSlot::new(slot, snat, ids)));
        }
    }
    draining
}

const fn last_port(snat: &Snat) -> u16 {
    snat.first_port.saturating_add(snat.ports.saturating_sub(1))
}

fn range(snat: &Snat) -> String {
    format!("{}-{}", snat.first_port, last_port(snat))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn an_address_of_the_peer_is_not_one_that_drains() {
        let text = "
version: 1
networks:
  mgmt:
    role: mgmt
    interface: eth1
    prefixes: [10.32.96.0/20]
    snat: [{ address: 10.32.96.50, box: a }, { address: 10.32.96.51, box: b }]
    checks_from: [{ address: 10.32.96.61, box: a }, { address: 10.32.96.62, box: b }]
syn_cookie_key: /key
ha:
  box: a
  boxes: { a: { sync: \"10.99.0.1:7433\" }, b: { sync: \"10.99.0.2:7433\" } }
  marker: 10.32.96.60
  ca: /ca.pem
  certificate: /box.pem
  key: /box.key
";
        let config = parse("test.yaml", text).unwrap();
        let mut ids = Ids::default();
        for (host, id) in [(50, 1), (51, 2), (52, 3)] {
            ids.insert(Kind::Snat, &format!("mgmt/10.32.96.{host}:1024-57343"), id);
        }
        let uses: Vec<_> = ids
            .of(Kind::Snat)
            .map(|(name, _)| SnatUse::of(config.network("mgmt"), &parse_name(name).unwrap().1))
            .collect();
        assert_eq!(uses, [SnatUse::InUse, SnatUse::Peer, SnatUse::Draining]);
        let draining = draining(&config, &ids);
        assert_eq!(draining.len(), 1);
        assert_eq!(draining[0].1.slot, 2);
        assert_eq!(
            SnatUse::of(None, &draining[0].1.snat),
            SnatUse::Draining,
            "its network is gone"
        );
    }

    #[test]
    fn a_name_says_everything() {
        let snat = Snat {
            address: IpAddr::from([10, 32, 96, 50]),
            first_port: 20_000,
            ports: 100,
        };
        let name = snat_name("mgmt", &snat);
        assert_eq!(name, "mgmt/10.32.96.50:20000-20099");
        assert_eq!(parse_name(&name), Some(("mgmt", snat)));
        let snat = Snat {
            address: "fd00::50".parse().unwrap(),
            ..snat
        };
        let name = snat_name("mgmt", &snat);
        assert_eq!(name, "mgmt/[fd00::50]:20000-20099");
        assert_eq!(parse_name(&name), Some(("mgmt", snat)));
        for wrong in [
            "",
            "mgmt",
            "mgmt/10.0.0.1",
            "mgmt/10.0.0.1:2-1",
            "mgmt/x:1-2",
        ] {
            assert_eq!(parse_name(wrong), None, "{wrong}");
        }
    }
}
