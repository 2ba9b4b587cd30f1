//! What is to be checked, and which backends share a check.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use super::Standing;
use crate::config::Health;

/// A backend that is to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTarget {
    /// Its id.
    pub backend: u32,
    /// Ids of the backends of other pools that are checked alike: each report is also one of theirs.
    pub also: Vec<u32>,
    /// Address and port that are probed.
    pub address: SocketAddr,
    /// Whether the server there expects a header of the PROXY protocol first.
    pub send_proxy_header: bool,
    /// Where the check comes from: a SNAT address of the network, or one that no flow has.
    pub source: IpAddr,
    /// The neighbour that frames to it go to.
    pub next_hop: IpAddr,
    /// What is probed, and how often.
    pub health: Health,
    /// What was known of it when an earlier process ended; the default for one that is new.
    pub saved: Standing,
}

impl CheckTarget {
    /// Whether a check of the one is a check of the other, whatever is known of them.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        let Self {
            backend: _,
            also: _,
            address,
            send_proxy_header,
            source,
            next_hop,
            health,
            saved: _,
        } = self;
        (address, source, health) == (&other.address, &other.source, &other.health)
            && (send_proxy_header, next_hop) == (&other.send_proxy_header, &other.next_hop)
    }

    /// The ids of the backends that it is a check of.
    pub(super) fn backends(&self) -> impl Iterator<Item = u32> {
        [self.backend].into_iter().chain(self.also.iter().copied())
    }
}

/// Makes one target of those that are checked alike; of these the first one's saved standing counts.
pub fn join(targets: impl IntoIterator<Item = CheckTarget>) -> Vec<CheckTarget> {
    let mut joined: Vec<CheckTarget> = Vec::new();
    let mut at: BTreeMap<SocketAddr, Vec<usize>> = BTreeMap::new();
    for target in targets {
        let there = at.entry(target.address).or_default();
        let alike = there.iter().copied().find(|&index| {
            let known = joined.get(index);
            known.is_some_and(|known| known.is_alike(&target))
        });
        match alike.and_then(|index| joined.get_mut(index)) {
            Some(known) => known.also.push(target.backend),
            None => {
                there.push(joined.len());
                joined.push(target);
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::HealthVerdict;

    fn target(backend: u32, address: &str) -> CheckTarget {
        CheckTarget {
            backend,
            also: Vec::new(),
            address: address.parse().unwrap(),
            send_proxy_header: false,
            source: [10, 0, 0, 9].into(),
            next_hop: [10, 0, 0, 1].into(),
            health: Health::tcp(),
            saved: Standing::default(),
        }
    }

    #[test]
    fn what_is_checked_alike_is_checked_once() {
        let other_port = target(2, "10.0.0.1:81");
        let other_times = CheckTarget {
            health: Health {
                fall: 7,
                ..Health::tcp()
            },
            ..target(3, "10.0.0.1:80")
        };
        let with_header = CheckTarget {
            send_proxy_header: true,
            ..target(4, "10.0.0.1:80")
        };
        // Where they stand does not matter.
        let again = CheckTarget {
            saved: Standing::presumed_up(3),
            ..target(5, "10.0.0.1:80")
        };
        let targets = [
            target(1, "10.0.0.1:80"),
            other_port,
            other_times,
            with_header,
            again,
        ];
        let joined = join(targets);
        let backends: Vec<Vec<u32>> = joined.iter().map(|one| one.backends().collect()).collect();
        assert_eq!(backends, [vec![1, 5], vec![2], vec![3], vec![4]]);
        assert_eq!(
            joined[0].saved.verdict,
            HealthVerdict::Unknown,
            "the first one's"
        );
    }
}
