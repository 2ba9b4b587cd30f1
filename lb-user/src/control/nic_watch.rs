//! The NICs of the networks while `lb` runs: they go, come back as others, and change. What has become of
//! one is planned and applied like any other change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Error, Result};

use super::{
    attach::attach_to,
    control_loop::Control,
    desired::Attachment,
    network_setup::{build_cells, remove_stale_links, set_up_nics},
    running::Running,
};
use crate::{
    api::{Override, Severity},
    config::Network,
    dataplane::object::NIC,
    host,
    network::link::{self, Link},
};

/// After these times a network's addresses are announced: a switch forwards nothing for a while after a
/// NIC is connected.
const ANNOUNCE: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(3),
];
/// How often NICs are looked at while not all of them are as they must be.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What has become of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NicEvent {
    /// There is none any more.
    Gone,
    /// There is one again, or another one.
    TakenIn,
    /// It has another MAC or MTU.
    Changed,
}

impl NicEvent {
    const fn words(self) -> &'static str {
        match self {
            Self::Gone => {
                "the interface is gone: nothing goes in or out until one of this name comes"
            }
            Self::TakenIn => {
                "the interface is there, and was taken in: programs and cells are attached to it"
            }
            Self::Changed => "the interface has changed, and its networks have followed",
        }
    }
}

/// What is to be remembered of the NICs.
#[derive(Debug, Default)]
pub(super) struct NicState {
    /// What was logged as wrong, by their names. Whatever was begun with one of them is done anew.
    said: BTreeMap<String, String>,
    /// The networks whose addresses are to be announced, and when.
    announce: Vec<(Instant, String)>,
    /// Those that were logged as without a carrier.
    without_carrier: BTreeSet<String>,
    looked: Option<Instant>,
}

impl Control {
    /// Looks at the NICs, and follows what has become of them.
    pub async fn look(&mut self) {
        self.nics.looked = Some(Instant::now());
        let nics = match self.running.find_nics() {
            Ok(nics) => nics,
            Err(error) => {
                tracing::error!(
                    "list the interfaces: {error:#}; changes of NICs are not followed until that works"
                );
                return;
            }
        };
        for (interface, now) in nics {
            let before = self.running.nic(&interface).cloned();
            let is_anew = self.nics.said.contains_key(&interface);
            let turn = match now {
                Ok(now) => {
                    let overrides = &self.state.overrides;
                    let running = &mut self.running;
                    running
                        .follow_nic(&interface, now, is_anew, overrides)
                        .await
                }
                Err(error) => Err(error),
            };
            self.note_turn(&interface, turn);
            self.note_carrier(&interface);
            let now = self.running.nic(&interface);
            if now.is_some_and(|now| !before.is_some_and(|before| before.has_told(now))) {
                let networks = self.running.on_interface(&interface);
                let networks = networks.map(|network| network.name.clone()).collect();
                self.nics.announce(networks);
            }
        }
        self.announce();
    }

    /// Logs which NICs are not there at the start, or have no carrier.
    pub(super) fn note_missing(&mut self) {
        let networks = self.running.applied.config.networks.iter();
        let interfaces: BTreeSet<String> =
            networks.map(|network| network.interface.clone()).collect();
        for interface in interfaces {
            if self.running.nic(&interface).is_none() {
                self.note_turn(&interface, Ok(Some(NicEvent::Gone)));
            }
            self.note_carrier(&interface);
        }
    }

    /// Logs when a NIC has lost its carrier, and when it has one again.
    fn note_carrier(&mut self, interface: &str) {
        let runs = self.running.nic(interface).map(|nic| nic.running);
        if let Some(words) = self.nics.carrier_words(interface, runs) {
            let object = format!("interface {interface}");
            if words == NO_CARRIER {
                tracing::error!(interface, "{words}");
                self.event("interface", Severity::Error, &object, words);
            } else {
                tracing::warn!(interface, "{words}");
                self.event("interface", Severity::Notice, &object, words);
            }
        }
    }

    /// Does what is due about the NICs.
    pub(super) async fn tick_nics(&mut self) {
        self.announce();
        let looked = self.nics.looked;
        let is_due = looked.is_none_or(|looked| looked.elapsed() >= RETRY_INTERVAL);
        if is_due && !self.nics.said.is_empty() {
            self.look().await;
        }
    }

