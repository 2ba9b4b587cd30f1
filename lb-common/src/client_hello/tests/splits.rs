//! The same hello however it is split, over segments and over records.

use std::time::{Duration, Instant};

use super::{
    super::{HelloRefusal, MAX_STREAM},
    Chance, Draft, HelloVerdict, MAX_HELLO, Reading, body_of, captures, in_segments, message,
    parse, record, records, stream,
};

/// The verdict that is expected of a hello that has been put in other records.
fn moved<'a>(verdict: &HelloVerdict<'a>, length: usize) -> HelloVerdict<'a> {
    match verdict.clone() {
        HelloVerdict::Found(mut hello) => {
            hello.length = length;
            HelloVerdict::Found(hello)
        }
        other => other,
    }
}

#[test]
fn every_prefix_and_every_byte_by_itself() {
    for capture in captures::all() {
        let whole = parse(&capture.stream);
        let HelloVerdict::Found(hello) = &whole else {
            panic!("{}", capture.name);
        };
        for end in 0..hello.length {
            let verdict = parse(&capture.stream[..end]);
            assert!(
                matches!(verdict, HelloVerdict::Incomplete { .. }),
                "{}: {end}",
                capture.name
            );
        }
        let bytes = in_segments(&capture.stream, 0..=capture.stream.len());
        assert_eq!(bytes, whole, "{}", capture.name);
    }
}

/// As much as is still needed is what comes: each read takes it, and has the hello in a few.
#[test]
fn what_is_needed_leads_to_the_end() {
    for capture in captures::all() {
        let (message, _) = capture.parts();
        let mut reading = Reading::default();
        let mut end = 0;
        let mut reads = 0;
        while let HelloVerdict::Incomplete { at_least } = reading.go_on(&capture.stream[..end]) {
            end += at_least;
            reads += 1;
            assert!(reads < 10, "{}", capture.name);
        }
        assert_eq!(end, capture.stream.len() - capture.parts().1.len());
        assert_eq!(reads, 2, "{} of {} bytes", capture.name, message.len());
    }
}

#[test]
fn every_split_into_two_records() {
    for capture in captures::all() {
        let (message, behind) = capture.parts();
        let whole = parse(&capture.stream);
        if message.len() > 1 << 14 {
            continue;
        }
        for at in 1..message.len() {
            let (first, second) = message.split_at(at);
            let mut stream = [record(first), record(second)].concat();
            let length = stream.len();
            stream.extend(&behind);
            assert_eq!(
                parse(&stream),
                moved(&whole, length),
                "{}: {at}",
                capture.name
            );
        }
    }
}

#[test]
fn any_number_of_records_and_segments() {
    let mut chance = Chance::new(5);
    for capture in captures::all() {
        let (message, behind) = capture.parts();
        let whole = parse(&capture.stream);
        for count in 2..=50 {
            let most = (2 * message.len() / count).clamp(1, 1 << 14);
            let mut stream = records(&message, |_| 1 + chance.below(most));
            let length = stream.len();
            stream.extend(&behind);
            let mut ends: Vec<_> = (0..20).map(|_| chance.below(stream.len())).collect();
            ends.sort_unstable();
            let verdict = in_segments(&stream, ends);
            assert_eq!(verdict, moved(&whole, length), "{}: {count}", capture.name);
        }
    }
}

#[test]
fn one_byte_in_each_record() {
    for capture in captures::all() {
        let (message, _) = capture.parts();
        let stream = records(&message, |_| 1);
        let verdict = in_segments(&stream, (0..stream.len()).step_by(1 + stream.len() / 200));
        assert_eq!(
            verdict,
            moved(&parse(&capture.stream), stream.len()),
            "{}",
            capture.name
        );
    }
}

