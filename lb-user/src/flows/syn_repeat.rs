//! SYNs to backends that have not answered, of flows that a cookie has opened: a lost one comes from no client, since that has a
//! connection already, and may wait for the backend to speak first.

use std::{collections::BTreeMap, mem, time::Duration};

use lb_common::{
    addr::{Be16, Mac},
    conntrack::FlowState,
    late_binding,
    maps::{
        flow::Flow,
        hello::{HELLO_HAS_TIMES, HelloHead},
        network::Network,
        snat::SnatPage,
        splice::{BOUND_HAS_TIMES, Binding},
    },
    nat,
    syn_cookie::offer::SynOffer,
    wire::{
        Packet as _, Slice, Tag,
        header::{Ethernet, Ipv4, TaggedEthernet},
    },
};

use super::{
    idle::{Ticks, duration},
    reset::segments::FlowEnd,
    worker::Worker,
};

/// Flows that are watched at a time.
const MAX_WAITING: usize = 1 << 16;
/// After so many seconds a SYN comes again for the first time, and then after twice as long each time (RFC 6298 sections 2.1
/// and 5.5).
const FIRST: u64 = 1;

/// The EtherType of IPv4.
const IPV4: Be16 = Be16::new(0x0800);

/// What has been sent for a flow: its word, and the seconds after which its SYN came again last.
type Repeated = (FlowState, u64);

/// The flows whose SYNs have come again: in the last pass, and in this one so far.
#[derive(Debug, Default)]
pub(super) struct SynRepeats {
    before: BTreeMap<u32, Repeated>,
    now: BTreeMap<u32, Repeated>,
}

impl SynRepeats {
    /// Notes a flow that has waited for so long. Whether its SYN is to come again.
    pub(super) fn note(&mut self, id: u32, word: FlowState, waited: Ticks) -> bool {
        let seconds = duration(waited).as_secs();
        if seconds < FIRST || self.now.len() >= MAX_WAITING {
            return false;
        }
        let known = self.before.get(&id).filter(|(of, _)| *of == word);
        let last = known.map_or(0, |(_, last)| *last);
        let mut latest = last;
        while following(latest) <= seconds {
            latest = following(latest);
        }
        self.now.insert(id, (word, latest));
        latest != last
    }

    /// The pass is over: what it has not found waiting has been answered, or has ended.
    pub(super) fn end_pass(&mut self) {
        self.before = mem::take(&mut self.now);
    }
}

/// After one that came after so many seconds: 1, 3, 7, 15.
const fn following(seconds: u64) -> u64 {
    2 * seconds + FIRST
}

impl Worker {
    /// Sends the SYN of a flow that a cookie has opened to its backend again, if it is time.
    pub(super) fn repeat_syn(&mut self, id: u32, word: FlowState, waited: Ticks) {
        let Some(binding) = self.records.awaited(id, word) else {
            return;
        };
        if !self.syns.note(id, word, waited) {
            return;
        }
        let Some((_, flow)) = self.table.flow(id).filter(|(now, _)| *now == word) else {
            return;
        };
        let way = self.records.way(id, &flow, FlowEnd::Backend, false);
        let (Some((to, next_hop)), Some(page), Some(from)) = (
            way,
            self.records.page(id),
            self.records.network(flow.network),
        ) else {
            return;
        };
        let way = SynWay {
            from: &from,
            to: &to,
            next_hop,
            page: &page,
        };
        let now = self.now;
        if let Some(frame) = frame(&flow, &binding, &way)
            && to.ifindex != 0
            && !next_hop.is_none()
        {
            self.letters += 1;
            // One whose turn it is not comes with the next.
            let _sent = self.post.send_syn(to.ifindex, &frame, now);
        }
    }
}

/// What the frame is made of, beside the flow and its binding.
struct SynWay<'a> {
    /// The client's network.
    from: &'a Network,
    /// The backend's.
    to: &'a Network,
    /// The next hop to the backend.
    next_hop: Mac,
    /// The SNAT address of the flow.
    page: &'a SnatPage,
}

