//! A network's own piece of kernel stack, in a namespace of its own.
//!
//! A cell has the network's VIPs and SNAT addresses and resolves its neighbours; the programs answer ARP and neighbour
//! solicitations for these addresses. Its inner veth end `cell` has the NIC's MAC and these addresses; the outer end carries
//! `lb_cell` in the host's namespace. Cells outlive the process and are adopted by the next one.

mod addresses;
mod amiss;
mod routes;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::File,
    net::{IpAddr, Ipv6Addr},
    os::fd::AsRawFd as _,
};

use anyhow::{Context as _, Result, anyhow};
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use lb_common::addr::Mac;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_route::link::{InfoData, InfoVeth},
};

pub use self::addresses::remove_address;

use super::{
    cell_thread::Resident,
    link::{self, Link},
    namespace, offload, sysctl,
};
use crate::config::Route;

/// The inner end's name in every cell.
pub const INNER: &str = "cell";

/// What a cell must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Name of its namespace.
    pub name: String,
    /// Index of the network's NIC.
    pub nic: u32,
    /// MAC of the NIC, and of the inner end.
    pub mac: Mac,
    /// MTU of the NIC, and of both ends.
    pub mtu: u32,
    /// The VLAN of the network; the frames in the cell are untagged all the same.
    pub vlan: Option<u16>,
    /// VIPs and SNAT addresses, and those that checks come from.
    pub addresses: BTreeSet<IpAddr>,
    /// Of these, those that checks come from: the kernel asks for neighbours in their name.
    pub checks_from: Vec<IpAddr>,
    /// What is on the link.
    pub prefixes: Vec<IpNet>,
    /// What is behind gateways on the link.
    pub routes: Vec<Route>,
}

/// Name of a cell's namespace. Both parts are checked names without dots, so it is a file name and
/// no other instance's.
pub fn name(instance: &str, network: &str) -> String {
    format!("{}{network}", prefix(instance))
}

/// Name of the outer end of the cell of a NIC's network; unique in a namespace because the NIC has
/// one network for each VLAN. It fits into a name while the index has at most seven digits.
pub fn outer(nic_ifindex: u32, vlan: Option<u16>) -> String {
    match vlan {
        None => format!("lbc{nic_ifindex}"),
        Some(vlan) => format!("lbc{nic_ifindex}v{vlan}"),
    }
}

/// What the names of all cells of an instance begin with.
pub fn prefix(instance: &str) -> String {
    format!("lb.{instance}.")
}

/// The link-local address of the cell of a NIC with this MAC: fe80::/64, and an interface id made of the
/// MAC. The host has the usual one, with ff:fe in the middle (RFC 4291 appendix A); this has 6c:62.
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    let interface = [a ^ 2, b, c, 0x6c, 0x62, d, e, f];
    Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(u64::from_be_bytes(interface)))
}

impl Cell {
    /// Whether it has IPv6. An address that only finishes its flows may have outlived its prefix.
    pub fn speaks_ipv6(&self) -> bool {
        let has_prefix = self.prefixes.iter().any(|prefix| prefix.addr().is_ipv6());
        has_prefix || self.addresses.iter().any(IpAddr::is_ipv6)
    }

    fn outer(&self) -> String {
        outer(self.nic, self.vlan)
    }

    /// Makes the cell where `resident` lives, or brings an adopted one to what it must be. Returns its
    /// outer end.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a step; what was done so far stays for [`remove`].
    pub fn build(&self, resident: &Resident) -> Result<Link> {
        let host = File::open("/proc/thread-self/ns/net").context("open the host's namespace")?;
        self.remove_foreign_pair(resident)?;
        let cell = self.clone();
        let build = move || {
            sysctl::set_cell()?;
            link::with_netlink(async |handle| cell.build_inner(&handle, &host).await)
        };
        resident
            .run(build)
            .with_context(|| format!("build cell {}", self.name))?;
        sysctl::disable_ipv6(&self.outer())?;
        link::with_netlink(async |handle| {
            let outer = self.outer();
            let missing = || anyhow!("the outer end {outer} of cell {} is gone", self.name);
            let end = link::find(&handle, &outer).await?.ok_or_else(missing)?;
            let settings = LinkUnspec::new_with_index(end.ifindex)
                .mtu(self.mtu)
                .up()
                .build();
            let set = handle.link().set(settings).execute().await;
            set.context("set up the outer end")?;
            Ok(end)
        })
    }

    /// Takes away what an adopted cell has and does not need any more. Not a part of [`Self::build`],
    /// because what runs needs it until the change is made.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a removal.
    pub fn trim(&self, resident: &Resident) -> Result<()> {
        let cell = self.clone();
        let trim = move || {
            link::with_netlink(async |handle| {
                let Some(inner) = link::find(&handle, INNER).await? else {
                    return Ok(());
                };
                cell.remove_addresses(&handle, inner.ifindex).await?;
                cell.remove_routes(&handle, inner.ifindex).await?;
                if !cell.speaks_ipv6() {
                    sysctl::disable_ipv6(INNER)?;
                }
                Ok(())
            })
        };
        resident
            .run(trim)
            .with_context(|| format!("trim cell {}", self.name))
    }

