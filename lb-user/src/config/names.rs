//! How they are spelt, and which one is meant by a reference.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use lb_common::maps::registry::NAME_BYTES;
use nix::unistd::gethostname;

use super::{
    did_you_mean::closest,
    list::{List, Named},
    number::number,
    place::{At, Location, quote},
    problem::Findings,
};

/// The longest name of a network, node, pool or service, in characters.
pub(super) const MAX_NAME: usize = 63;

/// The longest name of a backend: that of a node, `:` and a port.
pub(super) const MAX_BACKEND_NAME: usize = MAX_NAME + 6;

// The registry knows a backend as `POOL/NAME@ADDRESS`.
const _: () = assert!(MAX_NAME + 1 + MAX_BACKEND_NAME + "@255.255.255.255".len() <= NAME_BYTES);

/// The most names or prefixes that a problem lists as the known ones.
pub(super) const MAX_LISTED: usize = 8;

/// The names of one section, for the keys that refer to them.
pub(super) struct Names<'r> {
    /// What bears them, such as `network`.
    kind: &'static str,
    names: Vec<&'r str>,
    index: HashMap<&'r str, usize>,
    /// Whether these are all the names; only then one can be unknown.
    whole: bool,
}

impl<'r> Names<'r> {
    pub(super) fn new<T>(kind: &'static str, section: &'r List<Named<T>>) -> Self {
        let names: Vec<&str> = section
            .elements
            .iter()
            .map(|named| named.name.as_str())
            .collect();
        let index = names.iter().copied().zip(0..).collect();
        Self {
            kind,
            names,
            index,
            whole: section.whole,
        }
    }

    /// The index of the entry that is referred to.
    pub(super) fn find(&self, reference: &At<String>, findings: &mut Findings) -> Option<usize> {
        let found = self.position(&reference.value);
        if found.is_none() && self.whole {
            let hint = match closest(&reference.value, self.names.iter().copied()) {
                Some(name) => format!("did you mean {}?", quote(name)),
                None => self.known(),
            };
            let words = format!(
                "no {} is called {}; {hint}",
                self.kind,
                quote(&reference.value)
            );
            findings.add(&reference.place, words);
        }
        found
    }

    /// The index of the entry with this name.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    fn known(&self) -> String {
        if self.names.is_empty() {
            return "there is none".to_owned();
        }
        let names = self.names.iter().map(|name| quote(name));
        format!("expected one of {}", listed(names))
    }
}

/// The first few words, separated by commas.
pub(super) fn listed(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len() > MAX_LISTED;
    let mut few: Vec<String> = words.take(MAX_LISTED).collect();
    if more {
        few.push("...".to_owned());
    }
    few.join(", ")
}

/// Names become parts of file names, metrics and tables: `[a-z0-9][a-z0-9-]*`.
pub(super) fn check(name: &str, most: usize, place: &Location, findings: &mut Findings) {
    check_letters(name, b"-", most, place, findings);
}

/// A node may have a host name or an address as its name, and a backend a port behind it.
pub(super) fn check_backend(name: &str, place: &Location, findings: &mut Findings) {
    check_letters(name, b"-.:", MAX_BACKEND_NAME, place, findings);
}

/// Whether a backend may have this name.
#[must_use]
pub fn is_backend_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_BACKEND_NAME
        && name.bytes().next().is_some_and(letter)
        && name
            .bytes()
            .all(|byte| letter(byte) || b"-.:".contains(&byte))
}

/// As `check`, with dots.
pub(super) fn check_node(name: &str, place: &Location, findings: &mut Findings) {
    check_letters(name, b"-.", MAX_NAME, place, findings);
}

fn check_letters(
    name: &str,
    others: &[u8],
    most: usize,
    place: &Location,
    findings: &mut Findings,
) {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let starts_well = name.bytes().next().is_some_and(letter);
    let others_are_known = name
        .bytes()
        .all(|byte| letter(byte) || others.contains(&byte));
    if !starts_well || !others_are_known {
        let others: Vec<String> = others.iter().map(|&byte| char::from(byte).into()).collect();
        let words = format!(
            "{} is not a name; expected a-z, 0-9 and {}, with a letter or a digit in front",
            quote(name),
            others.join(" ")
        );
        findings.add(place, words);
    } else if name.len() > most {
        let words = format!(
            "a name of {} characters, expected at most {most}",
            name.len()
        );
        findings.add(place, words);
    }
}

/// The name of the host that this process is on.
pub(super) fn host_name() -> Option<String> {
    gethostname().ok()?.into_string().ok()
}

/// A DNS name in lower case (RFC 1123 section 2.1), without a dot at the end.
pub(super) fn check_domain(name: &str, place: &Location, findings: &mut Findings) {
    if !is_domain(name) {
        let words = format!(
            "{} is not a DNS name; expected one such as tenant-a.example.com, in lower case",
            quote(name)
        );
        findings.add(place, words);
    }
}

/// The host that an HTTP request is for: a DNS name in lower case, an IPv4 address or an IPv6 address in
/// brackets, and a port or none (RFC 9110 section 7.2).
pub(super) fn check_authority(text: &str, place: &Location, findings: &mut Findings) {
    let after = text.rfind(']').unwrap_or_default();
    let colon = text.bytes().skip(after).position(|byte| byte == b':');
    let (host, port) = colon
        .and_then(|colon| text.split_at_checked(after + colon))
        .map_or((text, "1"), |(host, port)| (host, &port[1..]));
    let port = number(port).is_some_and(|port| (1..=65_535).contains(&port));
    let of_6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_address = host.parse::<Ipv4Addr>().is_ok()
        || of_6.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    if !port || !(is_domain(host) || is_address) {
        let words = format!(
            "{} is not a host; expected a DNS name in lower case or an IP address, with :PORT or without",
            quote(text)
        );
        findings.add(place, words);
    }
}

/// Whether it is a DNS name in lower case (RFC 1123 section 2.1), without a dot at the end.
pub(super) fn is_domain(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| letter(byte) || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253 && !is_number && name.split('.').all(label)
}
/// The path of a file, such as `example`. Where `lb` is started from must not matter.
pub(super) fn file_path(
    At { place, value }: &At<String>,
    example: &str,
    findings: &mut Findings,
) -> Option<PathBuf> {
    let path = PathBuf::from(value);
    if !path.is_absolute() || value.ends_with('/') || value.contains('\0') {
        let words = format!(
            "{} is not the path of a file; expected one from the root, such as {example}",
            quote(value)
        );
        findings.add(place, words);
        return None;
    }
    Some(path)
}
