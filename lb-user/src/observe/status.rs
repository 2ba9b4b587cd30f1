//! `lb status`: networks, verdicts, SNAT addresses.

use std::collections::BTreeMap;

use anyhow::Result;
use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        counts,
        half_open::{self, FIRST, FLOODED, HEAD, SIZE},
        network::NETWORK_AT_ONCE,
        quota, usage,
    },
    verdict::{
        Counters, DropReason, HELLO_ENDS, Hook, MTU_RAISED, UNREPORTED, UNRESTED, Verdict, counter,
        refusal_slot,
    },
};
use rtnetlink::Handle;

use super::{
    ELSEWHERE, FlowIds, MISSING, NetworkStatus, Observer, QuotaStatus, RingStatus, SnatStatus,
    Status, Verdicts,
};
use crate::{
    config::{self, SecondSegment},
    dataplane::flows::{coarse_now, monotonic_seconds},
    flows::log::clock::millis_since,
    model::{registry::Kind, seconds::Seconds, snat::SnatUse},
    network::{
        carrier::Carrier,
        cell,
        link::{self, Link, XdpMode},
    },
};

impl Observer {
    /// Networks, verdicts and flow ids.
    ///
    /// # Errors
    ///
    /// If a map or netlink cannot be read.
    pub fn status(&self) -> Result<Status> {
        let mut verdicts = BTreeMap::new();
        for hook in Hook::ALL {
            verdicts.insert(hook.label(), self.verdicts(hook)?);
        }
        let snat = self.snat()?;
        // Ports of the other box are none that flows of this one run out of.
        let own = snat.iter().filter(|snat| !snat.peer);
        Ok(Status {
            instance: self.pins.instance().to_owned(),
            lb_version: env!("CARGO_PKG_VERSION"),
            networks: self.networks()?,
            verdicts,
            flows: FlowIds::sum(own.map(|snat| snat.flows)),
            snat,
        })
    }

    /// The networks, in the order of the file.
    ///
    /// # Errors
    ///
    /// As [`Self::status`].
    pub fn networks(&self) -> Result<Vec<NetworkStatus>> {
        let is_elsewhere = self.is_elsewhere;
        let now = coarse_now()?;
        let quotas = config::quotas(self.config());
        link::with_netlink(async |handle| {
            let mut networks = Vec::new();
            let ids = self.ids().of(Kind::Network);
            let ids = ids.filter_map(|(_, id)| u16::try_from(id).ok());
            let counted = self.counted(ids.map(counts::network));
            for network in &self.config().networks {
                let id = self.ids().get(Kind::Network, &network.name);
                let id = u16::try_from(id.unwrap_or_default())?;
                // An interface of that name in this namespace is another one.
                let link = match is_elsewhere {
                    true => None,
                    false => link::find(&handle, &network.interface).await?,
                };
                let carrier = link.as_ref().map(|link| Carrier::open(link.ifindex));
                let peer_without_program = match &link {
                    Some(link) => needs_program(&handle, link).await,
                    None => false,
                };
                let record = self.maps.networks.get(&id.into(), 0)?;
                let counters = self.maps.counters(Hook::Nic, id)?;
                networks.push(NetworkStatus {
                    name: network.name.clone(),
                    role: network.role.to_string(),
                    interface: network.interface.clone(),
                    vlan: network.vlan,
                    carrier: carrier
                        .transpose()?
                        .is_some_and(|carrier| carrier.is_there()),
                    mode: match link.map(|link| link.xdp) {
                        Some(Some(XdpMode::Native)) => "native",
                        Some(Some(XdpMode::Generic)) => "generic",
                        Some(None) => "detached",
                        None if is_elsewhere => ELSEWHERE,
                        None => MISSING,
                    },
                    peer_without_program,
                    stopped: record.is_stopped(),
                    mtu: record.mtu,
                    mss: record.mss,
                    cell: (!network.host).then(|| cell::name(self.pins.instance(), &network.name)),
                    flows: self.maps.usage(usage::network(id))?,
                    max_flows: network.max_flows,
                    counts: super::of(counted.as_ref(), Some(counts::network(id))),
                    quotas: quotas
                        .iter()
                        .filter(|quota| quota.network == network.name)
                        .map(|quota| self.quota(id, quota))
                        .collect::<Result<_>>()?,
                    half_open: self.ring(id, false, network.half_open, now)?,
                    udp_flows: self.ring(id, true, network.udp_flows, now)?,
                    unrested: counter(&counters, UNRESTED),
                    unreported: counter(&counters, UNREPORTED),
                    hellos: hellos(&counters),
                    second_segment: match record.flags & NETWORK_AT_ONCE {
                        0 => SecondSegment::OnAck,
                        _ => SecondSegment::AtOnce,
                    },
                    icmp_floor: counter(&counters, MTU_RAISED),
                });
            }
            Ok(networks)
        })
    }

