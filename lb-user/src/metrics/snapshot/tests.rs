//! What of the counts becomes a row, and what does not.

use lb_common::verdict::SLOTS;

use super::*;

#[test]
fn verdicts_are_those_of_status() {
    let mut counters = [0; SLOTS as usize];
    let mut set = |slot: u32, count| counters[slot as usize] = count;
    set(Verdict::Passed.slot(), 1);
    set(Verdict::Transmitted.slot(), 2);
    set(Verdict::Returned.slot(), 3);
    set(Verdict::Forwarded.slot(), 4);
    set(Verdict::Delivered.slot(), 5);
    set(Verdict::Consumed.slot(), 9);
    set(Verdict::Dropped(DropReason::NoService).slot(), 6);
    set(refusal_slot(DropReason::NoService as u32, true), 7);
    set(Verdict::Dropped(DropReason::Malformed).slot(), 8);
    let mut snapshot = MetricsSnapshot::default();
    add_verdicts("a", Hook::Cell, &counters, &mut snapshot);
    let frames = snapshot.frames.iter();
    let frames: Vec<_> = frames.map(|row| (row.verdict, row.count)).collect();
    let wanted = [
        ("passed", 1),
        ("transmitted", 5),
        ("forwarded", 4),
        ("delivered", 5),
        ("consumed", 9),
        ("dropped", 14),
        ("refused", 7),
    ];
    assert_eq!(frames, wanted);
    let reasons = snapshot.reasons.iter();
    let reasons: Vec<_> = reasons
        .map(|row| (row.reason, row.dropped, row.answered))
        .collect();
    assert_eq!(reasons, [("malformed", 8, 0), ("no_service", 6, 7)]);
    assert!(
        snapshot
            .frames
            .iter()
            .all(|row| row.hook == "cell" && row.network == "a")
    );
}

/// RELIABILITY 36: what a client sends is no label.
#[test]
fn r36_the_names_that_clients_request_are_no_labels() {
    let mut counted = ServiceStats {
        accepted: 9,
        routed: 4,
        handed_over: 3,
        bound: 7,
        ..ServiceStats::default()
    };
    counted.copy("requests");
    counted.refuse("no_match");
    counted.refuse_request("bad_request");
    counted.unrouted("evil\",x=\"1");
    counted.refuse("Not A Reason\n");
    let mut snapshot = MetricsSnapshot::default();
    add_shared("web", &counted, &mut snapshot);
    let outcomes = snapshot.outcomes.iter();
    let outcomes: Vec<_> = outcomes
        .map(|row| (row.outcome, row.reason.as_str(), row.count))
        .collect();
    let wanted = [
        ("bound", "", 7),
        ("handed_over", "", 3),
        ("copied", "requests", 1),
        ("refused", "other", 1),
        ("refused", "no_match", 1),
    ];
    assert_eq!(outcomes, wanted);
    assert_eq!(snapshot.requests[0].reason, "bad_request");
    assert!(!format!("{snapshot:?}").contains("evil"));
}
