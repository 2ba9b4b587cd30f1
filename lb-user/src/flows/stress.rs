//! Cuts against threads that open, use and close flows of the same table by the rules of the data
//! plane, on so few ids that they meet all the time.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of ids and generations of a short run"
)]

use std::{
    collections::VecDeque,
    hint,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lb_common::{
    addr::Be32,
    conntrack::{self, Direction, FlowState, Numbers, Segment, State, Transition},
    maps::{flow::Flow, rule::ALLOW, service::ServiceKey, usage},
    wire::header::{ACK, FIN, RST, SYN},
};

use super::{
    evict::{
        selector::{EndReason, EvictSelector},
        terminate::{Severed, Termination, sever},
    },
    expire::{mark, settle},
    idle::words::established,
    reason::Cause,
};
use crate::dataplane::{
    flows::{FlowOwners, FlowTable, UsageTable},
    labels::Labels,
};

const IDS: u32 = 12;
const PACKETS: u32 = 3;
const BACKENDS: u32 = 3;
const NETWORK: u16 = 2;
const SERVICE: u16 = 1;
/// Fewer of anything prove little.
const LEAST: u64 = 50;
/// How long a busy machine may take for them.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Ground {
    table: FlowTable,
    usage: UsageTable,
    queue: Mutex<VecDeque<u32>>,
    /// The backend that gets no new flows: what is in the maps.
    down: AtomicU32,
    /// Odd while a thread handles a packet, so waiting for a change is a grace period.
    inside: [AtomicU32; PACKETS as usize],
    /// The generation of each id that ended last.
    ended: [AtomicU32; IDS as usize],
    /// Of the claims that were lost to the end of a flow that was over already.
    put_back: AtomicU64,
    closed: AtomicU64,
}

#[test]
fn whatever_is_cut_ends_once_and_nothing_else_does() {
    let ground = Ground {
        table: FlowTable::anonymous(IDS),
        usage: UsageTable::anonymous(usage::service(SERVICE) + 1),
        queue: Mutex::new((0..IDS).collect()),
        down: AtomicU32::new(0),
        inside: Default::default(),
        ended: Default::default(),
        put_back: AtomicU64::new(0),
        closed: AtomicU64::new(0),
    };
    let seconds = if std::env::var_os("LB_TEST_LONG").is_some() {
        60
    } else {
        2
    };
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let stop = AtomicBool::new(false);
    let mut cutter = Cutter::default();
    thread::scope(|scope| {
        for seed in 0..PACKETS {
            let (ground, stop) = (&ground, &stop);
            scope.spawn(move || {
                let mut dice = Dice(seed + 1);
                let inside = &ground.inside[seed as usize];
                while !stop.load(Ordering::Relaxed) {
                    inside.fetch_add(1, Ordering::SeqCst);
                    match dice.below(8) {
                        0..3 => ground.open(&mut dice),
                        3 => ground.recycle(&mut dice),
                        _ => ground.packet(&mut dice),
                    }
                    inside.fetch_add(1, Ordering::SeqCst);
                    if dice.below(16) == 0 {
                        // The others need the CPU as well.
                        thread::sleep(Duration::from_micros(50));
                    }
                }
            });
        }
        let _stops = Stop(&stop);
        let mut dice = Dice(99);
        while start.elapsed() < time || (!cutter.proves(&ground) && start.elapsed() < LIMIT) {
            match dice.below(3) {
                0 => ground.expire(&mut dice),
                _ => cutter.cut(&ground, &mut dice),
            }
        }
    });
    ground.check();
    let (put_back, closed) = (
        ground.put_back.load(Ordering::Relaxed),
        ground.closed.load(Ordering::Relaxed),
    );
    println!("{cutter:?}, {put_back} put back, {closed} closed");
    assert!(cutter.proves(&ground), "{cutter:?}, {closed} closed");
}

/// Stops the threads, also when something is found wrong.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How much was cut.
#[derive(Clone, Copy, Debug, Default)]
struct Cutter {
    severed: u64,
    silenced: u64,
}

impl Cutter {
    fn proves(&self, ground: &Ground) -> bool {
        let closed = ground.closed.load(Ordering::Relaxed);
        let mut counts = [self.severed, self.silenced, closed].into_iter();
        counts.all(|count| count > LEAST)
    }

