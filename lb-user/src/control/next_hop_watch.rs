//! Next hops while `lb` runs: they get another MAC, fall silent, and answer again.

use anyhow::Result;

use super::{control_loop::Control, running::Running};
use crate::{
    api::Severity,
    model::registry::Kind,
    network::{carrier::Carrier, neighbour::NeighbourChange},
};

impl Control {
    /// Takes in what has become of next hops. A backend behind one that does not answer gets no new flows until
    /// it does; the flows that it has go on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the shares that follow from it.
    pub fn note_next_hops(&mut self, changes: &[NeighbourChange]) -> Result<()> {
        for change in changes {
            let live = &mut self.running.data_plane.live;
            if let NeighbourChange::Resolved(resolved) = change
                && let Err(error) = live.set_next_hop(resolved)
            {
                tracing::error!(
                    "write a next hop to the maps: {error:#}; frames go where they went before"
                );
            }
            self.note_next_hop(change);
        }
        self.share()
    }

    /// Notes and logs whether a next hop answers. Where nothing leaves the NIC at all, that is logged instead.
    fn note_next_hop(&mut self, change: &NeighbourChange) {
        let news = self.running.data_plane.live.note_next_hop(change);
        let neighbour = change.neighbour();
        let (severity, words) = match change {
            NeighbourChange::Silent { network, address } => {
                let Some((_, behind)) = news.filter(|_| self.running.has_carrier(*network)) else {
                    return;
                };
                let words = silent_words(behind);
                let network = self.running.network_name(*network);
                tracing::warn!(network, %address, "next hop {words}");
                self.silent_next_hops.insert(neighbour);
                (Severity::Warning, words)
            }
            NeighbourChange::Resolved(resolved) => {
                if !self.silent_next_hops.remove(&neighbour) || news.is_none() {
                    return;
                }
                let network = self.running.network_name(resolved.network);
                tracing::info!(network, address = %resolved.address, "next hop {ANSWERS}");
                (Severity::Notice, ANSWERS.to_owned())
            }
        };
        let object = format!("next hop {}", neighbour.1);
        self.event("neighbour", severity, &object, &words);
    }
}

impl Running {
    /// Whether frames leave the NIC of a network, as far as the kernel knows.
    pub(super) fn has_carrier(&self, network: u16) -> bool {
        let place = self.applied.places.get(self.network_name(network));
        place.is_some_and(|place| {
            let carrier = Carrier::open(place.nic.ifindex);
            place.is_there && carrier.map_or(true, |carrier| carrier.is_there())
        })
    }

    fn network_name(&self, id: u16) -> &str {
        let name = self.applied.ids.name(Kind::Network, id.into());
        name.unwrap_or_default()
    }
}

/// The message for a next hop that answers again.
const ANSWERS: &str = "answers again";

/// The message for a next hop that does not answer, and has so many backends behind it.
fn silent_words(behind: usize) -> String {
    match behind {
        1 => "does not answer: 1 backend is behind it".to_owned(),
        _ => format!("does not answer: {behind} backends are behind it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_next_hop_is_named_with_what_is_behind_it() {
        let one = silent_words(1);
        assert_eq!(one, "does not answer: 1 backend is behind it");
        let many = silent_words(12);
        assert_eq!(many, "does not answer: 12 backends are behind it");
    }
}
