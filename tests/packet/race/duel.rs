//! The same first packet on both CPUs at once, over and over.

use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

use lb_tests::{
    frames::packet::flags::*,
    product::{
        cpu::{self, Dice, Meeting, Nic, Seat},
        program::{Action, Port},
    },
};
use lb_user::dataplane::{flows::FlowTable, maps::Maps};

use super::stage::{LIMIT, Talk, check_tables, data_plane, duration, is_live};

/// Fewer than this many first packets that met another one prove little.
const MET: u32 = 20;

/// A tuple that was never seen, and one whose last flow is over: both CPUs make a flow of it, one of
/// them stays.
#[privileged_test]
fn one_flow_comes_of_a_first_packet_on_two_cpus() {
    // With three ids the next flow of a tuple takes an id while its tuple is being forgotten.
    for count in [64, 3] {
        let (mut lb, ids) = data_plane(count);
        let table = lb.flow_table();
        let (nic, maps) = lb.on_all_cpus();
        let arena = Arena {
            nic,
            table: &table,
            maps,
            ids: &ids,
            ports: Default::default(),
        };
        let met = arena.fight();
        println!("{count} ids: {met} first packets met another one");
        assert!(met > MET, "{met} met");
        let talks: Vec<Talk> = (0..ROUNDS).map(talk).collect();
        check_tables(&mut lb, &ids, &talks);
    }
}

/// Rounds until tuples come again.
const ROUNDS: u32 = 1 << 15;

/// Every tuple is there twice in a row: new, then with a flow that is over.
fn talk(round: u32) -> Talk {
    let number = round % ROUNDS / 2;
    Talk {
        service: (number % 2) as usize,
        client: (number / 2 % 4) as u8,
        port: 20_000 + (number / 8) as u16,
    }
}

struct Arena<'a> {
    nic: Nic<'a>,
    table: &'a FlowTable,
    maps: &'a Maps,
    ids: &'a [u32],
    /// Where each CPU's packet left from in this round; 0 for one that was dropped.
    ports: [AtomicU32; 2],
}

impl Arena<'_> {
    /// How many packets met another one.
    fn fight(&self) -> u32 {
        let meeting = Meeting::default();
        let cpus = cpu::two().expect("two CPUs");
        let [mine, other] = meeting.seats();
        thread::scope(|scope| {
            let on = |me: usize, seat: Seat<'_>| {
                cpu::bind(cpus[me]).expect("a CPU of this process");
                self.rounds(me, &seat)
            };
            let two = scope.spawn(move || on(1, other));
            let one = scope.spawn(move || on(0, mine));
            two.join().expect("the second CPU is content");
            one.join().expect("the first CPU is content")
        })
    }

    fn rounds(&self, me: usize, seat: &Seat<'_>) -> u32 {
        let (mut dice, start) = (Dice::new(me as u64), Instant::now());
        let mut met = 0;
        for round in 0.. {
            // The first one says when it is over.
            let time = if met > MET { duration() / 2 } else { LIMIT };
            if me == 0 && start.elapsed() >= time || !seat.meet() {
                break;
            }
            for _ in 0..dice.below(200) {
                hint::spin_loop();
            }
            let talk = talk(round);
            let (action, out) = self
                .nic
                .run(Port::Tenant, &talk.request(SYN_ONLY, round, 0));
            let port = match action {
                Action::Redirect => talk.sent_from(&out),
                Action::Drop => 0,
                other => panic!("{other:?} of a first packet in round {round}"),
            };
            self.ports[me].store(port.into(), Ordering::SeqCst);
            if !seat.meet() {
                break;
            }
            if me == 0 {
                met += self.judge(round, talk);
            }
        }
        met
    }

    /// One flow has come of both packets, or none; whether they met. Ends it.
    fn judge(&self, round: u32, talk: Talk) -> u32 {
        let flows = self.ids.iter().filter_map(|&id| {
            let (word, flow) = self.table.flow(id)?;
            let is_ours = is_live(word) && talk.is(&flow.key(word.is_udp()));
            is_ours.then_some((id, word, flow))
        });
        let flows: Vec<_> = flows.collect();
        let ports = [0, 1].map(|cpu: usize| self.ports[cpu].load(Ordering::SeqCst));
        assert!(flows.len() < 2, "round {round}: {flows:?}");
        let Some(&(id, word, flow)) = flows.first() else {
            assert_eq!(ports, [0, 0], "round {round}: sent, but no flow");
            return 1;
        };
        let index = self.maps.flow_lines.find(&flow.key(word.is_udp()));
        let index = index.expect("the lines");
        assert_eq!(index, Some(id), "round {round}: {flow:?}");
        let port = u32::from(flow.snat_port.get());
        assert!(ports.iter().all(|&sent| sent == port || sent == 0));
        let reset = talk.request(RST_ONLY, round.wrapping_add(1), 0);
        let (action, _) = self.nic.run(Port::Tenant, &reset);
        assert_eq!(action, Action::Redirect, "round {round}");
        u32::from(ports.contains(&0))
    }
}
