//! The resets of flows that were cut, on their way: those to clients first, because they have somewhere
//! else to go. Each has all that it needs, so the flow's id is free while it waits. Pure.

use std::collections::VecDeque;

use lb_common::tcp_frame::{BareSegment, FrameBytes};

use super::segments::{FlowEnd, SendRate};
use crate::{
    flows::idle::{Ticks, age},
    network::raw::Sent,
};

/// Resets to one kind of end that wait at most; the thread that has more of them waits.
const MAX_RESETS_WAITING: usize = 1 << 17;
/// Resets: per tick, about 90,000 in a second, and in one go.
const PACE: (u32, u32) = (96, 1024);
/// Those that are sent between two rests of the thread, in about a quarter of a millisecond.
const BATCH: usize = 256;
/// How long, about a second, a NIC may take none before it gets none.
const NIC_TIMEOUT: Ticks = 1000;

/// A reset and the NIC that it leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingReset {
    pub(super) ifindex: u32,
    pub(super) segment: BareSegment,
}

/// What was sent, and what was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) unsent: u64,
}

pub(super) struct ResetQueue {
    clients: VecDeque<PendingReset>,
    backends: VecDeque<PendingReset>,
    pace: SendRate,
    /// Since when the NIC of the first one has been full.
    full: Option<Ticks>,
}

