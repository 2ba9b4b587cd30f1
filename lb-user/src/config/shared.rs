//! Services that share a VIP: what a client requests decides which pool it gets.

use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::duration;

/// Where the flows of a service go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// All to this pool, packet by packet.
    Pool(String),
    /// By the name in the TLS ClientHello.
    Sni(Sni),
    /// By the Host of each HTTP request.
    Http(Http),
}

impl Target {
    /// The pools that flows may go to, each once.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let (one, routes, otherwise): (_, &[NameRoute], _) = match self {
            Self::Pool(pool) => (Some(pool), &[], [None, None]),
            Self::Sni(sni) => (None, &sni.routes, [sni.no_name.pool(), sni.no_match.pool()]),
            Self::Http(http) => (None, &http.routes, [http.no_match.pool(), None]),
        };
        let routed = routes.iter().filter_map(|route| match &route.to {
            To::Pool(pool) => Some(pool),
            To::Https => None,
        });
        let all = one.into_iter().chain(routed);
        let all = all.chain(otherwise.into_iter().flatten());
        let all: std::collections::BTreeSet<&str> = all.map(String::as_str).collect();
        all.into_iter()
    }

    /// The pool that all flows go to without a look at what they request.
    #[must_use]
    pub const fn pool(&self) -> Option<&String> {
        match self {
            Self::Pool(pool) => Some(pool),
            Self::Sni(_) | Self::Http(_) => None,
        }
    }
}

/// A service that looks at the ClientHello of each connection and passes it on unopened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sni {
    /// Which name goes where. An exact name comes before a wildcard, a longer wildcard before a
    /// shorter one, and expressions come last, in the order of the file.
    pub routes: Vec<NameRoute>,
    /// What becomes of a hello without a name that no route is for.
    pub no_name: Otherwise,
    /// What becomes of a name that no route is for.
    pub no_match: Otherwise,
    /// What becomes of a hello that has its real name encrypted (RFC 9849).
    pub ech: Ech,
    /// How long a client may take for its hello, 100 ms to 1 min; default 5 s.
    #[serde(with = "duration::as_text")]
    pub hello_timeout: Duration,
    /// The most bytes of a hello, 1 KiB to 131396, which are as many as there can be; default 64 KiB.
    pub max_hello: u32,
    /// When a SYN is answered by a cookie.
    #[serde(default)]
    pub syn_cookies: SynCookies,
    /// When the data plane opens connections by the names that clients request.
    #[serde(default)]
    pub late_binding: LateBinding,
    /// Proxies in front of it, by where they connect from. Each of their connections begins with a header
    /// of the PROXY protocol, version 2; no other connection may.
    pub proxies: Vec<IpNet>,
}

/// A service that looks at the Host of each HTTP request (HTTP/1.0 and 1.1).
///
/// A client's connection may wait for its next request as long as `idle_timeout` of the service, but no
/// longer than a minute. What cannot be served is answered with a status: 400 for what is no Host, 421
/// for one that no route is for, 431 for a head that is too long, 408 for one that takes too long, and for a body
/// that does, 502 for backends that cannot be reached, 504 for one that does not answer, 503 for a pool without
/// a backend that serves and for a budget or a share that is spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// As [`Sni::routes`].
    pub routes: Vec<NameRoute>,
    /// What becomes of a Host that no route is for: with [`Otherwise::Alert`] it is answered with 421.
    pub no_match: Otherwise,
    /// Which backend of a pool gets a request.
    pub balance: Balance,
    /// How long a client may take for the head of a request, 100 ms to 1 min; default 5 s.
    #[serde(with = "duration::as_text")]
    pub header_timeout: Duration,
    /// How long nothing may come of the body of a request, 100 ms to 1 d; default 1 min.
    #[serde(with = "duration::as_text")]
    pub body_timeout: Duration,
    /// How long a backend may take to begin its answer, and a client to read more of it, 100 ms to 1 d; default
    /// 1 min.
    #[serde(with = "duration::as_text")]
    pub response_timeout: Duration,
    /// The most bytes of the head of a request, 1 to 64 KiB; default 16 KiB.
    pub max_header: u32,
}

/// Names, and where the clients that request one of them go; or where the clients that request none go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRoute {
    /// Names in lower case; `*.` in front stands for one or more labels.
    pub names: Vec<String>,
    /// Regular expressions that the whole name must match.
    pub expressions: Vec<String>,
    /// Whether it is for clients that request no name: then it has none, and such a client takes the first
    /// one that it may.
    pub no_name: bool,
    /// Clusters that a proxy in front announces for its client (TLV 0x20): a client of one of them takes this
    /// route, whatever name it requests. Then the route has no names.
    pub clusters: Vec<String>,
    /// The proxies that may announce clients of these clusters; empty: all that are in front of the service.
    pub proxies: Vec<IpNet>,
    /// Protocols (ALPN) of which the client must offer one; empty: none is required.
    pub alpn: Vec<String>,
    /// The clients that may request these names, or none; empty: all that the service lets in.
    pub from: Vec<IpNet>,
    /// Where they go.
    pub to: To,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum To {
    /// To a pool.
    Pool(String),
    /// To the same place by https: the client gets a redirect.
    Https,
}

/// What becomes of what no route is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// The client gets a TLS alert, or for HTTP the status 421.
    #[default]
    Alert,
    /// The connection is closed without an answer.
    Close,
    /// It goes to a pool.
    Pool(String),
}

impl Otherwise {
    const fn pool(&self) -> Option<&String> {
        match self {
            Self::Pool(pool) => Some(pool),
            Self::Alert | Self::Close => None,
        }
    }
}

/// What becomes of a hello that has its real name encrypted. A name is in the clear besides, and
/// browsers send such an extension with nothing in it (GREASE), which looks alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ech {
    /// It goes where the name in the clear says.
    #[default]
    Route,
    /// The same, and it is counted.
    Count,
    /// It is refused.
    Deny,
}

/// When a SYN to a service is answered by a cookie of the data plane, so that nothing is kept of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SynCookies {
    /// Never. The kernel of a cell may do so under a flood.
    Never,
    /// While its network's half-open flows are flooded. Not of shared VIPs.
    Auto,
    /// Each one.
    #[default]
    Always,
}

impl SynCookies {
    /// That of a service with a pool which has none.
    pub(super) const fn auto() -> Self {
        Self::Auto
    }

    /// Whether it is [`Self::Auto`].
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde has"
    )]
    pub(super) const fn is_auto(&self) -> bool {
        matches!(self, Self::Auto)
    }
}

/// When the data plane by itself opens the connection of a client to the backend of the name that it requests, so that the
/// process has nothing to do with it. Only with [`SynCookies::Always`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LateBinding {
    /// The process opens each one.
    Never,
    /// The data plane, for names that it knows.
    #[default]
    Always,
}

/// Which backend of a pool gets a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// By the client's connection.
    #[default]
    Client,
    /// By the Host: the same backend for the same one.
    Host,
}

/// The most that [`Sni::max_hello`] can be: a hello has no more bytes. Every client that is waited for may have as many
/// kept.
pub(super) const MAX_HELLO: u32 = 131_396;
/// The most that [`Http::max_header`] can be.
pub(super) const MAX_HEADER: u32 = 1 << 16;
