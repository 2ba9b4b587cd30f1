//! Closing a flow that the data plane may be using at this very moment.
//!
//! 1. [`mark`]: the word gets the mark `expiring`, by a swap from exactly the word that was judged.
//!    The flow goes on translating. A packet that sees the mark takes it off, by a swap as well.
//! 2. One grace period for all marked flows. A packet that read the word before the mark was there
//!    has been dealt with when it ends, and has left its time in the entry.
//! 3. [`settle`]: judged again. If a packet came, its time has moved, or the mark is gone. Else the
//!    flow is closed, by a swap from exactly the marked word: a packet that comes at this very
//!    moment takes the mark off before, and the swap fails, or it finds the flow closed.
//!
//! The winner of the swap to CLOSED gives back what the flow held; the data plane closes by the same rule.
//! Marks that a crashed process has left are simply found marked, and go through 2 and 3.

use std::mem;

use lb_common::{conntrack::FlowState, maps::flow::Flow};

use super::reason::Cause;
use crate::dataplane::flows::FlowTable;

/// A flow with the mark, not settled yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Its id.
    pub id: u32,
    /// Why.
    pub cause: Cause,
    word: FlowState,
}

/// The flows with the mark.
#[derive(Debug, Default)]
pub struct Marks(Vec<Marked>);

impl Marks {
    /// Takes one more.
    pub fn add(&mut self, marked: Option<Marked>) {
        self.0.extend(marked);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, to be settled, once `grace` has waited for one grace period.
    pub fn after(&mut self, grace: impl FnOnce()) -> Vec<Marked> {
        let marked = mem::take(&mut self.0);
        if !marked.is_empty() {
            grace();
        }
        marked
    }
}

/// A flow that we have closed. Its id is in no queue yet, so its fields stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedFlow {
    /// Its word while it lived.
    pub alive: FlowState,
    /// Its fields, with the word as it is now.
    pub flow: Flow,
}

/// Marks a live flow, if its word still is `word`. One that has the mark is taken over.
pub fn mark(table: &FlowTable, id: u32, word: FlowState, cause: Cause) -> Option<Marked> {
    let marked = word.expiring();
    let ours = word == marked || table.swap(id, word, marked);
    ours.then_some(Marked {
        id,
        cause,
        word: marked,
    })
}

