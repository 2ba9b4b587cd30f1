//! Connections of shared VIPs that have a backend, with the record that a flow has.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use lb_common::{
    addr::Be16,
    conntrack::FlowState,
    maps::{
        cell_peer::PeerKey,
        event::{BEGAN, FlowEvent},
        flow::{Flow, FlowKey},
        quota, splice, usage,
    },
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

pub use super::leg_counts::CopyDirection;
use super::{
    fair_share::TakenShare,
    leg_counts::{self, LegCounts},
    snapshot::ProxyService,
};
use crate::{
    api::{Filter, FlowLine},
    dataplane::{
        counts::CountTable,
        flows::{FlowOwners, UsageTable, coarse_now},
        peers::peer,
    },
    flows::{
        evict::selector::{EndReason, EvictSelector, FIRST_LEG, FlowChoice},
        filter::choose,
        idle::{age, duration},
        log::{LogEvent, Reporter},
    },
    model::registry::{Ids, Kind},
};

/// Cuts that are remembered, for clients whose backend was being dialled meanwhile.
const REMEMBERED: usize = 64;
/// How long a change waits for the ends of what it cuts to be reset, and how often it looks.
const CUT_TIMEOUT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// All legs; shared by all threads.
#[derive(Clone, Debug)]
pub struct Legs(Arc<SharedLegs>);

#[derive(Debug)]
struct SharedLegs {
    known: Mutex<LegTable>,
    reporter: Reporter,
    /// Flows that are in use, of which some were legs.
    flows: Option<UsageTable>,
    /// What is counted.
    counts: Option<CountTable>,
}

/// How many flows of the data plane a service and its network have.
#[derive(Clone, Copy)]
struct LiveFlows {
    of_service: u32,
    of_network: u32,
}

#[derive(Debug, Default)]
struct LegTable {
    /// How often legs have been cut.
    cuts: u64,
    /// The latest of these cuts, the last one at the end.
    latest: VecDeque<EvictSelector>,
    last: u32,
    legs: BTreeMap<u32, Arc<Leg>>,
    of_service: HashMap<u16, u32>,
    of_network: HashMap<u16, u32>,
    of_peer: HashMap<PeerKey, u32>,
    of_backend: HashMap<u32, u32>,
}

/// One leg.
#[derive(Debug)]
pub struct Leg {
    /// Its id, which no flow has.
    pub id: u32,
    /// The name that its client requested.
    pub name: Option<String>,
    /// Where the backend sees it come from.
    pub snat: SocketAddrV4,
    /// What does not change of its flow.
    flow: Flow,
    /// Its backend, as the data plane knows it.
    peer: PeerKey,
    /// When it began.
    began: u32,
    to_backend: AtomicU64,
    to_client: AtomicU64,
    last_seen: AtomicU32,
    half_closed: AtomicBool,
    idle_most: Option<Duration>,
    half_closed_most: Duration,
    cut: watch::Sender<Option<EndReason>>,
    counts: LegCounts,
}

/// Why a leg does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// There are as many as there may be.
    NoRoom,
    /// Its backend has as many as it may have.
    BackendFull,
    /// It was cut before.
    Cut,
}

/// What is known of a leg before it begins.
pub struct NewLeg<'s> {
    /// The client's connection.
    pub key: &'s FlowKey,
    /// Its service.
    pub service: &'s ProxyService,
    /// Id and address of its backend.
    pub backend: (u32, SocketAddrV4),
    /// Id of the backend's network.
    pub network: u16,
    /// Where the backend sees it come from.
    pub snat: SocketAddrV4,
    /// The name that its client requested.
    pub name: Option<String>,
    /// The most connections that its backend may have.
    pub max_connections: Option<u32>,
    /// When its backend was sought, in microseconds of the monotonic clock.
    pub since: u64,
    /// How long the backend took to take the connection, in microseconds.
    pub connected_us: u64,
}

impl Legs {
    /// None so far; `reporter` has those that are carried and those that end.
    pub fn new(reporter: Reporter) -> Self {
        Self::beside(None, None, reporter)
    }

