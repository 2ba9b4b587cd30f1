//! Hellos of real clients, each in a file with its name, what is in it, and its bytes.

use std::fmt::Write as _;

use super::{Hello, HelloVerdict, long, message, parse, stream};

macro_rules! captures {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("data/", $name, ".hex")))),*]
    };
}

const FILES: [(&str, &str); 29] = captures![
    "chromium",
    "curl-address",
    "curl-h2",
    "curl-http1",
    "firefox",
    "gnutls",
    "go-address",
    "go-tls12",
    "go-tls13",
    "like-chrome116",
    "like-chrome131",
    "like-chrome150",
    "like-chrome99-android",
    "like-edge101",
    "like-firefox147",
    "like-safari153",
    "like-safari260",
    "node-https",
    "openssl-acme",
    "openssl-early-data",
    "openssl-many-ciphers",
    "openssl-no-name",
    "openssl-tls10",
    "openssl-tls12-alpn",
    "openssl-tls12-no-name",
    "openssl-tls13",
    "openssl-two-records",
    "openssl-upper",
    "python-ssl",
];

/// Those that there are with the name at the end as well: extensions may come in any order, Chrome's do.
const LATE: [(&str, &str); 2] = [
    ("chromium", "chromium, name last"),
    ("like-chrome131", "like-chrome131, name last"),
];
/// Bytes of a TCP segment, as most are.
const SEGMENT: usize = 1460;

/// A first flight as it came.
pub(super) struct Capture {
    pub(super) name: &'static str,
    pub(super) stream: Vec<u8>,
    /// What is in it, in words.
    said: &'static str,
}

impl Capture {
    /// The hello, out of its records, and what comes behind it.
    pub(super) fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let mut message = Vec::new();
        let mut rest = &self.stream[..];
        while message.len() < 4 || message.len() < total(&message) {
            let length = usize::from(rest[3]) << 8 | usize::from(rest[4]);
            message.extend_from_slice(&rest[5..5 + length]);
            rest = &rest[5 + length..];
        }
        assert_eq!(message.len(), total(&message));
        (message, rest.to_vec())
    }

    /// The same under another name, with the extension of the server's name behind the others.
    fn with_name_last(&self, name: &'static str) -> Self {
        let (whole, behind) = self.parts();
        let (fixed, extensions) = whole[4..].split_at(extensions_at(&whole[4..]));
        let (mut others, mut last) = (Vec::new(), Vec::new());
        let mut rest = &extensions[2..];
        while let [kind_high, kind_low, high, low, ..] = *rest {
            let length = usize::from(u16::from_be_bytes([high, low]));
            let (extension, after) = rest.split_at(4 + length);
            let is_name = [kind_high, kind_low] == [0, 0];
            let list = if is_name { &mut last } else { &mut others };
            list.extend_from_slice(extension);
            rest = after;
        }
        let body = [fixed, &long(&[others, last].concat())].concat();
        assert_eq!(message(&body).len(), whole.len(), "{name}");
        Self {
            name,
            stream: [stream(&body), behind].concat(),
            said: self.said,
        }
    }
}

/// Where the extensions stand in the body of a hello.
fn extensions_at(body: &[u8]) -> usize {
    let session = 2 + 32;
    let suites = session + 1 + usize::from(body[session]);
    let length = usize::from(body[suites]) << 8 | usize::from(body[suites + 1]);
    let methods = suites + 2 + length;
    methods + 1 + usize::from(body[methods])
}

fn total(message: &[u8]) -> usize {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    4 + number(&message[1..4])
}

pub(super) fn all() -> Vec<Capture> {
    let mut all: Vec<Capture> = FILES.iter().map(|&(name, file)| read(name, file)).collect();
    let late = LATE.map(|(name, as_late)| of(&all, name).with_name_last(as_late));
    all.extend(late);
    all
}

fn of<'c>(all: &'c [Capture], name: &str) -> &'c Capture {
    all.iter().find(|capture| capture.name == name).unwrap()
}

fn read(name: &'static str, file: &'static str) -> Capture {
    let mut lines = file.lines();
    let _client = lines.next();
    let said = lines.next().and_then(|line| line.strip_prefix("# "));
    let digits: Vec<u8> = lines.flat_map(str::bytes).collect();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let (pairs, []) = digits.as_chunks() else {
        panic!("half a byte in {name}");
    };
    Capture {
        name,
        stream: pairs.iter().map(byte).collect(),
        said: said.unwrap(),
    }
}

/// In the words of the files.
fn words(hello: &Hello<'_>) -> String {
    let mut words = String::new();
    let name = hello.name.as_ref().map_or("-", |name| name.as_str());
    let protocols: Vec<_> = hello
        .alpn
        .protocols()
        .map(|name| String::from_utf8(name.collect()).unwrap())
        .collect();
    let alpn = match protocols.len() {
        0 => "-".to_owned(),
        1..=8 => protocols.join(" "),
        many => format!("{many} protocols"),
    };
    let yes = |is| if is { "yes" } else { "no" };
    write!(words, "name {name}, alpn {alpn}, ech {}", yes(hello.ech)).unwrap();
    write!(
        words,
        ", tls13 {}, length {}",
        yes(hello.tls13),
        hello.length
    )
    .unwrap();
    words
}

#[test]
fn are_found_with_what_is_in_them() {
    for capture in all() {
        let HelloVerdict::Found(hello) = parse(&capture.stream) else {
            panic!("{}: {:?}", capture.name, parse(&capture.stream));
        };
        assert_eq!(words(&hello), capture.said, "{}", capture.name);
    }
}

/// Browsers of today: a hello takes more than one segment, wherever the name is.
#[test]
fn of_browsers_are_longer_than_a_segment() {
    for name in ["chromium", "firefox"] {
        let all = all();
        let stream = &of(&all, name).stream;
        assert!(stream.len() > SEGMENT, "{name}");
        let verdict = parse(&stream[..SEGMENT]);
        assert!(matches!(verdict, HelloVerdict::Incomplete { .. }), "{name}");
    }
}

/// The name is in the second segment, and the client is not routed before it has come.
#[test]
fn a_name_behind_the_first_segment_is_waited_for() {
    for (name, as_late) in LATE {
        let all = all();
        let (early, late) = (of(&all, name), of(&all, as_late));
        let wanted = b"hub.example.test";
        let mut places = late.stream.windows(wanted.len());
        let place = places.position(|bytes| bytes == wanted).unwrap();
        assert!(place > SEGMENT, "{as_late}: at {place}");
        for end in 0..late.stream.len() {
            let verdict = parse(&late.stream[..end]);
            let is_incomplete = matches!(verdict, HelloVerdict::Incomplete { .. });
            assert!(is_incomplete, "{as_late}: {verdict:?} of {end}");
        }
        // The same is found in another order.
        assert_eq!(parse(&late.stream), parse(&early.stream), "{as_late}");
        let HelloVerdict::Found(hello) = parse(&late.stream) else {
            panic!("{as_late}: not found");
        };
        assert_eq!(hello.name.unwrap().as_str(), "hub.example.test");
    }
}
