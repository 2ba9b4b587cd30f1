//! The ways to clients. A flow knows the MAC that its client's last frame came from; a client that has been
//! idle since may have moved, or its router. So when it does not answer there, its network's kernel resolves
//! the next hop. No thread waits for it: the answer is there for a later probe, or not.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

use lb_common::addr::Mac;
use tokio::sync::mpsc::{Receiver, Sender};

use crate::{config::Network, network::neighbour::Resolved};

/// Next hops that are known at a time; when there are more, all are resolved anew.
const MAX_NEXT_HOPS: usize = 4096;
/// How long an answer holds: it comes just before the probe that it is for.
const NEXT_HOP_LIFETIME: Duration = Duration::from_secs(60);

/// Resolves the next hops of a network.
#[derive(Debug)]
pub struct NextHop {
    /// The network.
    pub network: Network,
    /// Where inquiries for one go.
    pub questions: Sender<IpAddr>,
}

/// The ways into all networks.
#[derive(Debug)]
pub struct NextHops {
    networks: BTreeMap<u16, NextHop>,
    answers: Receiver<Resolved>,
    known: HashMap<(u16, IpAddr), (Mac, Instant)>,
}

impl NextHops {
    /// The ways into `networks`, by id; answers to their questions come from `answers`.
    pub fn new(networks: BTreeMap<u16, NextHop>, answers: Receiver<Resolved>) -> Self {
        Self {
            networks,
            answers,
            known: HashMap::with_capacity(MAX_NEXT_HOPS),
        }
    }

    /// The ways into these networks are the ones now. What is known may be another network's, or by
    /// way of a gateway that is none any more.
    pub fn replace(&mut self, networks: BTreeMap<u16, NextHop>) {
        self.hear();
        self.known.clear();
        self.networks = networks;
    }

    /// Sends an inquiry for the next hop of a client in the network with this id. Never waits; where the
    /// channel is full none is sent.
    pub fn seek(&self, network: u16, client: IpAddr) {
        if let Some(way) = self.networks.get(&network) {
            let next_hop = way.network.next_hop(client);
            // Full, or its thread is gone: then the client stays where it was.
            let _unasked: Result<(), _> = way.questions.try_send(next_hop);
        }
    }

    /// Where a client in the network with this id is by the latest answer.
    pub fn mac(&mut self, network: u16, client: IpAddr) -> Option<Mac> {
        self.hear();
        let way = self.networks.get(&network)?;
        let next_hop = way.network.next_hop(client);
        let (mac, at) = self.known.get(&(network, next_hop))?;
        (at.elapsed() < NEXT_HOP_LIFETIME).then_some(*mac)
    }

    fn hear(&mut self) {
        // No more than one network's inquiries may be: this is a part of a batch.
        for _ in 0..MAX_NEXT_HOPS {
            let Ok(resolved) = self.answers.try_recv() else {
                return;
            };
            let key = (resolved.network, resolved.address);
            if self.known.len() >= MAX_NEXT_HOPS && !self.known.contains_key(&key) {
                self.known.clear();
            }
            self.known.insert(key, (resolved.mac, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::sync::mpsc;

    use super::*;

    const TENANT: u16 = 3;
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn ways(room: usize) -> (NextHops, Receiver<IpAddr>, Sender<Resolved>) {
        let text = "
version: 1
networks:
  t: { role: tenant, interface: eth1, prefixes: [10.0.0.0/24], routes: [{ to: 10.9.0.0/16, via: 10.0.0.1 }] }
";
        let network = crate::config::parse("f", text).unwrap().networks.remove(0);
        let (questions, asked) = mpsc::channel(room);
        let (answer, answers) = mpsc::channel(2 * MAX_NEXT_HOPS);
        let way = NextHop { network, questions };
        (
            NextHops::new([(TENANT, way)].into(), answers),
            asked,
            answer,
        )
    }

    fn resolved(address: Ipv4Addr, last: u8) -> Resolved {
        Resolved {
            network: TENANT,
            address: address.into(),
            mac: Mac::new([2, 0, 0, 0, 0, last]),
        }
    }

    #[test]
    fn a_client_is_asked_for_itself_or_its_gateway() {
        let (ways, mut asked, _answer) = ways(2);
        ways.seek(TENANT, [10, 0, 0, 7].into());
        ways.seek(TENANT, [10, 9, 8, 7].into());
        ways.seek(TENANT, [10, 0, 0, 8].into());
        ways.seek(9, [10, 0, 0, 9].into());
        assert_eq!(asked.try_recv(), Ok(IpAddr::from([10, 0, 0, 7])));
        assert_eq!(asked.try_recv(), Ok(GATEWAY.into()));
        assert!(asked.try_recv().is_err(), "one too many is not asked");
    }

    #[test]
    fn the_latest_answer_counts() {
        let (mut ways, _asked, answer) = ways(1);
        let routed = IpAddr::from([10, 9, 8, 7]);
        assert_eq!(ways.mac(TENANT, routed), None);
        for last in [1, 2] {
            answer.try_send(resolved(GATEWAY, last)).unwrap();
        }
        assert_eq!(ways.mac(TENANT, routed), Some(Mac::new([2, 0, 0, 0, 0, 2])));
        assert_eq!(ways.mac(TENANT, [10, 0, 0, 7].into()), None);
        assert_eq!(ways.mac(9, [10, 9, 8, 7].into()), None);
    }

    #[test]
    fn what_was_known_before_a_change_does_not_count() {
        let (mut ways, _asked, answer) = ways(1);
        let (changed, mut asked, _) = self::ways(1);
        let routed = IpAddr::from([10, 9, 8, 7]);
        answer.try_send(resolved(GATEWAY, 1)).unwrap();
        assert!(ways.mac(TENANT, routed).is_some());
        answer.try_send(resolved(GATEWAY, 2)).unwrap();
        ways.replace(changed.networks);
        assert_eq!(ways.mac(TENANT, routed), None);
        ways.seek(TENANT, routed);
        assert_eq!(asked.try_recv(), Ok(GATEWAY.into()), "who knows it now");
        answer.try_send(resolved(GATEWAY, 3)).unwrap();
        assert!(ways.mac(TENANT, routed).is_some(), "answers come as before");
        ways.replace(BTreeMap::new());
        assert_eq!(ways.mac(TENANT, routed), None);
    }

    #[test]
    fn an_old_answer_does_not_count() {
        let (mut ways, _asked, answer) = ways(1);
        answer.try_send(resolved(GATEWAY, 1)).unwrap();
        let routed = IpAddr::from([10, 9, 8, 7]);
        assert!(ways.mac(TENANT, routed).is_some());
        for (_, at) in ways.known.values_mut() {
            *at = at.checked_sub(NEXT_HOP_LIFETIME).unwrap();
        }
        assert_eq!(ways.mac(TENANT, routed), None);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut ways, _asked, answer) = ways(1);
        for host in 0..u32::try_from(MAX_NEXT_HOPS).unwrap() + 10 {
            let address = Ipv4Addr::from_bits(GATEWAY.to_bits() + host);
            answer.try_send(resolved(address, 1)).unwrap();
        }
        ways.hear();
        assert_eq!(ways.known.len(), MAX_NEXT_HOPS);
        ways.hear();
        assert_eq!(ways.known.len(), 10);
    }
}
