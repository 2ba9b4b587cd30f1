use std::{io, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::{
    certificate::{Certificates, NAME, speaking, versions},
    server::{serve, to_end},
    *,
};

/// What a server has seen of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    name: Option<String>,
    protocol: Option<Vec<u8>>,
    /// Bytes until the client took its leave.
    bytes: usize,
}

/// A server for one handshake.
async fn shaking(config: Arc<ServerConfig>) -> (SocketAddrV4, JoinHandle<io::Result<Seen>>) {
    serve(async move |stream| {
        let mut stream = TlsAcceptor::from(config).accept(stream).await?;
        // An error if the connection ends without a word.
        let bytes = to_end(&mut stream).await?;
        let session = stream.get_ref().1;
        Ok(Seen {
            name: session.server_name().map(str::to_owned),
            protocol: session.alpn_protocol().map(<[u8]>::to_vec),
            bytes,
        })
    })
    .await
}

#[tokio::test]
async fn a_handshake_is_good_and_ends_with_a_word() {
    let certificates = Certificates::new();
    for (version, words) in [(&TLS13, "TLS 1.3"), (&TLS12, "TLS 1.2")] {
        for sni in [None, Some("any.example")] {
            let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).expect("a key");
            let server = speaking(&[version]).with_no_client_auth();
            let server = server.with_single_cert(certificates.chain(), key);
            let (address, server) = shaking(Arc::new(server.expect("a pair"))).await;
            let tls = Tls {
                sni: sni.map(str::to_owned),
                ca: None,
            };
            assert_eq!(outcome(address, Check::Tls(tls)).await, good(words));
            let seen = server.await.expect("served").expect("a clean end");
            let wanted = Seen {
                name: sni.map(str::to_owned),
                protocol: None,
                bytes: 0,
            };
            assert_eq!(seen, wanted);
        }
    }
}

#[tokio::test]
async fn a_certificate_is_for_the_name_or_the_address() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    for sni in [Some(NAME), None] {
        let (address, server) = shaking(certificates.server()).await;
        let tls = trusting(sni, &ca);
        assert_eq!(outcome(address, Check::Tls(tls)).await, good("TLS 1.3"));
        let seen = server.await.expect("served").expect("a clean end");
        assert_eq!(seen.name.as_deref(), sni);
    }
    let other = certificates.path("other.pem");
    for (sni, ca) in [(Some("other.example"), &ca), (Some(NAME), &other)] {
        let (address, server) = shaking(certificates.server()).await;
        let tls = trusting(sni, ca);
        let CheckOutcome::NotReady(words) = outcome(address, Check::Tls(tls)).await else {
            panic!("not ready");
        };
        assert!(words.starts_with("certificate not accepted: "), "{words}");
        let told = server.await.expect("served").expect_err("no handshake");
        assert!(told.to_string().contains("alert"), "{told}");
    }
}

#[tokio::test]
async fn a_ca_that_cannot_be_read_is_no_outcome() {
    let certificates = Certificates::new();
    for (file, wanted) in [
        ("none.pem", "none.pem cannot be read: No such file"),
        ("server.key", "has no certificate of a CA"),
    ] {
        let (address, _server) = shaking(certificates.server()).await;
        let check = Check::Tls(trusting(None, certificates.path(file)));
        let error = ask(address, health(check)).await.expect_err("no outcome");
        assert!(format!("{error:#}").contains(wanted), "{error:#}");
    }
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

#[tokio::test]
async fn who_answers_with_an_alert_is_there() {
    let server = versions().with_no_client_auth();
    let server = Arc::new(server.with_cert_resolver(Arc::new(NoCertificate)));
    for check in [Check::Tls(any_tls()), Check::https(any_tls(), get("/"))] {
        let (address, _server) = shaking(Arc::clone(&server)).await;
        let wanted = not_ready("TLS alert AccessDenied");
        assert_eq!(outcome(address, check).await, wanted);
    }
}

#[tokio::test]
async fn who_speaks_something_else_is_there() {
    for words in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
    ] {
        let (address, _server) = serve(async move |mut stream| {
            stream.write_all(words.as_bytes()).await.expect("said");
            to_end(&mut stream).await
        })
        .await;
        let check = Check::Tls(any_tls());
        assert_eq!(outcome(address, check).await, not_ready("no TLS"));
    }
}

#[tokio::test]
async fn who_says_nothing_is_dead() {
    let (address, _server) = serve(async |mut stream| to_end(&mut stream).await).await;
    let silent = in_vain(address, Check::Tls(any_tls())).await;
    assert_eq!(silent, dead("no TLS handshake within 1s"));

    for (reset, words) in [(false, "connection closed"), (true, "connection reset")] {
        let (address, _server) = serve(async move |mut stream| {
            let mut hello = [0; 16 * 1024];
            assert_ne!(stream.read(&mut hello).await.expect("a hello"), 0);
            if reset {
                stream.set_zero_linger().expect("a reset");
            }
        })
        .await;
        let check = Check::Tls(any_tls());
        assert_eq!(outcome(address, check).await, dead(words));
    }
}
