//! Splices have a number that is a limit of its own: which flow has which.

use std::{collections::BTreeSet, thread};

use lb_common::{
    conntrack::{FlowState, State},
    maps::{flow::Flow, splice::Splice},
};
use lb_tests::product::program::DataPlane;
use lb_user::dataplane::{
    replicas::{Placed, Replica},
    splices::{FlowNumbers, NoSplice, SpliceTable},
};

use super::replicas::replicas;

/// Room for three connections that are handed over.
const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
limits: { handed_over: 3 }
";

fn id(number: u16) -> u32 {
    DataPlane::flow_id(1024 + number)
}

/// Changes the word of a flow, and gives the new one.
fn change(lb: &DataPlane, id: u32, to: impl FnOnce(FlowState) -> FlowState) -> FlowState {
    let word = lb.flow_table().word(id).expect("an entry");
    let new = to(word);
    assert!(lb.flow_table().swap(id, word, new));
    new
}

/// A flow that is held.
fn held(lb: &DataPlane, id: u32) -> FlowState {
    change(lb, id, |word| word.claim(false).lend().hold())
}

/// A flow that was handed over with a name.
fn handed(
    lb: &DataPlane,
    splices: &SpliceTable,
    id: u32,
    name: &str,
) -> Result<FlowState, NoSplice> {
    let word = held(lb, id);
    splices.set(id, word, &numbered(id), name.as_bytes())?;
    Ok(change(lb, id, |word| word.splice().release()))
}

/// A splice that its flow is known by.
fn numbered(id: u32) -> Splice {
    Splice {
        sent_end: id,
        ..Splice::default()
    }
}

fn sent_end(splices: &SpliceTable, id: u32, word: FlowState) -> Option<u32> {
    Some(splices.get(id, word)?.sent_end)
}

/// As many flows have a splice as the limit says; a flow that is over gives its own to the next one, and its name goes.
#[privileged_test]
fn a_splice_is_its_flows_until_that_is_over() {
    let lb = DataPlane::new(CONFIG);
    assert_eq!(lb.maps.limits().handed_over, 3);
    let splices = lb.splices();
    let names = ["kas-a.example", "kas-b.example", ""];
    let words = [0, 1, 2].map(|number| {
        let word = handed(&lb, &splices, id(number), names[usize::from(number)]);
        word.expect("room")
    });
    assert_eq!(handed(&lb, &splices, id(3), "kas-c.example"), Err(NoSplice));
    for (number, word) in (0..).zip(words) {
        assert_eq!(sent_end(&splices, id(number), word), Some(id(number)));
        let name = names[usize::from(number)];
        let known = (!name.is_empty()).then(|| name.to_owned());
        assert_eq!(splices.name(id(number), word), known);
    }
    change(&lb, id(1), FlowState::close);
    let word = held(&lb, id(4));
    assert_eq!(
        splices.set(id(4), word, &numbered(id(4)), b"kas-d.example"),
        Ok(())
    );
    let word = change(&lb, id(4), FlowState::splice);
    assert_eq!(sent_end(&splices, id(4), word), Some(id(4)));
    assert_eq!(splices.name(id(4), word).as_deref(), Some("kas-d.example"));
    assert_eq!(sent_end(&splices, id(1), words[1]), None);
    assert_eq!(splices.name(id(1), words[1]), None);
    assert_eq!(sent_end(&splices, id(0), words[0]), Some(id(0)));
    assert_eq!(splices.name(id(0), words[0]).as_deref(), Some(names[0]));
    assert_eq!(handed(&lb, &splices, id(5), ""), Err(NoSplice));
}

/// A replica of one waits as long as no splice is free, and has its name when one is.
#[privileged_test]
fn a_replica_takes_a_splice() {
    let lb = DataPlane::alone(CONFIG);
    let splices = lb.splices();
    for number in 0..3 {
        handed(&lb, &splices, id(number), "").expect("room");
    }
    let replica = Replica {
        word: FlowState::default().claim(false).splice(),
        flow: Flow::default(),
        client: None,
        numbers: Some(FlowNumbers::HandedOver(numbered(9))),
        name: "kas-d.example".to_owned(),
    };
    let mut replicas = replicas(&lb);
    assert_eq!(replicas.place(id(3), &replica), Placed::Busy);
    let state = lb.flow_table().word(id(3)).map(FlowState::state);
    assert_eq!(state, Some(State::Free));
    change(&lb, id(1), FlowState::close);
    assert_eq!(replicas.place(id(3), &replica), Placed::Ready);
    let word = lb.flow_table().word(id(3)).expect("an entry");
    assert_eq!(sent_end(&splices, id(3), word), Some(9));
    assert_eq!(splices.name(id(3), word).as_deref(), Some("kas-d.example"));
}

/// An id that is handed over again, by another splice, keeps its new name when the earlier splice goes to another flow.
#[privileged_test]
fn an_id_that_is_handed_over_again_keeps_its_new_name() {
    let lb = DataPlane::new(CONFIG);
    let splices = lb.splices();
    handed(&lb, &splices, id(0), "before.example").expect("room");
    change(&lb, id(0), FlowState::close);
    let word = handed(&lb, &splices, id(0), "now.example").expect("room");
    for number in 1..3 {
        handed(&lb, &splices, id(number), "other.example").expect("room");
    }
    assert_eq!(splices.name(id(0), word).as_deref(), Some("now.example"));
    assert_eq!(sent_end(&splices, id(0), word), Some(id(0)));
}

/// Two processes, of which one takes over from the other, hand over at once: no splice is of two flows.
#[privileged_test]
fn two_processes_give_no_splice_to_two_flows() {
    const FLOWS: u16 = 400;
    let config = CONFIG.replace("handed_over: 3", "handed_over: 800");
    let lb = DataPlane::new(&config);
    let flows: Vec<_> = (0..2 * FLOWS)
        .map(|number| (id(number), held(&lb, id(number))))
        .collect();
    let tables = [lb.splices(), lb.splices()];
    thread::scope(|scope| {
        for (table, flows) in tables.iter().zip(flows.chunks(FLOWS.into())) {
            scope.spawn(move || {
                for (id, word) in flows {
                    assert_eq!(table.set(*id, *word, &numbered(*id), b""), Ok(()));
                }
            });
        }
    });
    let spliced = |(id, word): &(u32, FlowState)| sent_end(&tables[0], *id, word.splice());
    let found: BTreeSet<_> = flows.iter().filter_map(spliced).collect();
    assert_eq!(found, flows.iter().map(|(id, _)| *id).collect());
}