/// The SYN of a flow over IPv4 again, as a whole frame. It has the clock 0, since the client's own is not kept: Linux and the BSDs
/// take that for none, and any clock of the next segment for later.
fn frame(flow: &Flow, binding: &Binding, way: &SynWay<'_>) -> Option<Vec<u8>> {
    let SynWay {
        from,
        to,
        next_hop,
        page,
    } = *way;
    let head = HelloHead {
        isn: flow.ack_reply.get().wrapping_sub(1),
        number: binding.sequence,
        window: u16::MAX,
        flags: match binding.flags & BOUND_HAS_TIMES {
            0 => 0,
            _ => HELLO_HAS_TIMES,
        },
        ..HelloHead::default()
    };
    let offer = SynOffer::from_bits(binding.sequence.to_be_bytes()[3]);
    let ends = (
        (page.address, flow.snat_port),
        (flow.backend, flow.backend_port),
    );
    let syn = late_binding::syn(&head, ends.0, ends.1, offer.mss(from.mss), to.mss);
    let mut bytes = vec![0; syn.options.frame_bytes()];
    let packet = Slice::new(&mut bytes);
    let ethernet: &Ethernet = packet.header(0)?;
    nat::address_frame(ethernet, to.mac, next_hop);
    ethernet.ethertype.set(IPV4);
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    ip.version_ihl.set(0x45);
    syn.write(&packet, false)?;
    if to.vlan != 0 {
        put_tag(&mut bytes, to.vlan)?;
    }
    Some(bytes)
}

/// Puts the tag of a VLAN into a frame.
fn put_tag(bytes: &mut Vec<u8>, vlan: u16) -> Option<()> {
    let at = size_of::<Ethernet>() - size_of::<u16>();
    let longer = size_of::<TaggedEthernet>() - size_of::<Ethernet>();
    bytes.splice(at..at, std::iter::repeat_n(0, longer));
    let packet = Slice::new(bytes);
    let tagged: &TaggedEthernet = packet.header(0)?;
    let tag = Tag::of(vlan);
    tagged.protocol.set(tag.protocol);
    tagged.tci.set(tag.tci);
    Some(())
}

/// How long a flow has to have waited for it to be worth a look.
pub(super) const MIN_WAIT: Duration = Duration::from_secs(FIRST);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lb_common::{
        addr::Be32,
        syn_cookie::offer,
        wire::{header::SYN, parse_ipv4},
    };

    use super::*;
    use crate::flows::idle::{ticks, words};

    #[test]
    fn a_syn_comes_again_after_one_three_and_seven_seconds() {
        let word = words::new().bind();
        let mut repeats = SynRepeats::default();
        let mut sent = Vec::new();
        for quarter in 0..68_u64 {
            let waited = ticks(Duration::from_millis(quarter * 250));
            if repeats.note(7, word, waited) {
                sent.push(quarter / 4);
            }
            repeats.end_pass();
        }
        assert_eq!(sent, [1, 3, 7, 15]);
        // Another flow of the same id begins anew, and one that was not looked at for long has no two at once.
        let other = word.close().claim(false).bind();
        assert!(repeats.note(7, other, ticks(Duration::from_secs(8))));
        repeats.end_pass();
        assert!(!repeats.note(7, other, ticks(Duration::from_secs(9))));
    }

    #[test]
    fn a_frame_is_the_syn_that_was_lost() {
        let flow = Flow {
            ack_reply: Be32::new(0x0102_0304),
            snat_port: Be16::new(2000),
            backend: Ipv4Addr::new(10, 32, 96, 105).into(),
            backend_port: Be16::new(30_918),
            ..Flow::default()
        };
        let page = SnatPage {
            address: Ipv4Addr::new(10, 32, 96, 50).into(),
            ..SnatPage::default()
        };
        let network = |mss, vlan| Network {
            mss,
            vlan,
            mac: Mac::from_raw([1, 2, 3]),
            ..Network::default()
        };
        for (vlan, has_times) in [(0, true), (7, false)] {
            let binding = Binding::bound(1, 0x17, has_times.then_some(9), true);
            let (from, to) = (network(1460, 0), network(1400, vlan));
            let way = SynWay {
                from: &from,
                to: &to,
                next_hop: Mac::from_raw([4, 5, 6]),
                page: &page,
            };
            let mut bytes = frame(&flow, &binding, &way).unwrap();
            if vlan != 0 {
                assert_eq!(bytes[12..16], [0x81, 0, 0, 7]);
                bytes.drain(12..16);
            }
            let packet = Slice::new(&mut bytes);
            let (ethernet, ip): (&Ethernet, &Ipv4) =
                (packet.header(0).unwrap(), packet.header(14).unwrap());
            assert_eq!(ethernet.source.get(), to.mac);
            let parsed = parse_ipv4(&packet, ethernet, ip).unwrap();
            assert_eq!(parsed.l4.ports(), (flow.snat_port, flow.backend_port));
            assert_eq!(
                (ip.source.get(), ip.destination.get()),
                (page.address, flow.backend)
            );
            let options = offer::read(&packet, 9000).unwrap();
            assert_eq!(options.offer.scale, Some(7));
            assert_eq!(options.time, has_times.then_some(Be32::new(0)));
            assert!(options.mss <= 1400);
            assert_eq!(bytes[38..42], [1, 2, 3, 3]);
            assert_eq!(bytes[47], SYN);
        }
    }
}
