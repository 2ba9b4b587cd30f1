//! The programs on their interfaces, all in one mode, and the NICs' settings that they rely on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};

use super::desired::Attachment;
use crate::{
    config::Config,
    dataplane::{
        attach::{self, Attached, Mode, NewLink},
        object::{CELL, NIC, Object},
        pins::Pins,
    },
    network::{
        cell,
        link::{self, XdpMode},
        nic,
    },
};

/// Attaches everything in one mode: native, or generic where any interface refuses that, because a
/// frame that is redirected in native mode is lost at an interface without it. Gives the mode too.
pub(crate) fn attach_all(
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Attachment>,
    object: &mut Object,
) -> Result<(Vec<NewLink>, Mode)> {
    prepare_nics(config, pins, places, Mode::Native)?;
    let generic = |place: &Attachment| place.nic.xdp == Some(XdpMode::Generic);
    if places.values().any(generic) {
        tracing::warn!(
            "the programs run in generic mode since the first start and stay so, also if native XDP \
             is possible now: `lb down`, then a new start tries that"
        );
    } else {
        match attach_in(Mode::Native, config, pins, places, object)? {
            AllAttached::Yes(links) => return Ok((links, Mode::Native)),
            AllAttached::NoNative { interface, cause } => {
                let native = |place: &Attachment| place.nic.xdp == Some(XdpMode::Native);
                ensure!(!places.values().any(native), no_native(&interface, &cause));
                tracing::warn!(
                    interface,
                    cause,
                    "no native XDP here: all networks run in generic mode, which is slower, and where what is \
                     longer than an MTU is dropped (too_big): senders on this host must cut their segments \
                     themselves (`ethtool -K DEV tso off gso off gro off`)"
                );
            }
        }
    }
    let links = attach_to(config, pins, places, object, Mode::Generic)?;
    Ok((links, Mode::Generic))
}

/// Attaches to these places in the mode that all others run in.
pub(crate) fn attach_to(
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Attachment>,
    object: &mut Object,
    mode: Mode,
) -> Result<Vec<NewLink>> {
    prepare_nics(config, pins, places, mode)?;
    match attach_in(mode, config, pins, places, object)? {
        AllAttached::Yes(links) => Ok(links),
        AllAttached::NoNative { interface, cause } => bail!(no_native(&interface, &cause)),
    }
}

fn no_native(interface: &str, cause: &str) -> String {
    format!(
        "interface {interface} has no native XDP ({cause}), and what runs already is native: `lb down`, \
         then a new start runs all in generic mode"
    )
}

/// Indexes of a NIC and of what it gets its frames from.
pub(super) fn with_below(nic: u32) -> Result<Vec<u32>> {
    let below = link::with_netlink(async |handle| link::below(&handle, nic).await)?;
    Ok(below
        .into_iter()
        .map(|(_, ifindex)| ifindex)
        .chain([nic])
        .collect())
}

/// Whether a NIC, or what it gets its frames from, carries frames whose checksums a kernel's stack has
/// left to the interface.
pub(super) fn leaves_checksums(interface: &str, nic: u32) -> Result<bool> {
    let below = link::with_netlink(async |handle| link::below(&handle, nic).await)?;
    for interface in below
        .iter()
        .map(|(name, _)| name.as_str())
        .chain([interface])
    {
        if nic::leaves_checksums(interface)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn prepare_nics(
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Attachment>,
    mode: Mode,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    for network in &config.networks {
        let place = places.get(&network.name).filter(|place| place.is_there);
        let (Some(place), interface) = (place, &network.interface) else {
            continue;
        };
        if seen.insert(place.nic.ifindex) {
            let mut same = config
                .networks
                .iter()
                .filter(|other| other.interface == *interface);
            let tagged = same.any(|other| other.vlan.is_some());
            let generic = mode == Mode::Generic;
            let nic = place.nic.ifindex;
            let below = link::with_netlink(async |handle| link::below(&handle, nic).await)?;
            for (interface, ifindex) in below.into_iter().chain([(interface.clone(), nic)]) {
                nic::prepare(&pins.runtime(), &interface, ifindex, tagged, generic)?;
            }
        }
    }
    Ok(())
}

/// Whether a mode suits every interface.
enum AllAttached {
    Yes(Vec<NewLink>),
    NoNative { interface: String, cause: String },
}

/// A program and where it runs.
pub(super) struct Stand {
    pub(super) program: &'static str,
    pub(super) interface: String,
    pub(super) ifindex: u32,
    /// A network that it is for.
    pub(super) network: String,
    /// The NIC of that.
    pub(super) nic: String,
}

/// The programs of a configuration. Cells first: what a NIC's program delivers must have somewhere to go. A
/// NIC with several networks has one.
pub(super) fn stands(config: &Config, places: &BTreeMap<String, Attachment>) -> Vec<Stand> {
    let mut seen = BTreeSet::new();
    let mut stands = Vec::new();
    for program in [CELL, NIC] {
        for network in &config.networks {
            let place = places.get(&network.name).filter(|place| place.is_there);
            let Some(place) = place else {
                continue;
            };
            let (interface, ifindex) = match program {
                CELL => (
                    cell::outer(place.nic.ifindex, network.vlan),
                    place.cell_ifindex,
                ),
                _ => (network.interface.clone(), place.nic.ifindex),
            };
            if ifindex != 0 && seen.insert(ifindex) {
                stands.push(Stand {
                    program,
                    interface,
                    ifindex,
                    network: network.name.clone(),
                    nic: network.interface.clone(),
                });
            }
        }
    }
    stands
}

fn attach_in(
    mode: Mode,
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Attachment>,
    object: &mut Object,
) -> Result<AllAttached> {
    let mut links = Vec::new();
    for stand in stands(config, places) {
        let Stand {
            program,
            interface,
            ifindex,
            nic,
            network: _,
        } = stand;
        let pin = pins.link(program, ifindex);
        let loaded = object.program(program)?;
        match attach::attach(loaded, program, &interface, ifindex, pin, mode)? {
            Attached::New(link) => {
                tracing::info!(interface, %mode, "attached");
                links.push(link);
            }
            Attached::TookOver => tracing::info!(interface, "took over the running link"),
            // A cell has the MTU of its NIC, so it is the NIC that is named.
            Attached::NoNative(cause) => {
                return Ok(AllAttached::NoNative {
                    interface: nic,
                    cause,
                });
            }
        }
    }
    Ok(AllAttached::Yes(links))
}
