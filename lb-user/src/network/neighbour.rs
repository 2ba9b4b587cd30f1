//! Each network's cell resolves its next hops, and a thread in the cell reads them. The
//! host does it where the network has its addresses.
//!
//! Traffic that bypasses the kernel does not keep its neighbours fresh, so the thread makes the kernel use
//! them every second (`NTF_USE`): a fresh one costs nothing, a stale one is probed. In a cell each is stale by
//! then (`sysctl`), so one that does not answer is noticed within two seconds; in the host's own namespace the
//! host's times hold. Others are resolved once, when an inquiry comes for one.
//!
//! The kernel's table is one for all namespaces. In a cell the entries of the targets are exempt from its
//! limits and its garbage collection (`NTF_EXT_LEARNED`), so they are there also when others fill it; probes
//! and answers change them as any other. They stay until they are taken out.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    net::{IpAddr, Ipv6Addr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use lb_common::addr::Mac;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use rtnetlink::{
    Handle, MulticastGroup, new_connection, new_multicast_connection,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
        },
    },
    sys::AsyncSocket as _,
};
use tokio::{
    sync::{mpsc, watch},
    time::{self, MissedTickBehavior},
};

use super::{
    cell_thread,
    garp_listener::{self, Ears, Registered},
    link,
    silence::Silence,
};

/// How often every target is used, and an unresolved one solicited.
const ASK: Duration = Duration::from_secs(1);

/// Inquiries that wait for their turn; more are dropped.
pub const MAX_INQUIRIES: usize = 256;
/// How long a neighbour of an inquiry is reported, and how many are at a time.
const ASKED_FOR: Duration = Duration::from_secs(10);
const MAX_ASKED: usize = 1024;

/// Room for events that wait, in bytes, which the kernel doubles: all targets become stale at about the same time,
/// and an event takes less than 1 KiB.
const EVENT_BYTES: usize = 1 << 20;
/// Pause between two whole reads because events were lost.
const REREAD: Duration = Duration::from_millis(100);
/// Pause after netlink has failed.
const RETRY: Duration = Duration::from_secs(2);

/// A neighbour that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Id of its network.
    pub network: u16,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: Mac,
}

/// What has become of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourChange {
    /// It has answered: it is new, has another MAC, or was silent.
    Resolved(Resolved),
    /// It does not answer any more, or never has.
    Silent {
        /// Id of its network.
        network: u16,
        /// Its address.
        address: IpAddr,
    },
}

impl NeighbourChange {
    /// Id of its network, and its address.
    pub const fn neighbour(&self) -> (u16, IpAddr) {
        match *self {
            Self::Resolved(Resolved {
                network, address, ..
            })
            | Self::Silent { network, address } => (network, address),
        }
    }
}

/// Where the neighbours of a network are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// The cell's namespace; none for the host's own.
    pub cell: Option<String>,
    /// The interface there.
    pub interface: String,
}

/// The neighbours that are to be resolved in a network; each change is followed.
pub type Targets = watch::Sender<BTreeSet<IpAddr>>;

/// Inquiries for neighbours that are no targets, and their answers.
#[derive(Debug)]
pub struct Inquiry {
    /// Their addresses.
    pub questions: mpsc::Receiver<IpAddr>,
    /// What comes of it, if anything does, and as long as there is room.
    pub answers: mpsc::Sender<Resolved>,
}

/// Starts the thread that resolves `targets` on `side`, reports every new or changed MAC and which of them do
/// not answer, and answers the inquiry. When the targets change, all that is known is reported anew. It ends
/// with the process, or when the receiver of the reports or the sender of the targets is gone.
///
/// # Errors
///
/// If the thread cannot be started, or enter the cell.
pub fn resolve(
    side: Side,
    network: u16,
    mut targets: watch::Receiver<BTreeSet<IpAddr>>,
    report: mpsc::UnboundedSender<NeighbourChange>,
    mut inquiry: Inquiry,
) -> Result<()> {
    // A host's own table receives it.
    let hears = side.cell.is_some().then(garp_listener::open).transpose();
    let hears = hears.context("open a packet socket for gratuitous ARP")?;
    let cell = side.cell.clone();
    let work = move |()| {
        while !report.is_closed() && targets.has_changed().is_ok() {
            if let Err(error) = run(
                &side,
                network,
                hears.as_ref(),
                &mut targets,
                &report,
                &mut inquiry,
            ) {
                tracing::error!(
                    ?side,
                    "neighbours are not watched, so next hops are not followed; trying again: {error:#}"
                );
                thread::sleep(RETRY);
            }
        }
    };
    let name = format!("neighbours-{network}");
    cell_thread::start(name, cell.as_deref(), || Ok(()), work)
        .map(drop)
        .with_context(|| format!("watch the neighbours of network {network}"))
}

