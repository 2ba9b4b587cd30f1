//! Everything that can happen to a flow, on two CPUs at once, on as few ids and tuples as possible.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of ids, tuples and generations of a short run, and halves of a word"
)]

use std::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use lb_common::maps::snat::FIRST_FLOW_PORT;
use lb_tests::{
    frames::packet::flags::*,
    product::{
        cpu::{self, Dice, Meeting, Nic, Seat},
        program::{Action, DataPlane, Port},
    },
};
use lb_user::dataplane::flows::FlowTable;

use super::stage::{BACKEND_ISN, LIMIT, Talk, check_tables, data_plane, duration, is_live};

/// More than there are tuples, so that no first packet is refused for want of an id; few enough that
/// an id is taken again at once.
const IDS: usize = 16;
const CLIENTS: u8 = 4;
const SERVICES: usize = 3;
/// Flows, and packets that each CPU has forwarded: fewer prove little.
const LEAST: u32 = 1000;
/// Packets of each CPU between two looks at the tables.
const PACKETS: u32 = 5_000;

#[privileged_test]
fn two_cpus_on_the_same_flows_keep_the_tables_right() {
    let (mut lb, ids) = data_plane(IDS);
    let table = lb.flow_table();
    let talks: Vec<Talk> = (0..SERVICES)
        .flat_map(|service| (0..CLIENTS).map(move |client| (service, client)))
        .map(|(service, client)| Talk {
            service,
            client,
            port: 40_000,
        })
        .collect();
    let (mut rounds, mut sent, mut claimed) = (0, [0, 0], 0);
    let proves = |claimed: u32, sent: [u32; 2]| claimed.min(sent[0]).min(sent[1]) > LEAST;
    let start = Instant::now();
    while start.elapsed() < duration() || (!proves(claimed, sent) && start.elapsed() < LIMIT) {
        let (nic, _) = lb.on_all_cpus();
        let world = World {
            nic,
            table: &table,
            ids: &ids,
            talks: &talks,
            opened: Default::default(),
            taken: Default::default(),
        };
        let forwarded = world.run(rounds);
        sent = [sent[0] + forwarded[0], sent[1] + forwarded[1]];
        rounds += 1;
        check_tables(&mut lb, &ids, &talks);
        let claims = |id: &u32| table.word(*id).expect("an entry").generation();
        claimed = ids.iter().map(claims).sum();
    }
    println!("{rounds} rounds, forwarded {sent:?}: {:?}", lb.counters());
    println!("{claimed} flows");
    assert!(
        proves(claimed, sent),
        "{claimed} flows, {sent:?} prove little"
    );
}

struct World<'a> {
    nic: Nic<'a>,
    table: &'a FlowTable,
    ids: &'a [u32],
    talks: &'a [Talk],
    /// Of each tuple: SNAT port and number of the latest first packet.
    opened: [AtomicU64; SERVICES * CLIENTS as usize],
    /// Of each id: tuple, plus one, and number of the latest first packet that left from its port.
    taken: [AtomicU64; IDS],
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(pair: u64) -> (u32, u32) {
    ((pair >> 32) as u32, pair as u32)
}

