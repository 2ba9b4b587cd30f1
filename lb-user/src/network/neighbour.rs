//! Neighbours: each network's cell resolves its next hops, and a thread in the cell reads them. The
//! host does it where the network has its addresses.
//!
//! Traffic that bypasses the kernel does not keep its neighbours fresh, so the thread asks the
//! kernel to use them again and again (`NTF_USE`): a fresh one costs nothing, a stale one is probed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use futures_util::{StreamExt as _, TryStreamExt as _};
use lb_common::addr::Mac;
use rtnetlink::{
    Handle, MulticastGroup, new_multicast_connection,
    packet_core::NetlinkPayload,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
        },
    },
};
use tokio::sync::mpsc;

use super::{link, namespace};

/// How often an unresolved neighbour is asked for.
const ASK: Duration = Duration::from_secs(1);
/// Every how many of these rounds the resolved ones are refreshed.
const REFRESH_ROUNDS: u32 = 5;

/// Pause after netlink has failed.
const RETRY: Duration = Duration::from_secs(2);

/// A neighbour that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Id of its network.
    pub network: u16,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its MAC.
    pub mac: Mac,
}

/// Where the neighbours of a network are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// The cell's namespace; none for the host's own.
    pub cell: Option<String>,
    /// The interface there.
    pub interface: String,
}

/// Starts the thread that resolves `targets` on `side` and reports every new or changed MAC. It ends
/// with the process, or when nobody listens any more.
///
/// # Errors
///
/// If the thread cannot be started.
pub fn watch(
    side: Side,
    network: u16,
    targets: BTreeSet<Ipv4Addr>,
    report: mpsc::UnboundedSender<Resolved>,
) -> Result<()> {
    let work = move || {
        while let Err(error) = run(&side, network, &targets, &report) {
            tracing::error!(?side, "neighbours are not watched, trying again: {error:#}");
            thread::sleep(RETRY);
        }
    };
    let builder = thread::Builder::new().name(format!("neighbours-{network}"));
    builder
        .spawn(work)
        .map(drop)
        .context("start a neighbour thread")
}

fn run(
    side: &Side,
    network: u16,
    targets: &BTreeSet<Ipv4Addr>,
    report: &mpsc::UnboundedSender<Resolved>,
) -> Result<()> {
    if let Some(cell) = &side.cell {
        namespace::enter(cell)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, mut events) =
            new_multicast_connection(&[MulticastGroup::Neigh]).context("open a netlink socket")?;
        tokio::spawn(connection);
        let link = link::find(&handle, &side.interface).await?;
        let link = link.ok_or_else(|| anyhow!("there is no interface {}", side.interface))?;
        let mut watch = Watch { handle, ifindex: link.ifindex, network, targets, known: BTreeMap::new(), report };
        watch.read_all().await?;
        let mut rounds = tokio::time::interval(ASK);
        let mut round = 0u32;
        while !report.is_closed() {
            tokio::select! {
                _ = rounds.tick() => {
                    watch.ask(round.is_multiple_of(REFRESH_ROUNDS)).await?;
                    // Events can be lost under pressure (ENOBUFS): a whole read now and then.
                    if round.is_multiple_of(REFRESH_ROUNDS) { watch.read_all().await?; }
                    round = round.wrapping_add(1);
                }
                event = events.next() => {
                    let (message, _) = event.ok_or_else(|| anyhow!("the netlink socket was closed"))?;
                    if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) = message.payload {
                        watch.note(&neighbour);
                    }
                }
            }
        }
        Ok(())
    })
}

struct Watch<'a> {
    handle: Handle,
    ifindex: u32,
    network: u16,
    targets: &'a BTreeSet<Ipv4Addr>,
    known: BTreeMap<Ipv4Addr, Mac>,
    report: &'a mpsc::UnboundedSender<Resolved>,
}

impl Watch<'_> {
    /// Makes the kernel resolve what is not known, and with `all` probe what has become stale.
    async fn ask(&self, all: bool) -> Result<()> {
        for &target in self.targets {
            if !all && self.known.contains_key(&target) {
                continue;
            }
            let asked = self
                .handle
                .neighbours()
                .add(self.ifindex, target.into())
                .replace()
                .state(NeighbourState::None)
                .flags(NeighbourFlags::Use)
                .execute();
            asked
                .await
                .with_context(|| format!("ask for neighbour {target}"))?;
        }
        Ok(())
    }

    async fn read_all(&mut self) -> Result<()> {
        let mut all = self
            .handle
            .neighbours()
            .get()
            .set_address_family(AddressFamily::Inet)
            .execute();
        while let Some(neighbour) = all.try_next().await.context("read the neighbours")? {
            self.note(&neighbour);
        }
        Ok(())
    }

    /// Reports a neighbour whose MAC is new. One that stops answering keeps its last MAC.
    fn note(&mut self, message: &NeighbourMessage) {
        let Some((address, mac)) = resolved(message, self.ifindex) else {
            return;
        };
        if !self.targets.contains(&address) || self.known.get(&address) == Some(&mac) {
            return;
        }
        self.known.insert(address, mac);
        tracing::debug!(network = self.network, %address, %mac, "neighbour resolved");
        // Nobody listens any more: the loop ends at its next round.
        let _closed = self.report.send(Resolved {
            network: self.network,
            address,
            mac,
        });
    }
}

/// Address and MAC of a neighbour on `ifindex` whose MAC is valid.
fn resolved(message: &NeighbourMessage, ifindex: u32) -> Option<(Ipv4Addr, Mac)> {
    let valid = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    );
    if message.header.ifindex != ifindex || !valid {
        return None;
    }
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => {
                address = Some(*found)
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac::new);
            }
            _ => {}
        }
    }
    Some((address?, mac?))
}
