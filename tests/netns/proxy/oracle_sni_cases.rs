//! What [`crate::proxy::oracle_sni`] sends, and where `lb` takes it.

use anyhow::Result;
use lb_tests::traffic::hello::{
    CAPTURED_NAME, SERVER_NAME, TLS12, captured, hello, in_records, in_records_of, named, names,
};

/// The ports of the two services: names as they are, and names under others.
pub(crate) const API: u16 = 6443;
pub(crate) const APPS: u16 = 443;

/// Whose hellos come in single bytes: one that fits into a segment, and one that does not.
const BYTE_BY_BYTE: [&str; 2] = ["curl-h2", "like-safari260"];
/// The type of the extension that is nothing but bytes.
const PADDING: u16 = 21;
/// The type of the one with an encrypted hello.
const ECH: u16 = 0xfe0d;
const HUB: &[u8] = b"api.hub-cluster.linuxera.lab";
const MANAGED1: &[u8] = b"api.managed1.linuxera.lab";
const APP: &[u8] = b"x.apps.hub.linuxera.lab";

/// A client's first bytes.
pub(crate) struct Case {
    pub(crate) what: String,
    /// By which a difference is listed.
    pub(crate) kind: &'static str,
    pub(crate) port: u16,
    /// In the segments that they are sent in.
    pub(crate) pieces: Vec<Vec<u8>>,
    /// The pool that `lb` goes to.
    pub(crate) ours: Option<&'static str>,
}

/// All cases.
pub(crate) fn all() -> Result<Vec<Case>> {
    Ok([
        of_captures()?,
        of_names(),
        of_extensions(),
        of_messages(),
        of_sizes()?,
    ]
    .into_iter()
    .flatten()
    .collect())
}

/// Hellos of real clients: as they came, in two segments, byte by byte, in other records.
fn of_captures() -> Result<Vec<Case>> {
    let is_long = std::env::var_os("LB_TEST_LONG").is_some();
    let mut cases = Vec::new();
    for captured in captured()? {
        let client = &captured.client;
        let (kind, ours) = match &client[..] {
            "openssl-two-records" => ("records", Some("captured")),
            "openssl-upper" => ("dot", Some("captured")),
            _ => ("", captured.has_name().then_some("captured")),
        };
        let mut add = |what: String, kind, pieces| {
            let what = format!("{client}, {what}");
            cases.push(Case {
                what,
                kind,
                port: API,
                pieces,
                ours,
            });
        };
        let bytes = &captured.bytes;
        add("whole".to_owned(), kind, vec![bytes.clone()]);
        if BYTE_BY_BYTE.contains(&&client[..]) {
            let bytes = bytes.iter().map(|byte| vec![*byte]).collect();
            add("byte by byte".to_owned(), kind, bytes);
        }
        let step = if is_long { 7 } else { bytes.len() / 12 };
        for split in (1..bytes.len()).step_by(step) {
            let (one, other) = bytes.split_at(split);
            add(
                format!("split at {split}"),
                kind,
                vec![one.to_vec(), other.to_vec()],
            );
        }
        for count in [2, 3, 10, 50] {
            let bytes = in_records(bytes, count);
            let kind = match kind {
                "" if ours.is_some() && !is_in_first_record(&bytes) => "records",
                _ => kind,
            };
            add(format!("{count} records"), kind, vec![bytes]);
        }
    }
    Ok(cases)
}

/// Whether the name is in the first record.
fn is_in_first_record(stream: &[u8]) -> bool {
    let length = usize::from(stream[3]) << 8 | usize::from(stream[4]);
    let mut windows = stream[5..][..length].windows(CAPTURED_NAME.len());
    windows.any(|bytes| bytes == CAPTURED_NAME.as_bytes())
}

fn case(
    what: &str,
    kind: &'static str,
    port: u16,
    bytes: Vec<u8>,
    ours: Option<&'static str>,
) -> Case {
    Case {
        what: what.to_owned(),
        kind,
        port,
        pieces: vec![bytes],
        ours,
    }
}

