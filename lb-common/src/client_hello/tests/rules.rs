//! Records and messages that are refused, and those that are not although they are odd.

use super::{
    super::{HelloRefusal, name_as_sent},
    Draft, Hello, HelloVerdict, in_segments, malformed, message, parse, records, refused, stream,
};

/// Refused at the last of these bytes, and not before.
#[track_caller]
fn refused_at_last(bytes: &[u8], refusal: HelloRefusal) {
    let (_, before) = bytes.split_last().unwrap();
    assert!(
        matches!(parse(before), HelloVerdict::Incomplete { .. }),
        "{:?}",
        parse(before)
    );
    assert_eq!(in_segments(bytes, 0..=bytes.len()), refused(refusal));
    let more = [bytes, &[0x16; 50]].concat();
    assert_eq!(parse(&more), refused(refusal));
}

#[test]
fn other_protocols() {
    refused_at_last(b"G", HelloRefusal::NotTls(b'G'));
    refused_at_last(b"S", HelloRefusal::NotTls(b'S'));
    refused_at_last(&[0], HelloRefusal::NotTls(0));
    refused_at_last(&[25], HelloRefusal::NotTls(25));
    refused_at_last(&[19], HelloRefusal::NotTls(19));
    for content in [20, 21, 23, 24] {
        refused_at_last(&[content], HelloRefusal::RecordType(content));
    }
    refused_at_last(&[0x80, 46, 1], HelloRefusal::Ssl2);
    refused_at_last(&[0xff, 0xff, 1], HelloRefusal::Ssl2);
    refused_at_last(&[0x80, 46, 2], HelloRefusal::NotTls(0x80));
    refused_at_last(&[0xc3, 0xa4, b'x'], HelloRefusal::NotTls(0xc3));
}

#[test]
fn records_that_hold_no_hello() {
    refused_at_last(&[22, 2], HelloRefusal::RecordVersion(2));
    refused_at_last(&[22, 4], HelloRefusal::RecordVersion(4));
    refused_at_last(&[22, 3, 1, 0, 0], HelloRefusal::RecordEmpty);
    refused_at_last(&[22, 3, 1, 0x40, 1], HelloRefusal::RecordLong);
    refused_at_last(&[22, 3, 1, 0, 4, 0], HelloRefusal::MessageType(0));
    refused_at_last(&[22, 3, 1, 0, 4, 2], HelloRefusal::MessageType(2));
    let head = [22, 3, 1, 0, 2, 1, 0];
    for content in [0, 20, 21, 23, 24, 0x80, b'G'] {
        refused_at_last(
            &[&head[..], &[content]].concat(),
            HelloRefusal::RecordType(content),
        );
    }
    refused_at_last(
        &[&head[..], &[22, 2]].concat(),
        HelloRefusal::RecordVersion(2),
    );
    refused_at_last(
        &[&head[..], &[22, 3, 3, 0, 0]].concat(),
        HelloRefusal::RecordEmpty,
    );
    refused_at_last(
        &[&head[..], &[22, 3, 3, 0x40, 1]].concat(),
        HelloRefusal::RecordLong,
    );
}

/// For a report the bytes are what they are; the verdict is another matter.
#[test]
fn a_name_that_is_none_can_be_shown() {
    let sent = |draft: &Draft| {
        let stream = draft.stream();
        name_as_sent(&stream).map(|name| name.collect::<Vec<u8>>())
    };
    for name in [&b"<script>"[..], b"a\n\x1b[2J", b"", b"a.test", &[0; 999]] {
        assert_eq!(sent(&Draft::named(&[(0, name)])).as_deref(), Some(name));
        let behind = Draft::named(&[(7, b"x"), (0, name)]);
        assert_eq!(sent(&behind).as_deref(), Some(name));
    }
    let twice = Draft::named(&[(0, b"a"), (0, b"b")]);
    assert_eq!(sent(&twice).as_deref(), Some(&b"a"[..]));
    for none in [
        Draft::bare(),
        Draft::with(&[]),
        Draft::named(&[]),
        Draft::named(&[(7, b"x")]),
        Draft::with(&[(0, b"")]),
        Draft::with(&[(0, &[0, 9, 0, 0, 9, b'a'])]),
    ] {
        assert_eq!(sent(&none), None);
    }
    // Whatever is cut off, nothing is found that is not there.
    let stream = Draft::named(&[(0, b"a.test")]).stream();
    for end in 0..stream.len() {
        assert_eq!(name_as_sent(&stream[..end]).map(|_| ()), None, "{end}");
    }
}