/// Watches until one of the channels is closed, or the interface is gone.
fn run(
    side: &Side,
    network: u16,
    hears: Option<&Ears>,
    targets: &mut watch::Receiver<BTreeSet<IpAddr>>,
    report: &mpsc::UnboundedSender<NeighbourChange>,
    Inquiry { questions, answers }: &mut Inquiry,
) -> Result<()> {
    cell_thread::runtime()?.block_on(async {
        // Two sockets: an answer must not be lost among events.
        let (connection, handle, _) = new_connection().context("open a netlink socket")?;
        tokio::spawn(connection);
        let groups = [MulticastGroup::Link, MulticastGroup::Neigh];
        let (mut connection, _handle, mut events) =
            new_multicast_connection(&groups).context("open a netlink socket for events")?;
        let socket = connection.socket_mut().socket_mut();
        // Without it all is read anew more often.
        let _refused = setsockopt(socket, RcvBufForce, &EVENT_BYTES);
        tokio::spawn(connection);
        let Some(link) = link::find(&handle, &side.interface).await? else {
            // One will come: cells and NICs are made anew.
            let _event = time::timeout(ASK, events.next()).await;
            return Ok(());
        };
        let stations = hears.map(Ears::register).transpose()?;
        let mut watch = Watch {
            handle,
            ifindex: link.ifindex,
            network,
            is_cell: side.cell.is_some(),
            targets: targets.borrow_and_update().clone(),
            known: BTreeMap::new(),
            silence: Silence::default(),
            has_lost: false,
            report,
            asked: BTreeMap::new(),
            moved: BTreeSet::new(),
            strays: BTreeSet::new(),
            answers,
        };
        watch.read_all().await?;
        let mut rereads = time::interval(REREAD);
        rereads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rounds = time::interval(ASK);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !report.is_closed() {
            tokio::select! {
                _ = rounds.tick() => {
                    watch.ask().await?;
                    watch.asked.retain(|_, at| at.elapsed() < ASKED_FOR);
                    watch.find_moved().await;
                }
                Some(address) = questions.recv() => { watch.inquire(address).await; }
                station = hear(stations.as_ref()), if stations.is_some() => {
                    watch.moved.extend(station?.filter(|station| watch.targets.contains(station)));
                    watch.find_moved().await;
                }
                changed = targets.changed() => {
                    if changed.is_err() { return Ok(()); }
                    watch.follow(targets.borrow_and_update().clone());
                    watch.read_all().await?;
                    watch.ask().await?;
                }
                _ = rereads.tick(), if watch.has_lost => {
                    tracing::warn!(network, "events of neighbours were lost: all are read anew");
                    watch.has_lost = false;
                    watch.read_all().await?;
                }
                event = events.next() => {
                    let first = event.ok_or_else(|| anyhow!("the netlink socket was closed"))?;
                    // All that wait, before anything is done about them: an overrun may be among the last ones.
                    let mut next = Some(first);
                    while let Some((message, _)) = next {
                        if watch.is_over(message) { return Ok(()); }
                        next = events.next().now_or_never().flatten();
                    }
                    watch.remove_strays().await;
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
    is_cell: bool,
    targets: BTreeSet<IpAddr>,
    known: BTreeMap<IpAddr, Mac>,
    /// Which targets do not answer.
    silence: Silence,
    /// Whether events were lost (`ENOBUFS`) since all was read.
    has_lost: bool,
    report: &'a mpsc::UnboundedSender<NeighbourChange>,
    /// The addresses of inquiries, and when each was made.
    asked: BTreeMap<IpAddr, Instant>,
    answers: &'a mpsc::Sender<Resolved>,
    /// Targets that have announced another MAC, and are to be resolved anew.
    moved: BTreeSet<IpAddr>,
    /// Neighbours whose entry the kernel would keep for ever although they are targets no more: since a change,
    /// or by a process of before.
    strays: BTreeSet<IpAddr>,
}

impl Watch<'_> {
    /// Takes an event in; returns whether it was the end of the interface.
    fn is_over(&mut self, event: NetlinkMessage<RouteNetlinkMessage>) -> bool {
        // A socket has removed the entry, ours or another one: that is called a failure, too.
        let is_removal = event.header.port_number != 0;
        match event.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) => {
                self.note(&neighbour);
                if !is_removal {
                    self.note_failure(&neighbour);
                }
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(neighbour)) => {
                if let Some(address) = address(&neighbour, self.ifindex) {
                    self.silence.note_removal(address);
                }
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                return link.header.index == self.ifindex;
            }
            NetlinkPayload::Overrun(_) => self.has_lost = true,
            _ => {}
        }
        false
    }

    /// From now on these are the targets.
    fn follow(&mut self, targets: BTreeSet<IpAddr>) {
        self.silence.retain(&targets);
        self.targets = targets;
        // A known one may be the next hop of a new backend. One that is silent must answer first.
        let silence = &self.silence;
        self.known.retain(|address, _| silence.has(*address));
        for address in silence.all() {
            self.send(NeighbourChange::Silent {
                network: self.network,
                address,
            });
        }
    }

    /// Makes the kernel resolve what is not known, and probe what has become stale.
    async fn ask(&self) -> Result<()> {
        for &target in &self.targets {
            self.use_it(target)
                .await
                .with_context(|| format!("ask for neighbour {target}"))?;
        }
        Ok(())
    }

    async fn use_it(&self, target: IpAddr) -> Result<(), rtnetlink::Error> {
        let mut flags = NeighbourFlags::Use;
        if self.is_cell && self.targets.contains(&target) {
            flags |= NeighbourFlags::ExtLearned;
            if let Some(group) = group(target) {
                self.use_entry(group, flags).await?;
            }
        }
        self.use_entry(target, flags).await
    }

    async fn use_entry(
        &self,
        address: IpAddr,
        flags: NeighbourFlags,
    ) -> Result<(), rtnetlink::Error> {
        self.handle
            .neighbours()
            .add(self.ifindex, address)
            .replace()
            .state(NeighbourState::None)
            .flags(flags)
            .execute()
            .await
    }

    /// Has the kernel forget what it knows of a neighbour. Often there is no such entry.
    async fn forget(&self, address: IpAddr) {
        let entry = neighbour(self.ifindex, address);
        let _none = self.handle.neighbours().del(entry).execute().await;
    }

    /// Whether the entry of an address is one of those that are kept: of a target, or of its group.
    fn is_kept(&self, address: IpAddr) -> bool {
        let mut targets = self.targets.iter();
        self.targets.contains(&address) || targets.any(|target| group(*target) == Some(address))
    }

    async fn remove_strays(&mut self) {
        for address in mem::take(&mut self.strays) {
            self.forget(address).await;
        }
    }

    /// Makes the kernel resolve a neighbour that may be elsewhere now. A cell forgets first what it knows:
    /// else it would probe the old MAC for seconds before it solicits all stations. The host's own table is
    /// left to the host. Returns whether it is resolved now; not if it was just now, or too many are.
    async fn inquire(&mut self, address: IpAddr) -> bool {
        let asked = self.asked.get(&address);
        let is_known = asked.is_some_and(|at| at.elapsed() < ASK);
        if is_known || (asked.is_none() && self.asked.len() >= MAX_ASKED) {
            return false;
        }
        self.asked.insert(address, Instant::now());
        if self.is_cell {
            self.forget(address).await;
        }
        if let Err(error) = self.use_it(address).await {
            tracing::debug!(network = self.network, %address, %error, "have the kernel resolve the neighbour");
        }
        true
    }

    /// Resolves the targets that have announced another MAC: any station can announce any address.
    async fn find_moved(&mut self) {
        for address in mem::take(&mut self.moved) {
            if !self.inquire(address).await {
                self.moved.insert(address);
            }
        }
    }

    async fn read_all(&mut self) -> Result<()> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let get = self.handle.neighbours().get();
            let mut all = get.set_address_family(family).execute();
            while let Some(neighbour) = all.try_next().await.context("read the neighbours")? {
                self.note(&neighbour);
            }
        }
        self.remove_strays().await;
        Ok(())
    }

    /// Reports a neighbour whose MAC is new, or which was silent. One that stops answering keeps its last MAC.
    fn note(&mut self, message: &NeighbourMessage) {
        let Some(address) = address(message, self.ifindex) else {
            return;
        };
        let is_exempt = message.header.flags.contains(NeighbourFlags::ExtLearned);
        if self.is_cell && is_exempt && !self.is_kept(address) {
            self.strays.insert(address);
            // A process that is being replaced may ask once more. Of a new entry of a group there is no event.
            self.strays
                .extend(group(address).filter(|group| !self.is_kept(*group)));
        }
        let Some(mac) = mac(message) else {
            return;
        };
        if self.asked.contains_key(&address) {
            // Without room another inquiry comes for it.
            let _full = self.answers.try_send(Resolved {
                network: self.network,
                address,
                mac,
            });
        }
        if !self.targets.contains(&address) {
            return;
        }
        let is_new = self.known.get(&address) != Some(&mac);
        let was_silent = self.silence.has(address);
        self.silence
            .note_valid(address, is_new || is_answer(message));
        if !is_new && (!was_silent || self.silence.has(address)) {
            return;
        }
        self.known.insert(address, mac);
        tracing::debug!(network = self.network, %address, %mac, "neighbour resolved");
        self.send(NeighbourChange::Resolved(Resolved {
            network: self.network,
            address,
            mac,
        }));
    }

    /// Reports a target that the kernel has given up.
    fn note_failure(&mut self, message: &NeighbourMessage) {
        if message.header.state != NeighbourState::Failed {
            return;
        }
        let target = address(message, self.ifindex).filter(|one| self.targets.contains(one));
        if let Some(address) = target
            && self.silence.note_failure(address)
        {
            tracing::debug!(network = self.network, %address, "neighbour does not answer");
            self.send(NeighbourChange::Silent {
                network: self.network,
                address,
            });
        }
    }

    fn send(&self, change: NeighbourChange) {
        // The receiver is gone: the loop ends at its next round.
        let _closed = self.report.send(change);
    }
}

