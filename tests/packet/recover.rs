//! Ids that a killed process has lost come back into their queue, and no other.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::Result;
use lb_common::{conntrack::State, maps::snat::FIRST_FLOW_PORT};
use lb_tests::{
    frames::packet::flags::*,
    product::program::{Action, DataPlane, IDS, Port},
};
use lb_user::{
    config::Snat,
    control::reclaim::lost_ids::recover,
    model::{registry::Ids, snat::SnatSlot},
};

use super::given::*;

/// The only SNAT address.
fn slot() -> SnatSlot {
    let snat = Snat {
        address: "10.32.96.50".parse().expect("an address"),
        first_port: FIRST_FLOW_PORT,
        ports: u16::try_from(IDS).expect("as many as there are ports"),
    };
    SnatSlot::new(0, snat, &Ids::default())
}

#[privileged_test]
fn lost_ids_come_back_behind_all_others() {
    let mut lb = DataPlane::new(CONFIG);
    let table = lb.flow_table();
    for port in [1024, 1025, 1026] {
        establish(&mut lb, &format!("192.168.203.50:{port}"), port);
    }
    // 1024 lives; 1025 was closed by XDP, 1026 ended by the expiry; 1030 was never used.
    let [live, closed, ended, unused] = [1024, 1025, 1026, 1030].map(DataPlane::flow_id);
    for (id, word) in [(closed, true), (ended, false)].map(|(id, closes)| {
        let word = table.word(id).expect("an entry");
        (
            id,
            [word, if closes { word.close() } else { word.forget() }],
        )
    }) {
        assert!(table.swap(id, word[0], word[1]));
    }
    assert_eq!(
        table.word(ended).map(|word| word.state()),
        Some(State::Free)
    );
    let mut kept = lb.drain_free_ids();
    kept.retain(|id| *id != unused);
    lb.give_free_ids(&kept);
    assert_eq!(kept.len(), IDS - 4);

    assert_eq!(
        recover(&lb.maps, lb.object(), &table, &slot()).expect("a turn"),
        3
    );
    assert_eq!(
        recover(&lb.maps, lb.object(), &table, &slot()).expect("a turn"),
        0
    );

    let queued = lb.drain_free_ids();
    let different: BTreeSet<u32> = queued.iter().copied().collect();
    assert_eq!([queued.len(), different.len()], [IDS - 1; 2]);
    assert!(!different.contains(&live));
    // Each turn ends with the id that it began with, and there were three.
    assert_eq!(queued[..kept.len() - 3], kept[3..]);
    let ack = request("192.168.203.50:1024", API, ACK_ONLY).numbers(1001, 5001);
    forwarded(&mut lb, Port::Tenant, &ack);
}

/// Beside a client that opens connections and resets them: each takes an id and returns it at once.
#[privileged_test]
fn ids_that_come_and_go_meanwhile_are_not_doubled() {
    const TURNS: usize = 30;
    let lb = DataPlane::alone(CONFIG);
    let (table, churning) = (lb.flow_table(), AtomicBool::new(true));
    let frames = [(SYN_ONLY, CLIENT_ISN), (RST_ONLY, CLIENT_ISN + 1)]
        .map(|(flags, number)| request(CLIENT_A, API, flags).numbers(number, 0).bytes());
    let churned = thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let (nic, _) = lb.on_all_cpus();
            let mut churned = 0;
            while churning.load(Ordering::Relaxed) {
                for frame in &frames {
                    assert_eq!(nic.run(Port::Tenant, frame).0, Action::Redirect);
                }
                churned += 1;
            }
            churned
        });
        let turn = |_| recover(&lb.maps, lb.object(), &table, &slot());
        let lost: Result<Vec<usize>> = (0..TURNS).map(turn).collect();
        churning.store(false, Ordering::Relaxed);
        assert_eq!(lost.expect("all turns"), [0; TURNS], "none is lost");
        churn.join().expect("no panic")
    });
    assert!(churned > 1000, "{churned} ids taken meanwhile prove little");
    let queued = lb.drain_free_ids();
    let different: BTreeSet<u32> = queued.iter().copied().collect();
    assert_eq!([queued.len(), different.len()], [IDS; 2]);
}
