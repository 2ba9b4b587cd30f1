//! The request index: words are hints, and a line has an end.

use std::net::Ipv4Addr;

use aya::maps::{Array, Map, MapData};
use lb_common::{
    addr::Be16,
    conntrack::FlowState,
    maps::{
        flow::FlowKey,
        flow_line::{FlowLine, LineKey, Places, WORDS},
    },
};
use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{DataPlane, IDS, MGMT_NIC, Port},
};

use super::given::*;

/// The words as they stand in the map.
struct Lines {
    map: Array<MapData, FlowLine>,
    key: LineKey,
}

impl Lines {
    fn of(lb: &DataPlane) -> Self {
        let open = |name| MapData::from_pin(lb.maps_folder().join(name)).expect("a pin");
        let key = Array::try_from(Map::Array(open("LINE_KEY"))).expect("an array");
        let map = Array::try_from(Map::Array(open("FLOW_LINES"))).expect("an array");
        let key: LineKey = key.get(&0, 0).expect("the key of the lines");
        Self { map, key }
    }

    fn places(&self, key: &FlowKey) -> Places {
        self.key.places(key.packed())
    }

    fn line(&self, number: u32) -> FlowLine {
        self.map.get(&number, 0).expect("a line")
    }

    /// Sets the words of a line.
    fn set(&mut self, number: u32, line: FlowLine) {
        self.map.set(number, &line, 0).expect("a write");
    }

    /// Puts a word into the first line of a key.
    fn put(&mut self, key: &FlowKey, place: usize, id: u32) {
        let places = self.places(key);
        let mut line = self.line(places.lines[0]);
        line[place] = places.word(id).raw();
        self.set(places.lines[0], line);
    }

    /// In which of a key's lines a flow stands, as often as it does.
    fn found(&self, key: &FlowKey, id: u32) -> Vec<usize> {
        let places = self.places(key);
        let word = places.word(id).raw();
        let of_line = |at: usize| {
            let line = self.line(places.lines[at]);
            line.into_iter()
                .filter(move |found| *found == word)
                .map(move |_| at)
        };
        [0, 1, 2].into_iter().flat_map(of_line).collect()
    }
}

/// The tuple of a client of tenant-a to the API.
fn key(lb: &DataPlane, client: &str) -> FlowKey {
    let client: std::net::SocketAddrV4 = client.parse().expect("an address");
    let networks = &lb.desired.networks;
    let (network, _) = networks[usize::from(networks.len() > 1)];
    FlowKey {
        client: (*client.ip()).into(),
        vip: Ipv4Addr::new(192, 168, 203, 110).into(),
        client_port: Be16::new(client.port()),
        vip_port: Be16::new(6443),
        network,
        protocol: 6,
    }
}

/// The word of an entry.
fn word(lb: &DataPlane, id: u32) -> FlowState {
    FlowState::from_raw(lb.maps.flows.get(&id, 0).expect("an entry").word)
}

fn syn(client: &str) -> lb_tests::frames::packet::Frame {
    request(client, API, SYN_ONLY).numbers(CLIENT_ISN, 0)
}

/// The first reply to client A, whose SNAT port is the first one.
fn syn_ack() -> lb_tests::frames::packet::Frame {
    reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1)
}

/// A segment of client A that goes on.
fn assert_goes_on(lb: &mut DataPlane) {
    let ack = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let sent = forwarded(lb, Port::Tenant, &ack);
    let wanted = tcp(&snat(1024), KAS, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
}

/// A word that another CPU's swap has pushed out is put back by the flow's first reply.
#[privileged_test]
fn a_flow_that_was_lost_from_the_index_comes_back_with_its_first_reply() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(&mut lb, Port::Tenant, &syn(CLIENT_A));
    let (key, id) = (key(&lb, CLIENT_A), DataPlane::flow_id(1024));
    lb.maps.flow_lines.remove(&key, id).expect("the lines");
    assert_eq!(lb.maps.flow_lines.ids().count(), 0);
    forwarded(&mut lb, Port::Mgmt, &syn_ack());
    assert_eq!(Lines::of(&lb).found(&key, id), [0]);
    assert_goes_on(&mut lb);
}

