//! What the extensions say, and those that are refused.

use super::{
    super::{Alpn, HelloRefusal},
    Draft, HelloVerdict, long, malformed, message, parse, records, refused, short,
};
use crate::server_name::{NameFault, ServerName};

#[test]
fn the_same_extension_twice() {
    let twice = |kind| Draft::with(&[(kind, &[]), (1, &[]), (kind, &[])]).verdict();
    for kind in [21, 0x0a0a, 0xffff] {
        assert_eq!(twice(kind), refused(HelloRefusal::SameExtension(kind)));
    }
    let name = long(&[&[0][..], &long(b"a.test")].concat());
    let draft = Draft::with(&[(0, &name), (0, &name)]);
    assert_eq!(draft.verdict(), refused(HelloRefusal::SameExtension(0)));
}

#[test]
fn names() {
    let found = |names: &[(u8, &[u8])]| Draft::named(names).found().name;
    let name = |name: &[u8]| Some(ServerName::read(name).unwrap());
    assert_eq!(found(&[(0, b"A.Test.")]), name(b"a.test"));
    // Of other types, before and behind.
    assert_eq!(
        found(&[(7, b"x"), (0, b"a.test"), (8, b"")]),
        name(b"a.test")
    );
    assert_eq!(found(&[(7, b"a.test")]), None);
    let two = refused(HelloRefusal::TwoNames);
    assert_eq!(
        Draft::named(&[(0, b"a.test"), (0, b"a.test")]).verdict(),
        two
    );
    assert_eq!(
        Draft::named(&[(0, b"a.test"), (7, b""), (0, b"b.test")]).verdict(),
        two
    );
    assert_eq!(
        Draft::named(&[(7, b"a.test"), (7, b"b.test")]).verdict(),
        two
    );

    let fault = |name| Draft::named(&[(0, name)]).verdict();
    assert_eq!(fault(b""), refused(HelloRefusal::Name(NameFault::Empty)));
    assert_eq!(
        fault(b"a.test\0"),
        refused(HelloRefusal::Name(NameFault::Nul))
    );
    assert_eq!(
        fault(b"192.0.2.1"),
        refused(HelloRefusal::Name(NameFault::Address))
    );
}

/// Whatever records a name lies in, it is the same, and so is what is wrong with it.
#[test]
fn names_over_records() {
    let long_name = "a.".repeat(200);
    for name in [
        &b"Hub.Example.Test."[..],
        b"a.test\0",
        b"[fe80::1%eth0]",
        b"a b.test",
        b"192.0.2.1",
        long_name.as_bytes(),
    ] {
        let message = message(&Draft::named(&[(0, name)]).body());
        let expected = ServerName::read(name).map_err(HelloRefusal::Name);
        for length in [1, 2, 7, 60] {
            let found = match parse(&records(&message, |_| length)) {
                HelloVerdict::Found(hello) => Ok(hello.name.unwrap()),
                HelloVerdict::Refused(refusal) => Err(refusal),
                HelloVerdict::Incomplete { .. } => panic!("{name:?}"),
            };
            assert_eq!(found, expected, "in records of {length}");
        }
    }
}

/// Of several types that are there twice, the lowest is refused; what is malformed comes before.
#[test]
fn which_extension_is_twice() {
    let draft = Draft::with(&[(9, &[]), (7, &[]), (9, &[]), (7, &[])]);
    assert_eq!(draft.verdict(), refused(HelloRefusal::SameExtension(7)));
    let draft = Draft::with(&[(9, &[]), (9, &[]), (16, &[])]);
    assert_eq!(draft.verdict(), malformed("ALPN"));
}

