//! How many of those that this process may have open go to clients of shared VIPs and their backends. A
//! client that comes when all are taken is refused, so that whatever clients do the admin socket is answered,
//! backends are checked and files are read.

use std::sync::{Arc, Once};

use super::{
    fair_share::{Resource, Shares, Spent, TakenShare},
    http::MAX_IDLE_UPSTREAMS,
};
use crate::system::fd_limit;

/// The least that there are for sockets, however few the process may have.
const LEAST_SOCKETS: usize = 16;
/// Pipes that the threads of a network keep for later, at most.
const SPARE_PIPES: usize = 64;
/// Sockets that are made ahead for the backends of a network, at most.
const SPARE_SOCKETS: usize = 16;
/// Sockets that there are for each thread: it takes descriptors for itself, and for each listener.
const SOCKETS_OF_THREAD: usize = 32;
/// Sockets of a client between two requests: its own, and those of the backends that are kept for it.
const SOCKETS_OF_KEPT: usize = 1 + MAX_IDLE_UPSTREAMS;

/// Those of all networks.
#[derive(Clone, Debug)]
pub(super) struct Descriptors(Arc<SocketLimit>);

#[derive(Debug)]
struct SocketLimit {
    shares: Shares,
    /// Sockets that there may be.
    count: usize,
    was_said: Once,
}

impl Descriptors {
    /// Divides what shared VIPs may have beside all that is open now.
    pub(super) fn of_this_process(shares: Shares) -> Self {
        Self::divide(fd_limit::of_shared_vips(), shares)
    }

    /// A third is for sockets. Each of them may have a pipe, of two descriptors, for as long as the other
    /// side does not read: so that a client that does not read takes none from others.
    fn divide(all: usize, shares: Shares) -> Self {
        let count = (all / 3).max(LEAST_SOCKETS);
        tracing::debug!("the limit of open files leaves {count} sockets to shared VIPs");
        Self(Arc::new(SocketLimit {
            shares,
            count,
            was_said: Once::new(),
        }))
    }

    /// One more socket may be open for a client of the network with this id, and a pipe for what it sends.
    ///
    /// # Errors
    ///
    /// If all are taken, or the network has its share.
    pub(super) fn socket(&self, network: u16) -> Result<TakenShare, Spent> {
        let part = self
            .0
            .shares
            .take(Resource::Descriptors, network, self.0.count);
        if part.as_ref().is_err_and(|spent| *spent == Spent::All) {
            self.0.was_said.call_once(|| {
                tracing::warn!(
                    "no descriptors are left for clients of shared VIPs, so new ones are refused \
                     (no_descriptors): the limit of open files is too low (LimitNOFILE)"
                );
            });
        }
        part
    }

    /// The most clients that are waited for before they have a backend: so many that they leave room for
    /// those that are served.
    pub(super) fn waiting(&self) -> usize {
        self.0.count / 4
    }

    /// The most that are between two requests, for the same reason.
    pub(super) fn kept(&self) -> usize {
        (self.0.count / 4 / SOCKETS_OF_KEPT).max(1)
    }

    /// Pipes that the threads of a network may keep for later. They are no client's.
    pub(super) fn spare_pipes(&self) -> usize {
        (self.0.count / 64).min(SPARE_PIPES)
    }

    /// Threads that there may be of all networks: few, where sockets are.
    pub(super) fn threads(&self) -> usize {
        self.0.count / SOCKETS_OF_THREAD
    }

    /// Sockets that may be made ahead for the backends of a network. They are no client's yet.
    pub(super) fn spare_sockets(&self) -> usize {
        (self.0.count / 64).clamp(1, SPARE_SOCKETS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_and_each_is_given_back() {
        let descriptors = Descriptors::divide(300, Shares::default());
        let mut sockets: Vec<_> = (0..100).map(|_| descriptors.socket(1)).collect();
        assert!(sockets.iter().all(Result::is_ok));
        assert_eq!(descriptors.socket(1).unwrap_err(), Spent::All);
        sockets.truncate(99);
        assert!(descriptors.socket(2).is_ok());
        assert_eq!((descriptors.waiting(), descriptors.kept()), (25, 5));
        assert_eq!(descriptors.spare_pipes(), 1);
        assert_eq!(descriptors.spare_sockets(), 1);
        assert_eq!(descriptors.threads(), 3);
    }

    #[test]
    fn some_are_there_in_any_case() {
        let descriptors = Descriptors::divide(0, Shares::default());
        assert!(descriptors.socket(1).is_ok());
        assert_eq!((descriptors.waiting(), descriptors.kept()), (4, 1));
        assert_eq!(descriptors.threads(), 0);
        let most = Descriptors::divide(usize::MAX, Shares::default());
        assert_eq!(most.spare_pipes(), SPARE_PIPES);
        assert_eq!(most.spare_sockets(), SPARE_SOCKETS);
    }
}