/// Closes a marked flow after the grace period if it is `still` to end; else its mark goes.
pub fn settle(
    table: &FlowTable,
    marked: &Marked,
    still: impl FnOnce(FlowState, &Flow) -> bool,
) -> Option<ClosedFlow> {
    let (word, mut flow) = table.flow(marked.id)?;
    if word != marked.word {
        // A packet took the mark off, or ended the flow.
        return None;
    }
    let alive = word.woken();
    if !still(alive, &flow) {
        // If this fails, a packet has done it.
        table.swap(marked.id, word, alive);
        return None;
    }
    // Without the mark: a packet that would take it off a closed flow would close it once more.
    let closed = alive.end();
    if !table.swap(marked.id, word, closed) {
        return None;
    }
    flow.word = closed.raw();
    Some(ClosedFlow { alive, flow })
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::atomic::{AtomicBool, AtomicU32, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use lb_common::{
        conntrack::{self, Direction, Numbers, State, Transition},
        wire::header::{ACK, RST},
    };

    use super::{
        super::idle::{age, words::*},
        *,
    };

    const ID: u32 = 3;
    const TIMEOUT: u32 = 1000;

    fn table(word: FlowState, last_seen: u32) -> FlowTable {
        let table = FlowTable::anonymous(8);
        let flow = Flow {
            word: word.raw(),
            last_seen,
            ..Flow::default()
        };
        table.put(ID, &flow);
        table
    }

    fn idle(now: u32) -> impl Fn(FlowState, &Flow) -> bool {
        move |_, flow| age(now, flow.last_seen) >= TIMEOUT
    }

    /// What the data plane does to a flow for one packet, up to where it has left its time. Returns whether
    /// the flow was live for it.
    fn packet(table: &FlowTable, id: u32, now: impl FnOnce() -> u32, flags: u8) -> bool {
        let segment = conntrack::Segment {
            flags,
            sequence: 1,
            acknowledgment: 1,
            payload: 0,
        };
        let mut word = table.word(id).unwrap();
        for _ in 0..4 {
            let numbers = Numbers::acknowledged(1, 1);
            let Transition::Change(next) =
                conntrack::tcp(word, Direction::Request, &segment, &numbers)
            else {
                break;
            };
            if table.swap(id, word, next) {
                word = next;
                break;
            }
            word = table.word(id).unwrap();
        }
        thread::yield_now();
        table.touch(id, now());
        !word.claimable()
    }

    #[test]
    fn an_idle_flow_is_closed_without_its_mark() {
        let table = table(established(), 0);
        let marked = mark(&table, ID, established(), Cause::Idle).unwrap();
        assert_eq!(table.word(ID), Some(established().expiring()));
        let closed = settle(&table, &marked, idle(TIMEOUT)).unwrap();
        assert_eq!(closed.alive, established());
        assert_eq!(table.word(ID), Some(established().end()));
        assert_eq!(closed.flow.word, established().end().raw());
        assert_eq!(settle(&table, &marked, idle(TIMEOUT)), None, "only once");
    }

    #[test]
    fn a_packet_between_mark_and_close_keeps_the_flow_and_its_mark_goes() {
        let table = table(established(), 0);
        let marked = mark(&table, ID, established(), Cause::Idle).unwrap();
        assert!(packet(&table, ID, || TIMEOUT, ACK));
        assert_eq!(settle(&table, &marked, idle(TIMEOUT)), None);
        assert_eq!(table.word(ID), Some(established()));
    }

    #[test]
    fn a_packet_that_did_not_see_the_mark_keeps_the_flow_as_well() {
        let table = table(established(), 0);
        let marked = mark(&table, ID, established(), Cause::Idle).unwrap();
        table.touch(ID, TIMEOUT);
        assert_eq!(settle(&table, &marked, idle(TIMEOUT)), None);
        assert_eq!(table.word(ID), Some(established()));
    }

    #[test]
    fn a_flow_that_changed_since_it_was_judged_is_not_marked() {
        let table = table(half_closed(), 0);
        assert_eq!(mark(&table, ID, established(), Cause::Idle), None);
        assert_eq!(table.word(ID), Some(half_closed()));
    }

    #[test]
    fn a_reset_of_a_marked_flow_closes_it_once() {
        let table = table(established(), 0);
        let marked = mark(&table, ID, established(), Cause::Idle).unwrap();
        assert!(!packet(&table, ID, || 0, RST));
        assert_eq!(table.word(ID), Some(established().reset()));
        assert_eq!(settle(&table, &marked, idle(TIMEOUT)), None);
    }

    #[test]
    fn another_generation_on_the_id_is_left_alone() {
        let table = table(established(), 0);
        let marked = mark(&table, ID, established(), Cause::Idle).unwrap();
        let next = established().close().claim(false).publish();
        let flow = Flow {
            word: next.raw(),
            ..Flow::default()
        };
        table.put(ID, &flow);
        assert_eq!(settle(&table, &marked, idle(TIMEOUT)), None);
        assert_eq!(table.word(ID), Some(next));
    }

    #[test]
    fn the_mark_of_a_crashed_process_is_taken_over() {
        let left = established().expiring();
        let table = table(left, 0);
        let marked = mark(&table, ID, left, Cause::Idle).unwrap();
        assert_eq!(settle(&table, &marked, idle(TIMEOUT - 1)), None);
        assert_eq!(table.word(ID), Some(established()), "young: the mark goes");
        let marked = mark(&table, ID, established(), Cause::Idle).unwrap();
        assert!(settle(&table, &marked, idle(TIMEOUT)).is_some());
    }

    #[test]
    fn a_packet_that_had_read_the_word_before_the_mark_is_waited_for() {
        let table = table(established(), 0);
        let mut marks = Marks::default();
        assert_eq!(marks.after(|| panic!("nothing to wait for")), []);
        marks.add(mark(&table, ID, established(), Cause::Idle));
        // It leaves its time only now.
        let marked = marks.after(|| table.touch(ID, TIMEOUT));
        assert_eq!((marked.len(), marks.len()), (1, 0));
        assert_eq!(settle(&table, &marked[0], idle(TIMEOUT)), None);
        assert_eq!(table.word(ID), Some(established()));
    }

    /// Flows of the stress test, and how long it runs.
    const FLOWS: u32 = 64;
    const LONG: Duration = Duration::from_secs(2);
    /// Fewer of anything prove little.
    const LEAST: u32 = 20;
    /// How long a busy machine may take for them.
    const LIMIT: Duration = Duration::from_secs(60);

    /// A data plane and an expiry on the same entries: two threads with packets, each for half of the
    /// flows, and one that marks and closes. `inside` is odd while a packet is being handled, so
    /// waiting for a change is a grace period. Time is in microseconds: timeouts end all the time.
    #[test]
    fn no_flow_that_was_touched_within_its_timeout_is_ever_closed() {
        const PACKETS: u32 = 2;
        let table = FlowTable::anonymous(FLOWS);
        let start = Instant::now();
        let now = || u32::try_from(start.elapsed().as_micros()).unwrap();
        let timeout = 500;
        for id in 0..FLOWS {
            let flow = Flow {
                word: established().raw(),
                ..Flow::default()
            };
            table.put(id, &flow);
        }
        let inside: [AtomicU32; PACKETS as usize] = Default::default();
        // When the flow was last live for a packet, and when it was closed, each plus one.
        let touched: Vec<AtomicU32> = (0..FLOWS).map(|_| AtomicU32::new(0)).collect();
        let stop = AtomicBool::new(false);
        let (mut closed, mut woken) = (0u32, 0u32);
        thread::scope(|scope| {
            for (thread, inside) in inside.iter().enumerate() {
                let (table, touched, stop, now) = (&table, &touched, &stop, &now);
                scope.spawn(move || {
                    let thread = u32::try_from(thread).unwrap();
                    let mut random = thread + 1;
                    while !stop.load(Ordering::Relaxed) {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let id = (random >> 8) % (FLOWS / PACKETS) * PACKETS + thread;
                        inside.fetch_add(1, Ordering::SeqCst);
                        let mut seen = 0;
                        let live = packet(
                            table,
                            id,
                            || {
                                seen = now();
                                seen
                            },
                            ACK,
                        );
                        if live {
                            touched[usize::try_from(id).unwrap()].fetch_max(seen, Ordering::SeqCst);
                        }
                        inside.fetch_add(1, Ordering::SeqCst);
                        if random >> 28 == 0 {
                            thread::sleep(Duration::from_micros(u64::from(random >> 16 & 0x3ff)));
                        }
                    }
                });
            }
            let grace = || {
                for inside in &inside {
                    let before = inside.load(Ordering::SeqCst);
                    while before % 2 == 1 && inside.load(Ordering::SeqCst) == before {
                        std::hint::spin_loop();
                        thread::yield_now();
                    }
                }
            };
            let mut ended: HashMap<u32, u32> = HashMap::new();
            while start.elapsed() < LONG || (closed.min(woken) <= LEAST && start.elapsed() < LIMIT)
            {
                let clock = now();
                let due = |id: &u32| {
                    let glance = table.glance(*id).unwrap();
                    let live = glance.word.state() == State::Established;
                    (live && age(clock, glance.last_seen) >= timeout).then_some((*id, glance.word))
                };
                let marked: Vec<Marked> = (0..FLOWS)
                    .filter_map(|id| due(&id))
                    .filter_map(|(id, word)| mark(&table, id, word, Cause::Idle))
                    .collect();
                grace();
                for marked in marked {
                    let clock = now();
                    let still = |_, flow: &Flow| age(clock, flow.last_seen) >= timeout;
                    if settle(&table, &marked, still).is_none() {
                        woken += 1;
                        continue;
                    }
                    closed += 1;
                    // Every packet for which it was live has left its note by then.
                    grace();
                    let touched =
                        touched[usize::try_from(marked.id).unwrap()].load(Ordering::SeqCst);
                    let idle = clock.saturating_sub(touched);
                    if idle < timeout {
                        ended.insert(marked.id, idle);
                    }
                    // The next flow on the id.
                    let closed = table.word(marked.id).unwrap();
                    assert_eq!(closed.state(), State::Ended);
                    let next = FlowState::from_raw(
                        established().raw() & 0xff | closed.claim(false).publish().raw() & !0xff,
                    );
                    table.touch(marked.id, now());
                    assert!(table.swap(marked.id, closed, next));
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(
                ended.is_empty(),
                "closed though touched: id, idle for: {ended:?}"
            );
        });
        assert!(
            closed.min(woken) > LEAST,
            "{closed} closed, {woken} woken: proves little"
        );
    }
}
