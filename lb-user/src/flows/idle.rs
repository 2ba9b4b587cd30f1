//! How long a flow may be idle, and how long it has been. Pure.

use std::time::Duration;

use lb_common::{
    conntrack::{FlowState, State},
    maps::flow::TIME_SHIFT,
};

use crate::{
    config::{Config, Protocol, Service, TCP_IDLE, Timeouts, UDP_IDLE},
    model::registry::{Ids, Kind},
};

/// A time in units of `Flow::last_seen`, about a millisecond each.
pub type Ticks = u32;

/// How far ahead of our clock a flow may have been seen: another CPU's packet comes between our look
/// at the clock and at the flow, and a thread may be kept from running in between. About a minute.
const AHEAD: Ticks = 1 << 16;

/// How long ago `last_seen` was.
///
/// The clock wraps after 2^32 ticks, 52 days, and all of them but `AHEAD` count as the past. So a
/// flow looks younger than it is only if it has been idle for 52 days, not after half of them. No
/// flow gets there while a control plane runs: a timeout is 30 days at most, and a flow that never
/// expires is probed, which either moves its last seen or ends it. Where no control plane ran for
/// weeks, a flow may at worst get its timeout once more.
pub fn age(now: Ticks, last_seen: Ticks) -> Ticks {
    let age = now.wrapping_sub(last_seen);
    if age > Ticks::MAX - AHEAD { 0 } else { age }
}

/// `time` in ticks, rounded up: nothing ends early.
pub fn ticks(time: Duration) -> Ticks {
    let rounded = (time.as_nanos() + (1 << TIME_SHIFT) - 1) >> TIME_SHIFT;
    Ticks::try_from(rounded).unwrap_or(Ticks::MAX - AHEAD)
}

/// The time that so many ticks take.
pub fn duration(ticks: Ticks) -> Duration {
    Duration::from_nanos(u64::from(ticks) << TIME_SHIFT)
}

/// A service's times for its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdleTimes {
    tcp: Option<Ticks>,
    udp: Option<Ticks>,
    keepalive: Option<Ticks>,
}

impl IdleTimes {
    fn of(service: &Service) -> Self {
        Self {
            tcp: service.idle(Protocol::Tcp).map(ticks),
            udp: service.idle(Protocol::Udp).map(ticks),
            keepalive: service.keepalive.map(ticks),
        }
    }
}

/// How long a port stays lent to a socket of a process that does not report any more that it has it. No
/// shorter than the minute for which an end of a connection rests (TIME_WAIT).
pub const LEASE: Duration = Duration::from_secs(120);

/// How long both ends of a flow that is doubted may leave probes without an answer until it ends.
pub const DOUBT: Duration = Duration::from_secs(10);

/// How long every flow may be idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    half_open: Ticks,
    half_closed: Ticks,
    udp: Ticks,
    /// For flows of a service that the configuration does not know any more.
    retired: IdleTimes,
    /// By service id.
    services: Vec<Option<IdleTimes>>,
}

impl Policy {
    /// The times of `config`, whose services have their ids from `ids`.
    pub fn new(config: &Config, ids: &Ids) -> Self {
        let mut policy = Self::with(&config.timeouts);
        for service in &config.services {
            let id = ids.get(Kind::Service, &service.name);
            if let Some(id) = id.and_then(|id| u16::try_from(id).ok()) {
                policy.set(id, service);
            }
        }
        policy
    }

    fn with(timeouts: &Timeouts) -> Self {
        Self {
            half_open: ticks(timeouts.half_open),
            half_closed: ticks(timeouts.half_closed),
            udp: ticks(timeouts.udp),
            retired: IdleTimes {
                tcp: Some(ticks(TCP_IDLE)),
                udp: Some(ticks(UDP_IDLE)),
                keepalive: None,
            },
            services: Vec::new(),
        }
    }

    fn set(&mut self, id: u16, service: &Service) {
        let index = usize::from(id);
        if self.services.len() <= index {
            self.services.resize(index + 1, None);
        }
        if let Some(place) = self.services.get_mut(index) {
            *place = Some(IdleTimes::of(service));
        }
    }

    fn times(&self, service: u16) -> &IdleTimes {
        let known = self.services.get(usize::from(service));
        known.and_then(Option::as_ref).unwrap_or(&self.retired)
    }

    /// How long a flow with this word may be idle; none for one that must not end for being idle.
    pub fn timeout(&self, word: FlowState, service: u16) -> Option<Ticks> {
        if word.is_local() || word.is_held() {
            return Some(ticks(LEASE));
        }
        match (word.state(), word.is_udp()) {
            (State::Free | State::Claimed | State::Closed | State::Ended | State::Local, _) => None,
            (State::New | State::Replied, true) => Some(self.udp),
            (State::Established, true) => self.times(service).udp,
            (State::New | State::Replied, false) => Some(self.half_open),
            (State::Established, false) if word.is_half_closed() => Some(self.half_closed),
            (State::Established, false) => self.times(service).tcp,
        }
    }

