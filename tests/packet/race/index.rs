//! Userspace takes the word of an ended flow out of the index while the next first packet of its tuple comes on the other CPU.

use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

use lb_common::maps::flow::FlowKey;
use lb_tests::{
    frames::packet::flags::*,
    product::{
        cpu::{self, Dice, Meeting, Nic, Seat},
        program::{Action, DataPlane, Port},
    },
};
use lb_user::dataplane::maps::Maps;

use super::stage::{Talk, check_tables, data_plane, duration};

/// Few ids: each is soon another flow's.
const IDS: usize = 4;
/// Rounds: fewer prove little.
const LEAST: u32 = 1000;
const TALK: Talk = Talk {
    service: 0,
    client: 0,
    port: 20_000,
};

#[privileged_test]
fn the_next_flow_of_a_tuple_stands_while_userspace_removes_the_last_one() {
    let (mut lb, ids) = data_plane(IDS);
    let (network, _) = lb.desired.networks[1];
    let (nic, maps) = lb.on_all_cpus();
    let arena = Arena {
        nic,
        maps,
        key: TALK.key(network),
        last: AtomicU32::new(0),
    };
    let (meeting, cpus) = (Meeting::default(), cpu::two().expect("two CPUs"));
    let [packets, removes] = meeting.seats();
    let rounds = thread::scope(|scope| {
        let arena = &arena;
        let remover = scope.spawn(move || {
            cpu::bind(cpus[0]).expect("a CPU of this process");
            arena.remove(&removes);
        });
        let opener = scope.spawn(move || {
            cpu::bind(cpus[1]).expect("a CPU of this process");
            arena.open(&packets)
        });
        let rounds = opener.join();
        remover.join().expect("the remover is content");
        rounds.expect("each flow is found")
    });
    println!("{rounds} flows were opened while the last one was removed");
    assert!(rounds > LEAST, "{rounds} prove little");
    check_tables(&mut lb, &ids, &[TALK]);
}

struct Arena<'a> {
    nic: Nic<'a>,
    maps: &'a Maps,
    key: FlowKey,
    /// Id of the flow that is over.
    last: AtomicU32,
}

impl Arena<'_> {
    /// Removes the last flow, over and over.
    fn remove(&self, seat: &Seat<'_>) {
        let mut dice = Dice::new(1);
        while seat.meet() {
            wait(&mut dice);
            let id = self.last.load(Ordering::SeqCst);
            self.maps
                .flow_lines
                .remove(&self.key, id)
                .expect("the lines");
            if !seat.meet() {
                break;
            }
        }
    }

    /// Opens a flow and ends it, over and over; how often.
    fn open(&self, seat: &Seat<'_>) -> u32 {
        let (mut dice, start) = (Dice::new(2), Instant::now());
        for round in 0.. {
            if start.elapsed() >= duration() || !seat.meet() {
                return round;
            }
            wait(&mut dice);
            let syn = TALK.request(SYN_ONLY, round, 0);
            let (action, out) = self.nic.run(Port::Tenant, &syn);
            assert_eq!(action, Action::Redirect, "round {round}");
            let port = TALK.sent_from(&out);
            if !seat.meet() {
                return round;
            }
            let id = DataPlane::flow_id(port);
            let found = self.maps.flow_lines.find(&self.key).expect("the lines");
            assert_eq!(found, Some(id), "round {round}");
            if round % 64 == 0 {
                let words: Vec<u32> = self.maps.flow_lines.ids().collect();
                assert_eq!(words, [id], "round {round}");
            }
            let reset = TALK.request(RST_ONLY, round.wrapping_add(1), 0);
            let (action, _) = self.nic.run(Port::Tenant, &reset);
            assert_eq!(action, Action::Redirect, "round {round}");
            self.last.store(id, Ordering::SeqCst);
        }
        0
    }
}

/// A moment of any length.
fn wait(dice: &mut Dice) {
    for _ in 0..dice.below(200) {
        hint::spin_loop();
    }
}
