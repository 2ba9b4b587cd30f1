//! Records of services are written on one CPU while first packets to one of them come on the other.
//!
//! A record that is written anew leaves its memory behind, which the next one of another key takes at once: a
//! packet that has found the first reads the second.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use lb_common::maps::service::Service;
use lb_tests::{
    frames::packet::flags::*,
    product::{
        cpu,
        program::{Action, Port},
    },
};

use super::stage::{Talk, data_plane, duration};

/// Ids: more than the ring of half-open flows has places.
const IDS: usize = 128;
/// How often both records are written within one system call.
const TIMES: usize = 64;
/// First packets that were forwarded: fewer prove little.
const LEAST: u32 = 1000;

#[privileged_test]
fn no_flow_goes_to_the_backend_of_a_service_whose_record_was_written_meanwhile() {
    let (lb, _) = data_plane(IDS);
    let record = |key| lb.maps.services.get(key, 0).expect("a record");
    let keys: Vec<_> = lb.desired.services.keys().copied().take(2).collect();
    let records = keys.iter().map(record).collect::<Vec<_>>();
    let (keys, records) = (keys.repeat(TIMES), records.repeat(TIMES));
    let (nic, _) = lb.on_all_cpus();
    let map = &lb.raw_maps()["SERVICES"];
    let cpus = cpu::two().expect("two CPUs");
    let done = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            cpu::bind(cpus[0]).expect("a CPU of this process");
            while !done.load(Ordering::Relaxed) {
                map.write_entries(&keys, &records).expect("room for both");
            }
        });
        let packets = scope.spawn(|| {
            cpu::bind(cpus[1]).expect("a CPU of this process");
            let (start, mut counted) = (Instant::now(), [0, 0]);
            for round in 0.. {
                let talk = Talk {
                    service: 0,
                    client: (round % 4) as u8,
                    port: 20_000 + (round / 4 % 20_000) as u16,
                };
                let (action, out) = nic.run(Port::Tenant, &talk.request(SYN_ONLY, round, 0));
                match action {
                    // Its backend is this service's.
                    Action::Redirect => drop(talk.sent_from(&out)),
                    Action::Drop => {}
                    other => panic!("{other:?} of a first packet"),
                }
                counted[usize::from(action == Action::Drop)] += 1;
                if round % 256 == 0 && start.elapsed() >= duration() {
                    break;
                }
            }
            counted
        });
        let counted = packets.join();
        done.store(true, Ordering::Relaxed);
        writer.join().expect("the writer is content");
        counted.expect("each went to its own backend")
    });
    let [forwarded, dropped]: [u32; 2] = counted;
    println!("{forwarded} first packets went to their backend, {dropped} were dropped");
    println!("{:?}", lb.counters());
    assert!(forwarded > LEAST, "{forwarded} prove little");
}

/// What is left of the race, standing still: under the key of one service is the record of another.
#[privileged_test]
fn a_record_with_the_mark_of_another_key_opens_no_flow() {
    let (mut lb, _) = data_plane(IDS);
    let mut keys = lb.desired.services.keys().copied();
    let (Some(key), Some(other)) = (keys.next(), keys.next()) else {
        panic!("two services");
    };
    let own = lb.maps.services.get(&key, 0).expect("a record");
    let foreign = lb.maps.services.get(&other, 0).expect("a record");
    let talk = |client| Talk {
        service: 0,
        client,
        port: 20_000,
    };
    let syn = |client| talk(client).request(SYN_ONLY, 1000, 0);

    lb.maps.services.insert(&key, &foreign, 0).expect("a write");
    let outcome = lb.receive(Port::Tenant, &syn(0));
    assert_eq!(outcome.counted.2, "flow_race");
    // A record of an earlier version has none.
    let unmarked = Service { mark: 0, ..own };
    for record in [unmarked, own] {
        lb.maps.services.insert(&key, &record, 0).expect("a write");
        let outcome = lb.receive(Port::Tenant, &syn(1));
        assert_eq!(outcome.action, Action::Redirect);
        talk(1).sent_from(&outcome.frame);
    }
}
