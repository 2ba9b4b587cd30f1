//! Hellos of real clients, each in a file with its name, what is in it, and its bytes.

use std::fmt::Write as _;

use super::{Hello, Verdict, parse};

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
    FILES.iter().map(|&(name, file)| read(name, file)).collect()
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
fn words(hello: &Hello) -> String {
    let mut words = String::new();
    let name = hello.name.as_ref().map_or("-", |name| name.as_str());
    let protocols: Vec<_> = hello
        .alpn
        .protocols()
        .map(|name| str::from_utf8(name).unwrap())
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
        let Verdict::Found(hello) = parse(&capture.stream) else {
            panic!("{}: {:?}", capture.name, parse(&capture.stream));
        };
        assert_eq!(words(&hello), capture.said, "{}", capture.name);
    }
}

/// The case that is called normal: the name is past the first segment.
#[test]
fn of_browsers_are_longer_than_a_segment() {
    for name in ["chromium", "firefox"] {
        let capture = all()
            .into_iter()
            .find(|capture| capture.name == name)
            .unwrap();
        assert!(capture.stream.len() > 1460, "{name}");
        assert!(
            matches!(parse(&capture.stream[..1460]), Verdict::Incomplete { .. }),
            "{name}"
        );
    }
}
