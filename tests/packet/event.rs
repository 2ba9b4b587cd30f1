//! Records of flows that begin and end, for the flow log.

use std::{thread, time::Duration};

use lb_common::maps::event::{BEGAN, FINISHED, FlowEvent, RESET_BY_CLIENT};
use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, Port},
};
use lb_user::dataplane::flows::coarse_now;

use super::given::*;

/// With a flow log; no process writes to it here.
fn logged() -> DataPlane {
    DataPlane::new(&format!("{CONFIG}log: {{ flows: /flows.json }}\n"))
}

fn reset(lb: &mut DataPlane, client: &str) {
    let frame = request(client, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(lb, Port::Tenant, &frame);
}

/// Kind and id of each.
fn facts(events: &[FlowEvent]) -> Vec<(u32, u32)> {
    events.iter().map(|event| (event.kind, event.id)).collect()
}

#[privileged_test]
fn a_record_says_when_it_was_made() {
    let mut lb = logged();
    let id = DataPlane::flow_id(1024);
    let started = coarse_now().expect("a clock");
    establish(&mut lb, CLIENT_A, 1024);
    let between = coarse_now().expect("a clock");
    // Longer than the clock is coarse.
    thread::sleep(Duration::from_millis(50));
    let ending = coarse_now().expect("a clock");
    let fin = request(CLIENT_A, API, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &fin);
    let fin = reply(1024, FIN_ACK).numbers(BACKEND_ISN + 1, CLIENT_ISN + 2);
    forwarded(&mut lb, Port::Mgmt, &fin);
    let over = coarse_now().expect("a clock");

    let events = lb.events();
    assert_eq!(facts(&events), [(BEGAN, id), (FINISHED, id)]);
    assert!((started..=between).contains(&events[0].time), "{events:?}");
    assert!((ending..=over).contains(&events[1].time), "{events:?}");
}

#[privileged_test]
fn a_flow_that_outlives_what_its_vip_listens_on_is_reported() {
    let mut lb = logged();
    let id = DataPlane::flow_id(1024);
    establish(&mut lb, CLIENT_A, 1024);
    for (key, _) in &lb.desired.services {
        lb.maps.services.remove(key).expect("a service");
    }
    reset(&mut lb, CLIENT_A);
    let events = lb.events();
    assert_eq!(facts(&events), [(BEGAN, id), (RESET_BY_CLIENT, id)]);
}

#[privileged_test]
fn without_a_flow_log_nothing_is_reported() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    reset(&mut lb, CLIENT_A);
    assert_eq!(lb.events(), []);
}
