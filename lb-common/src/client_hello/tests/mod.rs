//! Hellos of real clients, whole and in pieces, and hellos that no client should send.

mod captures;
mod extensions;
mod glances;
mod mutations;
mod rules;
mod splits;

use super::{Hello, HelloRefusal, HelloVerdict, MAX_HELLO, Reading, parse};
use crate::server_name::ServerName;

/// Xorshift: the same numbers in each run.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    pub(super) fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }
}

/// A hello in the making.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) version: u16,
    pub(super) session: Vec<u8>,
    pub(super) suites: Vec<u8>,
    pub(super) methods: Vec<u8>,
    pub(super) extensions: Option<Vec<u8>>,
}

impl Draft {
    /// As old clients send it: without extensions.
    pub(super) fn bare() -> Self {
        Self {
            version: 0x0301,
            session: Vec::new(),
            suites: vec![0, 0x2f],
            methods: vec![0],
            extensions: None,
        }
    }

    pub(super) fn with(extensions: &[(u16, &[u8])]) -> Self {
        let write = |&(kind, data): &(u16, &[u8])| [&kind.to_be_bytes()[..], &long(data)].concat();
        let extensions = Some(extensions.iter().flat_map(write).collect());
        Self {
            extensions,
            ..Self::bare()
        }
    }

    /// With names of these types.
    pub(super) fn named(names: &[(u8, &[u8])]) -> Self {
        let write = |&(kind, name): &(u8, &[u8])| [&[kind][..], &long(name)].concat();
        let list: Vec<u8> = names.iter().flat_map(write).collect();
        Self::with(&[(0, &long(&list))])
    }

    /// The message without its head.
    pub(super) fn body(&self) -> Vec<u8> {
        let extensions = self.extensions.as_ref().map(|list| long(list));
        [
            &self.version.to_be_bytes()[..],
            &[7; 32],
            &short(&self.session),
            &long(&self.suites),
            &short(&self.methods),
            &extensions.unwrap_or_default(),
        ]
        .concat()
    }

    pub(super) fn stream(&self) -> Vec<u8> {
        stream(&self.body())
    }

    pub(super) fn verdict(&self) -> HelloVerdict<'static> {
        parse(self.stream().leak())
    }

    /// What is found in it, but for its length.
    pub(super) fn found(&self) -> Hello<'static> {
        let stream: &[u8] = self.stream().leak();
        let HelloVerdict::Found(hello) = parse(stream) else {
            panic!("{:?}", parse(stream));
        };
        assert_eq!(hello.length, stream.len());
        Hello { length: 0, ..hello }
    }
}

/// The vector with a length of one byte.
pub(super) fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// The vector with a length of two bytes.
pub(super) fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    [&length.to_be_bytes(), bytes].concat()
}

/// A hello with this body, head included.
pub(super) fn message(body: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[..], body].concat()
}

/// A hello with this body in records that are as long as they can be.
pub(super) fn stream(body: &[u8]) -> Vec<u8> {
    records(&message(body), |_| 1 << 14)
}

pub(super) fn record(fragment: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &long(fragment)].concat()
}

/// The message in records, as long as `next` says of what is left.
pub(super) fn records(mut message: &[u8], mut next: impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut stream = Vec::new();
    while !message.is_empty() {
        let (fragment, rest) = message.split_at(next(message.len()).min(message.len()));
        stream.extend(record(fragment));
        message = rest;
    }
    stream
}

/// The verdict on a stream that comes in segments which end at `ends`, and then the rest. On the way
/// there it was incomplete, and never promised to be complete too late.
pub(super) fn in_segments(
    stream: &[u8],
    ends: impl IntoIterator<Item = usize>,
) -> HelloVerdict<'_> {
    let mut reading = Reading::default();
    let last = parse(stream);
    for end in ends {
        let verdict = reading.go_on(&stream[..end]);
        assert_eq!(verdict, parse(&stream[..end]), "of {end} bytes");
        match (&verdict, &last) {
            (HelloVerdict::Incomplete { at_least }, HelloVerdict::Found(hello)) => {
                assert!(end < hello.length && (1..=hello.length - end).contains(at_least));
            }
            (HelloVerdict::Incomplete { at_least }, _) => assert!(*at_least > 0),
            _ => assert_eq!(verdict, last),
        }
    }
    reading.go_on(stream)
}

/// A body of so many bytes, most of them ciphers and padding.
pub(super) fn body_of(length: usize) -> Vec<u8> {
    let mut draft = Draft::with(&[(21, &[])]);
    draft.session = vec![7; 32];
    draft.methods = vec![0; 255];
    draft.suites = vec![0; length.saturating_sub(1000).min(0xfffe) & !1];
    let padding = length - draft.body().len();
    let extensions = Draft::with(&[(21, &vec![0; padding])]).extensions;
    Draft {
        extensions,
        ..draft
    }
    .body()
}

pub(super) fn refused(refusal: HelloRefusal) -> HelloVerdict<'static> {
    HelloVerdict::Refused(refusal)
}

pub(super) fn malformed(part: &'static str) -> HelloVerdict<'static> {
    refused(HelloRefusal::Malformed(part))
}