    /// The same, where connections that were legs are among these `flows`, and all are counted in `counts`.
    pub fn beside(
        flows: Option<UsageTable>,
        counts: Option<CountTable>,
        reporter: Reporter,
    ) -> Self {
        let known = Mutex::default();
        Self(Arc::new(SharedLegs {
            known,
            reporter,
            flows,
            counts,
        }))
    }

    fn known(&self) -> MutexGuard<'_, LegTable> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the service and its network may have one more.
    pub fn has_room(&self, service: &ProxyService) -> bool {
        self.known().has_room(service, self.flows(service))
    }

    /// Whether the clients of a network may have one more of the SNAT ports that lead to the backends of another.
    /// Connections that were handed over count, as in the data plane.
    pub fn has_ports(&self, network: u16, backends: u16) -> bool {
        let index = quota::index(network, quota::bank(backends, false));
        let flows = self.0.flows.as_ref();
        flows.is_none_or(|flows| !flows.quotas().get(index).is_spent())
    }

    /// How many flows of the service and of its network there are.
    fn flows(&self, service: &ProxyService) -> LiveFlows {
        let flows = self.0.flows.as_ref();
        // What a crash has made wrong may be below zero, as in the data plane.
        let count = |index| {
            let found = flows.and_then(|flows| flows.owners().get(index));
            found
                .filter(|count| count.cast_signed() >= 0)
                .unwrap_or_default()
        };
        LiveFlows {
            of_service: count(usage::service(service.id)),
            of_network: count(usage::network(service.network)),
        }
    }

    /// How many flows a backend has, those among them that are legs included.
    pub(crate) fn live(&self, backend: u32) -> u32 {
        self.known().live(backend, self.flows_of(backend))
    }

    /// How many flows of the data plane a backend has.
    fn flows_of(&self, backend: u32) -> u32 {
        let flows = self.0.flows.as_ref();
        let flows = flows.and_then(|flows| flows.backends().get(backend));
        usage::live(flows.unwrap_or_default())
    }

    /// A backend has not taken a connection, which another one may.
    pub(super) fn note_failure(&self, backend: u32) {
        if let Some(counts) = &self.0.counts {
            leg_counts::note_failure(counts, backend);
        }
    }

    /// No backend has taken a connection to this service.
    pub(super) fn note_unreached(&self, service: &ProxyService) {
        if let Some(counts) = &self.0.counts {
            leg_counts::note_unreached(counts, service.id, service.network);
        }
    }

    /// How often legs have been cut so far.
    pub fn cuts(&self) -> u64 {
        self.known().cuts
    }

    /// Begins a leg, which ends with the guard. The flow log has it from when it is [carried](Guard::carried) or
    /// [handed over](Guard::hand_over). Its backend was chosen when [`Self::cuts`] was so many.
    ///
    /// # Errors
    ///
    /// If there is no room any more, or it has been cut since then, or so often that this is not known.
    pub fn begin(&self, new: NewLeg<'_>, cuts: u64) -> Result<Guard, NotBegun> {
        let NewLeg {
            key,
            service,
            backend: (backend_id, backend),
            network,
            snat,
            name,
            max_connections,
            since,
            connected_us,
        } = new;
        let mut known = self.known();
        let has_ports = self.has_ports(service.network, network);
        if !has_ports || !known.has_room(service, self.flows(service)) {
            return Err(NotBegun::NoRoom);
        }
        let live = known.live(backend_id, self.flows_of(backend_id));
        if max_connections.is_some_and(|most| live >= most) {
            return Err(NotBegun::BackendFull);
        }
        known.last = known.last.wrapping_add(1) | FIRST_LEG;
        while known.legs.contains_key(&known.last) {
            known.last = known.last.wrapping_add(1) | FIRST_LEG;
        }
        let began = now();
        let owners = FlowOwners {
            network: key.network,
            service: service.id,
            backend: backend_id,
        };
        let leg = Arc::new(Leg {
            counts: LegCounts::new(self.0.counts.clone(), owners, since),
            id: known.last,
            name,
            snat,
            flow: Flow {
                word: FlowState::from_raw(0).claim(false).publish().raw(),
                client: key.client,
                vip: key.vip,
                client_port: key.client_port,
                vip_port: key.vip_port,
                backend: (*backend.ip()).into(),
                backend_port: Be16::new(backend.port()),
                network: key.network,
                backend_id: u16::try_from(backend_id).unwrap_or_default(),
                service: service.id,
                ..Flow::default()
            },
            peer: peer(network, (*backend.ip()).into(), backend.port()),
            began,
            to_backend: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            last_seen: AtomicU32::new(began),
            half_closed: AtomicBool::new(false),
            idle_most: service.idle,
            half_closed_most: service.half_closed,
            cut: watch::Sender::new(None),
        });
        if known.have_cut(&leg, cuts) {
            return Err(NotBegun::Cut);
        }
        known.legs.insert(leg.id, Arc::clone(&leg));
        *known.of_service.entry(service.id).or_default() += 1;
        *known.of_network.entry(key.network).or_default() += 1;
        *known.of_peer.entry(leg.peer).or_default() += 1;
        *known.of_backend.entry(backend_id).or_default() += 1;
        drop(known);
        leg.counts.connected(connected_us);
        Ok(Guard {
            legs: self.clone(),
            leg,
            _parts: Vec::new(),
        })
    }