/// Whatever is behind, in the same record or in others, is not looked at.
#[test]
fn bytes_behind_are_left_alone() {
    let draft = Draft::named(&[(0, b"a.test")]);
    let whole = draft.verdict();
    let length = draft.stream().len();
    for behind in [
        &[22][..],
        b"\x14\x03\x03\0\x01\x01",
        b"GET / HTTP/1.0",
        &vec![0; 70_000],
    ] {
        let stream = [&draft.stream(), behind].concat();
        assert_eq!(parse(&stream), whole);
    }
    let together = record(&[message(&draft.body()), vec![1, 0xff, 0xff, 0xff]].concat());
    assert_eq!(parse(&together), moved(&whole, length));
}

#[test]
fn the_longest_hello() {
    let stream = stream(&body_of(MAX_HELLO));
    assert_eq!(MAX_HELLO, 131_396);
    assert_eq!(stream.len(), 4 + MAX_HELLO + 5 * 9);
    let found = in_segments(&stream, (0..stream.len()).step_by(1000));
    assert!(matches!(found, HelloVerdict::Found(hello) if hello.length == stream.len()));
    // One more byte than that is too much, and known from the head.
    let head = [22, 3, 1, 0x40, 0, 1, 2, 1, 0x45];
    assert_eq!(parse(&head), HelloVerdict::Refused(HelloRefusal::Long));
    assert_eq!(parse(&head[..8]), HelloVerdict::Incomplete { at_least: 1 });
    assert_eq!(
        parse(&[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff]),
        HelloVerdict::Refused(HelloRefusal::Long)
    );
}

/// Records are no part of a hello: what a service takes is counted without them.
#[test]
fn a_limit_is_for_the_message() {
    let stream = records(&message(&body_of(21_000)), |_| 1);
    let verdict = |most| Reading::up_to(most).go_on(&stream);
    assert!(matches!(verdict(21_000), HelloVerdict::Found(hello) if hello.length == 6 * 21_004));
    assert_eq!(verdict(20_999), HelloVerdict::Refused(HelloRefusal::Long));
    let head = [22, 3, 1, 0x40, 0, 1, 2, 1, 0x45];
    let refused = Reading::up_to(usize::MAX).go_on(&head);
    assert_eq!(refused, HelloVerdict::Refused(HelloRefusal::Long));
}

/// A hello with its records may take that many bytes, and not one more.
#[test]
fn the_longest_stream() {
    // So many records of one byte, and then long ones.
    let spread = |length: usize, mut short: usize| {
        records(&message(&body_of(length)), |_| {
            let is_short = short > 0;
            short = short.saturating_sub(1);
            if is_short { 1 } else { 1 << 14 }
        })
    };
    let most = spread(MAX_HELLO - 3, 26_272);
    assert_eq!(most.len(), MAX_STREAM);
    assert!(matches!(parse(&most), HelloVerdict::Found(hello) if hello.length == most.len()));
    let more = spread(MAX_HELLO - 2, 26_272);
    assert_eq!(more.len(), MAX_STREAM + 1);
    let refused = HelloVerdict::Refused(HelloRefusal::Scattered);
    assert_eq!(parse(&more), refused);
    assert_eq!(in_segments(&more, (0..more.len()).step_by(10_000)), refused);
}

/// A client that sends 20 kB in single bytes, and each in a record by itself, costs as much as its
/// bytes: to walk from the first record each time would be a billion records.
#[test]
fn single_bytes_cost_little() {
    let capture = captures::all()
        .into_iter()
        .find(|capture| capture.stream.len() > 20_000);
    let stream = records(&capture.unwrap().parts().0, |_| 1);
    let began = Instant::now();
    let mut reading = Reading::default();
    for end in 0..stream.len() {
        assert!(began.elapsed() < Duration::from_secs(2), "at byte {end}");
        assert!(matches!(
            reading.go_on(&stream[..end]),
            HelloVerdict::Incomplete { .. }
        ));
    }
    assert!(matches!(reading.go_on(&stream), HelloVerdict::Found(_)));
}