    fn quota(&self, network: u16, quota: &config::Quota<'_>) -> Result<QuotaStatus> {
        let backends = self.ids().get(Kind::Network, quota.backends);
        let bank = quota::bank(u16::try_from(backends.unwrap_or_default())?, quota.ipv6);
        // A data plane that is older counts none.
        let found = self.maps.quotas().ok();
        let found = found.map(|quotas| quotas.get(quota::index(network, bank)));
        Ok(QuotaStatus {
            backends: quota.backends.to_owned(),
            ipv6: quota.ipv6,
            ports: quota.ports,
            networks: quota.networks,
            flows: found.unwrap_or_default().live,
            most: found.map(|found| found.most).filter(|most| *most != 0),
        })
    }

    fn verdicts(&self, hook: Hook) -> Result<Verdicts> {
        let mut sum = Verdicts::default();
        for network in self.counted_networks() {
            let counters = self.maps.counters(hook, network)?;
            let count = |verdict: Verdict| counter(&counters, verdict.slot());
            sum.passed += count(Verdict::Passed);
            sum.transmitted += count(Verdict::Transmitted) + count(Verdict::Returned);
            sum.forwarded += count(Verdict::Forwarded);
            sum.delivered += count(Verdict::Delivered);
            sum.consumed += count(Verdict::Consumed);
            for &reason in DropReason::ALL {
                sum.dropped += count(Verdict::Dropped(reason));
                sum.refused += counter(&counters, refusal_slot(reason as u32, true));
            }
        }
        sum.total = sum.passed
            + sum.transmitted
            + sum.forwarded
            + sum.delivered
            + sum.consumed
            + sum.dropped
            + sum.refused;
        Ok(sum)
    }

    fn ring(&self, network: u16, udp: bool, configured: u32, now: u32) -> Result<RingStatus> {
        let Some(ring) = self.maps.ring(half_open::index(network, udp))? else {
            return Ok(RingStatus {
                places: configured,
                ..RingStatus::default()
            });
        };
        let age = |id: u32, generation: u32| {
            let (word, flow) = self.table.flow(id)?;
            let waits = word.generation() == generation && waits(word);
            waits.then(|| millis_since(flow.last_seen, now))
        };
        Ok(ring_status(&ring, age, monotonic_seconds()))
    }

    fn snat(&self) -> Result<Vec<SnatStatus>> {
        let mut all = Vec::new();
        for (name, slot) in self.snat_slots()? {
            let use_of = SnatUse::of(self.config().network(name), &slot.snat);
            let mut flows = FlowIds {
                capacity: slot.snat.ports.into(),
                ..FlowIds::default()
            };
            for id in slot.flow_ids() {
                if self.table.word(id).is_some_and(FlowState::claimable) {
                    flows.free += 1;
                } else {
                    flows.live += 1;
                }
            }
            all.push(SnatStatus {
                network: name.to_owned(),
                address: slot.snat.address.to_string(),
                first_port: slot.snat.first_port,
                last_port: slot.last_port(),
                draining: use_of == SnatUse::Draining,
                peer: use_of == SnatUse::Peer,
                flows,
            });
        }
        Ok(all)
    }
}

/// Whether this is a veth that a program of ours sends out of, and whose other end takes that late or never: it looks
/// into its queue only for a program of its own, or when the next frame from a kernel comes.
async fn needs_program(handle: &Handle, link: &Link) -> bool {
    let native = Some(XdpMode::Native);
    let peer = link::peer(handle, link).await;
    link.xdp == native && peer.is_some_and(|peer| peer.xdp != native)
}

/// Whether the flow of a place is one that a newer flow ends.
const fn waits(word: FlowState) -> bool {
    match word.state() {
        State::New | State::Replied => true,
        State::Established => word.is_udp(),
        State::Free | State::Claimed | State::Closed | State::Ended | State::Local => false,
    }
}

