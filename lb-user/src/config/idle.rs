//! How long a flow may be idle, by its state.

use std::time::Duration;

use lb_common::conntrack::{State, Word};

use super::model::{Protocol, Service, TCP_IDLE, Timeouts, UDP_IDLE};

impl Timeouts {
    /// How long a live flow with this word may be idle; none: for ever. `service` is its own, if it
    /// is configured still. What `lb flows` shows; the expiry has the same rule by service id, in
    /// ticks (`control::expiry`), and the two must agree.
    #[must_use]
    pub fn idle(&self, word: Word, service: Option<&Service>) -> Option<Duration> {
        match (word.state(), word.is_udp()) {
            (State::Established, true) => {
                service.map_or(Some(UDP_IDLE), |service| service.idle(Protocol::Udp))
            }
            (State::Established, false) if word.is_half_closed() => Some(self.half_closed),
            (State::Established, false) => {
                service.map_or(Some(TCP_IDLE), |service| service.idle(Protocol::Tcp))
            }
            (_, true) => Some(self.udp),
            (_, false) => Some(self.half_open),
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::conntrack::{Direction, Segment, Step, tcp, udp};

    use super::*;
    use crate::config::parse;

    const FILE: &str = "
version: 1
networks:
  n: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.1] }
pools:
  p: { network: n, backends: [\"10.0.0.2:80\"] }
services:
  s: { network: n, listen: [\"10.0.0.3:80/tcp\", \"10.0.0.3:80/udp\"], pool: p, idle_timeout: 1h }
  never: { network: n, listen: [\"10.0.0.4:80/tcp\"], pool: p, idle_timeout: never, keepalive: 1s }
timeouts: { half_open: 1s, half_closed: 2s, udp: 3s }
";

    /// The word after a segment with these flags.
    fn after(word: Word, direction: Direction, flags: u8) -> Word {
        let segment = Segment {
            flags,
            sequence: 0,
            acknowledgment: 0,
            payload: 0,
        };
        match tcp(word, direction, &segment, 0, 0) {
            Step::Change(word) => word,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn the_state_says_how_long_a_flow_may_be_idle() {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        let config = parse("f", FILE).unwrap();
        let secs = |word: Word, service: Option<&Service>| {
            let idle = config.timeouts.idle(word, service);
            idle.map(|idle| idle.as_secs())
        };
        let [service, never] = [0, 1].map(|index| config.services.get(index));
        let new = Word::default().claim(false).publish();
        let replied = after(new, Direction::Reply, SYN | ACK);
        assert_eq!(
            (secs(new, service), secs(replied, never)),
            (Some(1), Some(1))
        );
        let established = after(replied, Direction::Request, ACK);
        assert_eq!(secs(established, service), Some(3600));
        assert_eq!(secs(established.expiring(), service), Some(3600));
        assert_eq!(secs(established, never), None);
        assert_eq!(secs(established, None), Some(7800), "its service is gone");
        for direction in [Direction::Request, Direction::Reply] {
            let half_closed = after(established, direction, FIN | ACK);
            assert_eq!(secs(half_closed, never), Some(2));
        }
        let datagram = Word::default().claim(true).publish();
        assert_eq!(secs(datagram, service), Some(3));
        let Step::Change(answered) = udp(datagram, Direction::Reply) else {
            panic!("a reply changes the word");
        };
        assert_eq!(secs(answered, service), Some(3600));
        assert_eq!(secs(answered, None), Some(120));
    }
}
