//! [`Topology::poc`] with two load balancers' hosts, of which one is active: both are on both LANs, and on a
//! third one of their own.
//!
//! ```text
//!  [ tlan ] - eth0 [ lb1 ] eth1 - [ mlan ]
//!                   eth2 10.99.0.1
//!                    |
//!                  [ slan: bridge ]
//!                    |
//!                   eth2 10.99.0.2
//!  [ tlan ] - eth0 [ lb2 ] eth1 - [ mlan ]
//! ```

mod sync_lan;

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV4},
    ops::Deref,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

pub use self::sync_lan::SyncLan;
use super::{LB_PORT, SNAT, SNAT6, Site, Topology};

/// The NIC of a load balancer towards the other one.
pub const SYNC_NIC: &str = "eth2";
/// The SNAT address of the second box, beside [`SNAT`] of the first one.
pub const PEER_SNAT: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 51);
/// The address that the active box has.
pub const MARKER: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 60);

/// Where the boxes hear each other.
const SYNC_PORT: u16 = 7433;
/// What the links of a box that loses its power are grouped by.
const POWERED_OFF: u32 = 33;

/// One of two boxes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BoxName {
    /// The first one.
    Lb1,
    /// The second one.
    Lb2,
}

impl BoxName {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Lb1, Self::Lb2];

    /// Its name in configurations and certificates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lb1 => "lb1",
            Self::Lb2 => "lb2",
        }
    }

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Lb1 => Self::Lb2,
            Self::Lb2 => Self::Lb1,
        }
    }

    /// Its port in each switch.
    pub const fn port(self) -> &'static str {
        match self {
            Self::Lb1 => LB_PORT,
            Self::Lb2 => "p-lb2",
        }
    }

    /// What backends see of the flows that it opens.
    pub const fn snat(self) -> Ipv4Addr {
        match self {
            Self::Lb1 => SNAT,
            Self::Lb2 => PEER_SNAT,
        }
    }

    /// Where its checks of backends come from, whichever box is active.
    pub const fn checks_from(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 32, 96, 62 + self.number())
    }

    /// The same of IPv6.
    pub const fn snat6(self) -> Ipv6Addr {
        match self {
            Self::Lb1 => SNAT6,
            Self::Lb2 => Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x51),
        }
    }

    /// The same as [`Self::checks_from`] of IPv6.
    pub const fn checks_from6(self) -> Ipv6Addr {
        let last = match self {
            Self::Lb1 => 0x63,
            Self::Lb2 => 0x64,
        };
        Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, last)
    }

    /// Where the other one reaches it.
    pub const fn sync(self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, self.number()), SYNC_PORT)
    }

    /// An address of its host on the management LAN, which it has only if a test gives it.
    pub const fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 32, 96, 60 + self.number())
    }

    const fn number(self) -> u8 {
        match self {
            Self::Lb1 => 1,
            Self::Lb2 => 2,
        }
    }
}

/// [`Topology::poc`], whose load balancer's host is the first box, and what the second one adds.
#[derive(Debug)]
pub struct TwoBoxes {
    /// The LAN between them.
    pub sync: SyncLan,
    second: Site,
    first: Topology,
}

impl Topology {
    /// Builds [`Self::poc`] and a second load balancer's host beside the first one.
    ///
    /// # Errors
    ///
    /// As for [`Self::poc`].
    pub fn pair() -> Result<TwoBoxes> {
        let first = Self::poc()?;
        let pair = TwoBoxes {
            sync: SyncLan::build(first.switch("slan")?)?,
            second: Site::new()?,
            first,
        };
        pair.first.join_beside(&pair.second, BoxName::Lb2.port())?;
        for name in BoxName::ALL {
            pair.sync.join(pair.site(name), name)?;
        }
        pair.sync.settle()?;
        Ok(pair)
    }
}

impl TwoBoxes {
    /// The host of a box, and all that a run of `lb` there needs.
    pub fn site(&self, name: BoxName) -> &Site {
        match name {
            BoxName::Lb1 => &self.first,
            BoxName::Lb2 => &self.second,
        }
    }

    /// Gives a box the address that makes it the active one.
    ///
    /// # Errors
    ///
    /// When it has it.
    pub fn give_marker(&self, name: BoxName) -> Result<()> {
        self.marker(name, "add")
    }

    /// Takes that address away.
    ///
    /// # Errors
    ///
    /// When it has none.
    pub fn take_marker(&self, name: BoxName) -> Result<()> {
        self.marker(name, "del")
    }

    /// Takes the address from the other box and gives it to this one.
    ///
    /// # Errors
    ///
    /// When the other one has none.
    pub fn move_marker(&self, to: BoxName) -> Result<()> {
        self.take_marker(to.other())?;
        self.give_marker(to)
    }

    /// Whether a box has that address, on whatever interface.
    ///
    /// # Errors
    ///
    /// When its host cannot be asked.
    pub fn has_marker(&self, name: BoxName) -> Result<bool> {
        let addresses = self.site(name).lb.run("ip -o -4 addr show")?;
        let marker = MARKER.to_string();
        let mut words = addresses.split([' ', '/']);
        Ok(words.any(|word| word == marker))
    }

    /// Takes all links of a box away at once. What runs there is for the caller to end; for lack of links nothing
    /// of it is heard any more.
    ///
    /// # Errors
    ///
    /// When it has none.
    pub fn power_off(&self, name: BoxName) -> Result<()> {
        let netns = &self.site(name).lb;
        let links: Vec<LinkName> = serde_json::from_str(&netns.run("ip -j link show")?)
            .context("read `ip -j link show`")?;
        let links = links.iter().filter(|link| link.ifname != "lo");
        let group = |link: &LinkName| format!("link set {} group {POWERED_OFF}\n", link.ifname);
        netns.ip_batch(&links.map(group).collect::<String>())?;
        netns.run(&format!("ip link del group {POWERED_OFF}"))?;
        Ok(())
    }

    /// Gives a box that was powered off new NICs, and a host without the marker.
    ///
    /// # Errors
    ///
    /// When it has NICs.
    pub fn power_on(&self, name: BoxName) -> Result<()> {
        if self.has_marker(name)? {
            self.take_marker(name)?;
        }
        self.first.join_beside(self.site(name), name.port())?;
        self.sync.join(self.site(name), name)?;
        self.sync.settle()
    }

    fn marker(&self, name: BoxName, verb: &str) -> Result<()> {
        let line = format!("addr {verb} {MARKER}/32 dev lo\n");
        self.site(name).lb.ip_batch(&line)
    }
}

impl Deref for TwoBoxes {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.first
    }
}

#[derive(Debug, Deserialize)]
struct LinkName {
    ifname: String,
}