    /// Ends those that a cut is for, loudly; how many these are.
    pub fn cut(&self, cut: &EvictSelector) -> u64 {
        if cut.is_empty() {
            return 0;
        }
        let mut count = 0;
        let mut known = self.known();
        known.cuts += 1;
        if known.latest.len() == REMEMBERED {
            known.latest.pop_front();
        }
        known.latest.push_back(cut.clone());
        for leg in known.legs.values() {
            if let Some(why) = leg.why(cut) {
                leg.cut.send_replace(Some(why));
                count += 1;
            }
        }
        count
    }

    /// As [`Self::cut`], and waits until their ends have been reset: as long as the data plane still lets out
    /// what comes from their VIPs.
    pub async fn end_cut(&self, cut: &EvictSelector) {
        if self.cut(cut) == 0 {
            return;
        }
        let deadline = Instant::now() + CUT_TIMEOUT;
        let goes_on = |legs: &Self| {
            let known = legs.known();
            let mut legs = known.legs.values();
            legs.any(|leg| leg.why(cut).is_some())
        };
        while goes_on(self) && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Those that `filter` means.
    ///
    /// # Errors
    ///
    /// What is no name or address of anything that flows have, in words.
    pub fn meant(&self, filter: &Filter, ids: &Ids) -> Result<Vec<Arc<Leg>>, String> {
        let others = Filter {
            snat: None,
            ..filter.clone()
        };
        let choices = choose(&others, ids)?;
        let is_meant = |leg: &Arc<Leg>| {
            let snat = filter.snat.as_ref();
            let snat = snat.is_none_or(|snat| *snat == leg.snat.to_string());
            let mut choices = choices.iter();
            snat && choices.any(|choice| choice.holds(&leg.flow, leg.id, leg.client()))
        };
        Ok(self.all().into_iter().filter(is_meant).collect())
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.known().legs.len()).unwrap_or(u32::MAX)
    }

    /// Whether one of them has this backend.
    pub fn talk_to(&self, backend: &PeerKey) -> bool {
        self.known().of_peer.contains_key(backend)
    }

    /// All of them, in order of their ids.
    pub fn all(&self) -> Vec<Arc<Leg>> {
        self.known().legs.values().cloned().collect()
    }

    fn end(&self, leg: &Leg) {
        let mut known = self.known();
        known.legs.remove(&leg.id);
        one_less(&mut known.of_service, leg.flow.service);
        one_less(&mut known.of_network, leg.flow.network);
        one_less(&mut known.of_peer, leg.peer);
        one_less(&mut known.of_backend, leg.flow.backend_id.into());
    }
}

fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl LegTable {
    /// How many legs a backend has, and these flows.
    fn live(&self, backend: u32, flows: u32) -> u32 {
        let legs = self.of_backend.get(&backend).copied();
        legs.unwrap_or_default().saturating_add(flows)
    }

    /// Whether a leg has been cut since there were `cuts` of them.
    fn have_cut(&self, leg: &Leg, cuts: u64) -> bool {
        let since = usize::try_from(self.cuts - cuts).unwrap_or(usize::MAX);
        let is_cut = |cut: &EvictSelector| leg.why(cut).is_some();
        since > self.latest.len() || self.latest.iter().rev().take(since).any(is_cut)
    }

    fn has_room(&self, service: &ProxyService, live: LiveFlows) -> bool {
        let fits = |count: Option<&u32>, flows: u32, most: Option<u32>| {
            let count = count.copied().unwrap_or_default().saturating_add(flows);
            most.is_none_or(|most| count < most)
        };
        fits(
            self.of_service.get(&service.id),
            live.of_service,
            service.max_flows,
        ) && fits(
            self.of_network.get(&service.network),
            live.of_network,
            service.network_max_flows,
        )
    }
}

impl Leg {
    /// Why a cut ends it.
    fn why(&self, cut: &EvictSelector) -> Option<EndReason> {
        cut.holds(&self.flow, self.id, self.client())
    }

    /// Its client, which is of IPv4.
    fn client(&self) -> Option<IpAddr> {
        Some(Ipv4Addr::from(self.flow.client).into())
    }

    /// Notes that so many bytes went that way.
    pub fn note(&self, way: CopyDirection, bytes: usize) {
        let counter = match way {
            CopyDirection::ToBackend => &self.to_backend,
            CopyDirection::ToClient => &self.to_client,
        };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.counts.carried(way, bytes);
        self.last_seen.store(now(), Ordering::Relaxed);
    }

    /// Notes that one end has closed its side.
    pub fn note_half_closed(&self) {
        self.half_closed.store(true, Ordering::Relaxed);
        self.last_seen.store(now(), Ordering::Relaxed);
    }

    /// Whether one end has closed its side.
    pub fn is_half_closed(&self) -> bool {
        self.half_closed.load(Ordering::Relaxed)
    }

    /// When its backend was sought, in microseconds of the monotonic clock.
    pub(super) const fn since(&self) -> u64 {
        self.counts.since()
    }

    /// The record that a flow would have, with bytes alone where that has frames.
    pub fn flow(&self) -> Flow {
        let [traffic_request, traffic_reply] = self.bytes();
        Flow {
            traffic_request,
            traffic_reply,
            last_seen: self.last_seen.load(Ordering::Relaxed),
            ..self.flow
        }
    }

    /// Bytes to the backend and to the client.
    pub fn bytes(&self) -> [u64; 2] {
        [&self.to_backend, &self.to_client].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Its backend.
    pub(super) fn backend(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.flow.backend.into(), self.flow.backend_port.get())
    }