/// Names that are odd, or unknown.
fn of_names() -> Vec<Case> {
    let api = |name: &str, kind, ours| case(name, kind, API, named(name.as_bytes()), ours);
    let app = |name: &str, kind, ours| case(name, kind, APPS, named(name.as_bytes()), ours);
    let label = |length| format!("{}.apps.hub.linuxera.lab", "a".repeat(length));
    // So many bytes of labels that may be that long.
    let labels = |length: usize| {
        let front = length - label(1).len();
        format!("{}{}", "a.".repeat(front / 2), label(1 + front % 2))
    };
    vec![
        api("api.hub-cluster.linuxera.lab", "", Some("hub")),
        api("api.managed1.linuxera.lab", "", Some("managed1")),
        api("api.managed2.linuxera.lab", "", Some("managed2")),
        api("API.Hub-Cluster.LinuxEra.LAB", "", Some("hub")),
        api("api.hub-cluster.linuxera.lab.", "dot", Some("hub")),
        api("api.hub-cluster.linuxera.lab..", "", None),
        api("api.hub-cluster.linuxera.lab.evil.com", "", None),
        api("x.api.hub-cluster.linuxera.lab", "", None),
        api("api.hub-cluster.linuxera.la", "", None),
        api("api.hub-cluster.linuxera.lab\0", "", None),
        api("api.hub-cluster.linuxera.lab\0.evil.com", "", None),
        api("10.32.96.105", "", None),
        api("fd00::1", "", None),
        api("", "", None),
        api(".", "", None),
        app("x.apps.hub.linuxera.lab", "", Some("hub")),
        app("X.Apps.Hub.Linuxera.Lab", "", Some("hub")),
        app("10.apps.hub.linuxera.lab", "", Some("hub")),
        app("x.apps.managed1.linuxera.lab", "", Some("managed1")),
        app("x.apps.managed2.linuxera.lab", "", Some("managed2")),
        app("x.apps.hub.linuxera.lab.", "", Some("hub")),
        app("x.apps.managed1.linuxera.lab.", "", Some("managed1")),
        app("x.appsxhub.linuxera.lab", "", None),
        app("apps.hub.linuxera.lab", "", None),
        app(".apps.hub.linuxera.lab", "", None),
        app("x.y.apps.managed1.linuxera.lab", "", None),
        app("x.y.apps.hub.linuxera.lab", "labels", Some("hub")),
        app("x.apps.hub.linuxera.lab.evil.com", "unanchored", None),
        app(
            "x.apps.managed1.linuxera.laboratory",
            "unanchored expression",
            None,
        ),
        app("x.apps.hub.linuxera.lab\0", "bytes", None),
        app("x.apps.hub.linuxera.lab\0.evil.com", "bytes", None),
        app("x\0y.apps.hub.linuxera.lab", "bytes", None),
        app("x y.apps.hub.linuxera.lab", "bytes", None),
        app("../x/.apps.hub.linuxera.lab", "", None),
        app("*.apps.hub.linuxera.lab", "bytes", None),
        app("ü.apps.hub.linuxera.lab", "bytes", None),
        app(&label(63), "", Some("hub")),
        app(&label(64), "label", None),
        app(&label(255 - 22), "label", None),
        app(&labels(253), "labels", Some("hub")),
        app(&labels(255), "", None),
    ]
}

/// Hellos with more or less than one name in one extension.
fn of_extensions() -> Vec<Case> {
    let name = |name: &[u8]| (SERVER_NAME, names(&[(0, name)]));
    let sent = |data: Vec<u8>| hello(TLS12, &[(SERVER_NAME, data)]);
    let list = |list: &[(u8, &[u8])]| sent(names(list));
    let twice = hello(TLS12, &[name(HUB), name(MANAGED1)]);
    let padding = (PADDING, Vec::new());
    let other_twice = hello(TLS12, &[padding.clone(), name(HUB), padding]);
    let behind = [&names(&[(0, HUB)])[..], &[0]].concat();
    let mut beyond = named(HUB);
    let length = beyond.len() - HUB.len() - 1;
    beyond[length] += 1;
    let ech = |data: &[u8]| hello(TLS12, &[name(HUB), (ECH, data.to_vec())]);
    let api = |what, kind, bytes, ours| case(what, kind, API, bytes, ours);
    vec![
        api("no name", "", hello(TLS12, &[]), None),
        api("two", "two names", list(&[(0, HUB), (0, MANAGED1)]), None),
        api(
            "another type first",
            "other type",
            list(&[(1, b"x"), (0, HUB)]),
            Some("hub"),
        ),
        api(
            "another type behind",
            "",
            list(&[(0, HUB), (1, b"x")]),
            Some("hub"),
        ),
        api("names twice", "same extension", twice, None),
        api("padding twice", "same extension", other_twice, None),
        api("a name beyond the end", "", beyond, None),
        api("an empty list of names", "", sent(vec![0, 0]), None),
        api("an empty extension", "", sent(Vec::new()), None),
        api("an empty ECH", "", ech(&[]), Some("hub")),
        api("an ECH of no kind", "", ech(&[2]), Some("hub")),
        api(
            "an ECH that is cut off",
            "",
            ech(&[0, 0, 1, 0, 1, 9, 0, 32, 7]),
            Some("hub"),
        ),
        api("a byte behind the list", "malformed", sent(behind), None),
    ]
}

