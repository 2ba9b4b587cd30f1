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
use crate::config::{Config, Snat};

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
            && !network_config.snat.contains(&snat)
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
