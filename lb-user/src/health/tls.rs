//! The TLS of a check: any certificate will do, or one that the CAs of a file have signed.

use std::{io, path::Path, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    check::Fault,
    tcp::{self, LAST_WORDS},
};

/// What is offered to a server that the check then asks by HTTP; and if it is not, nothing is.
const HTTP: &[u8] = b"http/1.1";

/// What a check offers and accepts.
///
/// # Errors
///
/// If the file `ca` cannot be read, or has no certificate of a CA.
pub(super) fn client(ca: Option<&Path>, http: bool) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut client = match ca {
        Some(file) => builder
            .with_root_certificates(roots(file)?)
            .with_no_client_auth(),
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Any))
            .with_no_client_auth(),
    };
    // Each check is one that a new client would make, and leaves nothing behind.
    client.resumption = Resumption::disabled();
    if http {
        client.alpn_protocols = vec![HTTP.to_vec()];
    }
    Ok(client)
}

fn roots(file: &Path) -> Result<RootCertStore> {
    let reading = || format!("read the CA certificates in {}", file.display());
    let found = CertificateDer::pem_file_iter(file).with_context(reading)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().with_context(reading)?;
    let mut roots = RootCertStore::empty();
    let (added, refused) = roots.add_parsable_certificates(found);
    ensure!(
        added > 0,
        "{} has no certificate of a CA ({refused} are none that can be used); it must be a PEM file",
        file.display()
    );
    Ok(roots)
}

/// Makes the handshake with the server called `name`; the name of an address is not sent.
pub(super) async fn handshake(
    stream: TcpStream,
    client: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<TlsStream<TcpStream>, Fault> {
    let shaken = TlsConnector::from(client).connect(name, stream).await;
    shaken.map_err(|error| failed(&error))
}

/// Tells the server that nothing more will come, and closes the connection.
pub(super) async fn close(mut stream: TlsStream<TcpStream>) {
    // Whether it heard it or not, the rest is TCP's.
    let _told = timeout(LAST_WORDS, stream.shutdown()).await;
    let (stream, _) = stream.into_inner();
    tcp::close(stream).await;
}

/// What it means that a stream under TLS failed. A server that says why, or speaks something else, is
/// there.
fn failed(error: &io::Error) -> Fault {
    match cause(error) {
        Some(error) => Fault::NotReady(words(error)),
        None => Fault::Dead(tcp::words(error)),
    }
}

/// The error of TLS in an error of the stream above it.
pub(super) fn cause(error: &io::Error) -> Option<&Error> {
    let inner = error.get_ref()?;
    inner
        .downcast_ref()
        .or_else(|| inner.source()?.downcast_ref())
}

pub(super) fn words(error: &Error) -> String {
    match error {
        Error::AlertReceived(alert) => format!("TLS alert {alert:?}"),
        Error::InvalidCertificate(why) => format!("certificate not accepted: {why}"),
        Error::InvalidMessage(_) => "no TLS".to_owned(),
        other => format!("TLS failed: {other}"),
    }
}

/// Takes any certificate: the check asks whether somebody answers, and sends no secret.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// All that a server may have a key for, also those that could not be verified.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP521_SHA512,
            SignatureScheme::ED25519,
            SignatureScheme::ED448,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
        ]
    }
}