    /// Cuts all of a backend that gets no new flows any more; afterwards there is none left.
    fn cut(&mut self, ground: &Ground, dice: &mut Dice) {
        let backend = 1 + dice.below(BACKENDS);
        let cut = EvictSelector {
            backends: [backend].into(),
            ..EvictSelector::default()
        };
        ground.down.store(backend, Ordering::SeqCst);
        ground.grace();
        let labels = Labels::anonymous(0);
        let mut all = Vec::new();
        for id in 0..IDS {
            match sever(&ground.table, &labels, id, &cut, 0) {
                Termination::Spared => {}
                Termination::Missed => panic!("{id} is missed: a packet is not as fast as that"),
                Termination::Silenced => self.silenced += 1,
                Termination::Severed(severed, owners) => {
                    assert_eq!((owners.network, owners.service), (NETWORK, SERVICE));
                    assert_eq!(owners.backend, backend);
                    if severed.alive.in_use() {
                        ground.count(-1);
                    }
                    all.push(severed);
                }
            }
        }
        for id in 0..IDS {
            if let Some((word, flow)) = ground.table.flow(id)
                && word.translates()
            {
                assert_ne!(
                    u32::from(flow.backend_id),
                    backend,
                    "id {id} survives: {word:?}"
                );
            }
        }
        ground.grace();
        for severed in all {
            self.severed += 1;
            let Severed { id, alive, why, .. } = severed;
            let flow = severed.flow(&ground.table).unwrap();
            assert_eq!(
                (u32::from(flow.backend_id), why),
                (backend, EndReason::Backend)
            );
            let generation = alive.generation();
            assert_eq!(flow, ground.flow(id, generation, backend, alive.end()));
            ground.ended(id, generation);
            ground.queue.lock().unwrap().push_back(id);
        }
        ground.down.store(0, Ordering::SeqCst);
        dice.pause();
    }
}

impl Ground {
    /// What the winner of a claim writes: every field that is looked at shows which claim it is of.
    fn flow(&self, id: u32, generation: u32, backend: u32, word: FlowState) -> Flow {
        Flow {
            word: word.raw(),
            client: Be32::new(generation),
            vip: Be32::new(id),
            network: NETWORK,
            service: SERVICE,
            backend_id: u16::try_from(backend).unwrap(),
            ack_request: Be32::new(generation),
            ack_reply: Be32::new(generation + 1),
            ..Flow::default()
        }
    }

    /// A new flow, by the maps as they are when it begins.
    fn open(&self, dice: &mut Dice) {
        let down = self.down.load(Ordering::SeqCst);
        let backend = 1 + dice.below(BACKENDS);
        let Some(id) = self.queue.lock().unwrap().pop_front() else {
            return;
        };
        if backend == down {
            return self.queue.lock().unwrap().push_front(id);
        }
        dice.pause();
        let word = self.table.word(id).unwrap();
        assert!(
            word.claimable(),
            "id {id} is in the queue and live: {word:?}"
        );
        dice.pause();
        let claimed = word.claim(dice.below(4) == 0);
        if !self.table.swap(id, word, claimed) {
            let now = self.table.word(id).unwrap();
            assert_eq!(now, word.end(), "id {id} has two owners");
            self.put_back.fetch_add(1, Ordering::Relaxed);
            return self.queue.lock().unwrap().push_back(id);
        }
        let flow = self.flow(id, claimed.generation(), backend, claimed);
        self.table.fill_with(id, &flow, || dice.pause());
        dice.pause();
        assert!(self.table.swap(id, claimed, claimed.publish()));
    }

    /// A packet of either side, as `advance` of the data plane takes it.
    fn packet(&self, dice: &mut Dice) {
        let id = dice.below(IDS);
        let Some((mut word, flow)) = self.table.flow(id) else {
            return;
        };
        dice.pause();
        let (direction, segment) = dice.segment(&flow);
        for _ in 0..4 {
            if !word.translates() {
                return;
            }
            let numbers = Numbers::acknowledged(flow.ack_request.get(), flow.ack_reply.get());
            let step = match word.is_udp() {
                true => conntrack::udp(word, direction),
                false => conntrack::tcp(word, direction, &segment, &numbers),
            };
            let Transition::Change(next) = step else {
                return;
            };
            dice.pause();
            if self.table.swap(id, word, next) {
                dice.pause();
                self.follow(word, next);
                if next.state() == State::Closed {
                    self.close(id, word);
                }
                return;
            }
            let again = self.table.word(id).unwrap();
            if again.generation() != word.generation() {
                return;
            }
            word = again;
        }
    }

    /// The ring's way to close a half-open flow.
    fn recycle(&self, dice: &mut Dice) {
        let id = dice.below(IDS);
        let word = self.table.word(id).unwrap();
        dice.pause();
        if word.state() == State::New && self.table.swap(id, word, word.close()) {
            self.close(id, word);
        }
    }

    /// Userspace's way to close a flow that is idle, of which the mark may be there when it is cut.
    fn expire(&self, dice: &mut Dice) {
        for id in 0..IDS {
            let word = self.table.word(id).unwrap();
            if !matches!(
                word.state(),
                State::New | State::Replied | State::Established
            ) {
                continue;
            }
            let marked = mark(&self.table, id, word, Cause::Idle);
            self.grace();
            let still = |_, _: &Flow| dice.below(2) == 0;
            let closed = marked.and_then(|marked| settle(&self.table, &marked, still));
            if let Some(closed) = closed {
                self.follow(closed.alive, FlowState::from_raw(closed.flow.word));
                self.close(id, closed.alive);
            }
        }
    }

