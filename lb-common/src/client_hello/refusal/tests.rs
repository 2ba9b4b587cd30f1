use super::{HelloRefusal, NameFault, UNRECOGNIZED_NAME, alert_record};

#[track_caller]
fn told(refusal: HelloRefusal, alert: u8, label: &str, words: &str) {
    assert_eq!((refusal.alert(), refusal.label()), (alert, label));
    assert_eq!(refusal.to_string(), words);
}

/// Each has its alert, its label, and its words.
#[test]
fn alerts_and_labels() {
    told(
        HelloRefusal::NotTls(b'G'),
        10,
        "not_tls",
        "not TLS: the first byte is `G`",
    );
    told(HelloRefusal::Ssl2, 70, "ssl2", "an SSL 2 hello");
    told(
        HelloRefusal::RecordType(20),
        10,
        "record_type",
        "a record of type 20 before the hello was whole",
    );
    told(
        HelloRefusal::RecordVersion(2),
        70,
        "record_version",
        "a record of version 2.x, and not 3.x",
    );
    told(
        HelloRefusal::RecordEmpty,
        50,
        "record_empty",
        "an empty record",
    );
    told(
        HelloRefusal::RecordLong,
        22,
        "record_long",
        "a record of more than 16 KiB",
    );
    told(
        HelloRefusal::MessageType(2),
        10,
        "message_type",
        "a message of type 2, and not a hello",
    );
    told(
        HelloRefusal::Long,
        47,
        "long",
        "a hello of more bytes than may be",
    );
    told(
        HelloRefusal::Scattered,
        47,
        "scattered",
        "a hello that takes more than 262792 bytes with its records",
    );
    told(
        HelloRefusal::Version(2),
        70,
        "version",
        "a hello of version 0x0002",
    );
    told(
        HelloRefusal::Malformed("ALPN"),
        50,
        "malformed",
        "malformed ALPN in the hello",
    );
    told(
        HelloRefusal::SameExtension(0),
        47,
        "same_extension",
        "extension 0 is in the hello twice",
    );
    told(
        HelloRefusal::TwoNames,
        47,
        "two_names",
        "two names of one type are in the hello",
    );
}

#[test]
fn alerts_and_labels_of_names() {
    told(
        HelloRefusal::Name(NameFault::Empty),
        50,
        "name",
        "the name is empty",
    );
    told(
        HelloRefusal::Name(NameFault::Nul),
        112,
        "name_nul",
        "there is a NUL in the name",
    );
    told(
        HelloRefusal::Name(NameFault::Address),
        112,
        "name_address",
        "the name is an IP address",
    );
    told(
        HelloRefusal::Name(NameFault::Byte(b'*')),
        112,
        "name",
        "`*` is in no host name",
    );
    told(
        HelloRefusal::Name(NameFault::EmptyLabel),
        112,
        "name",
        "nothing stands before a dot of the name",
    );
    told(
        HelloRefusal::Name(NameFault::LongLabel),
        112,
        "name",
        "a label of the name has more than 63 bytes",
    );
    told(
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
