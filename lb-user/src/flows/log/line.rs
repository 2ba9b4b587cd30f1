//! A flow event as a line of JSON.

use std::{
    collections::{HashMap, hash_map},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use lb_common::{
    addr::Be16,
    conntrack::FlowState,
    maps::{
        addr6,
        event::{
            BEGAN, CUT_BACKEND, CUT_DISABLED, CUT_DRAINED, CUT_OPERATOR, CUT_POLICY, DEAD, EXPIRED,
            FINISHED, FlowEvent, RECYCLED, REDISPATCHED, REMOVED, RESET_BY_BACKEND,
            RESET_BY_CLIENT,
        },
    },
};
use serde::Serialize;

use super::{LogEvent, clock::LogClock};
use crate::{
    dataplane::{labels::Labels, spilled::SpilledFlows, splices::SpliceNames},
    flows::{evict::selector::FIRST_LEG, filter::protocol, log::clock::millis_since},
    model::registry::{Ids, Kind},
};

/// The most flows whose beginning is remembered; those above have no duration in the log.
const REMEMBERED: usize = 1 << 20;

/// The name of an id that is not known any more.
const UNKNOWN: &str = "-";

/// Makes lines of events.
pub(super) struct LogLines {
    networks: HashMap<u32, String>,
    services: HashMap<u32, String>,
    /// Flow id -> its generation, and when it began.
    began: HashMap<u32, (u32, u32)>,
    remembered: usize,
    labels: Labels,
    spilled: SpilledFlows,
    splices: SpliceNames,
}

/// A line.
#[derive(Serialize)]
struct LogLine<'a> {
    time: String,
    event: &'static str,
    id: u32,
    network: &'a str,
    service: &'a str,
    protocol: &'static str,
    /// None if it is not known any more what it was; so are those below.
    client: Option<SocketAddr>,
    vip: Option<SocketAddr>,
    snat: Option<SocketAddr>,
    backend: Option<SocketAddr>,
    /// The name that the client requested, if that decided where it went.
    name: Option<&'a str>,
    bytes_request: u64,
    bytes_reply: u64,
    /// How it ended.
    reason: Option<&'static str>,
    /// How long it was, if its beginning was seen.
    duration_ms: Option<u64>,
}

impl LogLines {
    pub(super) fn new(ids: &Ids, labels: Labels, splices: SpliceNames) -> Self {
        let mut lines = Self {
            networks: HashMap::new(),
            services: HashMap::new(),
            began: HashMap::new(),
            remembered: REMEMBERED,
            labels,
            spilled: SpilledFlows::none(),
            splices,
        };
        lines.set_names(ids);
        lines
    }

    /// The same, with what flows have spilled.
    pub(super) fn with_spilled(self, spilled: SpilledFlows) -> Self {
        Self { spilled, ..self }
    }

    /// Bytes from the client and from the backend; of a leg the record has them as they are.
    fn bytes(&self, event: &FlowEvent) -> [u64; 2] {
        let flow = &event.flow;
        match event.id >= FIRST_LEG {
            true => [flow.traffic_request, flow.traffic_reply],
            false => self.spilled.bytes(event.id, flow),
        }
    }

    pub(super) fn set_names(&mut self, ids: &Ids) {
        let names = |kind| {
            ids.of(kind)
                .map(|(name, id)| (id, name.to_owned()))
                .collect()
        };
        self.networks = names(Kind::Network);
        self.services = names(Kind::Service);
        self.labels.forget();
    }

