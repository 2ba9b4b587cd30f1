//! Frames to the two ends of a flow: resets when it ends without them, and keepalive probes.
//!
//! The numbers are those that the ends last acknowledged. For an idle flow they are exact, because
//! nothing is on its way (RFC 5961 sections 3 and 5).

use lb_common::{
    addr::{Be16, Be32, Mac},
    maps::{flow::Flow, network::Network, snat::SnatPage},
    tcp_frame::{BareSegment, SegmentAddresses},
    wire::header::{ACK, RST},
};

use crate::{
    dataplane::labels::Labels,
    flows::idle::{Ticks, age},
};

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// The end that opened it.
    Client,
    /// Where it was sent.
    Backend,
}

impl FlowEnd {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Backend];
}

/// The receive window of a probe, unscaled. No end takes it over, because the probe's sequence number is old;
/// but it must not close the window.
const WINDOW: u16 = 512;

/// A flow whose ends are to be sent something.
#[derive(Clone, Copy, Debug)]
pub struct Tuple<'a> {
    flow: &'a Flow,
    to_client: SegmentAddresses,
    to_backend: SegmentAddresses,
    snat_port: Be16,
}

impl<'a> Tuple<'a> {
    /// The flow with this id, which is on `page`; none if its addresses are not known any more.
    pub fn new(id: u32, flow: &'a Flow, page: &SnatPage, labels: &Labels) -> Option<Self> {
        let (vip, client) = (labels.address(flow.vip)?, labels.client(id, flow)?);
        let (snat, backend) = (labels.address(page.address)?, labels.address(flow.backend)?);
        Some(Self {
            flow,
            to_client: SegmentAddresses::new(vip, client)?,
            to_backend: SegmentAddresses::new(snat, backend)?,
            snat_port: flow.snat_port,
        })
    }

    /// Ends the connection of `end`: a reset with the number that it expects.
    pub const fn reset(&self, end: FlowEnd) -> BareSegment {
        let (sequence, acknowledgment) = self.numbers(end);
        self.segment(end, sequence, acknowledgment, RST | ACK, 0)
    }

    /// Makes `end` answer: an acknowledgment with a number just before the one that it expects
    /// (RFC 9293 section 3.8.4).
    pub const fn probe(&self, end: FlowEnd) -> BareSegment {
        let (sequence, acknowledgment) = self.numbers(end);
        let old = Be32::new(sequence.get().wrapping_sub(1));
        self.segment(end, old, acknowledgment, ACK, WINDOW)
    }

    /// What `end` expects next, and what was received from it.
    const fn numbers(&self, end: FlowEnd) -> (Be32, Be32) {
        match end {
            FlowEnd::Client => (self.flow.ack_request, self.flow.ack_reply),
            FlowEnd::Backend => (self.flow.ack_reply, self.flow.ack_request),
        }
    }

    const fn segment(
        &self,
        end: FlowEnd,
        sequence: Be32,
        acknowledgment: Be32,
        flags: u8,
        window: u16,
    ) -> BareSegment {
        let flow = self.flow;
        let (addresses, source_port, destination_port) = match end {
            FlowEnd::Client => (self.to_client, flow.vip_port, flow.client_port),
            FlowEnd::Backend => (self.to_backend, self.snat_port, flow.backend_port),
        };
        BareSegment {
            source_mac: Mac::from_raw([0; 3]),
            destination_mac: Mac::from_raw([0; 3]),
            vlan: 0,
            addresses,
            source_port,
            destination_port,
            sequence,
            acknowledgment,
            flags,
            window,
        }
    }
}

/// Sends a segment into `network` by way of `next_hop`; none if there is no way.
pub fn address(segment: BareSegment, network: &Network, next_hop: Mac) -> Option<BareSegment> {
    let known = network.ifindex != 0 && !next_hop.is_none() && !next_hop.is_group();
    known.then_some(BareSegment {
        source_mac: network.mac,
        destination_mac: next_hop,
        vlan: network.vlan,
        ..segment
    })
}

