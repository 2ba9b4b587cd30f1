//! Hellos with mutated bytes: nothing panics, and no name comes out that is none.

use super::{Chance, HelloVerdict, MAX_HELLO, Reading, ServerName, captures, glances, parse};

/// The verdict on any bytes whatever: once, in pieces, and with more behind.
fn check(stream: &[u8], cut: usize) {
    let verdict = parse(stream);
    match &verdict {
        HelloVerdict::Incomplete { at_least } => assert!((1..=MAX_HELLO * 2).contains(at_least)),
        HelloVerdict::Found(hello) => {
            assert!(hello.length <= stream.len());
            if let Some(name) = &hello.name {
                let name = name.as_str();
                assert!((1..=253).contains(&name.len()));
                assert!(
                    name.bytes()
                        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.'))
                );
                assert_eq!(ServerName::read(name.as_bytes()).unwrap().as_str(), name);
            }
            assert!(matches!(
                parse(&stream[..hello.length - 1]),
                HelloVerdict::Incomplete { .. }
            ));
            assert_eq!(parse(&stream[..hello.length]), verdict);
        }
        HelloVerdict::Refused(refusal) => assert!(!refusal.to_string().is_empty()),
    }
    glances::check(&stream[..cut]);
    glances::check(stream);
    let mut reading = Reading::default();
    let early = reading.go_on(&stream[..cut]);
    assert!(early == verdict || matches!(early, HelloVerdict::Incomplete { .. }));
    assert_eq!(reading.go_on(stream), verdict);
    assert_eq!(reading.go_on(stream), verdict);
}

/// Each byte of each capture: one bit, all bits, and any.
#[test]
fn each_byte_once() {
    let mut chance = Chance::new(7);
    for capture in captures::all() {
        let mut stream = capture.stream.clone();
        for at in 0..stream.len().min(2500) {
            for flip in [0x01, 0xff, 1 + chance.byte() % 255] {
                stream[at] ^= flip;
                check(&stream, at);
                stream[at] ^= flip;
            }
        }
    }
}

#[test]
fn many_changes_at_once() {
    let mut chance = Chance::new(0x1b9d_3d1c_6a09_e667);
    let captures = captures::all();
    let (mut found, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let capture = &captures[chance.below(captures.len())];
        let mut stream = capture.stream[..capture.stream.len().min(2500)].to_vec();
        for _ in 0..=chance.below(4) {
            change(&mut stream, &mut chance);
        }
        check(&stream, chance.below(stream.len() + 1));
        match parse(&stream) {
            HelloVerdict::Found(_) => found += 1,
            HelloVerdict::Refused(_) => refused += 1,
            HelloVerdict::Incomplete { .. } => {}
        }
    }
    // Enough of both, or the changes are of no use.
    assert!(
        found > 10_000 && refused > 10_000,
        "{found} found, {refused} refused"
    );
}

/// Changes, takes out, puts in or doubles bytes anywhere.
fn change(stream: &mut Vec<u8>, chance: &mut Chance) {
    if stream.is_empty() {
        return;
    }
    let at = chance.below(stream.len());
    let end = (at + 1 + chance.below(8)).min(stream.len());
    match chance.below(6) {
        0 => stream.truncate(at),
        1 => drop(stream.drain(at..end)),
        2 => stream.insert(at, chance.byte()),
        3 => {
            let again = stream[at..end].to_vec();
            stream.splice(at..at, again);
        }
        4 => stream[at] = [0, 1, 0xff, b'.', b'/'][chance.below(5)],
        _ => stream[at] = chance.byte(),
    }
}