    /// Logs what has become of a NIC, or why it is of no use, once.
    fn note_turn(&mut self, interface: &str, turn: Result<Option<NicEvent>>) {
        let is_gone = self.running.nic(interface).is_none();
        let (words, is_bad) = match turn {
            Ok(None) => {
                if !is_gone {
                    self.nics.said.remove(interface);
                }
                return;
            }
            Ok(Some(turn)) => (turn.words().to_owned(), turn == NicEvent::Gone),
            Err(error) => (format!("{error:#}; trying again"), true),
        };
        if !is_bad {
            self.nics.said.remove(interface);
            tracing::warn!(interface, "{words}");
        } else if self.nics.said.get(interface) == Some(&words) {
            return;
        } else {
            tracing::error!(interface, "{words}");
            self.nics.said.insert(interface.to_owned(), words.clone());
        }
        let severity = match is_bad {
            true => Severity::Error,
            false => Severity::Notice,
        };
        self.event(
            "interface",
            severity,
            &format!("interface {interface}"),
            &words,
        );
    }

    /// Announces the addresses of these networks, at once and twice more.
    pub(super) fn announce_all(&mut self, networks: Vec<String>) {
        self.nics.announce(networks);
        self.announce();
    }

    /// Announces the addresses of the networks that are due.
    fn announce(&mut self) {
        for network in self.nics.due() {
            if let Err(error) = self.running.announce(&network) {
                tracing::warn!(
                    network,
                    "announce the VIPs and SNAT addresses of the network: {error:#}; hosts that know another \
                     MAC address find them when they resolve it anew"
                );
            }
        }
    }
}

impl NicState {
    /// What is to be logged of the carrier of a NIC, which `runs` now; none if it is not there.
    fn carrier_words(&mut self, interface: &str, runs: Option<bool>) -> Option<&'static str> {
        match runs {
            Some(false) => {
                let is_new = self.without_carrier.insert(interface.to_owned());
                is_new.then_some(NO_CARRIER)
            }
            Some(true) => self.without_carrier.remove(interface).then_some(CARRIER),
            None => {
                // That is logged already.
                self.without_carrier.remove(interface);
                None
            }
        }
    }

    /// Has a NIC taken in as if it had just come.
    pub(super) fn take_in_anew(&mut self, interface: &str) {
        let words = "the veth pair of its network's cell is gone".to_owned();
        self.said.entry(interface.to_owned()).or_insert(words);
    }

    fn announce(&mut self, networks: Vec<String>) {
        let now = Instant::now();
        self.announce
            .retain(|(_, network)| !networks.contains(network));
        for network in networks {
            let times = ANNOUNCE.map(|after| (now + after, network.clone()));
            self.announce.extend(times);
        }
    }

    /// The networks whose time has come.
    fn due(&mut self) -> Vec<String> {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) =
            self.announce.drain(..).partition(|(at, _)| *at <= now);
        self.announce = later;
        let due: BTreeSet<String> = due.into_iter().map(|(_, network)| network).collect();
        due.into_iter().collect()
    }
}

/// The messages for a NIC without a carrier, and for one that has it again.
const NO_CARRIER: &str = "the interface is down or has no carrier: nothing goes in or out";
const CARRIER: &str = "the interface has a carrier again";

impl Link {
    /// Whether the stations on the link can know what they have to know of `now`, when this was the NIC
    /// before.
    fn has_told(&self, now: &Self) -> bool {
        !now.running
            || (self.running
                && (self.ifindex, self.mac, self.carriers) == (now.ifindex, now.mac, now.carriers))
    }
}

impl Running {
    /// The NICs of all networks as they are now, by the names of the file; what is wrong for one of the
    /// networks on a NIC is wrong with the NIC.
    fn find_nics(&self) -> Result<BTreeMap<String, Result<Option<Link>>>> {
        let ours = |ifindex| {
            let mut places = self.applied.places.values();
            let is_known = places.any(|place| place.is_there && place.nic.ifindex == ifindex);
            is_known || self.data_plane.pins.link(NIC, ifindex).exists()
        };
        link::with_netlink(async |handle| {
            let mut nics = BTreeMap::new();
            for network in &self.applied.config.networks {
                let mut nic = host::interface(&handle, network, ours).await;
                if let (Ok(None), Some(known)) = (&nic, self.nic(&network.interface)) {
                    // It may only have another name; our program does not care.
                    let renamed = link::find_index(&handle, known.ifindex).await;
                    nic = renamed.map(|link| link.filter(|renamed| renamed.xdp.is_some()));
                }
                let known = nics.entry(network.interface.clone());
                let known: &mut Result<_> = known.or_insert(Ok(None));
                if known.is_ok() {
                    *known = nic;
                }
            }
            Ok(nics)
        })
    }

    /// The networks on an interface.
    fn on_interface(&self, interface: &str) -> impl Iterator<Item = &Network> {
        let networks = self.applied.config.networks.iter();
        networks.filter(move |network| network.interface == interface)
    }

