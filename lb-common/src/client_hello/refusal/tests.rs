use super::{HelloRefusal, NameFault, UNRECOGNIZED_NAME, alert_record};

#[track_caller]
fn assert_alert(refusal: HelloRefusal, alert: u8, label: &str, words: &str) {
    assert_eq!((refusal.alert(), refusal.label()), (alert, label));
    assert_eq!(refusal.to_string(), words);
}

/// Each has its alert, its label, and its words.
#[test]
fn alerts_and_labels() {
    assert_alert(
        HelloRefusal::NotTls(b'G'),
        10,
        "not_tls",
        "not TLS: the first byte is `G`",
    );
    assert_alert(HelloRefusal::Ssl2, 70, "ssl2", "an SSL 2 hello");
    assert_alert(
        HelloRefusal::RecordType(20),
        10,
        "record_type",
        "a record of type 20 before the hello was whole",
    );
    assert_alert(
        HelloRefusal::RecordVersion(2),
        70,
        "record_version",
        "a record of version 2.x, and not 3.x",
    );
    assert_alert(
        HelloRefusal::RecordEmpty,
        50,
        "record_empty",
        "an empty record",
    );
    assert_alert(
        HelloRefusal::RecordLong,
        22,
        "record_long",
        "a record of more than 16 KiB",
    );
    assert_alert(
        HelloRefusal::MessageType(2),
        10,
        "message_type",
        "a message of type 2, and not a hello",
    );
    assert_alert(
        HelloRefusal::Long,
        47,
        "long",
        "a hello of more bytes than may be",
    );
    assert_alert(
        HelloRefusal::Scattered,
        47,
        "scattered",
        "a hello that takes more than 262792 bytes with its records",
    );
    assert_alert(
        HelloRefusal::Version(2),
        70,
        "version",
        "a hello of version 0x0002",
    );
    assert_alert(
        HelloRefusal::Malformed("ALPN"),
        50,
        "malformed",
        "malformed ALPN in the hello",
    );
    assert_alert(
        HelloRefusal::SameExtension(0),
        47,
        "same_extension",
        "extension 0 is in the hello twice",
    );
    assert_alert(
        HelloRefusal::TwoNames,
        47,
        "two_names",
        "two names of one type are in the hello",
    );
}

#[test]
fn alerts_and_labels_of_names() {
    assert_alert(
        HelloRefusal::Name(NameFault::Empty),
        50,
        "name",
        "the name is empty",
    );
    assert_alert(
        HelloRefusal::Name(NameFault::Nul),
        112,
        "name_nul",
        "there is a NUL in the name",
    );
    assert_alert(
        HelloRefusal::Name(NameFault::Address),
        112,
        "name_address",
        "the name is an IP address",
    );
    assert_alert(
        HelloRefusal::Name(NameFault::Byte(b'*')),
        112,
        "name",
        "`*` is in no host name",
    );
    assert_alert(
        HelloRefusal::Name(NameFault::EmptyLabel),
        112,
        "name",
        "nothing stands before a dot of the name",
    );
    assert_alert(
        HelloRefusal::Name(NameFault::LongLabel),
        112,
        "name",
        "a label of the name has more than 63 bytes",
    );
    assert_alert(
        HelloRefusal::Name(NameFault::Long),
        112,
        "name",
        "the name has more than 253 bytes",
    );
}

#[test]
fn record_of_an_alert() {
    assert_eq!(alert_record(UNRECOGNIZED_NAME), [21, 3, 1, 0, 2, 2, 112]);
}