    /// The VIP and port that its client has connected to.
    pub(super) fn vip(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.flow.vip.into(), self.flow.vip_port.get())
    }

    /// What means this one alone.
    pub fn choice(&self) -> FlowChoice {
        FlowChoice {
            id: Some(self.id),
            ..FlowChoice::default()
        }
    }

    /// As `lb flows` shows it, with the names that `ids` has.
    pub fn line(&self, ids: &Ids) -> FlowLine {
        let flow = self.flow();
        let name = |kind, id| ids.name(kind, u32::from(id)).unwrap_or("-").to_owned();
        let endpoint = |address, port: Be16| SocketAddrV4::new(Ipv4Addr::from(address), port.get());
        let left = self
            .most_idle()
            .map(|most| most.saturating_sub(self.idle()));
        let seconds = |time: Duration| time.as_millis().div_ceil(1000);
        let state = match self.is_half_closed() {
            true => "half_closed",
            false => "established",
        };
        FlowLine {
            network: name(Kind::Network, flow.network),
            service: name(Kind::Service, flow.service),
            protocol: "tcp".into(),
            client: endpoint(flow.client, flow.client_port).to_string(),
            vip: endpoint(flow.vip, flow.vip_port).to_string(),
            snat: self.snat.to_string(),
            backend: endpoint(flow.backend, flow.backend_port).to_string(),
            state: state.into(),
            name: self.name.clone(),
            bytes_request: flow.traffic_request,
            bytes_reply: flow.traffic_reply,
            idle_seconds: self.idle().as_secs(),
            expires_in_seconds: left.map(|left| u64::try_from(seconds(left)).unwrap_or(u64::MAX)),
        }
    }

    /// How long nothing may go either way; none: for ever.
    pub fn most_idle(&self) -> Option<Duration> {
        match self.is_half_closed() {
            true => Some(self.half_closed_most),
            false => self.idle_most,
        }
    }

    /// How long nothing has gone either way.
    pub fn idle(&self) -> Duration {
        duration(age(now(), self.last_seen.load(Ordering::Relaxed)))
    }

    /// Whether it has been cut.
    pub fn was_cut(&self) -> bool {
        self.cut.borrow().is_some()
    }

    /// Waits until it is cut.
    pub async fn is_cut(&self) -> EndReason {
        let mut cut = self.cut.subscribe();
        loop {
            if let Some(why) = *cut.borrow_and_update() {
                return why;
            }
            // The sender lives as long as the leg.
            let _changed = cut.changed().await;
        }
    }

    fn event(&self, kind: u32, time: u32) -> FlowEvent {
        FlowEvent {
            flow: self.flow(),
            id: self.id,
            kind,
            snat: (*self.snat.ip()).into(),
            port: self.snat.port().into(),
            time,
            ..FlowEvent::default()
        }
    }
}

/// A leg that goes on. Dropped without [`Self::end`], it is removed, and no reason is reported.
#[derive(Debug)]
pub struct Guard {
    legs: Legs,
    /// The leg.
    pub leg: Arc<Leg>,
    /// What the connection to its backend has.
    _parts: Vec<TakenShare>,
}

impl Guard {
    /// The same, with what its connection to the backend has until it ends.
    pub(super) fn with(self, parts: Vec<TakenShare>) -> Self {
        let mut guard = self;
        guard._parts = parts;
        guard
    }

    /// Reports that it began: this process carries it from here on.
    pub fn carried(&self) {
        self.leg.counts.began();
        let Leg { began, .. } = *self.leg;
        self.report(self.leg.event(BEGAN, began));
    }

    /// Reports that the flow with this id and word began when the leg did: it goes on as that one, and so its
    /// end is reported. Before any packet goes by it. The backend gets `sent_on` bytes from its socket.
    pub fn hand_over(self, id: u32, word: FlowState, sent_on: usize) {
        let sent_on = u64::try_from(sent_on).unwrap_or_default();
        self.leg.counts.began();
        self.leg.counts.carried(CopyDirection::ToBackend, sent_on);
        let began = self.leg.event(BEGAN, self.leg.began);
        let word = word.raw();
        let event = FlowEvent {
            id,
            flow: Flow { word, ..began.flow },
            ..began
        };
        // As much of it as the data plane keeps: both lines of the flow log have the same.
        let name = self.leg.name.as_deref();
        let kept = name.map(|name| name.get(..splice::NAME_BYTES).unwrap_or(name).into());
        self.legs.0.reporter.report(LogEvent { event, name: kept });
    }

    /// Ends it, for one of the reasons in [`event`](lb_common::maps::event).
    pub fn end(self, kind: u32) {
        self.report(self.leg.event(kind, now()));
    }

    fn report(&self, event: FlowEvent) {
        let name = self.leg.name.as_deref().map(Box::from);
        self.legs.0.reporter.report(LogEvent { event, name });
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.legs.end(&self.leg);
    }
}