    /// Announces the addresses to all stations on the link (gratuitous ARP, and unsolicited neighbour
    /// advertisements: RFC 4861 section 7.2.6).
    ///
    /// # Errors
    ///
    /// If the cell is gone or the kernel refuses.
    pub fn announce(&self, resident: &Resident) -> Result<()> {
        // With `arp_notify` and `ndisc_notify` the kernel does so for every address when the MAC is set, if
        // to the same.
        let mac = self.mac;
        let settings = move |inner: Link| {
            LinkUnspec::new_with_index(inner.ifindex)
                .address(mac.bytes().to_vec())
                .build()
        };
        let announce = move || {
            link::with_netlink(async |handle| {
                let inner = link::find(&handle, INNER).await?;
                let inner =
                    inner.ok_or_else(|| anyhow!("the inner end of its veth pair is gone"))?;
                let set = handle.link().set(settings(inner)).execute().await;
                set.context("set its MAC")
            })
        };
        resident
            .run(announce)
            .with_context(|| format!("announce the addresses of cell {}", self.name))
    }

    /// An adopted cell may belong to a NIC that is gone or has changed places with another: its inner
    /// end then has another peer than the outer end of this NIC. Neither end is of use.
    fn remove_foreign_pair(&self, resident: &Resident) -> Result<()> {
        let find =
            |name: String| link::with_netlink(async |handle| link::find(&handle, &name).await);
        let remove = |link: Option<Link>| {
            link::with_netlink(async |handle| match link {
                Some(link) => link::remove(&handle, link.ifindex).await,
                None => Ok(()),
            })
        };
        let outer = find(self.outer())?;
        let inner = resident.run(move || find(INNER.to_owned()))?;
        let paired = inner.as_ref().and_then(|inner| inner.peer)
            == outer.as_ref().map(|outer| outer.ifindex);
        if paired {
            return Ok(());
        }
        resident.run(move || remove(inner))?;
        // It may have gone with its peer just now; what is no veth is none of ours.
        remove(find(self.outer())?.filter(|outer| outer.peer.is_some()))
    }

    async fn build_inner(&self, handle: &Handle, host: &File) -> Result<()> {
        if let Some(lo) = loopback(handle).await? {
            link::set_up(handle, lo).await?;
        }
        let inner = match link::find(handle, INNER).await? {
            Some(inner) => inner,
            None => self.create_pair(handle, host).await?,
        };
        offload::prepare_veth(INNER)?;
        sysctl::set_neighbours(INNER)?;
        // An interface with less than IPv6 needs has no settings of it.
        let settings = LinkUnspec::new_with_index(inner.ifindex)
            .address(self.mac.bytes().to_vec())
            .mtu(self.mtu)
            .build();
        let set = handle.link().set(settings).execute().await;
        set.context("set MAC and MTU of the inner end")?;
        if self.speaks_ipv6() {
            sysctl::enable_ipv6(INNER)?;
        }
        let set_up = link::set_up(handle, inner.ifindex).await;
        set_up.context("set up the inner end")?;
        self.add_addresses(handle, inner.ifindex).await?;
        self.add_routes(handle, inner.ifindex).await
    }

    /// Born inside the cell, the outer end handed to the host: no half of it is ever visible where
    /// something else might configure it.
    async fn create_pair(&self, handle: &Handle, host: &File) -> Result<Link> {
        let outer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(self.outer())
            .mtu(self.mtu)
            .setns_by_fd(host.as_raw_fd())
            .build();
        let pair = LinkVeth::new(INNER, &self.outer())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(outer)))
            .build();
        handle.link().add(pair).execute().await.with_context(|| {
            format!(
                "create the veth pair {INNER} and {}; is the veth module there?",
                self.outer()
            )
        })?;
        let inner = link::find(handle, INNER).await?;
        inner.ok_or_else(|| anyhow!("the new inner end {INNER} is not there"))
    }
}

/// Removes the cell and its veth pair.
///
/// # Errors
///
/// As [`namespace::remove`].
pub fn remove(name: &str) -> Result<()> {
    // The pair first: the kernel takes a namespace apart later, and until then the name of the
    // outer end would be in the way of the next start.
    let pair = namespace::inside(name, || {
        link::with_netlink(async |handle| {
            if let Some(inner) = link::find(&handle, INNER).await? {
                link::remove(&handle, inner.ifindex).await?;
            }
            Ok(())
        })
    });
    if let Err(error) = pair {
        tracing::warn!(
            cell = name,
            "remove the veth pair of the cell: {error:#}; it goes with the namespace"
        );
    }
    namespace::remove(name).with_context(|| format!("remove cell {name}"))
}

/// Index of the namespace's loopback interface. It has no Ethernet address, so [`link::find`] does
/// not take it.
async fn loopback(handle: &Handle) -> Result<Option<u32>> {
    let mut links = handle.link().get().match_name("lo").execute();
    let lo = links
        .try_next()
        .await
        .context("look up the loopback interface")?;
    Ok(lo.map(|message| message.header.index))
}