/// A rate: so many per tick, and so many in one go.
#[derive(Clone, Copy, Debug)]
pub struct SendRate {
    per_tick: u32,
    burst: u32,
    left: u32,
    seen: Ticks,
}

impl SendRate {
    /// Full from the start.
    pub const fn new(per_tick: u32, burst: u32, now: Ticks) -> Self {
        Self {
            per_tick,
            burst,
            left: burst,
            seen: now,
        }
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Ticks) -> bool {
        let gained = age(now, self.seen).saturating_mul(self.per_tick);
        self.left = self.left.saturating_add(gained).min(self.burst);
        self.seen = now;
        let taken = self.left.checked_sub(1);
        self.left = taken.unwrap_or(0);
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use lb_common::maps::snat::base;

    use super::*;

    const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xc];
    const NIC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn flow() -> Flow {
        Flow {
            client: Ipv4Addr::new(192, 168, 203, 50).into(),
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            client_port: Be16::new(40000),
            vip_port: Be16::new(6443),
            backend: Ipv4Addr::new(10, 32, 96, 105).into(),
            backend_port: Be16::new(30918),
            ack_request: Be32::new(0),
            ack_reply: Be32::new(1001),
            client_mac: Mac::new(CLIENT_MAC),
            snat_port: Be16::new(1031),
            ..Flow::default()
        }
    }

    fn page() -> SnatPage {
        SnatPage {
            address: Ipv4Addr::new(10, 32, 96, 50).into(),
            ..SnatPage::default()
        }
    }