    /// Adds the line of `event` to `text`; `clock` is not older than the event.
    pub(super) fn write(
        &mut self,
        text: &mut Vec<u8>,
        clock: &LogClock,
        event: &LogEvent,
    ) -> serde_json::Result<()> {
        let LogEvent { event, name } = event;
        let FlowEvent {
            flow,
            id,
            kind,
            snat,
            port,
            time,
            ..
        } = event;
        let word = FlowState::from_raw(flow.word);
        let duration_ms = if *kind == BEGAN {
            self.begin(*id, word.generation(), *time);
            None
        } else {
            self.end(*id, word.generation())
                .map(|began| millis_since(began, *time))
        };
        let endpoint = |address: Option<IpAddr>, port: Be16| {
            address.map(|address| SocketAddr::new(address, port.get()))
        };
        let known = |address, port| endpoint(self.labels.address(address), port);
        let snat_port = Be16::new(u16::try_from(*port).unwrap_or_default());
        let named = |names: &HashMap<u32, String>, id: u16| names.get(&id.into()).cloned();
        let network = named(&self.networks, flow.network);
        let service = named(&self.services, flow.service);
        // The reporter has that of a connection that it carries; of the others the data plane does.
        let kept = name.is_none().then(|| (self.splices)(*id, word)).flatten();
        let [bytes_request, bytes_reply] = self.bytes(event);
        let line = LogLine {
            time: clock.at(*time).to_string(),
            event: if *kind == BEGAN { "began" } else { "ended" },
            id: *id,
            network: network.as_deref().unwrap_or(UNKNOWN),
            service: service.as_deref().unwrap_or(UNKNOWN),
            protocol: protocol(word),
            client: endpoint(client(event), flow.client_port),
            vip: known(flow.vip, flow.vip_port),
            snat: known(*snat, snat_port),
            backend: known(flow.backend, flow.backend_port),
            name: name.as_deref().or(kept.as_deref()),
            bytes_request,
            bytes_reply,
            reason: reason(*kind),
            duration_ms,
        };
        serde_json::to_writer(&mut *text, &line)?;
        text.push(b'\n');
        Ok(())
    }

    fn begin(&mut self, id: u32, generation: u32, time: u32) {
        let room = self.began.len() < self.remembered;
        match self.began.entry(id) {
            hash_map::Entry::Occupied(mut other) => {
                other.insert((generation, time));
            }
            hash_map::Entry::Vacant(vacant) if room => {
                vacant.insert((generation, time));
            }
            hash_map::Entry::Vacant(_) => {}
        }
    }

    /// When the flow of this id and generation began.
    fn end(&mut self, id: u32, generation: u32) -> Option<u32> {
        let hash_map::Entry::Occupied(known) = self.began.entry(id) else {
            return None;
        };
        let (known_generation, time) = *known.get();
        if known_generation != generation {
            return None;
        }
        known.remove();
        Some(time)
    }
}

/// The client of an event's flow; none if the reporter did not know it any more.
fn client(event: &FlowEvent) -> Option<IpAddr> {
    if addr6::index(event.flow.vip).is_none() {
        return Some(Ipv4Addr::from(event.flow.client).into());
    }
    let client = Ipv6Addr::from(event.client);
    (!client.is_unspecified()).then_some(client.into())
}

fn reason(kind: u32) -> Option<&'static str> {
    match kind {
        BEGAN => None,
        FINISHED => Some("finished"),
        RESET_BY_CLIENT => Some("reset_by_client"),
        RESET_BY_BACKEND => Some("reset_by_backend"),
        RECYCLED => Some("recycled"),
        REDISPATCHED => Some("redispatched"),
        EXPIRED => Some("expired"),
        DEAD => Some("dead"),
        REMOVED => Some("removed"),
        CUT_BACKEND => Some("backend_down"),
        CUT_POLICY => Some("not_allowed"),
        CUT_OPERATOR => Some("killed"),
        CUT_DISABLED => Some("disabled"),
        CUT_DRAINED => Some("drained"),
        _ => Some("unknown"),
    }
}

#[cfg(test)]
mod tests {
    use lb_common::{
        addr::{Be32, Be128},
        maps::flow::Flow,
        traffic::Traffic,
    };

    use super::*;
    use crate::flows::log::clock::tests::clock;

    fn lines() -> LogLines {
        let mut ids = Ids::default();
        ids.insert(Kind::Network, "tenant-a", 2);
        ids.insert(Kind::Service, "api-a", 5);
        ids.insert(Kind::Pool, "kas-a", 2);
        LogLines::new(&ids, Labels::anonymous(0), Box::new(|_, _| None))
    }

