//! How the backends of a pool are chosen, by each algorithm of `balance`.

use std::collections::BTreeMap;

use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{CLIENT, DataPlane, Port, TENANT_NIC},
};
use lb_user::dataplane::flows::UsageTable;

use super::{answer::assert_reset, given::*};

/// Last bytes of the addresses of three backends, with their weights.
const BACKENDS: [(u8, u32); 3] = [(105, 1), (107, 2), (108, 1)];

/// A data plane whose pool has these backends, and this `balance`.
fn plane(balance: &str) -> DataPlane {
    let backends = BACKENDS.map(|(host, weight)| {
        format!("{{ address: \"10.32.96.{host}:30918\", weight: {weight} }}")
    });
    let backends = format!("backends: [{}], balance: {balance}", backends.join(", "));
    DataPlane::new(&CONFIG.replace(r#"backends: ["10.32.96.105:30918"]"#, &backends))
}

/// How many of these clients' flows go to each backend.
fn chosen(lb: &mut DataPlane, clients: impl Iterator<Item = String>) -> BTreeMap<u8, u32> {
    let mut counts = BTreeMap::new();
    for client in clients {
        let syn = request(&client, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
        let sent = forwarded(lb, Port::Tenant, &syn);
        *counts.entry(sent[33]).or_default() += 1;
    }
    counts
}

/// A thousand flows of one client.
fn of_one() -> impl Iterator<Item = String> {
    (20_000..21_000).map(|port| format!("192.168.203.50:{port}"))
}

/// Pearson's statistic of what was counted against the weights.
fn chi_square(counts: &BTreeMap<u8, u32>) -> f64 {
    let total: u32 = counts.values().sum();
    let weights: u32 = BACKENDS.iter().map(|(_, weight)| weight).sum();
    let terms = BACKENDS.map(|(host, weight)| {
        let expected = f64::from(total * weight) / f64::from(weights);
        let found = f64::from(counts.get(&host).copied().unwrap_or(0));
        (found - expected).powi(2) / expected
    });
    terms.iter().sum()
}

/// The live flows of each backend, by the last byte of its address.
fn live(lb: &DataPlane) -> BTreeMap<u8, u32> {
    let table = UsageTable::open(&lb.maps_folder()).expect("the numbers");
    let backends = lb.desired.backends.iter();
    let of_pool = backends.filter(|(_, backend)| backend.port.get() == 30918);
    let count = |id| table.backends().get(id).expect("a count");
    of_pool
        .map(|(id, backend)| (backend.address.get().to_be_bytes()[3], count(*id)))
        .collect()
}

/// Gives a backend more live flows than it has.
fn add_flows(lb: &DataPlane, host: u8, flows: i32) {
    let table = UsageTable::open(&lb.maps_folder()).expect("the numbers");
    let mut backends = lb.desired.backends.iter();
    let is_it = |backend: &lb_common::maps::backend::Backend| {
        backend.address.get().to_be_bytes()[3] == host && backend.port.get() == 30918
    };
    let (id, _) = backends.find(|(_, backend)| is_it(backend)).expect("it");
    table.backends().add(*id, flows);
}

/// A12: a thousand flows of one client by each algorithm: with `source` they stay together, and with the others they go
/// by weight. 13.82 has a probability of 0.1 % for three backends.
#[privileged_test]
fn a_thousand_flows_go_by_weight_with_each_algorithm() {
    for balance in ["maglev", "round-robin", "least-connections"] {
        let mut lb = plane(balance);
        let counts = chosen(&mut lb, of_one());
        let found = chi_square(&counts);
        assert!(found < 13.82, "{balance}: {counts:?}, chi-square {found}");
    }
    let mut lb = plane("source");
    let counts = chosen(&mut lb, of_one());
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [1000]);
    let clients = (1..=250).map(|host| format!("192.168.203.{host}:40000"));
    let counts = chosen(&mut lb, clients.filter(|client| !client.contains(".110:")));
    let found = chi_square(&counts);
    assert!(
        found < 13.82,
        "of 249 clients: {counts:?}, chi-square {found}"
    );
}

/// Round robin is exact: each weight is so many turns of four.
#[privileged_test]
fn backends_take_turns_by_their_weights() {
    let mut lb = plane("round-robin");
    let counts = chosen(&mut lb, of_one());
    assert_eq!(counts, BTreeMap::from([(105, 250), (107, 500), (108, 250)]));
}

/// Of two random choices the one with fewer flows for its weight: a busy backend has what is chosen twice.
#[privileged_test]
fn a_busy_backend_gets_fewer_flows() {
    let mut lb = plane("least-connections");
    add_flows(&lb, 107, 100);
    let counts = chosen(&mut lb, of_one());
    // Half of the table is its own, so 250 of 1000; five standard deviations are 69.
    assert!((181..=319).contains(&counts[&107]), "{counts:?}");

    // 100 flows for a weight of 2 are fewer than 60 for one of 1.
    let mut lb = plane("least-connections");
    add_flows(&lb, 107, 100);
    add_flows(&lb, 105, 60);
    add_flows(&lb, 108, 60);
    let counts = chosen(&mut lb, of_one());
    // All but what is chosen of the others twice, a quarter of 1000.
    assert!((681..=819).contains(&counts[&107]), "{counts:?}");
}

/// A count that a crash has made wrong may be below zero.
#[privileged_test]
fn a_count_below_zero_is_none() {
    let mut lb = plane("least-connections");
    add_flows(&lb, 107, -100);
    let found = chi_square(&chosen(&mut lb, of_one()));
    assert!(found < 13.82, "{found}");
}

/// A flow counts for its backend from when it is established until it ends.
#[privileged_test]
fn live_flows_are_counted_for_their_backend() {
    let mut lb = DataPlane::new(CONFIG);
    assert_eq!(live(&lb), BTreeMap::from([(105, 0)]));
    let syn = request("192.168.203.50:20000", API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    assert_eq!(live(&lb), BTreeMap::from([(105, 0)]), "half-open");
    establish(&mut lb, CLIENT_A, 1025);
    establish(&mut lb, CLIENT_B, 1026);
    assert_eq!(live(&lb), BTreeMap::from([(105, 2)]));
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    assert_eq!(live(&lb), BTreeMap::from([(105, 1)]));
}

/// A backend without a next hop is passed over, whatever has chosen its entry.
#[privileged_test]
fn what_has_no_next_hop_is_passed_over() {
    for balance in ["round-robin", "least-connections", "source"] {
        let mut lb = plane(balance);
        let backends = lb.desired.backends.clone();
        let is_it = |it: &lb_common::maps::backend::Backend| {
            it.address.get().to_be_bytes()[3] == 107 && it.port.get() == 30918
        };
        let (id, backend) = backends.into_iter().find(|(_, it)| is_it(it)).expect("it");
        lb.maps.backends.set(id, &backend, 0).expect("a write");
        let clients = (20_000..20_200).map(|port| format!("192.168.203.50:{port}"));
        let mut reached = 0;
        for client in clients {
            let syn = request(&client, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
            let outcome = lb.receive(Port::Tenant, &syn.bytes());
            reached +=
                u32::from(!outcome.counted.2.starts_with("refused") && outcome.frame[33] != 107);
            assert_ne!(outcome.frame[33], 107, "{balance}");
        }
        assert!(reached > 0, "{balance}");
    }
}

/// A backend that has as many flows as it may is passed over, whatever has chosen its entry; where all have, the client is
/// refused.
#[privileged_test]
fn a_full_backend_gets_no_flow() {
    let clients = |first| (first..first + 200).map(|port| format!("192.168.203.50:{port}"));
    for balance in ["maglev", "round-robin", "least-connections", "source"] {
        let mut lb = plane(&format!("{balance}, max_connections: 2"));
        add_flows(&lb, 105, 2);
        add_flows(&lb, 107, 1);
        add_flows(&lb, 108, 3);
        let counts = chosen(&mut lb, clients(20_000));
        assert_eq!(counts, BTreeMap::from([(107, 200)]), "{balance}");

        add_flows(&lb, 107, 1);
        let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
        let answer = assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "backends_full");
        let wanted = tcp(API, CLIENT_A, RST_ACK).numbers(0, CLIENT_ISN + 1);
        assert_reset(&Family::V4, &answer, wanted.between(TENANT_NIC, CLIENT));

        add_flows(&lb, 108, -2);
        let counts = chosen(&mut lb, clients(21_000));
        assert_eq!(counts, BTreeMap::from([(108, 200)]), "{balance}");
    }
}

/// A flow counts when it is established, and leaves room when it ends.
#[privileged_test]
fn a_limit_goes_by_established_flows() {
    let one = r#"backends: ["10.32.96.105:30918"]"#;
    let mut lb = DataPlane::new(&CONFIG.replace(one, &format!("{one}, max_connections: 1")));
    establish(&mut lb, CLIENT_A, 1024);
    let syn = request(CLIENT_B, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "backends_full");
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data);
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    establish(&mut lb, CLIENT_B, 1025);
}
