//! Rings, as for IPv4: a flood takes its own ids again, and a ring is one for both families.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{addr6, snat::base},
};
use lb_tests::frames::six::{Frame, tcp};
use lb_user::model::snat::SnatSlot;

use super::{
    super::{
        given as v4,
        ring::{PLACES, assert_untouched},
    },
    dual::BOTH,
    given::*,
};

const FLOOD: u16 = 1000;

fn small(config: &str) -> String {
    let whole = "role: tenant, interface: eth0,";
    assert!(config.contains(whole));
    config.replace(
        whole,
        &format!("{whole} half_open: {PLACES}, udp_flows: {PLACES},"),
    )
}

fn client(number: u16) -> String {
    format!("[{HOST}]:{}", 20_000 + number)
}

fn opened(lb: &mut DataPlane, frame: &Frame) -> u16 {
    let sent = forwarded(lb, Port::Tenant, frame);
    u16::from_be_bytes([sent[54], sent[55]])
}

#[privileged_test]
fn a_flood_takes_its_own_ids_again() {
    let mut lb = DataPlane::new(&small(CONFIG));
    for number in 0..FLOOD {
        let isn = CLIENT_ISN + u32::from(number);
        let syn = request(&client(number), API, SYN_ONLY).numbers(isn, 0);
        let port = opened(&mut lb, &syn);
        assert_eq!(port, 1024 + number % PLACES, "SYN {number}");
    }
    for number in 0..FLOOD {
        let port = opened(&mut lb, &query(&client(number)));
        assert_eq!(port, 1024 + PLACES + number % PLACES, "query {number}");
    }
    assert_untouched(&lb, 0, 2 * PLACES, &[]);
    // Each flow has the client that it has now.
    for number in FLOOD - PLACES..FLOOD {
        let (port, isn) = (1024 + number % PLACES, CLIENT_ISN + u32::from(number));
        let syn_ack = reply(port, SYN_ACK).numbers(BACKEND_ISN, isn + 1);
        let sent = forwarded(&mut lb, Port::Mgmt, &syn_ack);
        let wanted = tcp(API, &client(number), SYN_ACK);
        let wanted = wanted.numbers(BACKEND_ISN, isn + 1).hops(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
    let late = request(&client(0), API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_refused(&mut lb, Port::Tenant, &late.bytes(), "no_flow");
}

#[privileged_test]
fn no_family_takes_an_id_of_the_other() {
    let mut lb = DataPlane::new(&small(BOTH));
    let slot = |is_6| {
        let of_family = |snat: &&SnatSlot| addr6::index(snat.record).is_some() == is_6;
        lb.desired
            .snat
            .iter()
            .find(of_family)
            .expect("one of each")
            .slot
    };
    let (four, six) = (slot(false), slot(true));
    for number in 0..PLACES {
        let port = opened(&mut lb, &request(&client(number), API, SYN_ONLY));
        assert_eq!(port, 1024 + number);
    }
    for number in 0..FLOOD {
        let client = format!("192.168.203.50:{}", 20_000 + number);
        let syn = v4::request(&client, v4::API, SYN_ONLY);
        let sent = v4::forwarded(&mut lb, Port::Tenant, &syn);
        assert_eq!(sent[34..36], (1024 + number % PLACES).to_be_bytes());
    }
    let left: Vec<u32> = (base(six)..base(six) + u32::from(PLACES)).collect();
    assert_untouched(&lb, four, PLACES, &[]);
    assert_untouched(&lb, six, PLACES, &left);
    for id in left {
        let word = lb.maps.flows.get(&id, 0).expect("an entry").word;
        assert_eq!(FlowState::from_raw(word).state(), State::Closed);
    }
}
