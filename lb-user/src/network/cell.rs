//! Cells: a network's own piece of kernel stack, in a namespace of its own.
//!
//! A cell answers ARP for the network's VIPs and SNAT addresses and resolves its neighbours. Its
//! inner veth end `cell` has the NIC's MAC and these addresses; the outer end carries `lb_cell` in
//! the host's namespace. Cells outlive the process and are adopted by the next one.

use std::{
    collections::BTreeSet,
    fs::File,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd as _,
};

use anyhow::{Context as _, Result, anyhow};
use futures_util::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        link::{InfoData, InfoVeth},
        route::RouteScope,
    },
};

use super::{
    link::{self, Link},
    namespace, offload, sysctl,
};

/// The inner end's name in every cell.
pub const INNER: &str = "cell";

/// What a cell must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Name of its namespace.
    pub name: String,
    /// The network's NIC; the inner end takes its MAC and MTU.
    pub nic: Link,
    /// VIPs and SNAT addresses.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// What is on the link.
    pub prefixes: Vec<Ipv4Net>,
}

/// Name of a cell's namespace. Both parts are checked names without dots, so it is a file name and
/// no other instance's.
pub fn name(instance: &str, network: &str) -> String {
    format!("{}{network}", prefix(instance))
}

/// Name of the outer end of the cell of the NIC with this index; unique in a namespace because a
/// NIC belongs to one network.
pub fn outer(nic_ifindex: u32) -> String {
    format!("lbc{nic_ifindex}")
}

/// What the names of all cells of an instance begin with.
pub fn prefix(instance: &str) -> String {
    format!("lb.{instance}.")
}

impl Cell {
    fn outer(&self) -> String {
        outer(self.nic.ifindex)
    }

    /// Makes the cell, or brings an adopted one to what it must be. Returns its outer end.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a step; what was done so far stays for [`remove`].
    pub fn build(&self) -> Result<Link> {
        let host = File::open("/proc/thread-self/ns/net").context("open the host's namespace")?;
        namespace::create(&self.name)?;
        self.remove_foreign_pair()?;
        namespace::inside(&self.name, || {
            sysctl::set_cell()?;
            link::with_netlink(async |handle| self.build_inner(&handle, &host).await)
        })
        .with_context(|| format!("build cell {}", self.name))?;
        sysctl::disable_ipv6(&self.outer())?;
        link::with_netlink(async |handle| {
            let outer = self.outer();
            let missing = || anyhow!("the outer end {outer} of cell {} is gone", self.name);
            let end = link::find(&handle, &outer).await?.ok_or_else(missing)?;
            link::set_up(&handle, end.ifindex).await?;
            Ok(end)
        })
    }

    /// An adopted cell may belong to a NIC that is gone or has changed places with another: its inner
    /// end then has another peer than the outer end of this NIC. Neither end is of use.
    fn remove_foreign_pair(&self) -> Result<()> {
        let find =
            |name: String| link::with_netlink(async |handle| link::find(&handle, &name).await);
        let remove = |link: Option<Link>| {
            link::with_netlink(async |handle| match link {
                Some(link) => link::remove(&handle, link.ifindex).await,
                None => Ok(()),
            })
        };
        let outer = find(self.outer())?;
        let inner = namespace::inside(&self.name, || find(INNER.to_owned()))?;
        let paired = inner.as_ref().and_then(|inner| inner.peer)
            == outer.as_ref().map(|outer| outer.ifindex);
        if paired {
            return Ok(());
        }
        namespace::inside(&self.name, || remove(inner))?;
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
        offload::prepare(INNER)?;
        sysctl::set_neighbours(INNER)?;
        let settings = LinkUnspec::new_with_index(inner.ifindex)
            .address(self.nic.mac.bytes().to_vec())
            .mtu(self.nic.mtu)
            .up()
            .build();
        handle
            .link()
            .set(settings)
            .execute()
            .await
            .context("set up the inner end")?;
        self.sync_addresses(handle, inner.ifindex).await?;
        for prefix in &self.prefixes {
            let route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(prefix.network(), prefix.prefix_len())
                .output_interface(inner.ifindex)
                .scope(RouteScope::Link)
                .build();
            let add = handle.route().add(route).replace().execute();
            add.await
                .with_context(|| format!("add the route to {prefix}"))?;
        }
        Ok(())
    }

    /// Born inside the cell, the outer end handed to the host: no half of it is ever visible where
    /// something else might configure it.
    async fn create_pair(&self, handle: &Handle, host: &File) -> Result<Link> {
        let outer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(self.outer())
            .mtu(self.nic.mtu)
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

    async fn sync_addresses(&self, handle: &Handle, ifindex: u32) -> Result<()> {
        let mut present = BTreeSet::new();
        let mut list = handle
            .address()
            .get()
            .set_link_index_filter(ifindex)
            .execute();
        while let Some(message) = list.try_next().await.context("list the cell's addresses")? {
            let address = message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
                    _ => None,
                });
            match address {
                Some(address) if !self.addresses.contains(&address) => {
                    handle
                        .address()
                        .del(message)
                        .execute()
                        .await
                        .with_context(|| format!("remove address {address}"))?;
                }
                Some(address) => {
                    present.insert(address);
                }
                None => {}
            }
        }
        for &address in self.addresses.difference(&present) {
            let add = handle
                .address()
                .add(ifindex, IpAddr::V4(address), 32)
                .execute();
            add.await
                .with_context(|| format!("add address {address}"))?;
        }
        Ok(())
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
            "its veth pair goes with its namespace: {error:#}"
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
