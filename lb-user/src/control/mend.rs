//! What something else may take away from a process that runs: programs, the pins of links and maps, what is
//! in the cells, and sockets. All is looked at every few seconds, a part at a time, mended, and logged.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    attach::{Stand, attach_to, stands},
    control_loop::{Control, TICK_INTERVAL},
    running::Running,
};
use crate::{api::Severity, network::link};

/// How often each thing is looked at.
pub const MEND_INTERVAL: Duration = Duration::from_secs(2);
/// In so many parts, one at each tick: nothing else waits for all of it.
const PARTS: u32 = 8;
const _: () = assert!(PARTS as u128 * TICK_INTERVAL.as_millis() == MEND_INTERVAL.as_millis());

/// What there is to be looked at.
enum Thing {
    Maps,
    Link(Stand),
    /// Of the network with this name.
    Cell(String),
}

/// What came of a look.
enum MendOutcome {
    /// It is as it must be.
    Well,
    /// It was not, in these words, and is mended.
    Mended(String),
    /// Its NIC is to be taken in as if it had just come.
    NoPair,
}

/// What is to be remembered of it.
#[derive(Debug, Default)]
pub(super) struct Mending {
    /// The part that was looked at last.
    part: u32,
    /// What could not be mended, by what it is of.
    wrong: BTreeMap<String, String>,
}

impl Mending {
    /// What could not be mended, by what it is of.
    pub(super) const fn wrong(&self) -> &BTreeMap<String, String> {
        &self.wrong
    }
}

impl Control {
    /// Looks at the next part. Before the links are pinned there is nothing that stays.
    pub(super) fn tick_mending(&mut self) {
        if !self.running.data_plane.is_kept {
            return;
        }
        self.mending.part = (self.mending.part + 1) % PARTS;
        let part = self.mending.part;
        self.mend(|number| u32::try_from(number).is_ok_and(|number| number % PARTS == part));
    }

    /// Looks at those things whose numbers are chosen, mends them, and logs it. What cannot be mended is
    /// logged once.
    fn mend(&mut self, is_chosen: impl Fn(usize) -> bool) {
        let stands = stands(&self.running.applied.config, &self.running.applied.places);
        self.running.forget_links(&stands);
        let cells: Vec<String> = self.running.applied.cells.keys().cloned().collect();
        let cells = cells.into_iter().map(Thing::Cell);
        let things = stands.into_iter().map(Thing::Link).chain(cells);
        let things = things.chain([Thing::Maps]).enumerate();
        for (_, thing) in things.filter(|(number, _)| is_chosen(*number)) {
            let (object, found) = match thing {
                Thing::Maps => ("maps".to_owned(), self.running.mend_maps()),
                Thing::Link(stand) => {
                    let object = format!("interface {}", stand.interface);
                    (object, self.running.mend_link(&stand))
                }
                Thing::Cell(network) => {
                    let found = self.running.mend_cell(&network);
                    if matches!(found, Ok(MendOutcome::NoPair))
                        && let Some(network) = self.running.applied.config.network(&network)
                    {
                        self.nics.take_in_anew(&network.interface);
                    }
                    (format!("network {network}"), found)
                }
            };
            self.note_found(&object, found);
        }
    }

    fn note_found(&mut self, object: &str, found: Result<MendOutcome>) {
        let words = match found {
            Ok(MendOutcome::Well) => {
                self.mending.wrong.remove(object);
                return;
            }
            Ok(MendOutcome::Mended(words)) => words,
            Ok(MendOutcome::NoPair) => {
                "the pair of its cell was gone, and was made anew".to_owned()
            }
            Err(error) => {
                let words = format!("{error:#}; trying again");
                let before = self.mending.wrong.insert(object.to_owned(), words.clone());
                if before.as_ref() != Some(&words) {
                    tracing::error!(object, "{words}");
                    self.event("mend", Severity::Error, object, &words);
                }
                return;
            }
        };
        self.mending.wrong.remove(object);
        tracing::warn!(object, "{words}");
        self.event("mend", Severity::Warning, object, &words);
    }

    /// Logs that a socket of this process was gone, and what came of making another.
    pub fn note_socket(&mut self, socket: &str, opened: Result<()>) {
        let mended =
            |()| MendOutcome::Mended("the socket was gone, and was opened anew".to_owned());
        self.note_found(&format!("socket {socket}"), opened.map(mended));
    }
}

impl Running {
    /// Lets go of the links that no program of a network has any more.
    fn forget_links(&mut self, stands: &[Stand]) {
        let pins = stands.iter();
        let pins = pins.map(|stand| self.data_plane.pins.link(stand.program, stand.ifindex));
        let pins: Vec<_> = pins.collect();
        self.data_plane
            .held
            .retain(|pin| pins.iter().any(|used| used == pin));
    }

    /// Has a program attached, and its link pinned. The link goes on without its pin, as long as it is held.
    fn mend_link(&mut self, stand: &Stand) -> Result<MendOutcome> {
        let Stand {
            program,
            ifindex,
            ref network,
            ..
        } = *stand;
        let now = link::with_netlink(async |handle| link::find_index(&handle, ifindex).await)?;
        let Some(now) = now else {
            // It is gone, which is noticed elsewhere.
            return Ok(MendOutcome::Well);
        };
        let pin = self.data_plane.pins.link(program, ifindex);
        self.data_plane.pins.create()?;
        if now.xdp.is_some() {
            return Ok(match self.data_plane.held.keep(&pin)? {
                true => MendOutcome::Mended(format!(
                    "the pin of {program} was gone, and is there again"
                )),
                false => MendOutcome::Well,
            });
        }
        self.data_plane.held.forget(&pin);
        let place = self.applied.places.get(network).cloned();
        let place = place.context("the network has no place")?;
        let places = BTreeMap::from([(network.clone(), place)]);
        let (pins, object) = (&self.data_plane.pins, &mut self.data_plane.object);
        let links = attach_to(
            &self.applied.config,
            pins,
            &places,
            object,
            self.data_plane.mode,
        )
        .with_context(|| format!("{program} is detached"))?;
        self.data_plane.links.extend(links);
        self.data_plane.keep()?;
        let words = format!("{program} was detached, and is attached again");
        Ok(MendOutcome::Mended(words))
    }

    /// Has every map pinned: without its pin the next process would not find it.
    fn mend_maps(&self) -> Result<MendOutcome> {
        self.data_plane.pins.create()?;
        let names = self.data_plane.object.pin_again(&self.data_plane.pins)?;
        if names.is_empty() {
            return Ok(MendOutcome::Well);
        }
        let names = names.join(", ");
        let words = format!("pins of maps were removed, and are there again: {names}");
        Ok(MendOutcome::Mended(words))
    }

    /// Has a cell as it was made.
    fn mend_cell(&self, network: &str) -> Result<MendOutcome> {
        let place = self.applied.places.get(network);
        let cell = self.applied.cells.get(network);
        let Some(cell) = cell.filter(|_| place.is_some_and(|place| place.is_there)) else {
            return Ok(MendOutcome::Well);
        };
        let resident = self.resident(network)?;
        let Some(amiss) = cell.amiss(resident)? else {
            return Ok(MendOutcome::NoPair);
        };
        if amiss.is_empty() {
            return Ok(MendOutcome::Well);
        }
        let amiss = amiss.join(", ");
        cell.build(resident)
            .with_context(|| format!("in its cell {amiss}"))?;
        Ok(MendOutcome::Mended(format!("its cell is mended: {amiss}")))
    }
}
