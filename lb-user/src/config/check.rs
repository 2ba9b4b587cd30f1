//! The kinds of checks: the keys of each, what it requests, and how it is written out. With a probe in
//! `health/probe` that is all there is of one.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    authorities::{Authorities, Library},
    names,
    number::number,
    place::{At, Location, quote, value_of},
    problem::Findings,
    schema::{
        declare::{Declared as _, section},
        kinds::{File, Inside, Kind, kinds},
        mapping::{Mapping, Scope},
        values::{checked, parsed, within},
    },
};

section! {
    /// What is checked.
    struct Checks = "checks" {
        /// A check that a connection can be made.
        optional tcp: OneCheck,
        /// A check that a TLS handshake can be done.
        optional tls: OneCheck,
        /// A check that a GET request is answered with an expected status. Redirects are not followed.
        optional http: OneCheck,
        /// The same by TLS.
        optional https: OneCheck,
    }
    also(keys) {
        /// Whether a check is written, here or in the defaults.
        is_written: bool = !CHECKS.iter().all(|(check, _)| keys.lacks(check)),
    }
}

section! {
    /// A check, with the keys of its kind.
    struct RawCheck = "check" {
        /// The path, with its query.
        optional[only(http, https)] path: UrlPath = "/",
        /// The Host header.
        optional[only(http, https)] host: Authority => "the address and port",
        /// The expected status, or a range of them such as `200-299`.
        optional[only(http, https)] status: Status = "200-299",
        /// The name in the ClientHello.
        optional[only(tls, https)] sni: ServerName => "no name",
        /// A PEM file with the CAs of which one must have signed the certificate, which is for `sni` or the address. It
        /// is read with the configuration.
        optional[only(tls, https)] ca: File => "any certificate",
        /// The port of the check.
        optional port: CheckPort => "that of the backend",
    }
    also(_keys) {
        kind: CheckKind = CheckKind::Tcp,
    }
}

kinds! {
    UrlPath("text"): Option<At<String>> = checked(check_path);
    Authority("text"): Option<At<String>> = checked(names::check_authority);
    Status("text"): Option<At<(u16, u16)>> = parsed(status);
    /// RFC 6066 section 3: the name of a server is no address.
    ServerName("text"): Option<At<String>> = checked(names::check_domain);
    CheckPort("port"): Option<At<u16>> = within(1..=u16::MAX);
}

/// The protocol of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::config) enum CheckKind {
    #[default]
    Tcp,
    Tls,
    Http,
    Https,
}

/// The checks by their keys.
const CHECKS: [(&str, CheckKind); 4] = [
    ("tcp", CheckKind::Tcp),
    ("tls", CheckKind::Tls),
    ("http", CheckKind::Http),
    ("https", CheckKind::Https),
];

impl Checks {
    /// Those that are written, with the places of their keys, in their order; one is meant.
    pub(super) fn written(&self) -> Vec<(&'static str, &At<Option<RawCheck>>)> {
        let checks = [&self.tcp, &self.tls, &self.http, &self.https];
        let checks = CHECKS.iter().zip(checks);
        let mut checks: Vec<_> = checks
            .filter_map(|((key, _), check)| Some((*key, check.as_ref()?)))
            .collect();
        checks.sort_by_key(|(_, at)| (at.place.line, at.place.column));
        checks
    }

    /// The keys of all kinds.
    pub(super) fn keys() -> String {
        CHECKS.map(|(key, _)| key).join(", ")
    }

    /// The first one.
    pub(super) fn first(&self) -> Option<&RawCheck> {
        self.written().first()?.1.value.as_ref()
    }
}

/// A check; those of the defaults are for a mapping that has none.
#[derive(Debug)]
pub(in crate::config) struct OneCheck;