#[test]
fn lists_of_names_that_are_cut_or_wrong() {
    let list = [&[0][..], &long(b"a.test")].concat();
    let data = long(&list);
    let verdict = |data: &[u8]| Draft::with(&[(0, data)]).verdict();
    assert!(matches!(verdict(&data), HelloVerdict::Found(_)));
    for at in 0..data.len() {
        assert_eq!(verdict(&data[..at]), malformed("server name"), "{at}");
    }
    for at in 0..list.len() {
        assert_eq!(
            verdict(&long(&list[..at])),
            malformed("server name"),
            "{at}"
        );
    }
    assert_eq!(
        verdict(&[&data[..], &[0]].concat()),
        malformed("server name")
    );
    assert_eq!(
        verdict(&long(&[&list[..], &[0]].concat())),
        malformed("server name")
    );
}

#[test]
fn protocols() {
    let draft = |names: &[&[u8]]| {
        let list: Vec<u8> = names.iter().flat_map(|name| short(name)).collect();
        Draft::with(&[(16, &long(&list))])
    };
    let alpn = |names| draft(names).found().alpn;
    let offered = alpn(&[
        b"\x0a\x0a",
        b"h2",
        b"\xfa\xfa",
        b"\x0a\x1a",
        b"xx",
        b"http/1.1",
    ]);
    let protocols: Vec<_> = offered.protocols().collect();
    assert_eq!(protocols, [&b"h2"[..], b"\x0a\x1a", b"xx", b"http/1.1"]);
    assert_eq!(
        format!("{offered:?}"),
        r#"["h2", "\\n\\x1a", "xx", "http/1.1"]"#
    );
    assert!(offered.offers(b"h2") && !offered.offers(b"h") && !offered.offers(b"\x0a\x0a"));
    assert!(!Alpn::default().offers(b""));

    assert_eq!(draft(&[]).verdict(), malformed("ALPN"));
    assert_eq!(draft(&[b"h2", b""]).verdict(), malformed("ALPN"));
    let data = long(b"\x02h2");
    for at in 0..data.len() {
        assert_eq!(
            Draft::with(&[(16, &data[..at])]).verdict(),
            malformed("ALPN")
        );
    }
    assert_eq!(
        Draft::with(&[(16, b"\0\x03\x03h2")]).verdict(),
        malformed("ALPN")
    );
    assert_eq!(
        Draft::with(&[(16, b"\0\x03\x02h2\0")]).verdict(),
        malformed("ALPN")
    );
}

#[test]
fn versions_offered() {
    let found = |list: &[u8]| Draft::with(&[(43, &short(list))]).found().tls13;
    assert!(found(&[0x1a, 0x1a, 3, 4, 3, 3]));
    assert!(!found(&[0x1a, 0x1a, 3, 3]));
    // Across two of them.
    assert!(!found(&[0x1a, 3, 4, 0x1a]));
    for data in [
        &[][..],
        &[0],
        &[1, 3],
        &[3, 3, 4, 3],
        &[2, 3],
        &[2, 3, 4, 0],
    ] {
        assert_eq!(
            Draft::with(&[(43, data)]).verdict(),
            malformed("supported versions")
        );
    }
}

#[test]
fn encrypted_hello() {
    let draft = |data: &[u8]| Draft::with(&[(0xfe0d, data)]);
    let outer =
        |key: &[u8], payload: &[u8]| [&[0, 0, 1, 0, 1, 9][..], &long(key), &long(payload)].concat();
    assert!(draft(&outer(&[1; 32], &[2; 144])).found().ech);
    // The key is empty behind a retry.
    assert!(draft(&outer(&[], &[2])).found().ech);
    assert!(!draft(&[1]).found().ech);
    // Whatever else is in it: where the name in the clear decides, it goes there.
    let data = outer(&[1; 32], &[2; 144]);
    for at in 0..data.len() {
        assert!(draft(&data[..at]).found().ech, "{at}");
    }
    for data in [
        [&data[..], &[0]].concat(),
        outer(&[1], &[]),
        vec![1, 0],
        vec![2],
    ] {
        assert!(draft(&data).found().ech);
    }
}
