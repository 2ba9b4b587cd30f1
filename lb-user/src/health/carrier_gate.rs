//! The line: a network's own NIC. While it has no carrier (the cable is out, the switch restarts), no check
//! gets an answer, which is no verdict on any backend.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use crate::network::carrier::Carrier;

/// How often it is looked at, whatever checks find.
pub(super) const CARRIER_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a look stays good, and is not repeated: less than any check may take.
const FRESH: Duration = Duration::from_millis(10);
/// A check that began so soon after the carrier was away counts only if it is answered: kernels and
/// switches forward nothing for up to a second after they have it again.
const GRACE: Duration = Duration::from_secs(2);

/// The line of a network, as far as it was looked at.
pub(super) struct CarrierGate {
    network: String,
    carrier: Carrier,
    was_there: Cell<bool>,
    looked: Cell<Option<Instant>>,
    /// When it was last seen without a carrier.
    absent: Cell<Option<Instant>>,
}

impl CarrierGate {
    pub(super) const fn new(network: String, carrier: Carrier) -> Self {
        Self {
            network,
            carrier,
            was_there: Cell::new(true),
            looked: Cell::new(None),
            absent: Cell::new(None),
        }
    }

    /// Looks, and logs it if the carrier has come or gone.
    pub(super) fn look(&self) {
        let now = Instant::now();
        let looked = self.looked.get();
        if looked.is_some_and(|looked| now - looked < FRESH) {
            return;
        }
        self.looked.set(Some(now));
        let (network, is_there) = (&self.network, self.carrier.is_there());
        if !is_there {
            self.absent.set(Some(now));
        }
        match (self.was_there.replace(is_there), is_there) {
            (true, false) => tracing::error!(
                network,
                "the network's NIC has no carrier: the verdicts of its backends stay as they are until it has \
                 one again; check cable, bond or switch port"
            ),
            (false, true) => tracing::info!(
                network,
                "the network's NIC has a carrier again: checks count again"
            ),
            _ => {}
        }
    }

    /// Whether a check that began at `start` has had the carrier all the time, and for long enough.
    pub(super) fn has_held_since(&self, start: Instant) -> bool {
        self.look();
        self.absent
            .get()
            .is_none_or(|absent| absent + GRACE < start)
    }
}
