//! A client's hello and what its backends say to it, on two CPUs at once, over and over: each of them once more than it has to be, as kernels
//! repeat them.

use std::{hint, sync::Mutex, thread, time::Instant};

use lb_tests::{
    frames::{
        packet::{Decoded, Frame, check, flags::*, tcp},
        segment::Segment,
    },
    product::{
        cpu::{self, Dice, Meeting, Nic, Seat},
        program::{Action, MGMT_NIC, Port},
    },
    traffic::hello::named,
};

use super::stage::{LIMIT, duration};
use crate::{
    bind::{AGREED, BACKEND, NUMBER, TIME},
    bind_again::free_ids,
    cookies::{ISN, OPTIONS, start_with},
    given::{API, KAS_MAC, request},
    next_backend::{OTHER, with_two},
};

/// Clients: fewer prove little.
const LEAST: u32 = 2000;
const NAME: &[u8] = b"a.lab";

/// What meets.
#[derive(Clone, Copy, Debug)]
enum Pair {
    /// A hello, and its copy: one flow comes of both.
    Hellos,
    /// The hello, which its client repeats, and the SYN-ACK.
    HelloAndAnswer,
    /// The SYN-ACK, and its copy.
    Answers,
    /// The hello, which its client repeats, and a refusal, behind which the other backend has it.
    HelloAndRefusal,
}

const PAIRS: [Pair; 4] = [
    Pair::Hellos,
    Pair::HelloAndAnswer,
    Pair::Answers,
    Pair::HelloAndRefusal,
];

/// Whatever meets: the backend that answers has the client's hello, once or as it was, and the flow carries both directions.
#[privileged_test]
fn a_hello_reaches_one_backend_whatever_meets_on_two_cpus() {
    let lb = start_with(&with_two());
    let ids = free_ids(&lb);
    let (nic, _) = lb.on_all_cpus();
    let arena = Arena {
        nic,
        other: Mutex::default(),
    };
    let (meeting, cpus) = (Meeting::default(), cpu::two().expect("two CPUs"));
    let [mine, other] = meeting.seats();
    let rounds = thread::scope(|scope| {
        let arena = &arena;
        let other = scope.spawn(move || {
            cpu::bind(cpus[1]).expect("a CPU of this process");
            arena.follow(&other);
        });
        let mine = scope.spawn(move || {
            cpu::bind(cpus[0]).expect("a CPU of this process");
            arena.lead(&mine)
        });
        let rounds = mine.join();
        other.join().expect("the second CPU is content");
        rounds.expect("each hello has arrived")
    });
    println!("{rounds} rounds, {:?}", lb.counters());
    assert!(
        lb.hellos().is_empty(),
        "the process has nothing to do with it"
    );
    let key = ("nic", "tenant-a".to_owned(), "bound");
    assert_eq!(lb.counters()[&key], u64::from(rounds));
    assert_eq!(free_ids(&lb), ids, "ids that are free");
    assert!(rounds > LEAST, "{rounds} prove little");
}

/// A frame and the NIC that receives it; then what becomes of it.
type Arrival = (Port, Vec<u8>);
type Departure = (Action, Vec<u8>);

struct Arena<'a> {
    nic: Nic<'a>,
    /// What the second CPU receives, and what has become of it.
    other: Mutex<(Option<Arrival>, Option<Departure>)>,
}

impl Arena<'_> {
    /// Receives what the first CPU has for it, over and over.
    fn follow(&self, seat: &Seat<'_>) {
        let mut dice = Dice::new(1);
        while seat.meet() {
            let arrival = self.other.lock().expect("no panic").0.take();
            let (port, frame) = arrival.expect("a frame");
            wait(&mut dice);
            let end = self.nic.run(port, &frame);
            self.other.lock().expect("no panic").1 = Some(end);
            if !seat.meet() {
                break;
            }
        }
    }

    /// How many clients have come.
    fn lead(&self, seat: &Seat<'_>) -> u32 {
        let (mut dice, start) = (Dice::new(2), Instant::now());
        for (round, pair) in (0..).zip(PAIRS.iter().cycle()) {
            let time = if round > LEAST { duration() } else { LIMIT };
            if start.elapsed() >= time {
                return round;
            }
            let mut client = Client::new(self.nic, 20_000 + (round % 40_000) as u16);
            let [mine, other] = client.arrivals(*pair);
            self.other.lock().expect("no panic").0 = Some(other);
            if !seat.meet() {
                return round;
            }
            wait(&mut dice);
            let mine = self.nic.run(mine.0, &mine.1);
            if !seat.meet() {
                return round;
            }
            let other = self.other.lock().expect("no panic").1.take();
            for (action, frame) in [mine, other.expect("an end")] {
                client.sees(action, &frame, *pair);
            }
            client.go_on(round, *pair);
        }
        0
    }
}

/// A moment of any length.
fn wait(dice: &mut Dice) {
    for _ in 0..dice.below(400) {
        hint::spin_loop();
    }
}

/// A connection, from its SYN on.
struct Client<'a> {
    nic: Nic<'a>,
    /// Address and port.
    end: String,
    /// The number of its SYN-ACK, and the clock there.
    number: u32,
    clock: [u8; 4],
    /// The backend that its hello goes to, and the SNAT end, from its first SYN on.
    to: Option<[String; 2]>,
}