impl World<'_> {
    /// How many frames each CPU has forwarded.
    fn run(&self, round: u64) -> [u32; 2] {
        let cpus = cpu::two().expect("two CPUs");
        let (done, meeting) = (AtomicBool::new(false), Meeting::default());
        thread::scope(|scope| {
            let [mine, other] = meeting.seats();
            let threads = [(0, mine), (1, other)].map(|(me, seat)| {
                scope.spawn(move || {
                    cpu::bind(cpus[me]).expect("a CPU of this process");
                    self.turns(round, me as u64, &seat)
                })
            });
            scope.spawn(|| self.mark(&done, round));
            let forwarded = threads.map(|thread| thread.join());
            done.store(true, Ordering::Release);
            forwarded.map(|forwarded| forwarded.expect("the CPU is content"))
        })
    }

    fn turns(&self, round: u64, me: u64, seat: &Seat<'_>) -> u32 {
        // Both CPUs talk about the same tuple, each in its own way.
        let [mut common, mut dice] = [0, me + 1].map(|seed| Dice::new(round * 3 + seed));
        let mut forwarded = 0;
        for _ in 0..PACKETS {
            let number = common.below(self.talks.len() as u32) as usize;
            forwarded += u32::from(self.turn(number, &mut dice, seat));
        }
        forwarded
    }

    /// Marks live flows as idle for too long, as userspace does before it closes them.
    fn mark(&self, done: &AtomicBool, round: u64) {
        let mut dice = Dice::new(round + 1000);
        while !done.load(Ordering::Acquire) {
            let id = self.ids[dice.below(IDS as u32) as usize];
            let word = self.table.word(id).expect("an entry");
            if is_live(word) {
                self.table.swap(id, word, word.expiring());
            }
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// One packet, at the moment of the other CPU's; whether it was forwarded.
    fn turn(&self, number: usize, dice: &mut Dice, seat: &Seat<'_>) -> bool {
        let kind = dice.below(100);
        let meet = |dice: &mut Dice| {
            seat.meet();
            for _ in 0..dice.below(100) {
                hint::spin_loop();
            }
        };
        match kind {
            0..55 => self.request(number, kind, dice, meet),
            _ => {
                // Mostly of this tuple's flow; sometimes of an id that may be another flow's by now.
                let (port, _) = halves(self.opened[number].load(Ordering::SeqCst));
                let index = match dice.below(4) {
                    0 => dice.below(IDS as u32) as usize,
                    _ => port.saturating_sub(FIRST_FLOW_PORT.into()) as usize,
                };
                self.reply(index, kind, dice, meet)
            }
        }
    }

    /// A packet of a client.
    fn request(&self, number: usize, kind: u32, dice: &mut Dice, meet: impl Fn(&mut Dice)) -> bool {
        let talk = self.talks[number];
        let (port, isn) = halves(self.opened[number].load(Ordering::SeqCst));
        let (fresh, next) = (dice.below(u32::MAX), isn.wrapping_add(1));
        let opens = kind < 25 || talk.is_udp();
        let frame = match kind {
            _ if opens => talk.request(SYN_ONLY, fresh, 0),
            25..37 => talk.request(ACK_ONLY, next, BACKEND_ISN + 1),
            37..47 => talk.request(FIN_ACK, next, BACKEND_ISN + 1),
            _ => talk.request(RST_ONLY, next, 0),
        };
        let before = self.entry(port);
        meet(dice);
        let (action, out) = self.nic.run(Port::Tenant, &frame);
        match action {
            Action::Redirect => {}
            Action::Drop | Action::Transmit => return false,
            Action::Pass => panic!("a request of {talk:?} passed"),
        }
        let left = u32::from(talk.sent_from(&out));
        let index = left.wrapping_sub(FIRST_FLOW_PORT.into()) as usize;
        assert!(index < IDS, "{talk:?} left from {left}");
        // Where the id has had one flow only meanwhile, it is this one's.
        if let (Some(before), Some(after)) = (before, self.entry(left))
            && left == port
            && before.0 == after.0
        {
            assert!(talk.is(&after.1), "{talk:?} left from {left} of {after:?}");
        }
        if opens {
            self.opened[number].store(pair(left, fresh), Ordering::SeqCst);
            self.taken[index].store(pair(number as u32 + 1, fresh), Ordering::SeqCst);
        }
        true
    }

    /// A packet of a backend, to a port that a first packet came from.
    fn reply(&self, index: usize, kind: u32, dice: &mut Dice, meet: impl Fn(&mut Dice)) -> bool {
        let (number, isn) = halves(self.taken[index].load(Ordering::SeqCst));
        let Some(number) = number.checked_sub(1) else {
            meet(dice);
            return false;
        };
        let talk = self.talks[number as usize];
        let port = FIRST_FLOW_PORT + index as u16;
        let next = isn.wrapping_add(1);
        let (flags, sequence) = match kind {
            55..78 => (SYN_ACK, BACKEND_ISN),
            78..83 => (ACK_ONLY, BACKEND_ISN + 1),
            83..93 => (FIN_ACK, BACKEND_ISN + 1),
            _ => (RST_ACK, BACKEND_ISN + 1),
        };
        let frame = talk.reply(port, flags, [sequence, next]);
        meet(dice);
        let (action, out) = self.nic.run(Port::Mgmt, &frame);
        match action {
            Action::Redirect => talk.check_reply(&out),
            Action::Drop | Action::Transmit => return false,
            Action::Pass => panic!("a reply to {port} passed"),
        }
        true
    }

    /// Generation and tuple of the flow behind a SNAT port.
    fn entry(&self, port: u32) -> Option<(u32, lb_common::maps::flow::FlowKey)> {
        let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
        let (word, flow) = self.table.flow(DataPlane::flow_id(port))?;
        Some((word.generation(), flow.key(word.is_udp())))
    }
}