/// Any 3.x, of any record.
#[test]
fn record_versions() {
    let whole = Draft::named(&[(0, b"a.test")]).verdict();
    for minor in [0, 1, 2, 3, 4, 0x7f] {
        let mut stream = Draft::named(&[(0, b"a.test")]).stream();
        stream[2] = minor;
        assert_eq!(parse(&stream), whole);
    }
}

#[test]
fn versions_of_the_hello() {
    for version in [0x0300, 0x0301, 0x0302, 0x0303, 0x0304, 0x0404, 0x7f1c] {
        let draft = Draft {
            version,
            ..Draft::bare()
        };
        assert_eq!(draft.found(), Hello::default());
    }
    for version in [0x0002, 0x02ff] {
        let draft = Draft {
            version,
            ..Draft::bare()
        };
        assert_eq!(draft.verdict(), refused(HelloRefusal::Version(version)));
    }
}

/// Affirmatively no name: no extensions, none of them, not this one.
#[test]
fn without_a_name() {
    assert_eq!(Draft::bare().found(), Hello::default());
    assert_eq!(Draft::with(&[]).found(), Hello::default());
    assert_eq!(
        Draft::with(&[(0x0a0a, &[]), (0xfafa, &[0])]).found(),
        Hello::default()
    );
    assert_eq!(Draft::with(&[(21, &[0; 500])]).found(), Hello::default());
}

#[test]
fn parts_that_are_cut_or_wrong() {
    let bare = Draft::bare();
    let session = |length| Draft {
        session: vec![1; length],
        ..bare.clone()
    };
    assert_eq!(session(32).found(), Hello::default());
    assert_eq!(session(33).verdict(), malformed("session id"));
    let suites = |length| Draft {
        suites: vec![1; length],
        ..bare.clone()
    };
    assert_eq!(suites(0).verdict(), malformed("cipher suites"));
    assert_eq!(suites(3).verdict(), malformed("cipher suites"));
    let methods = |length| Draft {
        methods: vec![0; length],
        ..bare.clone()
    };
    assert_eq!(methods(0).verdict(), malformed("compression methods"));
    assert_eq!(methods(2).found(), Hello::default());

    let body = bare.body();
    let parts = |at| match at {
        ..2 => "version",
        2..34 => "random",
        34..35 => "session id",
        35..39 => "cipher suites",
        _ => "compression methods",
    };
    for at in 0..body.len() {
        assert_eq!(parse(&stream(&body[..at])), malformed(parts(at)), "{at}");
    }
    let body = Draft::with(&[(21, &[0; 3])]).body();
    for at in bare.body().len() + 1..body.len() {
        assert_eq!(parse(&stream(&body[..at])), malformed("extensions"), "{at}");
    }
    for behind in [&[0][..], &[0, 0, 0]] {
        let body = [&body[..], behind].concat();
        assert_eq!(parse(&stream(&body)), malformed("extensions"));
    }
    for extensions in [&[0][..], &[0, 21, 0], &[0, 21, 0, 2, 0], &[0, 21, 0, 0, 0]] {
        let draft = Draft {
            extensions: Some(extensions.to_vec()),
            ..bare.clone()
        };
        assert_eq!(draft.verdict(), malformed("extensions"));
    }
}

/// The type is known from the first byte of the message, its length from four, in whatever records.
#[test]
fn head_over_records() {
    refused_at_last(&records(&[1, 2, 1, 0x45], |_| 1), HelloRefusal::Long);
    refused_at_last(
        &records(&[1, 0xff, 0, 0], |left| if left == 4 { 3 } else { 1 }),
        HelloRefusal::Long,
    );
    let stream = records(&message(&Draft::bare().body()), |left| 1 + left % 3);
    assert_eq!(in_segments(&stream, 0..stream.len()), parse(&stream));
    assert!(matches!(parse(&stream), HelloVerdict::Found(_)));
}