/// The status of a ring at this second of the monotonic clock; `age` gives the milliseconds since the last packet of a flow, by id
/// and generation, if it still waits in its place.
fn ring_status(ring: &[u64], age: impl Fn(u32, u32) -> Option<u64>, second: u32) -> RingStatus {
    let at = |index: u32| {
        usize::try_from(index)
            .ok()
            .and_then(|index| ring.get(index))
    };
    let size = at(SIZE).copied().unwrap_or_default();
    let taken = at(HEAD).copied().unwrap_or_default();
    let places = ring.get(FIRST as usize..).unwrap_or_default();
    let full = size > 0 && taken >= size;
    // The next place to be taken is that of the oldest.
    let turn = usize::try_from(taken.checked_rem(size).unwrap_or_default()).unwrap_or_default();
    let (newer, older) = places.split_at(turn.min(places.len()));
    let oldest = older.iter().chain(newer).find_map(|&place| {
        let (id, generation) = half_open::flow(place);
        if place == 0 {
            None
        } else {
            age(id, generation)
        }
    });
    RingStatus {
        places: u32::try_from(size).unwrap_or(u32::MAX),
        taken,
        lifetime_seconds: oldest.filter(|_| full).map(Seconds::from_millis),
        flooded: half_open::is_flooded(at(FLOODED).copied().unwrap_or_default(), second),
    }
}

/// Those that there are.
fn hellos(counters: &Counters) -> BTreeMap<&'static str, u64> {
    let ends = HELLO_ENDS.into_iter();
    let ends = ends.map(|(slot, end)| (end, counter(counters, slot)));
    ends.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of four places of which `taken` were taken, by flows with the ids 1 and up.
    fn ring(taken: u64) -> Vec<u64> {
        let mut ring = vec![4, taken, 20, 0, 0, 0, 0, 0, 0, 0, 0];
        for turn in 0..taken {
            let place = usize::try_from(turn % 4).unwrap();
            ring[FIRST as usize + place] = half_open::place(u32::try_from(turn).unwrap() + 1, 7);
        }
        ring
    }

    fn seconds(millis: u64) -> Option<Seconds> {
        Some(Seconds::from_millis(millis))
    }

    #[test]
    fn the_lifetime_of_a_full_ring_is_the_age_of_its_oldest_flow() {
        // The flow with the id N came N seconds after the first, and now is second 10.
        let age = |id: u32, generation: u32| {
            assert_eq!(generation, 7);
            Some(10_000 - u64::from(id) * 1000)
        };
        let lifetime = |taken: u64| ring_status(&ring(taken), age, 0).lifetime_seconds;
        assert!(ring_status(&ring(3), age, 19).flooded);
        assert!(!ring_status(&ring(3), age, 20).flooded);
        assert_eq!(lifetime(3), None, "there is still room");
        assert_eq!(lifetime(4), seconds(9000), "of id 1");
        assert_eq!(lifetime(5), seconds(8000), "of id 2, in the second place");
        assert_eq!(lifetime(9), seconds(4000), "of id 6");
        let status = ring_status(&ring(9), age, 0);
        assert_eq!((status.places, status.taken), (4, 9));
    }

    #[test]
    fn flows_that_are_no_more_half_open_tell_no_age() {
        let gone = |id: u32, _| (id >= 4).then_some(u64::from(id));
        let lifetime = ring_status(&ring(5), gone, 0).lifetime_seconds;
        assert_eq!(lifetime, seconds(4));
        let empty = ring_status(&ring(5), |_, _| None, 0);
        assert_eq!(empty.lifetime_seconds, None);
    }

    #[test]
    fn whatever_the_ring_holds_there_is_an_answer() {
        for ring in [
            vec![],
            vec![0],
            vec![0, 5],
            vec![4],
            vec![4, 9],
            vec![u64::MAX, u64::MAX, 1],
            vec![2, u64::MAX, 0, 0],
        ] {
            let status = ring_status(&ring, |_, _| None, 0);
            assert_eq!(status.lifetime_seconds, None);
        }
    }

    #[test]
    fn a_place_waits_until_its_flow_is_established() {
        let claimed = FlowState::default().claim(false);
        assert!(waits(claimed.publish()) && !waits(claimed));
        assert!(!waits(claimed.publish().close()));
        assert!(!waits(FlowState::from_raw(State::Established as u32)));
        let udp = FlowState::default().claim(true).raw() & !0x7;
        assert!(waits(FlowState::from_raw(udp | State::Established as u32)));
    }
}
