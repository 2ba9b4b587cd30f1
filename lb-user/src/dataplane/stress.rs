//! Threads that open, use and close flows of one table by the rules of the data plane, on so few ids
//! that they meet all the time: what makes a flow's word the only truth about it.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of ids, tuples and generations of a short run, and halves of a word"
)]

use std::{
    collections::{BTreeSet, VecDeque},
    hint,
    net::Ipv6Addr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lb_common::{
    addr::{Be16, Be32, Be128, Mac},
    conntrack::{self, Direction, FlowState, Numbers, Segment, State, Transition},
    maps::flow::Flow,
    wire::header::{ACK, FIN, RST, SYN},
};

use super::{
    flows::FlowTable,
    labels::{Labels, twin::KEY},
};
use crate::flows::{
    expire::{mark, settle},
    reason::Cause,
};

const IDS: u32 = 4;
const THREADS: u32 = 3;
/// Fewer than this many flows and reads prove little.
const LEAST: u64 = 100;

fn duration() -> Duration {
    Duration::from_secs(match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 30,
        None => 1,
    })
}

/// Every id comes out of its queue to one thread alone, as in the data plane.
#[test]
fn every_id_is_live_or_queued_once() {
    let ground = Ground::new(false);
    ground.run();
    let mut ids: Vec<u32> = ground.queue.into_inner().unwrap().into();
    ids.extend((0..IDS).filter(|&id| is_live(ground.table.word(id).unwrap())));
    ids.sort_unstable();
    assert_eq!(ids, Vec::from_iter(0..IDS));
}

/// The queue is a hint: another thread may try an id that waits there; one of the two gets it, and it is not
/// lost.
#[test]
fn an_id_that_many_want_is_given_to_one() {
    let ground = Ground::new(true);
    ground.run();
    assert!(
        ground.lost.load(Ordering::Relaxed) > 0,
        "no two met: {ground:?}"
    );
    let queue = ground.queue.into_inner().unwrap();
    let live = (0..IDS).filter(|&id| is_live(ground.table.word(id).unwrap()));
    let found: BTreeSet<u32> = queue.into_iter().chain(live).collect();
    assert_eq!(found, BTreeSet::from_iter(0..IDS));
}

#[derive(Debug)]
struct Ground {
    table: FlowTable,
    /// The flows are of IPv6.
    labels: Labels,
    queue: Mutex<VecDeque<u32>>,
    /// Whether threads also try ids that they did not take out of the queue.
    rivals: bool,
    /// Claims that were won of each id: its generation.
    claims: [AtomicU32; IDS as usize],
    /// The generation of each id that was closed last.
    closed: [AtomicU32; IDS as usize],
    live: AtomicI64,
    /// Swaps that were lost.
    lost: AtomicU64,
    read: AtomicU64,
}