impl ResetQueue {
    pub(super) fn new(now: Ticks) -> Self {
        Self {
            clients: VecDeque::new(),
            backends: VecDeque::new(),
            pace: SendRate::new(PACE.0, PACE.1, now),
            full: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.backends.is_empty()
    }

    /// Whether there is room for those of one flow.
    pub(super) fn has_room(&self) -> bool {
        self.clients.len() < MAX_RESETS_WAITING && self.backends.len() < MAX_RESETS_WAITING
    }

    /// Takes one; whether there was room for it.
    pub(super) fn add(&mut self, end: FlowEnd, letter: PendingReset) -> bool {
        let queue = match end {
            FlowEnd::Client => &mut self.clients,
            FlowEnd::Backend => &mut self.backends,
        };
        let room = queue.len() < MAX_RESETS_WAITING;
        if room {
            queue.push_back(letter);
        }
        room
    }

    /// Sends those whose turn it is by `send`, which returns how many it has sent, and what became of the
    /// next one.
    pub(super) fn send(
        &mut self,
        now: Ticks,
        mut send: impl FnMut(&[(u32, FrameBytes)]) -> (usize, Sent),
    ) -> Tally {
        let mut tally = Tally::default();
        let queue = if self.clients.is_empty() {
            &mut self.backends
        } else {
            &mut self.clients
        };
        let waiting = queue.len().min(BATCH);
        let turns = (0..waiting).take_while(|_| self.pace.take(now)).count();
        let letters = queue.iter().take(turns);
        let frames: Vec<(u32, FrameBytes)> = letters
            .map(|letter| (letter.ifindex, letter.segment.frame()))
            .collect();
        let mut done = 0;
        while let Some(rest) = frames.get(done..).filter(|rest| !rest.is_empty()) {
            let (sent, last) = send(rest);
            let sent = sent.min(rest.len());
            done += sent;
            tally.sent += count(sent);
            if sent > 0 {
                self.full = None;
            }
            match last {
                Sent::Yes if sent > 0 => {}
                Sent::Yes | Sent::Full => break,
                Sent::No(_) => {
                    done += 1;
                    tally.unsent += 1;
                }
            }
        }
        queue.drain(..done.min(queue.len()));
        if queue.is_empty() {
            *queue = VecDeque::new();
        }
        if let Some((stuck, _)) = frames.get(done) {
            tally.unsent += self.lose_patience(*stuck, now);
        } else {
            self.full = None;
        }
        tally
    }

    /// Gives up what is for a NIC that has taken none for too long; how many those were.
    fn lose_patience(&mut self, ifindex: u32, now: Ticks) -> u64 {
        let since = *self.full.get_or_insert(now);
        if age(now, since) < NIC_TIMEOUT {
            return 0;
        }
        self.full = None;
        let before = self.clients.len() + self.backends.len();
        for queue in [&mut self.clients, &mut self.backends] {
            queue.retain(|letter| letter.ifindex != ifindex);
        }
        count(before - self.clients.len() - self.backends.len())
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use lb_common::addr::Be16;
    use nix::errno::Errno;

    use super::*;

    fn letter(ifindex: u32, number: usize) -> PendingReset {
        let segment = BareSegment {
            destination_port: Be16::new(u16::try_from(number).unwrap()),
            ..BareSegment::default()
        };
        PendingReset { ifindex, segment }
    }

    fn frames(letters: &[PendingReset]) -> Vec<(u32, FrameBytes)> {
        let frame = |letter: &PendingReset| (letter.ifindex, letter.segment.frame());
        letters.iter().map(frame).collect()
    }

    fn outbox(clients: &[PendingReset], backends: &[PendingReset]) -> ResetQueue {
        let mut outbox = ResetQueue::new(0);
        for (end, letters) in [(FlowEnd::Backend, backends), (FlowEnd::Client, clients)] {
            assert!(letters.iter().all(|letter| outbox.add(end, *letter)));
        }
        outbox
    }

    /// Sends all that may be sent at this time; which those were.
    fn send(outbox: &mut ResetQueue, now: Ticks) -> Vec<(u32, FrameBytes)> {
        let mut out = Vec::new();
        loop {
            let tally = outbox.send(now, |frames| {
                out.extend_from_slice(frames);
                (frames.len(), Sent::Yes)
            });
            assert_eq!(tally.unsent, 0);
            if tally.sent == 0 {
                return out;
            }
        }
    }

    #[test]
    fn clients_come_first_and_in_order() {
        let (clients, backends) = ([letter(2, 1), letter(3, 2)], [letter(4, 3)]);
        let mut outbox = outbox(&clients, &backends);
        assert!(!outbox.is_empty());
        assert_eq!(
            send(&mut outbox, 0),
            frames(&[clients[0], clients[1], backends[0]])
        );
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_burst_goes_out_at_once_and_the_rest_by_its_pace() {
        let letters: Vec<PendingReset> = (0..3000).map(|number| letter(2, number)).collect();
        let mut outbox = outbox(&letters, &[]);
        assert_eq!(send(&mut outbox, 0), frames(&letters[..1024]));
        assert_eq!(send(&mut outbox, 0), []);
        assert_eq!(send(&mut outbox, 1), frames(&letters[1024..1120]));
        assert_eq!(send(&mut outbox, 11), frames(&letters[1120..2080]));
    }

    #[test]
    fn what_cannot_be_sent_is_given_up_and_the_rest_goes_on() {
        let letters: Vec<PendingReset> = (0..6).map(|number| letter(2, number)).collect();
        let mut outbox = outbox(&letters, &[]);
        let mut calls = Vec::new();
        let tally = outbox.send(0, |frames| {
            calls.push(frames.len());
            match frames.len() {
                6 => (2, Sent::No(Errno::ENODEV)),
                3 => (0, Sent::No(Errno::ENETDOWN)),
                left => (left, Sent::Yes),
            }
        });
        assert_eq!(calls, [6, 3, 2]);
        assert_eq!((tally.sent, tally.unsent), (4, 2));
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_full_nic_is_tried_again_and_then_given_up_alone() {
        let clients = [letter(2, 1), letter(2, 2), letter(3, 3), letter(2, 4)];
        let mut outbox = outbox(&clients, &[letter(2, 5), letter(3, 6)]);
        let full = |frames: &[(u32, FrameBytes)]| {
            assert!(!frames.is_empty());
            (0, Sent::Full)
        };
        let none = Tally::default();
        // One goes out in between: the time begins anew.
        assert_eq!(outbox.send(10, full), none);
        let tally = outbox.send(10 + NIC_TIMEOUT, |_| (1, Sent::Full));
        assert_eq!((tally.sent, tally.unsent), (1, 0));
        assert_eq!(outbox.send(9 + 2 * NIC_TIMEOUT, full), none);
        let tally = outbox.send(10 + 2 * NIC_TIMEOUT, full);
        assert_eq!((tally.sent, tally.unsent), (0, 3));
        assert_eq!(
            send(&mut outbox, 11 + 2 * NIC_TIMEOUT),
            frames(&[letter(3, 3), letter(3, 6)])
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut outbox = ResetQueue::new(0);
        for number in 0..MAX_RESETS_WAITING {
            assert!(outbox.has_room());
            assert!(outbox.add(FlowEnd::Backend, letter(2, number % 100)));
        }
        assert!(!outbox.has_room());
        assert!(!outbox.add(FlowEnd::Backend, letter(2, 0)));
        assert!(outbox.add(FlowEnd::Client, letter(2, 0)));
        // Where there are clients' letters, they make no room for others; then there is some.
        assert_eq!(send(&mut outbox, 1000).len(), 1024);
        assert!(outbox.has_room());
        assert!(send(&mut outbox, 2_000_000).len() >= 1024);
    }
}