impl Kind for OneCheck {
    type Field = Option<At<Option<RawCheck>>>;
    const NAME: &'static str = "mapping";
    const INSIDE: Inside = Inside::Keys(&[RawCheck::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        let is_absent = CHECKS.iter().all(|(check, _)| keys.is_absent(check));
        if let Some(defaults) = keys.defaults_of(key).filter(|_| is_absent) {
            return Self::field(defaults, key, &mut Findings::new(""));
        }
        let &(form, kind) = CHECKS.iter().find(|(check, _)| *check == key)?;
        keys.has(key).then(|| At {
            place: keys.place_of_key(key),
            value: keys.own(key, findings, |node, place, findings| {
                let form = Scope::Form(form);
                let keys = Mapping::open(node, place, RawCheck::SECTION, form, findings)?;
                let check = RawCheck::read(&keys, findings);
                Some(RawCheck { kind, ..check })
            }),
        })
    }
}

/// What a check requests of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// A TCP connection.
    Tcp,
    /// A TLS handshake.
    Tls(Tls),
    /// An HTTP answer.
    Http(Get),
    /// An HTTP answer over TLS.
    Https {
        /// What is offered and accepted before it.
        #[serde(flatten)]
        tls: Tls,
        /// What is requested.
        #[serde(flatten)]
        get: Get,
    },
}

#[cfg(test)]
impl Check {
    /// Both parts of it.
    pub(crate) const fn https(tls: Tls, get: Get) -> Self {
        Self::Https { tls, get }
    }
}

/// The TLS part of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// The name in the ClientHello; none: no name is sent.
    pub sni: Option<String>,
    /// PEM file with the only CAs that may have signed the certificate, which must then be for `sni`,
    /// or for the backend's address; none: any certificate is taken.
    pub ca: Option<Authorities>,
}

/// The HTTP part of a check: a GET request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// Path and query; begins with `/`.
    pub path: String,
    /// The `Host` header; none: the backend's address and port.
    pub host: Option<String>,
    /// First and last status that is good; default 200 to 299.
    pub status: (u16, u16),
}

impl RawCheck {
    /// What it requests.
    pub(super) fn check(&self, library: &mut Library, findings: &mut Findings) -> Check {
        match self.kind {
            CheckKind::Tcp => Check::Tcp,
            CheckKind::Tls => Check::Tls(self.tls(library, findings)),
            CheckKind::Http => Check::Http(self.get()),
            CheckKind::Https => Check::Https {
                tls: self.tls(library, findings),
                get: self.get(),
            },
        }
    }

    fn tls(&self, library: &mut Library, findings: &mut Findings) -> Tls {
        let ca = self.ca.as_ref();
        Tls {
            sni: self.sni.as_ref().map(|at| at.value.clone()),
            ca: ca.and_then(|ca| library.authorities(ca, findings)),
        }
    }

    fn get(&self) -> Get {
        Get {
            path: value_of(&self.path),
            host: self.host.as_ref().map(|at| at.value.clone()),
            status: value_of(&self.status),
        }
    }
}

/// The longest path with its query, in characters.
const MAX_PATH: usize = 1024;

/// Statuses of HTTP (RFC 9110 section 15).
const STATUS: RangeInclusive<u16> = 100..=599;

fn check_path(text: &str, place: &Location, findings: &mut Findings) {
    if !is_path(text) {
        let words = format!(
            "{} is not a path; expected one such as /readyz or /health?full, in at most {MAX_PATH} \
             characters of a URL and without a fragment",
            quote(text)
        );
        findings.add(place, words);
    }
}

/// A path with or without a query, as RFC 3986 sections 3.3 and 3.4 have them.
fn is_path(text: &str) -> bool {
    let digits = |rest: &[u8]| {
        let two = rest.get(..2);
        two.is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let bytes = text.as_bytes();
    let legal = |(at, byte): (usize, &u8)| match byte {
        b'%' => digits(&bytes[at + 1..]),
        byte => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?".contains(byte),
    };
    text.starts_with('/') && text.len() <= MAX_PATH && bytes.iter().enumerate().all(legal)
}

/// `200`, or `200-399`.
fn status(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let one = |text: &str| {
        let status = u16::try_from(number(text)?).ok()?;
        STATUS.contains(&status).then_some(status)
    };
    let (Some(first), Some(last)) = (one(first), one(last)) else {
        return Err(format!(
            "{} is not a status; expected {} to {}, or a range such as 200-399",
            quote(text),
            STATUS.start(),
            STATUS.end()
        ));
    };
    if first > last {
        return Err(format!("{first}-{last} ends before it starts"));
    }
    Ok((first, last))
}
