//! What a glance finds, the parser finds; and it finds the names of nearly all clients.

use super::{
    super::{
        glance::{MAX_GLANCE, NamePlace, SeenExtensions, extension, glance, walk},
        is_grease,
    },
    Draft, HelloRefusal, HelloVerdict, ServerName, captures, long, parse, record, records, short,
};

/// What is found at a glance, if that is what the parser finds.
pub(super) fn check(stream: &[u8]) -> Option<NamePlace> {
    let found = look(stream)?;
    let name = named(stream, found);
    let verdict = parse(stream);
    match (ServerName::read(name), &verdict) {
        (Ok(name), HelloVerdict::Found(hello)) => {
            assert_eq!(hello.name, Some(name));
            let offered = hello.alpn.protocols().map(Iterator::collect);
            assert_eq!(protocols(stream), offered.collect::<Vec<Vec<u8>>>());
        }
        (Err(fault), HelloVerdict::Refused(HelloRefusal::Name(said))) => assert_eq!(*said, fault),
        (name, verdict) => panic!("{name:?} at a glance, but {verdict:?}"),
    }
    Some(found)
}

fn look(stream: &[u8]) -> Option<NamePlace> {
    glance(&stream, u32::try_from(stream.len()).unwrap())
}

/// The protocols that are found at a glance, without those of GREASE.
fn protocols(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut seen = SeenExtensions::default();
    let step = |at, end| extension(&stream, at, end, &mut seen);
    assert!(walk(&stream, u32::try_from(stream.len()).unwrap(), step));
    let mut found = Vec::new();
    seen.each_protocol(&stream, |at, length| {
        let [at, length] = [at, length].map(|number| usize::try_from(number).unwrap());
        found.push(stream[at..][..length].to_vec());
    });
    found.retain(|protocol| !is_grease(protocol.iter().copied()));
    found
}

fn named(stream: &[u8], found: NamePlace) -> &[u8] {
    &stream[found.name_at.into()..][..found.name_length.into()]
}

#[test]
fn the_names_of_real_clients_are_found_once_they_are_whole() {
    let mut unsure = Vec::new();
    for capture in captures::all() {
        let stream = &capture.stream;
        let HelloVerdict::Found(hello) = parse(stream) else {
            continue;
        };
        for end in 0..hello.length {
            assert_eq!(
                look(&stream[..end]),
                None,
                "{} bytes of {}",
                end,
                capture.name
            );
        }
        match check(&stream[..hello.length]) {
            Some(found) => assert_eq!(check(stream), Some(found), "with more behind"),
            None if hello.name.is_some() => unsure.push(capture.name),
            None => {}
        }
    }
    assert_eq!(unsure, ["openssl-many-ciphers", "openssl-two-records"]);
}

#[test]
fn of_what_is_not_as_usual_it_is_not_sure() {
    let host = |name: &[u8]| (0, long(&[&[0][..], &long(name)].concat()));
    let with = |extensions: &[(u16, Vec<u8>)]| {
        let extensions: Vec<(u16, &[u8])> = extensions
            .iter()
            .map(|(kind, data)| (*kind, &data[..]))
            .collect();
        Draft::with(&extensions)
    };
    let plain = with(&[host(b"a.example"), (16, long(&short(b"h2")))]);
    let stream = plain.stream();
    assert_eq!(named(&stream, check(&stream).unwrap()), b"a.example");
    let is_unsure = |draft: &Draft| check(&draft.stream()).is_none();
    assert!(is_unsure(&Draft::bare()) && is_unsure(&with(&[])));
    assert!(is_unsure(&Draft::named(&[(0, b"a"), (1, b"b")])));
    assert!(is_unsure(&Draft::named(&[(1, b"a")])));
    assert!(is_unsure(&with(&[host(b"a"), host(b"a")])), "twice");
    assert!(is_unsure(&with(&[host(b"a"), (70, vec![]), (70, vec![])])));
    let one_place = [70, 70 + 47].map(|kind| (kind, vec![]));
    assert!(is_unsure(&with(&[&[host(b"a")][..], &one_place].concat())));
    for alpn in [
        vec![],
        long(&[]),
        long(&[0]),
        long(&[2, 7]),
        vec![0, 3, 1, 7],
    ] {
        assert!(
            is_unsure(&with(&[host(b"a"), (16, alpn.clone())])),
            "{alpn:?}"
        );
    }
    assert!(is_unsure(&with(&[
        host(b"a"),
        (16, long(&short(b"h").repeat(9)))
    ])));
    for versions in [vec![], vec![0], vec![1, 3], vec![2, 3, 4, 5]] {
        assert!(is_unsure(&with(&[host(b"a"), (43, versions)])));
    }
    let many = (0..40).map(|kind| (100 + kind, vec![]));
    assert!(is_unsure(&with(
        &[host(b"a")].into_iter().chain(many).collect::<Vec<_>>()
    )));
    for change in [
        |draft: &mut Draft| draft.session = vec![7; 33],
        |draft: &mut Draft| draft.suites = vec![],
        |draft: &mut Draft| draft.suites = vec![0, 0x2f, 0],
        |draft: &mut Draft| draft.methods = vec![],
        |draft: &mut Draft| draft.version = 0x0200,
    ] {
        let mut changed = plain.clone();
        change(&mut changed);
        assert!(is_unsure(&changed));
    }
    let message = &stream[5..];
    assert_eq!(check(&records(message, |_| 60)), None);
    let longer = [message, &[4][..]].concat();
    assert_eq!(check(&record(&longer)), None, "more in its record");
    let most = usize::try_from(MAX_GLANCE).unwrap();
    for (padding, is_found) in [
        (most - stream.len() - 4, true),
        (most - stream.len() - 3, false),
    ] {
        let padded = with(&[
            host(b"a.example"),
            (16, long(&short(b"h2"))),
            (21, vec![0; padding]),
        ]);
        assert_eq!(check(&padded.stream()).is_some(), is_found, "{padding}");
    }
}
