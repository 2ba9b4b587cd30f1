//! Interfaces, as netlink knows them.

use std::future::Future;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::TryStreamExt as _;
use lb_common::addr::Mac;
use rtnetlink::{
    Handle, LinkGetRequest, LinkUnspec, new_connection,
    packet_route::link::{
        InfoBridge, InfoData, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp,
        XdpAttached,
    },
};

use super::namespace;

/// What we need to know of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index in its namespace.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// How often it has got a carrier.
    pub carriers: u32,
    /// Of a veth, the other end: its index in its own namespace.
    pub peer: Option<u32>,
    /// How an XDP program runs on it, if one does.
    pub xdp: Option<XdpMode>,
    /// What it makes of several networks, if it is a bridge.
    pub bridge: Option<Bridge>,
}

/// A bridge, as far as its frames are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Whether it carries VLANs, whose tags no program on it would see.
    pub vlan_filtering: bool,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, or in the NIC itself.
    Native,
    /// In the kernel's stack.
    Generic,
}

/// Runs `work` with a netlink connection of the calling thread's namespace. On a thread of its own, which
/// has the same namespace: the caller may be inside a runtime, where there can be no other.
///
/// # Errors
///
/// If there is no netlink, or `work` fails.
pub fn with_netlink<T: Send, F: Future<Output = Result<T>>>(
    work: impl FnOnce(Handle) -> F + Send,
) -> Result<T> {
    namespace::on_own_thread(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let (connection, handle, _) = new_connection().context("open a netlink socket")?;
            let connection = tokio::spawn(connection);
            let result = work(handle).await;
            connection.abort();
            result
        })
    })
}

/// The interface called `name`, or `None` if there is none.
///
/// # Errors
///
/// If netlink fails, or the interface is no Ethernet interface.
pub async fn find(handle: &Handle, name: &str) -> Result<Option<Link>> {
    one(name, handle.link().get().match_name(name.to_owned())).await
}

/// The interface with this index, whatever its name is.
///
/// # Errors
///
/// As for [`find`].
pub async fn find_index(handle: &Handle, ifindex: u32) -> Result<Option<Link>> {
    let name = ifindex.to_string();
    one(&name, handle.link().get().match_index(ifindex)).await
}

async fn one(name: &str, request: LinkGetRequest) -> Result<Option<Link>> {
    match request.execute().try_next().await {
        Ok(Some(message)) => link(name, &message).map(Some),
        Ok(None) => Ok(None),
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -nix::libc::ENODEV => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("look up interface {name}")),
    }
}

/// The other end of a veth, in whichever namespace that is; none of what is no veth, or where this process may not look.
pub async fn peer(handle: &Handle, veth: &Link) -> Option<Link> {
    let index = veth.peer?;
    let mut request = handle.link().get().match_index(veth.ifindex).execute();
    let message = request.try_next().await.ok()??;
    let namespace = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::LinkNetNsId(id) => Some(*id),
            _ => None,
        });
    let mut request = handle.link().get().match_index(index);
    let attributes = &mut request.message_mut().attributes;
    // Without a number it is in this one.
    attributes.extend(namespace.map(LinkAttribute::IfNetnsId));
    one("of the other end", request).await.ok()?
}

/// Name and index of every interface that frames of this one come in by: the ports of a bridge, the
/// members of a bond, and theirs.
///
/// # Errors
///
/// If netlink fails.
pub async fn below(handle: &Handle, ifindex: u32) -> Result<Vec<(String, u32)>> {
    let mut all = Vec::new();
    let mut links = handle.link().get().execute();
    while let Some(message) = links.try_next().await.context("list the interfaces")? {
        let (mut name, mut upper) = (None, None);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(found) => name = Some(found),
                LinkAttribute::Controller(index) => upper = Some(index),
                _ => {}
            }
        }
        if let (Some(name), Some(upper)) = (name, upper) {
            all.push((name, message.header.index, upper));
        }
    }
    let mut found: Vec<(String, u32)> = Vec::new();
    let mut uppers = vec![ifindex];
    while let Some(wanted) = uppers.pop() {
        for (name, index, _) in all.iter().filter(|(_, _, upper)| *upper == wanted) {
            if !found.iter().any(|(_, known)| known == index) {
                found.push((name.clone(), *index));
                uppers.push(*index);
            }
        }
    }
    Ok(found)
}

