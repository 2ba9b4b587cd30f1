//! Hellos out of any bytes.

use lb_common::{
    client_hello::{HelloRefusal, HelloVerdict, Reading, glance::glance, parse},
    server_name::ServerName,
};

use crate::each_input;

#[test]
fn client_hello() {
    each_input(|how, input| {
        let message = message(how, input);
        let stream = if how & 1 == 0 {
            records(how, &message)
        } else {
            message.clone()
        };
        let verdict = parse(&stream);
        let mut reading = Reading::default();
        for end in (0..stream.len()).step_by(1 + usize::from(how >> 3)) {
            match reading.go_on(&stream[..end]) {
                HelloVerdict::Incomplete { at_least } => assert!(at_least > 0),
                early => assert_eq!(early, verdict),
            }
        }
        assert_eq!(reading.go_on(&stream), verdict);
        look(&stream, &verdict);
        let HelloVerdict::Found(hello) = verdict else {
            return false;
        };
        let before = parse(&stream[..hello.length - 1]);
        assert_eq!(before, HelloVerdict::Incomplete { at_least: 1 });
        if let Some(name) = &hello.name {
            assert_eq!(
                ServerName::read(name.as_str().as_bytes()).as_ref(),
                Ok(name)
            );
            // Whatever records it came in, all of it is there, with its length in front.
            let is_there = ["", "."].iter().any(|dot| {
                let sent = long(format!("{name}{dot}").as_bytes());
                let mut places = message.windows(sent.len());
                places.any(|bytes| bytes[..2] == sent[..2] && bytes.eq_ignore_ascii_case(&sent))
            });
            assert!(is_there, "{name}");
        }
        true
    });
}

/// The name that is found at a glance, if one is, is the one that the parser finds or refuses.
fn look(stream: &[u8], verdict: &HelloVerdict<'_>) {
    let Some(found) = glance(
        &stream,
        u32::try_from(stream.len()).expect("a short stream"),
    ) else {
        return;
    };
    let name = &stream[found.name_at.into()..][..found.name_length.into()];
    match (ServerName::read(name), verdict) {
        (Ok(name), HelloVerdict::Found(hello)) => assert_eq!(hello.name, Some(name)),
        (Err(fault), HelloVerdict::Refused(HelloRefusal::Name(refused))) => {
            assert_eq!(*refused, fault);
        }
        (name, verdict) => panic!("{name:?} at a glance, but {verdict:?}"),
    }
}

#[test]
fn server_name() {
    each_input(|how, input| {
        let few = input.iter().map(|byte| match how {
            ..32 => *byte,
            _ => b"abcXYZ019-_..."[usize::from(byte % 14)],
        });
        let sent: Vec<u8> = few.take(1 + usize::from(how)).collect();
        let Ok(name) = ServerName::read(&sent) else {
            return false;
        };
        let mut wanted = sent.to_ascii_lowercase();
        let _dot = wanted.pop_if(|byte| *byte == b'.');
        assert_eq!(name.as_str().as_bytes(), wanted);
        let labels: Vec<_> = name.as_str().split('.').collect();
        assert!(wanted.len() <= 253 && labels.iter().all(|label| (1..=63).contains(&label.len())));
        assert!(
            labels
                .last()
                .is_some_and(|last| last.parse::<u128>().is_err())
        );
        true
    });
}

/// The bytes themselves, or those as the body of a hello, or as its extensions.
fn message(how: u8, input: &[u8]) -> Vec<u8> {
    let fixed = [&[3, 3][..], &[0; 32], &[0], &[0, 2, 0, 1], &[1, 0]].concat();
    let body = match how >> 1 & 1 {
        0 => input.to_vec(),
        _ => [fixed, long(&extensions(input))].concat(),
    };
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[1, 0][..], &length, &body].concat()
}

/// A name, protocols, versions and the rest, each in turn with some of the bytes; lengths and types
/// come from them too, but not always.
fn extensions(input: &[u8]) -> Vec<u8> {
    let mut list = Vec::new();
    let mut rest = input;
    while let [kind, length, after @ ..] = rest {
        let (data, after) = after.split_at(after.len().min(usize::from(length % 64)));
        let kinds = [[0, 0], [0, 16], [0, 43], [0xfe, 0x0d], [0, *kind]];
        let data = match (kind % 5, kind >> 6) {
            (0, 1..) => {
                let letters: Vec<u8> = data
                    .iter()
                    .map(|byte| b"abcXYZ019-_..."[usize::from(byte % 14)])
                    .collect();
                long(&[&[0][..], &long(&letters)].concat())
            }
            (0, 0) => long(data),
            (1, 1..) => long(&[&[u8::try_from(data.len()).unwrap_or(0)], data].concat()),
            (2, 1..) => [&[u8::try_from(data.len()).unwrap_or(0)], data].concat(),
            (3, 1..) => [&[0, 0, 1, 0, 1, 9, 0, 0][..], &long(data)].concat(),
            _ => data.to_vec(),
        };
        list.extend(kinds[usize::from(kind % 5)]);
        list.extend(long(&data));
        rest = after;
    }
    list
}

fn records(how: u8, message: &[u8]) -> Vec<u8> {
    let length = if how & 4 == 0 {
        1 << 14
    } else {
        1 + usize::from(how >> 3)
    };
    let record = |fragment: &[u8]| [&[22, 3, 1][..], &long(fragment)].concat();
    message.chunks(length).flat_map(record).collect()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [
        &u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes(),
        bytes,
    ]
    .concat()
}