#[privileged_test]
fn a_first_reply_does_not_take_the_index_from_another_flow() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(&mut lb, Port::Tenant, &syn(CLIENT_A));
    let (key, id) = (key(&lb, CLIENT_A), DataPlane::flow_id(1024));
    let other = DataPlane::flow_id(1030);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    lb.maps.flows.set(other, &flow, 0).expect("a write");
    lb.maps.flow_lines.remove(&key, id).expect("the lines");
    let mut lines = Lines::of(&lb);
    lines.put(&key, 7, other);
    forwarded(&mut lb, Port::Mgmt, &syn_ack());
    assert_eq!(lines.found(&key, other), [0]);
    assert!(lines.found(&key, id).is_empty());
}

/// The index is a hint; the entry's own tuple decides.
#[privileged_test]
fn a_stale_word_leads_into_no_other_clients_flow() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let (stale, id) = (key(&lb, CLIENT_B), DataPlane::flow_id(1024));
    let mut lines = Lines::of(&lb);
    lines.put(&stale, 0, id);
    let data = request(CLIENT_B, API, ACK_ONLY).numbers(1001, 5001);
    assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    // Nor does it hide the one behind it, though their tags are the same.
    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));
    let wanted = tcp(&snat(1025), KAS, SYN_ONLY).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
    let again = forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));
    assert_eq!(again, sent);
    let found = lines.line(lines.places(&stale).lines[0]);
    let words = [id, DataPlane::flow_id(1025)].map(|id| lines.places(&stale).word(id).raw());
    assert_eq!(found[..2], words);
}

/// A word that was to be removed and was not is no obstacle to the next flow of its tuple: whether its entry is free,
/// another flow's, or still the closed one's.
#[privileged_test]
fn a_tuple_whose_word_is_left_over_opens_again() {
    for client in [CLIENT_A, CLIENT_B] {
        for left in [1024, 1030] {
            let mut lb = DataPlane::new(CONFIG);
            forwarded(&mut lb, Port::Tenant, &syn(client));
            let key = key(&lb, client);
            let reset = request(client, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
            forwarded(&mut lb, Port::Tenant, &reset);
            let mut lines = Lines::of(&lb);
            let first = lines.places(&key).lines[0];
            lines.set(first, FlowLine::default());
            lines.put(&key, 3, DataPlane::flow_id(left));
            establish(&mut lb, client, 1025);
            assert_eq!(lines.found(&key, DataPlane::flow_id(1025)), [0]);
        }
    }
}

/// What is left over takes no room for ever: the next flow of a line takes its place.
#[privileged_test]
fn a_line_full_of_words_of_no_flow_has_room() {
    let mut lb = DataPlane::new(CONFIG);
    let key = key(&lb, CLIENT_A);
    let mut lines = Lines::of(&lb);
    let free = |place: usize| Places::new((place as u64) << 3, 2, 2).word(DataPlane::flow_id(1040));
    let line: FlowLine = std::array::from_fn(|place| free(place).raw());
    for number in lines.places(&key).lines {
        lines.set(number, line);
    }
    establish(&mut lb, CLIENT_A, 1024);
    assert_eq!(lines.found(&key, DataPlane::flow_id(1024)), [0]);
    assert_goes_on(&mut lb);
}

/// Fills lines of the key of client A with a flow of client B.
fn fill(lb: &mut DataPlane, lines: &mut Lines, numbers: &[usize]) {
    establish(lb, CLIENT_B, 1024);
    let (key, other) = (key(lb, CLIENT_A), key(lb, CLIENT_B));
    let live = lines.places(&other).word(DataPlane::flow_id(1024)).raw();
    for number in numbers {
        lines.set(lines.places(&key).lines[*number], [live; WORDS as usize]);
    }
}

/// A flow whose first line is full stands in its second one, and where that is full in its third one, from its first packet
/// until its id is another's.
#[privileged_test]
fn a_flow_whose_line_is_full_stands_in_another_one() {
    stands_behind(&[0]);
    stands_behind(&[0, 1]);
}

fn stands_behind(full: &[usize]) {
    let mut lb = DataPlane::new(CONFIG);
    let mut lines = Lines::of(&lb);
    fill(&mut lb, &mut lines, full);
    let place = full.len();
    let (key, id) = (key(&lb, CLIENT_A), DataPlane::flow_id(1025));
    establish(&mut lb, CLIENT_A, 1025);
    assert_eq!(lines.found(&key, id), [place]);
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data.payload(b"more"));
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    // The next flow of the tuple stands in the first line, where that has room again, and the closed one's word goes.
    let first = lines.places(&key).lines[0];
    // But for its count.
    let mut room = lines.line(first);
    room[..15].fill(0);
    lines.set(first, room);
    establish(&mut lb, CLIENT_A, 1026);
    assert!(lines.found(&key, id).is_empty());
    assert_eq!(lines.found(&key, DataPlane::flow_id(1026)), [0]);
}

