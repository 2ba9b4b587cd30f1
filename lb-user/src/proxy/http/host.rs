//! The Host of a request, and where it goes. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::{
    Method, Uri, Version,
    header::{HOST, HeaderMap, HeaderValue},
};
use lb_common::{
    client_hello::Alpn,
    server_name::{NameFault, ServerName},
};

pub(super) use crate::proxy::route::RouteTarget;
use crate::proxy::snapshot::HttpRouting;

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestTarget {
    /// The name; none: an address, or nothing at all.
    pub(super) name: Option<ServerName>,
    /// As the backend gets it; none: the client has sent none.
    pub(super) host: Option<HeaderValue>,
}

/// The target of a request cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad;

impl RequestTarget {
    /// The target of a request: the authority in its URI, or else its Host, of which there is exactly one in
    /// HTTP/1.1 in any case (RFC 9112 section 3.2). `sent` is the URI as it came.
    pub(super) fn of(
        method: &Method,
        version: Version,
        uri: &Uri,
        sent: &[u8],
        headers: &HeaderMap,
    ) -> Result<Self, Bad> {
        // A fragment is none of a server's business (RFC 9110 section 7.1), and is lost in the URI.
        if *method == Method::CONNECT || sent.contains(&b'#') {
            return Err(Bad);
        }
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next();
        let is_enough = host.is_some() || version == Version::HTTP_10;
        if hosts.next().is_some() || !is_enough {
            return Err(Bad);
        }
        // It must be good even where another one counts.
        let of_header = host.map(|host| read(host.as_bytes())).transpose()?;
        if let Some(authority) = uri.authority() {
            if uri.scheme_str() != Some("http") {
                return Err(Bad);
            }
            let name = read(authority.as_str().as_bytes())?;
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Bad)?;
            let host = Some(host);
            return Ok(Self { name, host });
        }
        Ok(Self {
            name: of_header.flatten(),
            host: host.cloned(),
        })
    }
}

/// The name in a Host, without its port; none: it is an address.
fn read(host: &[u8]) -> Result<Option<ServerName>, Bad> {
    if let Some(rest) = host.strip_prefix(b"[") {
        let end = rest.iter().position(|&byte| byte == b']').ok_or(Bad)?;
        let (address, rest) = rest.split_at(end);
        let address = str::from_utf8(address).map_err(|_| Bad)?;
        let _valid: Ipv6Addr = address.parse().map_err(|_| Bad)?;
        let port = rest.strip_prefix(b"]").unwrap_or_default();
        let is_good = port.is_empty() || port.strip_prefix(b":").is_some_and(is_port);
        return if is_good { Ok(None) } else { Err(Bad) };
    }
    let name = match host.iter().position(|&byte| byte == b':') {
        Some(colon) => {
            let (name, port) = host.split_at(colon);
            if !port.strip_prefix(b":").is_some_and(is_port) {
                return Err(Bad);
            }
            name
        }
        None => host,
    };
    match ServerName::read(name) {
        Ok(name) => Ok(Some(name)),
        Err(NameFault::Address) => Ok(None),
        Err(_) => Err(Bad),
    }
}

/// Whether it is a port; none at all is one as well (RFC 3986 section 3.2.3).
fn is_port(port: &[u8]) -> bool {
    let digits = str::from_utf8(port).unwrap_or("-");
    digits.is_empty()
        || digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok()
}

/// Where a client goes that requests this name, or none.
pub(super) fn way<'h>(
    name: Option<&'h ServerName>,
    http: &'h HttpRouting,
    client: Ipv4Addr,
) -> RouteTarget<'h> {
    http.routes
        .way(name, &Alpn::default(), client.into(), &http.no_match)
}

#[cfg(test)]
mod tests;