/// Versions, what is in front of a hello and behind, and what is none.
fn of_messages() -> Vec<Case> {
    let whole = named(HUB);
    let of_version = |version| hello(version, &[(SERVER_NAME, names(&[(0, HUB)]))]);
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        bytes
    };
    let behind = |front: &[u8]| [front, &whole].concat();
    let before = |more: &[u8]| [&whole, more].concat();
    // With the name at the end HAProxy reads what is behind the bytes that it has got.
    let padded = hello(
        TLS12,
        &[(SERVER_NAME, names(&[(0, HUB)])), (PADDING, vec![0; 9])],
    );
    let without = |bytes: usize| padded[..padded.len() - bytes].to_vec();
    let ssl2 = [&[0x80, 46, 1, 3, 1, 0, 21, 0, 0, 0, 16][..], &[7; 37]].concat();
    let http = b"GET / HTTP/1.1\r\nHost: api.hub-cluster.linuxera.lab\r\n\r\n";
    let api = |what, kind, bytes, ours| case(what, kind, API, bytes, ours);
    vec![
        api("SSL 3", "SSL 3", of_version(0x0300), Some("hub")),
        api("TLS 1.0", "", of_version(0x0301), Some("hub")),
        api("version 2.255", "", of_version(0x02ff), None),
        api("version 4.4", "", of_version(0x0404), Some("hub")),
        api("a record of version 3.0", "", changed(2, 0), Some("hub")),
        api("a record of version 2.1", "", changed(1, 2), None),
        api(
            "a record of version 4.1",
            "record version",
            changed(1, 4),
            None,
        ),
        api("a record of alerts", "", changed(0, 21), None),
        api("another message", "", changed(5, 2), None),
        api("a byte too few", "cut", without(1), None),
        api("four bytes too few", "cut", without(4), None),
        api("five bytes too few", "", without(5), None),
        api(
            "a record with nothing in it",
            "",
            behind(&[22, 3, 1, 0, 0]),
            None,
        ),
        api(
            "an alert in front",
            "",
            behind(&[21, 3, 1, 0, 2, 1, 0]),
            None,
        ),
        api(
            "PROXY",
            "",
            behind(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"),
            None,
        ),
        api("a request behind", "", before(http), Some("hub")),
        api("much behind", "", before(&[0x17; 200_000]), Some("hub")),
        api("HTTP", "", http.to_vec(), None),
        api("SSH", "", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), None),
        api("SSL 2", "", ssl2, None),
        api("zeros", "", vec![0; 300], None),
        // Of a record as long as it can be, as much as is there.
        api(
            "a message of 16 MB",
            "",
            [&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &whole[9..]].concat(),
            None,
        ),
    ]
}

/// Long hellos, whose name comes last.
fn of_sizes() -> Result<Vec<Case>> {
    let padded = |bytes: usize| {
        hello(
            TLS12,
            &[(PADDING, vec![0; bytes]), (SERVER_NAME, names(&[(0, APP)]))],
        )
    };
    let mut cases = Vec::new();
    for (bytes, kind) in [
        (4000, ""),
        (14_000, ""),
        (15_000, ""),
        (16_000, "long"),
        (20_000, "records"),
        (60_000, "records"),
    ] {
        let what = format!("{bytes} bytes of padding");
        cases.push(case(&what, kind, APPS, padded(bytes), Some("hub")));
    }
    for (bytes, what, ours) in [
        (65_000, "as long as may be", Some("hub")),
        (65_472, "longer than may be", None),
    ] {
        cases.push(case(
            what,
            ours.map_or("", |_| "records"),
            APPS,
            padded(bytes),
            ours,
        ));
    }
    let crumbs = in_records_of(&padded(30_000), 100);
    cases.push(case("300 records", "records", APPS, crumbs, Some("hub")));
    let bytes = named(APP);
    let pieces = bytes.iter().map(|byte| vec![*byte]).collect();
    let what = "byte by byte".to_owned();
    cases.push(Case {
        what,
        kind: "",
        port: APPS,
        pieces,
        ours: Some("hub"),
    });
    Ok(cases)
}