/// The next station that announces itself, if the sockets are open.
async fn hear(ears: Option<&Registered>) -> io::Result<Option<IpAddr>> {
    match ears {
        Some(ears) => ears.next().await.map(Some),
        None => Ok(None),
    }
}

/// The group that solicitations for an IPv6 address go to (RFC 4291 section 2.7.1). It has an entry as well.
const fn group(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => {
            let group = 0xff02_u128 << 112 | 0x1_ff00_0000 | address.to_bits() & 0xff_ffff;
            Some(IpAddr::V6(Ipv6Addr::from_bits(group)))
        }
    }
}

/// The entry of an address on `ifindex`, whatever its content.
fn neighbour(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    let (family, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
    };
    entry.header.family = family;
    entry.header.ifindex = ifindex;
    entry
        .attributes
        .push(NeighbourAttribute::Destination(destination));
    entry
}

/// The address of a neighbour on `ifindex`.
fn address(message: &NeighbourMessage, ifindex: u32) -> Option<IpAddr> {
    if message.header.ifindex != ifindex {
        return None;
    }
    let mut attributes = message.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => Some((*found).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(found)) => Some((*found).into()),
        _ => None,
    })
}

/// Whether the neighbour has just shown that it is there, rather than that another station spoke of it.
fn is_answer(message: &NeighbourMessage) -> bool {
    let state = &message.header.state;
    matches!(state, NeighbourState::Reachable | NeighbourState::Permanent)
}

/// The MAC of a neighbour, if it is valid.
fn mac(message: &NeighbourMessage) -> Option<Mac> {
    let is_valid = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    );
    let mut attributes = message.attributes.iter().filter(|_| is_valid);
    attributes.find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => {
            <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac::new)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_asked_for_at_its_group() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let asked = group(address("2001:db8::a1:b2c3:d4e5"));
        assert_eq!(asked, Some(address("ff02::1:ffc3:d4e5")));
        assert_eq!(group(address("10.0.0.1")), None);
    }
}