    /// Whether a flow has been idle for too long.
    pub fn is_due(&self, word: FlowState, service: u16, last_seen: Ticks, now: Ticks) -> bool {
        let timeout = self.timeout(word, service);
        timeout.is_some_and(|timeout| age(now, last_seen) >= timeout)
    }

    /// Whether a flow that must not end for being idle, because its ends are probed, has been idle for too
    /// long all the same: one of them has never answered.
    pub fn is_due_mute(&self, word: FlowState, service: u16, last_seen: Ticks, now: Ticks) -> bool {
        let is_probed = self.keepalive(word, service).is_some();
        let timeout = self.retired.tcp.filter(|_| is_probed);
        self.timeout(word, service).is_none()
            && timeout.is_some_and(|timeout| age(now, last_seen) >= timeout)
    }

    /// After how much idleness both ends of a flow with this word are probed; of one that is doubted, how long they
    /// are at most.
    pub fn keepalive(&self, word: FlowState, service: u16) -> Option<Ticks> {
        let is_open = word.in_use() && !word.is_udp() && !word.is_held();
        if is_open && word.is_doubted() {
            return Some(ticks(DOUBT));
        }
        let probed = is_open && !word.is_half_closed();
        probed.then(|| self.times(service).keepalive).flatten()
    }

    /// The shortest time after which anything is probed.
    pub fn shortest_keepalive(&self) -> Option<Ticks> {
        let services = self.services.iter().flatten();
        services.filter_map(|times| times.keepalive).min()
    }

    /// The shortest time after which anything has to be done.
    pub fn shortest(&self) -> Duration {
        let services = self.services.iter().flatten();
        let times = services.flat_map(|times| [times.tcp, times.udp, times.keepalive]);
        let others = [self.half_open, self.half_closed, self.udp];
        let shortest = times.flatten().chain(others).min();
        shortest.map_or(Duration::MAX, duration)
    }
}

#[cfg(test)]
impl Policy {
    /// Of one service, whose established flows are probed and never idle for too long.
    pub(super) fn probing(service: u16, keepalive: Ticks) -> Self {
        let mut policy = Self::with(&Timeouts::default());
        policy.services = vec![None; usize::from(service)];
        policy.services.push(Some(IdleTimes {
            tcp: None,
            udp: None,
            keepalive: Some(keepalive),
        }));
        policy
    }
}

/// Words of flows in every state, made by the data plane's own rules.
#[cfg(test)]
pub(super) mod words {
    use lb_common::{
        conntrack::{self, Direction, FlowState, Numbers, Segment, Transition},
        wire::header::{ACK, FIN, SYN},
    };

    fn step(word: FlowState, direction: Direction, flags: u8) -> FlowState {
        let segment = Segment {
            flags,
            sequence: 1,
            acknowledgment: 1,
            payload: 0,
        };
        match conntrack::tcp(word, direction, &segment, &Numbers::acknowledged(1, 1)) {
            Transition::Change(word) => word,
            other => panic!("{flags:#x} gives {other:?}"),
        }
    }

    pub(crate) fn new() -> FlowState {
        FlowState::default().claim(false).publish()
    }

    pub(crate) fn replied() -> FlowState {
        step(new(), Direction::Reply, SYN | ACK)
    }

    pub(crate) fn established() -> FlowState {
        step(replied(), Direction::Request, ACK)
    }

    pub(crate) fn half_closed() -> FlowState {
        step(established(), Direction::Reply, FIN | ACK)
    }