impl Ground {
    fn new(rivals: bool) -> Self {
        Self {
            table: FlowTable::anonymous(IDS),
            labels: Labels::anonymous(IDS),
            queue: Mutex::new((0..IDS).collect()),
            rivals,
            claims: Default::default(),
            closed: Default::default(),
            live: AtomicI64::new(0),
            lost: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    /// Lets all threads loose for a time; then the counts are right, and all threads have ended.
    fn run(&self) {
        let (done, end) = (AtomicBool::new(false), Instant::now() + duration());
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let done = &done;
                scope.spawn(move || {
                    let mut dice = Dice(seed + 1);
                    while !done.load(Ordering::Relaxed) {
                        match dice.below(10) {
                            0..3 => self.open(&mut dice),
                            3..5 => self.expire(&mut dice),
                            5 => self.recycle(&mut dice),
                            _ => self.packet(&mut dice),
                        }
                    }
                });
            }
            // One thread does nothing but read: a claim in the middle of a read is rare.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for id in 0..IDS {
                        self.read(id);
                    }
                }
            });
            thread::sleep(end - Instant::now());
            done.store(true, Ordering::Relaxed);
        });
        let words: Vec<FlowState> = (0..IDS).map(|id| self.table.word(id).unwrap()).collect();
        assert!(words.iter().all(|word| word.state() != State::Claimed));
        let live = words.iter().filter(|&&word| is_live(word)).count();
        assert_eq!(self.live.load(Ordering::SeqCst), live as i64, "{self:?}");
        for (id, word) in words.iter().enumerate() {
            assert_eq!(self.claims[id].load(Ordering::SeqCst), word.generation());
        }
        let claims = words
            .iter()
            .map(|word| u64::from(word.generation()))
            .sum::<u64>();
        assert!(
            claims > LEAST && self.read.load(Ordering::Relaxed) > LEAST,
            "{self:?}"
        );
    }

    /// A new flow: claim, fill, publish; or given up at the last moment.
    fn open(&self, dice: &mut Dice) {
        let id = match self.rivals && dice.below(2) == 0 {
            true => Some(dice.below(IDS)),
            false => self.queue.lock().unwrap().pop_front(),
        };
        let Some(id) = id else { return };
        let word = self.table.word(id).unwrap();
        dice.pause();
        let claimed = word.claim(dice.below(2) == 0);
        if !word.claimable() || !self.swap(id, word, claimed) {
            return;
        }
        let before = self.claims[id as usize].fetch_add(1, Ordering::SeqCst);
        assert_eq!(claimed.generation(), before + 1, "id {id} has two owners");
        self.table
            .fill_with(id, &flow(id, claimed.generation()), || dice.pause());
        let client = client(claimed.generation());
        self.labels.put_client_with(id, client, || dice.pause());
        self.live.fetch_add(1, Ordering::SeqCst);
        let published = claimed.publish();
        assert!(
            self.table.swap(id, claimed, published),
            "a claim is its winner's"
        );
        dice.pause();
        if dice.below(8) == 0 && self.swap(id, published, published.withdraw()) {
            self.live.fetch_sub(1, Ordering::SeqCst);
            self.queue.lock().unwrap().push_back(id);
        }
    }

    /// A packet of either side, as `advance` of the data plane takes it.
    fn packet(&self, dice: &mut Dice) {
        let id = dice.below(IDS);
        let Some((mut word, flow)) = self.read(id) else {
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
            if self.swap(id, word, next) {
                if next.state() == State::Closed {
                    self.ended(id, next);
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

    /// Userspace's way to close a flow, which needs no grace period where every flow is to end.
    fn expire(&self, dice: &mut Dice) {
        let id = dice.below(IDS);
        let word = self.table.word(id).unwrap();
        if !is_live(word) {
            return;
        }
        dice.pause();
        let Some(marked) = mark(&self.table, id, word, Cause::Idle) else {
            return;
        };
        dice.pause();
        if let Some(closed) = settle(&self.table, &marked, |_, _| dice.below(2) == 0) {
            self.ended(id, FlowState::from_raw(closed.flow.word));
        }
    }

    /// The ring's way to close a half-open flow.
    fn recycle(&self, dice: &mut Dice) {
        let id = dice.below(IDS);
        let word = self.table.word(id).unwrap();
        dice.pause();
        if word.state() == State::New && self.swap(id, word, word.close()) {
            self.ended(id, word.close());
        }
    }

    /// What the winner of a close does.
    fn ended(&self, id: u32, word: FlowState) {
        let before = self.closed[id as usize].swap(word.generation(), Ordering::SeqCst);
        // Where others take an id without waiting for the queue, they may have closed their own
        // generation before this is noted; that each was closed once is in the number of live flows.
        let in_order = before < word.generation();
        assert!(
            in_order || self.rivals && before != word.generation(),
            "id {id} was closed twice: {word:?}"
        );
        self.live.fetch_sub(1, Ordering::SeqCst);
        self.queue.lock().unwrap().push_back(id);
    }

    /// A flow whose fields are all of the generation in its word.
    fn read(&self, id: u32) -> Option<(FlowState, Flow)> {
        let (word, found) = self.table.flow(id)?;
        let wanted = flow(id, word.generation());
        let found = Flow { word: 0, ..found };
        assert_eq!(found, wanted, "id {id}, generation {}", word.generation());
        match self.labels.client(id, &found) {
            Some(found) => assert_eq!(found, client(word.generation())),
            None => assert_ne!(
                self.table.word(id).map(FlowState::generation),
                Some(word.generation())
            ),
        }
        self.read.fetch_add(1, Ordering::Relaxed);
        Some((word, found))
    }

    fn swap(&self, id: u32, old: FlowState, new: FlowState) -> bool {
        let won = self.table.swap(id, old, new);
        self.lost.fetch_add(u64::from(!won), Ordering::Relaxed);
        won
    }
}

fn is_live(word: FlowState) -> bool {
    word.has_flow() && !word.claimable()
}

/// The client of the flow, in every word of its address.
fn client(generation: u32) -> Ipv6Addr {
    Be128::from_raw([generation; 4].map(u32::to_be)).into()
}

/// What the winner of a claim writes: every field shows which claim it is of, and the VIP is a label.
fn flow(id: u32, generation: u32) -> Flow {
    let half = generation as u16;
    Flow {
        word: 0,
        client: KEY.client(client(generation).into()),
        vip: Be32::new(!generation),
        client_port: Be16::new(half),
        vip_port: Be16::new(!half),
        backend: Be32::new(generation ^ id),
        backend_port: Be16::new(half ^ 0x5555),
        network: half,
        backend_id: half,
        snat_port: Be16::default(),
        service: !half,
        client_mac: Mac::new([2, 0, id as u8, 0, (half >> 8) as u8, half as u8]),
        last_seen: generation,
        ack_request: Be32::new(generation),
        ack_reply: Be32::new(generation + 1),
        traffic_request: generation.into(),
        traffic_reply: u64::from(generation) << 32,
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
        match self.below(512) {
            0 => thread::yield_now(),
            1..64 => (0..self.below(200)).for_each(|_| hint::spin_loop()),
            _ => {}
        }
    }

    /// A segment that fits the flow.
    fn segment(&mut self, flow: &Flow) -> (Direction, Segment) {
        let (request, reply) = (flow.ack_request.get(), flow.ack_reply.get());
        let (direction, sequence, acknowledgment, first) = match self.below(2) {
            0 => (Direction::Request, reply, request, SYN),
            _ => (Direction::Reply, request, reply, SYN | ACK),
        };
        let flags = [first, ACK, FIN | ACK, RST | ACK][self.below(4) as usize];
        let segment = Segment {
            flags,
            sequence,
            acknowledgment,
            payload: 0,
        };
        (direction, segment)
    }
}