/// In lines that are full otherwise the next flow of a tuple has the place of its last one, which is over.
#[privileged_test]
fn a_flow_takes_the_place_of_the_last_one_of_its_tuple() {
    let mut lb = DataPlane::new(CONFIG);
    let mut lines = Lines::of(&lb);
    fill(&mut lb, &mut lines, &[0, 1]);
    let key = key(&lb, CLIENT_A);
    establish(&mut lb, CLIENT_A, 1025);
    let last = lines.places(&key).lines[2];
    let other = lines.line(lines.places(&key).lines[0])[0];
    let mut full = lines.line(last);
    let place = full.iter().position(|word| *word != 0).expect("the flow");
    full = full.map(|word| if word == 0 { other } else { word });
    lines.set(last, full);
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    establish(&mut lb, CLIENT_A, 1026);
    full[place] = lines.places(&key).word(DataPlane::flow_id(1026)).raw();
    assert_eq!(lines.line(last), full);
}

/// Without room in the index a new flow is withdrawn: its id goes back, its entry is no flow's, and established flows
/// go on.
#[privileged_test]
fn without_room_in_the_index_no_id_is_lost() {
    let mut lb = DataPlane::new(CONFIG);
    let mut lines = Lines::of(&lb);
    fill(&mut lb, &mut lines, &[0, 1, 2]);
    let full = lines
        .places(&key(&lb, CLIENT_A))
        .lines
        .map(|number| lines.line(number));
    assert_refused(
        &mut lb,
        Port::Tenant,
        &syn(CLIENT_A).bytes(),
        "flow_table_full",
    );
    let answer = reply(1025, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    assert_dropped(&mut lb, Port::Mgmt, &answer.bytes(), "reply_mismatch");
    let lines = lines
        .places(&key(&lb, CLIENT_A))
        .lines
        .map(|number| lines.line(number));
    assert_eq!(lines, full, "no word of a live flow was taken");
    let data = request(CLIENT_B, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data);
    let free = lb.drain_free_ids();
    assert_eq!(free.len(), IDS - 1);
    assert_eq!(free.last(), Some(&DataPlane::flow_id(1025)));
}

/// A flow's word stands once, however often its tuple is opened again.
#[privileged_test]
fn a_tuple_has_one_word() {
    let mut lb = DataPlane::new(CONFIG);
    for port in 1024..1040 {
        establish(&mut lb, CLIENT_A, port);
        let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
        forwarded(&mut lb, Port::Tenant, &reset);
        assert!(word(&lb, DataPlane::flow_id(port)).claimable());
        let ids: Vec<_> = lb.maps.flow_lines.ids().collect();
        assert_eq!(ids, [DataPlane::flow_id(port)]);
    }
    let (lines, key) = (Lines::of(&lb), key(&lb, CLIENT_A));
    let places = lines.places(&key);
    let words: Vec<u32> = lines
        .line(places.lines[0])
        .into_iter()
        .filter(|word| *word != 0)
        .collect();
    assert_eq!(words, [places.word(DataPlane::flow_id(1039)).raw()]);
}