    pub(crate) fn udp(replied: bool) -> FlowState {
        let new = FlowState::default().claim(true).publish();
        match conntrack::udp(new, Direction::Reply) {
            Transition::Change(established) if replied => established,
            _ => new,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{words::*, *};

    const SERVICE: u16 = 3;
    const NEVER: u16 = 4;
    const RETIRED: u16 = 9;

    fn policy() -> Policy {
        let mut policy = Policy::with(&Timeouts {
            half_open: Duration::from_secs(30),
            half_closed: Duration::from_secs(120),
            udp: Duration::from_secs(20),
        });
        let times = IdleTimes {
            tcp: Some(1000),
            udp: Some(2000),
            keepalive: None,
        };
        let never = IdleTimes {
            tcp: None,
            keepalive: Some(500),
            ..times
        };
        policy.services = vec![None, None, None, Some(times), Some(never)];
        policy
    }

    #[test]
    fn every_state_has_its_timeout() {
        let policy = policy();
        let timeout = |word| policy.timeout(word, SERVICE);
        let seconds = |seconds| Some(ticks(Duration::from_secs(seconds)));
        assert_eq!(timeout(new()), seconds(30));
        assert_eq!(timeout(replied()), seconds(30));
        assert_eq!(timeout(established()), Some(1000));
        assert_eq!(timeout(half_closed()), seconds(120));
        assert_eq!(timeout(udp(false)), seconds(20));
        assert_eq!(timeout(udp(true)), Some(2000));
        assert_eq!(
            timeout(established().expiring()),
            Some(1000),
            "marked or not"
        );
        for word in [
            FlowState::default(),
            FlowState::default().claim(false),
            established().close(),
            established().forget(),
        ] {
            assert_eq!(timeout(word), None, "{word:?}");
        }
    }

    #[test]
    fn never_is_for_flows_in_full_use_only() {
        let policy = policy();
        assert_eq!(policy.timeout(established(), NEVER), None);
        assert!(!policy.is_due(established(), NEVER, 1, 1 << 31));
        assert!(policy.timeout(half_closed(), NEVER).is_some());
        assert!(policy.timeout(replied(), NEVER).is_some());
        assert_eq!(policy.keepalive(established(), NEVER), Some(500));
        for word in [
            new(),
            replied(),
            half_closed(),
            udp(true),
            established().close(),
        ] {
            assert_eq!(policy.keepalive(word, NEVER), None, "{word:?}");
        }
    }

    #[test]
    fn a_doubted_flow_is_probed_whatever_its_service_says_and_lives_as_long_as_before() {
        let policy = policy();
        for word in [established(), half_closed()] {
            for service in [SERVICE, NEVER, RETIRED] {
                let doubted = word.doubted();
                assert_eq!(policy.keepalive(doubted, service), Some(ticks(DOUBT)));
                let timeout = policy.timeout(word, service);
                assert_eq!(policy.timeout(doubted, service), timeout);
            }
        }
        assert_eq!(policy.keepalive(replied().doubted(), NEVER), None);
        assert_eq!(
            policy.keepalive(established().doubted().hold(), NEVER),
            None
        );
    }

    #[test]
    fn a_flow_whose_end_never_answered_falls_under_the_default_idle_time() {
        let policy = policy();
        let default = ticks(TCP_IDLE);
        let due = |word, service, after| policy.is_due_mute(word, service, 7, 7 + after);
        assert!(!due(established(), NEVER, default - 1));
        assert!(due(established(), NEVER, default));
        for word in [half_closed(), udp(true), established().close()] {
            assert!(!due(word, NEVER, default), "{word:?}");
        }
        assert!(!due(established(), SERVICE, default), "it has its own");
    }

    #[test]
    fn a_retired_service_has_the_defaults() {
        let policy = policy();
        let timeout = |word| policy.timeout(word, RETIRED).map(duration);
        let seconds = |word| timeout(word).map(|time| time.as_secs());
        assert_eq!(seconds(established()), Some(7800));
        assert_eq!(seconds(udp(true)), Some(120));
        assert_eq!(policy.keepalive(established(), RETIRED), None);
    }

    #[test]
    fn a_flow_is_due_when_its_timeout_is_over_and_not_before() {
        let policy = policy();
        for last_seen in [0, 5, Ticks::MAX - 500, Ticks::MAX] {
            let due = |after: Ticks| {
                policy.is_due(
                    established(),
                    SERVICE,
                    last_seen,
                    last_seen.wrapping_add(after),
                )
            };
            assert!(!due(0) && !due(999), "{last_seen}");
            assert!(due(1000) && due(1001) && due(1 << 31), "{last_seen}");
        }
    }

    #[test]
    fn a_flow_that_was_seen_after_our_look_at_the_clock_is_young() {
        for now in [0, 10, 1 << 31, Ticks::MAX] {
            assert_eq!(age(now, now.wrapping_add(1)), 0);
            assert_eq!(age(now, now.wrapping_add(AHEAD - 1)), 0);
        }
    }

    #[test]
    fn neither_thirty_days_nor_more_than_half_of_the_wrap_look_young() {
        let days = |days: u64| ticks(Duration::from_secs(days * 24 * 3600));
        assert!(days(30) > 1 << 31, "more than half of the wrap");
        for last_seen in [0, 12_345, Ticks::MAX - 3] {
            for idle in [days(26), days(27), days(30), days(52)] {
                assert_eq!(age(last_seen.wrapping_add(idle), last_seen), idle);
            }
        }
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(ticks(Duration::from_nanos(1)), 1);
        assert_eq!(ticks(Duration::from_nanos(1 << TIME_SHIFT)), 1);
        assert!(duration(ticks(Duration::from_millis(100))) >= Duration::from_millis(100));
        assert_eq!(age(ticks(Duration::MAX), 0), ticks(Duration::MAX));
    }

    #[test]
    fn the_shortest_time_says_how_often_to_look() {
        assert_eq!(policy().shortest(), duration(500));
        assert_eq!(policy().shortest_keepalive(), Some(500));
        let defaults = Policy::with(&Timeouts::default());
        assert_eq!(defaults.shortest().as_secs(), 30);
        assert_eq!(defaults.shortest_keepalive(), None);
    }
}