/// The data plane's time; it can always be read.
fn now() -> u32 {
    coarse_now().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use lb_common::maps::event::FINISHED;

    use super::*;
    use crate::{flows::log, proxy::snapshot};

    pub(crate) fn key(port: u16) -> FlowKey {
        FlowKey {
            client_port: Be16::new(port),
            network: 3,
            protocol: 6,
            ..FlowKey::default()
        }
    }

    fn begin(legs: &Legs, service: &ProxyService, port: u16, backend: u32) -> Guard {
        let key = key(port);
        legs.begin(new(&key, service, backend), legs.cuts())
            .unwrap()
    }

    fn new<'s>(key: &'s FlowKey, service: &'s ProxyService, backend: u32) -> NewLeg<'s> {
        NewLeg {
            key,
            service,
            backend: (backend, "10.0.0.1:443".parse().unwrap()),
            network: 2,
            snat: "10.0.0.9:57344".parse().unwrap(),
            name: None,
            max_connections: None,
            since: 0,
            connected_us: 250,
        }
    }

    /// What is cut while a backend is dialled shall not begin afterwards.
    #[test]
    fn a_leg_does_not_begin_over_a_cut() {
        let (reporter, _reports) = log::channel();
        let legs = Legs::new(reporter);
        let service = snapshot::tests::service(None, None);
        let (cuts, key) = (legs.cuts(), key(1));
        legs.cut(&EvictSelector::default());
        let begins = |backend, cuts| legs.begin(new(&key, &service, backend), cuts).err();
        assert_eq!(begins(7, cuts), None);
        let cut = |backend| EvictSelector {
            backends: [backend].into(),
            ..EvictSelector::default()
        };
        assert_eq!(legs.cut(&cut(9)), 0);
        assert_eq!(legs.cut(&cut(10)), 0);
        // Others go on as if nothing were.
        assert_eq!(begins(7, cuts), None);
        assert_eq!(begins(9, cuts), Some(NotBegun::Cut));
        assert_eq!(begins(9, cuts + 1), None);
        assert_eq!(begins(10, cuts + 1), Some(NotBegun::Cut));
        assert_eq!(begins(9, legs.cuts()), None);
        // What is forgotten may have been a cut of any backend.
        for _ in 2..=REMEMBERED {
            legs.cut(&cut(11));
        }
        assert_eq!(begins(7, cuts), Some(NotBegun::Cut));
        assert_eq!(begins(7, cuts + 1), None);
    }

    #[test]
    fn a_leg_is_counted_and_reported_from_its_beginning_to_its_end() {
        let (reporter, mut reports) = log::channel();
        let legs = Legs::new(reporter);
        let service = snapshot::tests::service(Some(2), None);
        let first = begin(&legs, &service, 1, 7);
        let second = begin(&legs, &service, 2, 7);
        first.carried();
        second.carried();
        assert!(!legs.has_room(&service));
        let ids: Vec<u32> = legs.all().iter().map(|leg| leg.id).collect();
        assert_eq!(ids, [first.leg.id, second.leg.id]);
        assert!(ids.iter().all(|id| *id >= FIRST_LEG));
        first.leg.note(CopyDirection::ToBackend, 5);
        first.leg.note(CopyDirection::ToClient, 11);
        first.end(FINISHED);
        assert!(legs.has_room(&service));
        drop(second);
        assert!(legs.all().is_empty());
        let mut events = std::iter::from_fn(|| reports.take());
        let kinds = [(); 2].map(|()| events.next().unwrap().event.kind);
        assert_eq!(kinds, [BEGAN, BEGAN]);
        let end = events.next().unwrap().event;
        assert_eq!((end.kind, end.port), (FINISHED, 57_344));
        assert_eq!((end.flow.traffic_request, end.flow.traffic_reply), (5, 11));
        assert_eq!(events.next().map(|event| event.event.kind), None);
    }

    /// The data plane reports the end of that flow: both have its id and generation.
    #[test]
    fn a_leg_that_is_handed_over_began_as_the_flow_that_it_becomes() {
        let (reporter, mut reports) = log::channel();
        let legs = Legs::new(reporter);
        let service = snapshot::tests::service(None, None);
        let guard = begin(&legs, &service, 1, 7);
        let began = guard.leg.began;
        let word = FlowState::from_raw(41 << 10).claim(false).lend();
        guard.hand_over(1031, word, 517);
        assert!(legs.all().is_empty());
        let event = reports.take().unwrap().event;
        assert_eq!((event.id, event.kind, event.time), (1031, BEGAN, began));
        let known = FlowState::from_raw(event.flow.word);
        assert_eq!((known.generation(), known.is_udp()), (42, false));
        assert_eq!((event.flow.backend_id, event.port), (7, 57_344));
        assert_eq!(reports.take().map(|event| event.event.kind), None);
        // One that comes to nothing is in no line.
        drop(begin(&legs, &service, 2, 7));
        assert_eq!(reports.take().map(|event| event.event.kind), None);
    }

    #[test]
    fn a_network_has_a_budget_of_its_own() {
        let (reporter, _reports) = log::channel();
        let legs = Legs::new(reporter);
        let service = snapshot::tests::service(None, Some(1));
        assert!(legs.has_room(&service));
        let _leg = begin(&legs, &service, 1, 7);
        assert!(!legs.has_room(&service));
        let second = legs.begin(new(&key(2), &service, 7), legs.cuts());
        assert_eq!(second.err(), Some(NotBegun::NoRoom));
    }

    /// Legs and flows of the data plane count together, and another backend's do not.
    #[test]
    fn a_backend_has_as_many_connections_as_it_may() {
        let table = UsageTable::anonymous(300);
        table.backends().add(7, 1);
        table.backends().add(8, -1);
        let (reporter, _reports) = log::channel();
        let legs = Legs::beside(Some(table), None, reporter);
        let (service, key) = (snapshot::tests::service(None, None), key(1));
        let begin = |backend| {
            let new = NewLeg {
                max_connections: Some(2),
                ..new(&key, &service, backend)
            };
            legs.begin(new, legs.cuts())
        };
        let first = begin(7).unwrap();
        assert_eq!(legs.live(7), 2);
        assert_eq!(begin(7).err(), Some(NotBegun::BackendFull));
        let others = [begin(8).unwrap(), begin(8).unwrap()];
        assert_eq!(begin(8).err(), Some(NotBegun::BackendFull));
        drop((first, others));
        assert_eq!((legs.live(7), legs.live(8)), (1, 0));
        assert!(begin(7).is_ok() && begin(8).is_ok());
    }

    #[test]
    fn a_network_has_its_part_of_the_snat_ports() {
        let table = UsageTable::anonymous(300);
        let index = quota::index(3, quota::bank(1, false));
        table.quotas().set_most(index, 2).unwrap();
        table.quotas().add(index, 1);
        let (reporter, _reports) = log::channel();
        let legs = Legs::beside(Some(table), None, reporter);
        let (service, key) = (snapshot::tests::service(None, None), key(1));
        let begin = || {
            let new = NewLeg {
                network: 1,
                ..new(&key, &service, 7)
            };
            legs.begin(new, legs.cuts()).map(|_| ())
        };
        assert!(legs.has_ports(3, 1));
        assert_eq!(begin(), Ok(()));
        let table = legs.0.flows.as_ref().unwrap();
        table.quotas().add(index, 1);
        assert!(!legs.has_ports(3, 1) && legs.has_ports(3, 2) && legs.has_ports(4, 1));
        assert_eq!(begin(), Err(NotBegun::NoRoom));
    }

    #[test]
    fn a_cut_is_for_those_that_it_names() {
        let (reporter, _reports) = log::channel();
        let legs = Legs::new(reporter);
        let service = snapshot::tests::service(None, None);
        let guards = [7, 8, 9].map(|backend| begin(&legs, &service, 1, backend));
        legs.cut(&EvictSelector {
            backends: [7].into(),
            ..EvictSelector::default()
        });
        legs.cut(&EvictSelector {
            chosen: vec![FlowChoice {
                id: Some(guards[2].leg.id),
                ..FlowChoice::default()
            }],
            ..EvictSelector::default()
        });
        let cut = guards.each_ref().map(|guard| *guard.leg.cut.borrow());
        assert_eq!(
            cut,
            [Some(EndReason::Backend), None, Some(EndReason::Operator)]
        );
    }
}