    /// An event of the flow `id` that has been claimed `generation` times, at `time`.
    fn event(kind: u32, id: u32, generation: u32, time: u32) -> FlowEvent {
        let address = |last: u8| Be32::from(Ipv4Addr::new(10, 0, 0, last));
        FlowEvent {
            flow: Flow {
                word: FlowState::from_raw((generation - 1) << 10)
                    .claim(false)
                    .publish()
                    .raw(),
                client: address(1),
                vip: address(2),
                client_port: Be16::new(40_000),
                vip_port: Be16::new(6443),
                backend: address(3),
                backend_port: Be16::new(30_918),
                network: 2,
                service: 5,
                traffic_request: Traffic::one(74).raw(),
                traffic_reply: Traffic::one(60).plus(1514).raw(),
                ..Flow::default()
            },
            id,
            kind,
            snat: address(4),
            port: 1031,
            time,
            ..FlowEvent::default()
        }
    }

    /// The line of `event`, read at `now`, which is 2001-09-09T01:46:40Z.
    fn text(lines: &mut LogLines, now: u32, event: &FlowEvent) -> String {
        text_named(lines, now, event, None)
    }

    /// The same of a flow whose reporter knows its name.
    fn text_named(lines: &mut LogLines, now: u32, event: &FlowEvent, name: Option<&str>) -> String {
        let mut text = Vec::new();
        let clock = clock(now, 1_000_000_000_000);
        let named = LogEvent {
            event: *event,
            name: name.map(Box::from),
        };
        lines.write(&mut text, &clock, &named).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// The duration in the line of `event`, read at once.
    fn duration(lines: &mut LogLines, event: &FlowEvent) -> serde_json::Value {
        let text = text(lines, event.time, event);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        line.get("duration_ms").unwrap().clone()
    }

    #[test]
    fn a_line_says_everything_of_a_flow() {
        let mut lines = lines();
        let tuple = concat!(
            r#""id":7,"network":"tenant-a","service":"api-a","protocol":"tcp","#,
            r#""client":"10.0.0.1:40000","vip":"10.0.0.2:6443","snat":"10.0.0.4:1031","#,
            r#""backend":"10.0.0.3:30918","name":null,"bytes_request":74,"#,
            r#""bytes_reply":1574,"#
        );
        let began = r#"{"time":"2001-09-09T01:46:40.000Z","event":"began","#;
        let began = format!("{began}{tuple}\"reason\":null,\"duration_ms\":null}}\n");
        assert_eq!(text(&mut lines, 1000, &event(BEGAN, 7, 1, 1000)), began);
        let ended = began
            .replace("began", "ended")
            .replace("\"reason\":null", "\"reason\":\"finished\"")
            .replace("\"duration_ms\":null", "\"duration_ms\":1048");
        assert_eq!(text(&mut lines, 2000, &event(FINISHED, 7, 1, 2000)), ended);
    }

    /// Of a flow that was handed over the data plane has the name, from its beginning to its end.
    #[test]
    fn a_line_has_the_name_that_the_client_requested() {
        let mut lines = lines();
        lines.splices = Box::new(|id, word| {
            (id == 7 && word.generation() == 1).then(|| "kept.example".to_owned())
        });
        let name = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line.get("name").unwrap().clone()
        };
        for kind in [BEGAN, FINISHED] {
            let first = event(kind, 7, 1, 1000);
            assert_eq!(name(&text(&mut lines, 1000, &first)), "kept.example");
            let carried = text_named(&mut lines, 1000, &first, Some("own.example"));
            assert_eq!(name(&carried), "own.example");
            let next = event(kind, 7, 2, 1000);
            assert!(name(&text(&mut lines, 1000, &next)).is_null());
        }
        // Whatever the bytes are, a line is one line, and drives no terminal.
        let hostile = text_named(
            &mut lines,
            1000,
            &event(BEGAN, 8, 1, 0),
            Some("a\n\u{1b}[2J\"b"),
        );
        assert!(
            hostile.contains(r#""name":"a\n\u001b[2J\"b","#),
            "{hostile}"
        );
        assert_eq!(hostile.matches('\n').count(), 1);
    }

    #[test]
    fn a_line_of_ipv6_has_its_addresses_in_brackets() {
        let lines = &mut lines();
        let plain = event(BEGAN, 7, 1, 1000);
        let client: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let mut began = FlowEvent {
            flow: Flow {
                client: Be32::new(7),
                vip: lines.labels.give("fd00::110"),
                backend: lines.labels.give("fd00:1::5"),
                ..plain.flow
            },
            snat: lines.labels.give("fd00:1::1"),
            client: client.into(),
            ..plain
        };
        let known = text(lines, 1000, &began);
        let tuple = concat!(
            r#""client":"[2001:db8::9]:40000","vip":"[fd00::110]:6443","#,
            r#""snat":"[fd00:1::1]:1031","backend":"[fd00:1::5]:30918","#
        );
        assert!(known.contains(tuple), "{known}");
        began.client = Be128::default();
        began.flow.backend = Be32::new(u32::MAX);
        let unknown = text(lines, 1000, &began);
        for null in [r#""client":null"#, r#""backend":null"#] {
            assert!(unknown.contains(null), "{unknown}");
        }
    }

    /// A control plane that starts finds the events of hours in the buffer.
    #[test]
    fn a_flow_was_when_it_was_and_not_when_its_records_were_read() {
        let lines = &mut lines();
        let hour = 3_433_228;
        let began = text(lines, hour + 1000, &event(BEGAN, 7, 1, 1000));
        assert!(
            began.contains(r#""time":"2001-09-09T00:46:40.000Z""#),
            "{began}"
        );
        let ended = text(lines, hour + 1000, &event(FINISHED, 7, 1, 2000));
        assert!(
            ended.contains(r#""time":"2001-09-09T00:46:41.049Z""#),
            "{ended}"
        );
        assert!(ended.contains(r#""duration_ms":1048}"#), "{ended}");
    }

    #[test]
    fn every_end_has_a_reason() {
        let reasons = (FINISHED..=CUT_DRAINED).map(|kind| reason(kind).unwrap());
        let mut reasons: Vec<_> = reasons.collect();
        assert_eq!((reason(BEGAN), reason(99)), (None, Some("unknown")));
        assert!(!reasons.contains(&"unknown"));
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), 12);
    }

    #[test]
    fn a_duration_is_that_of_the_same_flow() {
        let lines = &mut lines();
        let none = serde_json::Value::Null;
        assert_eq!(duration(lines, &event(EXPIRED, 7, 1, 9)), none, "not seen");
        duration(lines, &event(BEGAN, 7, 1, 0));
        duration(lines, &event(BEGAN, 8, 1, 0));
        let reset = |generation| event(RESET_BY_CLIENT, 7, generation, 1000);
        assert_eq!(duration(lines, &reset(2)), none, "another's");
        assert_eq!(duration(lines, &reset(1)), 1048);
        assert_eq!(duration(lines, &reset(1)), none, "twice");
        // The end of the first was lost.
        duration(lines, &event(BEGAN, 8, 2, 2000));
        assert_eq!(duration(lines, &event(FINISHED, 8, 2, 2000)), 0);
        assert!(lines.began.is_empty());
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let lines = &mut lines();
        lines.remembered = 2;
        for id in 1..=3 {
            duration(lines, &event(BEGAN, id, 1, 0));
        }
        assert_eq!(lines.began.len(), 2);
        duration(lines, &event(BEGAN, 2, 2, 1000));
        assert_eq!(duration(lines, &event(FINISHED, 2, 2, 1000)), 0);
        assert!(duration(lines, &event(FINISHED, 3, 1, 0)).is_null());
    }

    #[test]
    fn unknown_ids_and_numbers_are_no_trouble() {
        let mut odd = event(99, u32::MAX, 1, 0);
        odd.flow.network = 77;
        odd.flow.service = 0;
        odd.port = u32::MAX;
        odd.flow.word = u32::MAX;
        odd.flow.vip = Be32::new(u32::MAX);
        let text = text(&mut lines(), 0, &odd);
        assert!(
            text.contains(r#""network":"-","service":"-","protocol":"udp""#),
            "{text}"
        );
    }
}
