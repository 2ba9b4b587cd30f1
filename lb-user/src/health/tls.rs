//! The TLS of a check: any certificate will do, or one that the CAs of a file have signed.

use std::{io, sync::Arc};

use anyhow::{Result, anyhow};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    check::Fault,
    tcp::{self, CLOSE_TIMEOUT},
};
use crate::config::{Authorities, Check};

/// What is offered to a server that the check then asks by HTTP; and if it is not, nothing is.
const HTTP: &[u8] = b"http/1.1";

/// What a check offers and accepts, if it speaks TLS.
///
/// # Errors
///
/// If its CAs could not be read.
pub(super) fn client(check: &Check) -> Result<Option<Arc<ClientConfig>>> {
    let (tls, http) = match check {
        Check::Tcp | Check::Http(_) => return Ok(None),
        Check::Tls(tls) => (tls, false),
        Check::Https { tls, .. } => (tls, true),
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut client = match &tls.ca {
        Some(ca) => builder
            .with_root_certificates(roots(ca)?)
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
    Ok(Some(Arc::new(client)))
}

fn roots(ca: &Authorities) -> Result<Arc<RootCertStore>> {
    let roots = ca.roots();
    roots.map_err(|why| anyhow!("the file of CAs {} {why}", ca.file().display()))
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
    let _told = timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
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
