//! Which requests are answered at all: those to a name of this host, and with the token if one is set.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
};

use hyper::{
    HeaderMap, StatusCode, Uri,
    header::{AUTHORIZATION, HOST, HeaderName, HeaderValue},
    http::uri::Authority,
};

use crate::config::{AdminHttp, BearerToken};

/// The scheme of `Authorization`.
const SCHEME: &str = "bearer";

/// What a request must have.
#[derive(Debug)]
pub(super) struct AccessRules {
    /// Names in lower case, without a port.
    hosts: BTreeSet<String>,
    token: Option<BearerToken>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// It has no `Host`, or several, or one that is none.
    NoHost,
    /// It is for another host: a browser may have been led here by a name that an attacker has in the DNS.
    OtherHost,
    /// It lacks the token.
    NoToken,
}

impl Denied {
    /// The status of the answer.
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::NoHost => StatusCode::BAD_REQUEST,
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::NoToken => StatusCode::UNAUTHORIZED,
        }
    }

    /// For the operator at the other end of the connection.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::NoHost => "the request has no Host, or several",
            Self::OtherHost => {
                "the request is for another host: `admin.http.hosts` lists the names that are taken"
            }
            Self::NoToken => {
                "the request lacks the token of `admin.http.token_file` (Authorization: Bearer TOKEN)"
            }
        }
    }
}

impl AccessRules {
    /// As it is configured.
    pub(super) fn new(http: &AdminHttp, token: Option<BearerToken>) -> Self {
        let own = http.listen.ip();
        let mut hosts: BTreeSet<String> = http.hosts.iter().map(|host| bracketed(host)).collect();
        hosts.insert(bracketed(&own.to_string()));
        if own.is_loopback() {
            hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        }
        Self { hosts, token }
    }

    /// Whether a request is for this host.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(super) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        let host = only(headers, &HOST).ok_or(Denied::NoHost)?;
        let host = host.to_str().ok().and_then(|host| host.parse().ok());
        let host: Authority = host.ok_or(Denied::NoHost)?;
        let is_ours = |authority: &Authority| {
            let host = authority.host();
            !authority.as_str().contains('@') && self.hosts.contains(&host.to_ascii_lowercase())
        };
        if !is_ours(&host) || !uri.authority().is_none_or(is_ours) {
            return Err(Denied::OtherHost);
        }
        Ok(())
    }

    /// Whether a request has the token, if one is needed.
    ///
    /// # Errors
    ///
    /// If it has not.
    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), Denied> {
        match &self.token {
            Some(token) if !only(headers, &AUTHORIZATION).is_some_and(|sent| has(sent, token)) => {
                Err(Denied::NoToken)
            }
            _ => Ok(()),
        }
    }
}

/// A name as a request has it: an IPv6 address is in brackets.
fn bracketed(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{}]", Ipv6Addr::from(address.octets())),
        _ => host.to_owned(),
    }
}

/// The value of a header that is there once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Whether `Authorization` has the token.
fn has(sent: &HeaderValue, token: &BearerToken) -> bool {
    let sent = sent.as_bytes();
    let Some((scheme, rest)) = sent.split_at_checked(SCHEME.len()) else {
        return false;
    };
    let sent = rest.trim_ascii();
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) && rest.starts_with(b" ") && token.is(sent)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn access(listen: &str, hosts: &[&str], token: Option<&str>) -> AccessRules {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = token.map(|token| {
            fs::write(&path, token).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            BearerToken::read(&path).unwrap()
        });
        let http = AdminHttp {
            listen: listen.parse().unwrap(),
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            token_file: None,
            allow_tenant: false,
        };
        AccessRules::new(&http, token)
    }

    fn check(
        access: &AccessRules,
        uri: &str,
        headers: &[(HeaderName, &str)],
    ) -> Result<(), Denied> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name, value.parse().unwrap());
        }
        access.check_host(&uri.parse().unwrap(), &all)?;
        access.check_token(&all)
    }

    #[test]
    fn only_names_of_this_host_are_taken() {
        let loopback = access("127.0.0.1:9180", &["lb.example"], None);
        let with = |host: &str| check(&loopback, "/metrics", &[(HOST, host)]);
        for ours in [
            "127.0.0.1:9180",
            "localhost",
            "LOCALHOST:1",
            "[::1]:9180",
            "lb.example",
            "LB.example:80",
        ] {
            assert_eq!(with(ours), Ok(()), "{ours}");
        }
        for other in [
            "evil.example",
            "127.0.0.2",
            "localhost.evil.example",
            "lb.example.",
            "lb.example@evil.example",
            "evil.example@localhost",
        ] {
            assert_eq!(with(other), Err(Denied::OtherHost), "{other}");
        }
        assert_eq!(with(""), Err(Denied::NoHost));
        assert_eq!(check(&loopback, "/", &[]), Err(Denied::NoHost));
        let two = [(HOST, "localhost"), (HOST, "localhost")];
        assert_eq!(check(&loopback, "/", &two), Err(Denied::NoHost));
        let absolute = check(&loopback, "http://evil.example/", &[(HOST, "localhost")]);
        assert_eq!(absolute, Err(Denied::OtherHost));
        let absolute = check(&loopback, "http://localhost:9180/", &[(HOST, "localhost")]);
        assert_eq!(absolute, Ok(()));
    }

    #[test]
    fn another_address_is_no_localhost() {
        let mgmt = access("[fd00:96::7]:9180", &["fd00:96::8"], None);
        let with = |host: &str| check(&mgmt, "/metrics", &[(HOST, host)]);
        assert_eq!(with("[fd00:96::7]:9180"), Ok(()));
        assert_eq!(with("[fd00:96::8]"), Ok(()));
        assert_eq!(with("localhost"), Err(Denied::OtherHost));
    }

    #[test]
    fn the_token_is_needed_where_there_is_one() {
        let access = access("127.0.0.1:9180", &[], Some(TOKEN));
        let with = |sent: &[&str]| {
            let sent = sent.iter().map(|&sent| (AUTHORIZATION, sent));
            let headers: Vec<_> = [(HOST, "localhost")].into_iter().chain(sent).collect();
            check(&access, "/metrics", &headers)
        };
        let right = format!("Bearer {TOKEN}");
        assert_eq!(with(&[&right]), Ok(()));
        assert_eq!(with(&[&format!("bearer  {TOKEN}")]), Ok(()));
        for wrong in [
            &[][..],
            &[TOKEN],
            &["Bearer"],
            &["Bearer "],
            &["Bearer 0123456789abcdeF"],
            &["Bearer0123456789abcdef"],
            &["Basic 0123456789abcdef"],
            &[&right, &right],
        ] {
            assert_eq!(with(wrong), Err(Denied::NoToken), "{wrong:?}");
        }
    }
}