    fn tuple<'a>(id: u32, flow: &'a Flow, page: &SnatPage) -> Tuple<'a> {
        Tuple::new(id, flow, page, &Labels::anonymous(0)).unwrap()
    }

    /// Source, destination, sequence, acknowledgment.
    type Read = ((IpAddr, u16), (IpAddr, u16), u32, u32);

    fn read(segment: &BareSegment) -> Read {
        let (from, to): (IpAddr, IpAddr) = match segment.addresses {
            SegmentAddresses::V4 { from, to } => {
                (Ipv4Addr::from(from).into(), Ipv4Addr::from(to).into())
            }
            SegmentAddresses::V6 { from, to } => {
                (Ipv6Addr::from(from).into(), Ipv6Addr::from(to).into())
            }
        };
        (
            (from, segment.source_port.get()),
            (to, segment.destination_port.get()),
            segment.sequence.get(),
            segment.acknowledgment.get(),
        )
    }

    #[test]
    fn each_end_gets_the_reset_that_it_accepts() {
        let (flow, page) = (flow(), page());
        let tuple = tuple(base(0) + 7, &flow, &page);
        let client = tuple.reset(FlowEnd::Client);
        assert_eq!(
            read(&client),
            (
                (Ipv4Addr::new(192, 168, 203, 110).into(), 6443),
                (Ipv4Addr::new(192, 168, 203, 50).into(), 40000),
                0,
                1001
            )
        );
        let backend = tuple.reset(FlowEnd::Backend);
        assert_eq!(
            read(&backend),
            (
                (Ipv4Addr::new(10, 32, 96, 50).into(), 1031),
                (Ipv4Addr::new(10, 32, 96, 105).into(), 30918),
                1001,
                0
            )
        );
        for reset in [client, backend] {
            assert_eq!((reset.flags, reset.window), (RST | ACK, 0));
        }
    }

    #[test]
    fn the_ends_of_a_flow_of_ipv6_are_sent_ipv6() {
        let id = base(0) + 7;
        let labels = Labels::anonymous(id + 1);
        let page = SnatPage {
            address: labels.give("fd00:1::1"),
            ..page()
        };
        let flow = Flow {
            vip: labels.give("fd00::110"),
            client: labels.put_client(id, "2001:db8::9"),
            backend: labels.give("fd00:1::5"),
            ..flow()
        };
        let end = |text: &str, port| (text.parse::<IpAddr>().unwrap(), port);
        let tuple = Tuple::new(id, &flow, &page, &labels).unwrap();
        assert_eq!(
            read(&tuple.reset(FlowEnd::Client)),
            (end("fd00::110", 6443), end("2001:db8::9", 40000), 0, 1001)
        );
        assert_eq!(
            read(&tuple.probe(FlowEnd::Backend)),
            (end("fd00:1::1", 1031), end("fd00:1::5", 30918), 1000, 0)
        );
        let gone = Flow {
            backend: Be32::new(u32::MAX),
            ..flow
        };
        assert!(Tuple::new(id, &gone, &page, &labels).is_none());
        labels.put_client(id, "2001:db8::a");
        assert!(
            Tuple::new(id, &flow, &page, &labels).is_none(),
            "another flow has the id"
        );
    }

    #[test]
    fn a_probe_is_one_behind_what_is_expected_also_over_the_wrap() {
        let (flow, page) = (flow(), page());
        let tuple = tuple(base(0), &flow, &page);
        let client = tuple.probe(FlowEnd::Client);
        assert_eq!(
            (client.sequence.get(), client.acknowledgment.get()),
            (u32::MAX, 1001)
        );
        let backend = tuple.probe(FlowEnd::Backend);
        assert_eq!(
            (backend.sequence.get(), backend.acknowledgment.get()),
            (1000, 0)
        );
        for (probe, reset) in [
            (client, tuple.reset(FlowEnd::Client)),
            (backend, tuple.reset(FlowEnd::Backend)),
        ] {
            assert_eq!((probe.flags, probe.window), (ACK, WINDOW));
            let ((from, to, ..), (reset_from, reset_to, ..)) = (read(&probe), read(&reset));
            assert_eq!((from, to), (reset_from, reset_to));
        }
    }

    #[test]
    fn the_whole_frame_of_a_reset_in_a_vlan() {
        let (flow, page) = (flow(), page());
        let network = Network {
            ifindex: 5,
            mac: Mac::new(NIC),
            vlan: 2003,
            ..Network::default()
        };
        let reset = tuple(base(0), &flow, &page).reset(FlowEnd::Client);
        let frame = address(reset, &network, flow.client_mac).unwrap().frame();
        let bytes = frame.as_ref();
        assert_eq!(bytes[..6], CLIENT_MAC);
        assert_eq!(bytes[6..12], NIC);
        assert_eq!(bytes[12..18], [0x81, 0, 0x07, 0xd3, 8, 0]);
        assert_eq!(bytes[30..38], [192, 168, 203, 110, 192, 168, 203, 50]);
        assert_eq!(bytes[38..42], [0x19, 0x2b, 0x9c, 0x40]);
        assert_eq!(bytes[42..52], [0, 0, 0, 0, 0, 0, 3, 0xe9, 0x50, RST | ACK]);
        assert_eq!(bytes.len(), 58);
    }

    #[test]
    fn nothing_is_sent_where_there_is_no_way() {
        let (flow, page) = (flow(), page());
        let reset = tuple(base(0), &flow, &page).reset(FlowEnd::Backend);
        let network = Network {
            ifindex: 5,
            ..Network::default()
        };
        assert_eq!(address(reset, &network, Mac::default()), None);
        assert_eq!(address(reset, &network, Mac::BROADCAST), None);
        assert_eq!(address(reset, &Network::default(), Mac::new(NIC)), None);
    }

    #[test]
    fn a_pace_has_a_burst_and_a_rate() {
        let mut pace = SendRate::new(4, 100, 7);
        let taken = |pace: &mut SendRate, now| (0..1000).filter(|_| pace.take(now)).count();
        assert_eq!(taken(&mut pace, 7), 100);
        assert_eq!(taken(&mut pace, 7), 0);
        assert_eq!(taken(&mut pace, 8), 4);
        assert_eq!(taken(&mut pace, 18), 40);
        assert_eq!(taken(&mut pace, 1 << 30), 100);
        assert_eq!(taken(&mut pace, (1 << 30) - 1), 0, "a clock that went back");
    }
}