/// Sets an interface up.
///
/// # Errors
///
/// If the kernel refuses.
pub async fn set_up(handle: &Handle, ifindex: u32) -> Result<()> {
    handle
        .link()
        .set(LinkUnspec::new_with_index(ifindex).up().build())
        .execute()
        .await
        .with_context(|| format!("set interface {ifindex} up"))
}

/// Whether an interface is set to receive what is sent to any group.
///
/// # Errors
///
/// If netlink fails, or there is no such interface.
pub async fn hears_all_groups(handle: &Handle, ifindex: u32) -> Result<bool> {
    let mut found = handle.link().get().match_index(ifindex).execute();
    let found = found.try_next().await;
    let found = found.with_context(|| format!("look up interface {ifindex}"))?;
    Ok(found.is_some_and(|message| message.header.flags.contains(LinkFlags::Allmulti)))
}

/// Has an interface receive what is sent to any group, or only to those that the kernel has joined.
///
/// # Errors
///
/// If the kernel refuses, or the interface reads otherwise afterwards.
pub async fn hear_all_groups(handle: &Handle, ifindex: u32, all: bool) -> Result<()> {
    let settings = LinkUnspec::new_with_index(ifindex).allmulticast(all);
    let set = handle.link().set(settings.build()).execute().await;
    let what = || format!("set allmulticast of interface {ifindex} to {all}");
    set.with_context(what)?;
    let found = hears_all_groups(handle, ifindex).await?;
    ensure!(found == all, "{}: it reads {found}", what());
    Ok(())
}

/// Removes an interface; of a veth pair, both ends.
///
/// # Errors
///
/// If the kernel refuses.
pub async fn remove(handle: &Handle, ifindex: u32) -> Result<()> {
    let removed = handle.link().del(ifindex).execute().await;
    removed.with_context(|| format!("remove interface {ifindex}"))
}

fn link(name: &str, message: &LinkMessage) -> Result<Link> {
    let mut mac = None;
    let mut mtu = 1500;
    let mut xdp = None;
    let mut peer = None;
    let mut veth = false;
    let mut bridge = None;
    let mut carriers = 0;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac::new);
            }
            LinkAttribute::Mtu(value) => mtu = *value,
            LinkAttribute::CarrierUpCount(count) => carriers = *count,
            LinkAttribute::Link(index) => peer = Some(*index),
            LinkAttribute::LinkInfo(info) => {
                veth = info.contains(&LinkInfo::Kind(InfoKind::Veth));
                bridge = info.iter().find_map(self::bridge);
            }
            LinkAttribute::Xdp(attributes) => {
                xdp = attributes.iter().find_map(|attribute| match attribute {
                    LinkXdp::Attached(XdpAttached::None) => None,
                    LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(XdpMode::Generic),
                    LinkXdp::Attached(_) => Some(XdpMode::Native),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let Some(mac) = mac.filter(|mac| !mac.is_none()) else {
        bail!("interface {name} has no Ethernet address; a network needs an Ethernet interface");
    };
    let flags = message.header.flags;
    Ok(Link {
        ifindex: message.header.index,
        mac,
        mtu,
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Running),
        carriers,
        peer: peer.filter(|_| veth),
        xdp,
        bridge,
    })
}

fn bridge(info: &LinkInfo) -> Option<Bridge> {
    let LinkInfo::Data(InfoData::Bridge(data)) = info else {
        return None;
    };
    let vlan_filtering = data.contains(&InfoBridge::VlanFiltering(true));
    Some(Bridge { vlan_filtering })
}