    /// What the winner of a close does.
    fn close(&self, id: u32, word: FlowState) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        self.ended(id, word.generation());
        self.queue.lock().unwrap().push_back(id);
    }

    fn ended(&self, id: u32, generation: u32) {
        let before = self.ended[id as usize].swap(generation, Ordering::SeqCst);
        assert!(before < generation, "id {id} ended twice");
    }

    fn follow(&self, old: FlowState, new: FlowState) {
        self.count(i32::from(new.in_use()) - i32::from(old.in_use()));
    }

    fn count(&self, amount: i32) {
        let owners = FlowOwners {
            network: NETWORK,
            service: SERVICE,
            backend: 0,
        };
        self.usage.count(0, &owners, amount);
    }

    fn grace(&self) {
        for inside in &self.inside {
            let before = inside.load(Ordering::SeqCst);
            while before % 2 == 1 && inside.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
        }
    }

    /// All threads have ended: every id is live or in the queue, once, and the usage is right.
    fn check(&self) {
        let words: Vec<FlowState> = (0..IDS).map(|id| self.table.word(id).unwrap()).collect();
        let mut ids: Vec<u32> = self.queue.lock().unwrap().iter().copied().collect();
        ids.extend((0..IDS).filter(|id| !words[*id as usize].claimable()));
        ids.sort_unstable();
        assert_eq!(ids, Vec::from_iter(0..IDS), "{self:?}");
        let live = words.iter().filter(|word| word.in_use()).count() as u32;
        for index in [usage::network(NETWORK), usage::service(SERVICE)] {
            assert_eq!(self.usage.owners().get(index), Some(live), "{self:?}");
        }
    }
}

struct Dice(u32);

impl Dice {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % end
    }

    /// Lets other threads go first: often for a moment, sometimes for long.
    fn pause(&mut self) {
        match self.below(256) {
            0..4 => thread::yield_now(),
            4..64 => (0..self.below(200)).for_each(|_| hint::spin_loop()),
            _ => {}
        }
    }

    /// A segment that fits the flow; most of them end it not.
    fn segment(&mut self, flow: &Flow) -> (Direction, Segment) {
        let (request, reply) = (flow.ack_request.get(), flow.ack_reply.get());
        let (direction, sequence, acknowledgment, first) = match self.below(2) {
            0 => (Direction::Request, reply, request, SYN),
            _ => (Direction::Reply, request, reply, SYN | ACK),
        };
        let flags = match self.below(16) {
            0..6 => first,
            6..13 => ACK,
            13..15 => FIN | ACK,
            _ => RST | ACK,
        };
        let segment = Segment {
            flags,
            sequence,
            acknowledgment,
            payload: 0,
        };
        (direction, segment)
    }
}

/// How long a pass over many flows takes that cuts none of them, and one that cuts all. To be read, not
/// asserted: in a debug build it proves nothing.
#[test]
fn the_time_of_a_pass_over_a_million_flows() {
    const FLOWS: u32 = 1_000_000;
    let table = FlowTable::anonymous(FLOWS);
    for id in 0..FLOWS {
        let flow = Flow {
            word: established().raw(),
            client: Be32::new(0x0a00_0000 | id),
            network: NETWORK,
            service: SERVICE,
            backend_id: u16::try_from(1 + id % BACKENDS).unwrap(),
            ..Flow::default()
        };
        table.put(id, &flow);
    }
    let prefix = |text: &str| (text.parse().unwrap(), ALLOW);
    let rules = (0..50).map(|third| prefix(&format!("10.16.{third}.0/24")));
    let rules = rules.chain([prefix("10.0.0.0/8")]).collect();
    let key = ServiceKey {
        network: NETWORK,
        protocol: 6,
        ..ServiceKey::default()
    };
    let denied = EvictSelector {
        denied: [(key, rules)].into(),
        ..EvictSelector::default()
    };
    let all = EvictSelector {
        backends: (1..=BACKENDS).collect(),
        ..EvictSelector::default()
    };
    let labels = Labels::anonymous(0);
    for (what, cut, wanted) in [("rules", denied, 0), ("all", all, FLOWS)] {
        let began = Instant::now();
        let cut = (0..FLOWS)
            .filter(|id| {
                matches!(
                    sever(&table, &labels, *id, &cut, 0),
                    Termination::Severed(..)
                )
            })
            .count();
        println!("{what}: {FLOWS} entries in {:?}", began.elapsed());
        assert_eq!(cut, wanted as usize);
    }
}