impl<'a> Client<'a> {
    fn new(nic: Nic<'a>, port: u16) -> Self {
        let end = format!("192.168.203.50:{port}");
        let syn = request(&end, API, SYN_ONLY).numbers(ISN, 0);
        let (action, answer) = nic.run(Port::Tenant, &syn.tcp_options(&OPTIONS).bytes());
        assert_eq!(action, Action::Transmit);
        Self {
            nic,
            end,
            number: Segment::read(&answer).expect("a SYN-ACK").sequence,
            clock: answer[66..70].try_into().expect("a clock"),
            to: None,
        }
    }

    fn hello(&self) -> Arrival {
        let times = [&[1, 1, 8, 10][..], &TIME, &self.clock].concat();
        let hello = request(&self.end, API, ACK_ONLY)
            .numbers(ISN.wrapping_add(1), self.number.wrapping_add(1))
            .tcp_options(&times);
        (Port::Tenant, hello.payload(&named(NAME)).bytes())
    }

    /// A segment of the backend that acknowledges so many bytes of the hello.
    fn reply(&self, flags: u8, number: u32, acknowledged: u32) -> Frame {
        let [backend, snat] = self.to.as_ref().expect("a SYN");
        tcp(backend, snat, flags)
            .between(KAS_MAC, MGMT_NIC)
            .numbers(number, ISN.wrapping_add(1).wrapping_add(acknowledged))
    }

    fn answer(&self) -> Arrival {
        let answer = self.reply(SYN_ACK, NUMBER, 0).tcp_options(&AGREED);
        (Port::Mgmt, answer.bytes())
    }

    fn refusal(&self) -> Arrival {
        (Port::Mgmt, self.reply(RST_ACK, 0, 0).bytes())
    }

    /// What comes for both CPUs.
    fn arrivals(&mut self, pair: Pair) -> [Arrival; 2] {
        if !matches!(pair, Pair::Hellos) {
            self.says_hello();
        }
        match pair {
            Pair::Hellos => [self.hello(), self.hello()],
            Pair::HelloAndAnswer => [self.hello(), self.answer()],
            Pair::Answers => [self.answer(), self.answer()],
            Pair::HelloAndRefusal => [self.hello(), self.refusal()],
        }
    }

    /// Its hello is forwarded: as a SYN, or as it is.
    fn says_hello(&mut self) -> Segment {
        let (port, hello) = self.hello();
        let (action, frame) = self.nic.run(port, &hello);
        assert_eq!(action, Action::Redirect, "{}", Decoded(&frame));
        self.is_sent(&frame)
    }

    /// A frame that both CPUs may have sent. The second SYN-ACK of a flow is its client's, with the numbers of the first.
    fn sees(&mut self, action: Action, frame: &[u8], pair: Pair) {
        let is_answer = |segment: Segment| segment.to.to_string() == self.end;
        match action {
            Action::Drop => {}
            Action::Redirect if Segment::read(frame).is_some_and(is_answer) => {
                assert_eq!(check(frame), Ok(()), "{}", Decoded(frame));
                let sent = Segment::read(frame).expect("a segment");
                let numbers = (sent.flags, sent.sequence, sent.acknowledgment);
                assert_eq!(numbers, (SYN_ACK, self.number, ISN.wrapping_add(1)));
            }
            Action::Redirect | Action::Transmit => drop(self.is_sent(frame)),
            Action::Pass => panic!("{pair:?} passed: {}", Decoded(frame)),
        }
    }

    /// The SYN or the hello, to a backend of the name, and from one SNAT end.
    fn is_sent(&mut self, frame: &[u8]) -> Segment {
        assert_eq!(check(frame), Ok(()), "{}", Decoded(frame));
        let sent = Segment::read(frame).expect("a segment");
        let [to, from] = [sent.to.to_string(), sent.from.to_string()];
        assert!([BACKEND, OTHER].contains(&&*to), "{}", Decoded(frame));
        if let Some([_, snat]) = &self.to {
            assert_eq!(*snat, from, "{}", Decoded(frame));
        }
        if sent.flags == SYN_ONLY {
            assert_eq!((sent.sequence, sent.payload), (ISN, 0));
        } else {
            assert_eq!(sent.sequence, ISN.wrapping_add(1), "{}", Decoded(frame));
            assert_eq!(sent.acknowledgment, NUMBER + 1, "{}", Decoded(frame));
            assert_eq!(frame[66..], named(NAME), "{}", Decoded(frame));
        }
        self.to = Some([to, from]);
        sent
    }

    /// Its hello arrives, and an answer to that; then it resets.
    fn go_on(&mut self, round: u32, pair: Pair) {
        let sent = self.says_hello();
        if sent.flags == SYN_ONLY {
            let (port, answer) = self.answer();
            let (action, frame) = self.nic.run(port, &answer);
            assert_eq!(action, Action::Transmit, "round {round}, {pair:?}");
            self.is_sent(&frame);
        }
        let sent = self.says_hello();
        assert_ne!(sent.flags, SYN_ONLY, "round {round}, {pair:?}");
        let reply = self.reply(ACK_ONLY, NUMBER + 1, sent.payload);
        let (action, frame) = self.nic.run(Port::Mgmt, &reply.bytes());
        assert_eq!(action, Action::Redirect, "round {round}, {pair:?}");
        let reply = Segment::read(&frame).expect("a reply");
        assert_eq!(
            (reply.to.to_string(), reply.sequence),
            (self.end.clone(), self.number.wrapping_add(1)),
            "round {round}, {pair:?}"
        );
        let behind = ISN.wrapping_add(1).wrapping_add(sent.payload);
        let reset = request(&self.end, API, RST_ONLY).numbers(behind, 0);
        let (action, _) = self.nic.run(Port::Tenant, &reset.bytes());
        assert_eq!(action, Action::Redirect, "round {round}, {pair:?}");
    }
}