    /// The NIC with this name in the file, as it is known, if it is there.
    fn nic(&self, interface: &str) -> Option<&Link> {
        let network = self.on_interface(interface).next()?;
        let place = self.applied.places.get(&network.name)?;
        place.is_there.then_some(&place.nic)
    }

    /// Brings what runs to what has become of a NIC; `is_anew`: whatever of it is done already.
    async fn follow_nic(
        &mut self,
        interface: &str,
        now: Option<Link>,
        is_anew: bool,
        overrides: &BTreeMap<String, Override>,
    ) -> Result<Option<NicEvent>> {
        let known = self.nic(interface).cloned();
        let turn = match (&known, &now) {
            (None, None) => return Ok(None),
            (Some(_), None) => NicEvent::Gone,
            (None, Some(_)) => NicEvent::TakenIn,
            (Some(known), Some(now))
                if is_anew || known.ifindex != now.ifindex || now.xdp.is_none() =>
            {
                NicEvent::TakenIn
            }
            (Some(known), Some(now)) if (known.mac, known.mtu) != (now.mac, now.mtu) => {
                NicEvent::Changed
            }
            (Some(_), Some(now)) => {
                self.set_nic(interface, now);
                return Ok(None);
            }
        };
        match (turn, now) {
            (NicEvent::TakenIn, Some(now)) => self.take_in(interface, &now, overrides).await?,
            (_, now) => {
                let mut places = self.applied.places.clone();
                for network in self.on_interface(interface) {
                    if let Some(place) = places.get_mut(&network.name) {
                        place.is_there = now.is_some();
                        place.nic = now.clone().unwrap_or_else(|| place.nic.clone());
                    }
                }
                self.move_to(places, overrides).await?;
            }
        }
        Ok(Some(turn))
    }

    /// Notes what the maps need not know.
    fn set_nic(&mut self, interface: &str, now: &Link) {
        let networks = self.on_interface(interface);
        let networks: Vec<String> = networks.map(|network| network.name.clone()).collect();
        for network in networks {
            if let Some(place) = self.applied.places.get_mut(&network) {
                place.nic = now.clone();
            }
        }
    }

    /// Gives the networks of an interface to this NIC, in the order of a start: what the host may refuse
    /// comes before the first change of what runs.
    async fn take_in(
        &mut self,
        interface: &str,
        now: &Link,
        overrides: &BTreeMap<String, Override>,
    ) -> Result<()> {
        let networks = self.on_interface(interface);
        let nics: BTreeMap<String, Link> = networks
            .map(|network| (network.name.clone(), now.clone()))
            .collect();
        let (taken, _) = build_cells(
            &self.applied.config,
            &self.data_plane.pins,
            &nics,
            &self.applied.ids,
            &mut self.residents,
        )?;
        let links = attach_to(
            &self.applied.config,
            &self.data_plane.pins,
            &taken,
            &mut self.data_plane.object,
            self.data_plane.mode,
        )?;
        self.data_plane.links.extend(links);
        if self.data_plane.is_kept {
            self.data_plane.keep()?;
        }
        let mut places = self.applied.places.clone();
        places.extend(taken.clone());
        self.move_to(places, overrides).await?;
        for (network, place) in &taken {
            self.checks.follow(network, place.nic.ifindex);
        }
        set_up_nics(&self.applied.config, &taken)?;
        remove_stale_links(&self.data_plane.pins, &self.applied.places)
    }

    async fn move_to(
        &mut self,
        places: BTreeMap<String, Attachment>,
        overrides: &BTreeMap<String, Override>,
    ) -> Result<()> {
        let config = self.applied.config.clone();
        let layers = self.layers(&config, overrides);
        let change = self.prepare_at(config, places, &layers)?;
        for operation in change.operations() {
            tracing::info!("{operation}");
        }
        self.carry_out(change, || Ok::<(), Error>(())).await
    }

    /// Announces the addresses of a network to all stations on its link.
    fn announce(&self, network: &str) -> Result<()> {
        match (self.applied.cells.get(network), self.residents.get(network)) {
            (Some(cell), Some(resident)) => cell.announce(resident),
            // It has the host's addresses.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_is_said_when_it_goes_and_when_it_comes_back() {
        let mut nics = NicState::default();
        for (runs, words) in [
            (Some(true), None),
            (Some(false), Some(NO_CARRIER)),
            (Some(false), None),
            (Some(true), Some(CARRIER)),
            (Some(true), None),
            (Some(false), Some(NO_CARRIER)),
            // Another one comes in its place.
            (None, None),
            (Some(false), Some(NO_CARRIER)),
            (None, None),
            (Some(true), None),
        ] {
            assert_eq!(nics.carrier_words("eth0", runs), words, "{runs:?}");
            assert_eq!(nics.carrier_words("eth1", Some(true)), None);
        }
    }
}
