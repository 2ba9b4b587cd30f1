//! The heads of requests and answers, as they are passed on. Pure.

use std::net::Ipv4Addr;

use hyper::{
    Method, StatusCode, Uri, Version,
    header::{
        CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
        UPGRADE,
    },
    http::uri::PathAndQuery,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The protocol of an upgrade whose requests would not be routed one by one.
const H2C: &str = "h2c";

/// Whether a request has a body, and how it is delimited: hyper takes it from the client's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// By its length, or there is none.
    Length,
    /// In chunks.
    Chunks,
}

/// Makes the head of a client's request that of ours, with this `host`.
pub(super) fn forward(
    headers: &mut HeaderMap,
    host: HeaderValue,
    client: Ipv4Addr,
    framing: Framing,
) {
    let upgrade = wished(headers);
    strip(headers);
    // Whatever the client calls a header of the connection: these are none.
    headers.insert(HOST, host);
    headers.insert(FORWARDED_FOR, forwarded(headers, client));
    if framing == Framing::Chunks {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if let Some(upgrade) = upgrade {
        turn(headers, upgrade);
    }
}

/// Makes the head of a backend's answer that of ours.
pub(super) fn give_back(status: StatusCode, headers: &mut HeaderMap) {
    let upgrade = headers.get(UPGRADE).cloned();
    strip(headers);
    if let Some(upgrade) = upgrade.filter(|_| status == StatusCode::SWITCHING_PROTOCOLS) {
        turn(headers, upgrade);
    }
}

/// Whether a body has no other coding than chunks, once (RFC 9112 section 6.1): the backend gets it in chunks of
/// ours, and must not take for the body what is one in another coding.
pub(super) fn is_decoded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(is_chunked) && codings.next().is_none()
}

/// The target in origin form, or `*`: an OPTIONS of a server as a whole was `sent` without a path (RFC 9112 section
/// 3.2.4).
pub(super) fn target(method: &Method, uri: &Uri, sent: &[u8]) -> Uri {
    let is_of_server = *method == Method::OPTIONS
        && uri
            .authority()
            .is_some_and(|authority| sent.len() == "http://".len() + authority.as_str().len());
    match uri.path_and_query() {
        _ if is_of_server => Uri::from_static("*"),
        Some(path) => Uri::from(path.clone()),
        None => Uri::from(PathAndQuery::from_static("/")),
    }
}

/// Whether the client wishes for a protocol that may follow.
pub(super) fn wishes_upgrade(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11 && wished(headers).is_some()
}

/// The protocols that the client wishes for.
fn wished(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_named = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let mut protocols = tokens(headers, &UPGRADE);
    if !is_named || protocols.any(|protocol| protocol.eq_ignore_ascii_case(H2C)) {
        return None;
    }
    headers.get(UPGRADE).cloned()
}

fn turn(headers: &mut HeaderMap, upgrade: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, upgrade);
}

/// Takes out the headers of one connection alone (RFC 9110 section 7.6.1).
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        .collect();
    let all = [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in named.into_iter().chain(all) {
        headers.remove(name);
    }
}

/// The clients that are known so far, and this one.
fn forwarded(headers: &HeaderMap, client: Ipv4Addr) -> HeaderValue {
    let known = headers.get_all(FORWARDED_FOR).iter();
    let mut all: Vec<u8> = Vec::new();
    for value in known {
        all.extend_from_slice(value.as_bytes());
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(client.to_string().as_bytes());
    // Pieces of good values make a good one.
    HeaderValue::from_bytes(&all).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The elements of a header that is a list.
fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter();
    // What is not ASCII is no token, and hides none that is beside it.
    let pieces = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    pieces.filter_map(|piece| Some(std::str::from_utf8(piece).ok()?.trim()))
}

#[cfg(test)]
mod tests;
