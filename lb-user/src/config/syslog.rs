//! Where events go as syslog.

use std::{
    fmt::{self, Display, Formatter},
    net::SocketAddr,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// A syslog server, and how it sorts what it gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syslog {
    /// Where it listens.
    pub to: SyslogServer,
    /// The facility of all lines.
    pub facility: Facility,
}

/// Where a syslog server listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SyslogServer {
    /// At a unix socket of datagrams on this host. Absolute.
    Unix(PathBuf),
    /// For a datagram for each line.
    Udp(SocketAddr),
    /// For a connection, with the length before each line.
    Tcp(SocketAddr),
}

impl Display for SyslogServer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Udp(address) => write!(f, "udp:{address}"),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl From<SyslogServer> for String {
    fn from(server: SyslogServer) -> Self {
        server.to_string()
    }
}

impl TryFrom<String> for SyslogServer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl SyslogServer {
    /// Reads `unix:PATH`, `udp:ADDRESS:PORT` or `tcp:ADDRESS:PORT`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "found {text:?}, expected unix:PATH, udp:ADDRESS:PORT or tcp:ADDRESS:PORT, such as udp:10.0.0.1:514"
            )
        };
        let (kind, place) = text.split_once(':').ok_or_else(wrong)?;
        if kind == "unix" {
            let is_path = place.starts_with('/') && place.len() > 1;
            let is_fit = is_path && !place.contains(char::is_control);
            return is_fit.then(|| Self::Unix(place.into())).ok_or_else(wrong);
        }
        let address: SocketAddr = place.parse().map_err(|_| wrong())?;
        if address.port() == 0 {
            return Err("0 is not a port; expected 1 to 65535".to_owned());
        }
        match kind {
            "udp" => Ok(Self::Udp(address)),
            "tcp" => Ok(Self::Tcp(address)),
            _ => Err(wrong()),
        }
    }
}

/// Declares the facilities, each with its word.
macro_rules! facilities {
    ($($Name:ident = $word:literal),+ $(,)?) => {
        /// How a syslog server sorts lines (RFC 5424 section 6.2.1).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "the names are those of RFC 5424")]
        pub enum Facility {
            #[default]
            $(#[serde(rename = $word)] $Name),+
        }

        impl Facility {
            pub(super) const ALL: &[Self] = &[$(Self::$Name),+];
        }

        impl Display for Facility {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$Name => $word),+ })
            }
        }
    };
}

facilities! {
    Daemon = "daemon",
    User = "user",
    Syslog = "syslog",
    Auth = "auth",
    Authpriv = "authpriv",
    Local0 = "local0",
    Local1 = "local1",
    Local2 = "local2",
    Local3 = "local3",
    Local4 = "local4",
    Local5 = "local5",
    Local6 = "local6",
    Local7 = "local7",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_written_as_it_is_read() {
        for text in [
            "unix:/dev/log",
            "udp:10.0.0.1:514",
            "tcp:10.0.0.1:601",
            "udp:[2001:db8::1]:514",
        ] {
            let server = SyslogServer::parse(text).unwrap();
            assert_eq!(server.to_string(), text);
            let json = serde_json::to_string(&server).unwrap();
            assert_eq!(serde_json::from_str::<SyslogServer>(&json).unwrap(), server);
        }
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for text in [
            "",
            "udp",
            "/dev/log",
            "unix:",
            "unix:/",
            "unix:dev/log",
            "unix:/dev/\u{1b}log",
            "udp:10.0.0.1",
            "udp:loghost:514",
            "tcp:10.0.0.1:65536",
            "tls:10.0.0.1:6514",
            "udp:2001:db8::1:514",
        ] {
            let words = SyslogServer::parse(text).unwrap_err();
            assert!(words.contains("udp:10.0.0.1:514"), "{text}: {words}");
            assert!(!words.contains('\u{1b}'), "{words}");
        }
        let words = SyslogServer::parse("udp:10.0.0.1:0").unwrap_err();
        assert_eq!(words, "0 is not a port; expected 1 to 65535");
    }
}
