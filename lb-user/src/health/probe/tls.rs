//! The TLS of a check: any certificate will do, or one that the CAs of a file have signed.

use std::{io, sync::Arc};

use anyhow::{Context as _, Result, anyhow};
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

use super::{Exchange, Fault, OpenConnection, Probe, ProbeAnswer, Probing};
use crate::{
    config::{self, Authorities},
    health::{
        CheckOutcome,
        connection::{self, CLOSE_TIMEOUT},
    },
};

/// A handshake with the server; its version is the outcome.
pub(super) struct Handshake {
    client: Arc<ClientConfig>,
    /// The name that is requested; none for the address, which is not sent.
    sni: Option<String>,
}

impl Handshake {
    /// With the protocol that is to be spoken inside, if any is.
    ///
    /// # Errors
    ///
    /// If its CAs could not be read.
    pub(super) fn new(tls: &config::Tls, alpn: Option<&[u8]>) -> Result<Self> {
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
        client.alpn_protocols = alpn.into_iter().map(<[u8]>::to_vec).collect();
        Ok(Self {
            client: Arc::new(client),
            sni: tls.sni.clone(),
        })
    }

    /// Makes it over `stream`.
    pub(super) async fn make(
        &self,
        stream: TcpStream,
        exchange: &Exchange,
    ) -> Result<TlsStream<TcpStream>, Fault> {
        exchange.begin("TLS handshake");
        let name = match &self.sni {
            Some(sni) => ServerName::try_from(sni.clone())
                .with_context(|| format!("ask for {sni:?} by TLS"))
                .map_err(Fault::Ours)?,
            None => ServerName::IpAddress(exchange.address.ip().into()),
        };
        let connector = TlsConnector::from(Arc::clone(&self.client));
        let stream = connector.connect(name, stream).await;
        stream.map_err(|error| failed(&error))
    }
}

impl Probe for Handshake {
    fn probe<'p>(&'p self, stream: TcpStream, exchange: &'p Exchange) -> Probing<'p> {
        Box::pin(async {
            let stream = self.make(stream, exchange).await?;
            let version = stream.get_ref().1.protocol_version();
            let version = version.and_then(|version| version.as_str());
            let words = version.unwrap_or("TLS").replace("TLSv", "TLS ");
            Ok(ProbeAnswer {
                outcome: CheckOutcome::Good(words.replace('_', ".")),
                open: OpenConnection::Tls(Box::new(stream)),
            })
        })
    }
}

fn roots(ca: &Authorities) -> Result<Arc<RootCertStore>> {
    let roots = ca.roots();
    roots.map_err(|why| anyhow!("ca of the health check: file {} {why}", ca.file().display()))
}

/// Sends the alert that nothing more will come, and closes the connection.
pub(super) async fn close(mut stream: TlsStream<TcpStream>) {
    // Whether the alert arrives or not, the rest is TCP's.
    let _sent = timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
    let (stream, _) = stream.into_inner();
    connection::close(stream).await;
}

/// What it means that a stream under TLS failed. A server that sends an alert, or speaks something else, is
/// there.
fn failed(error: &io::Error) -> Fault {
    match cause(error) {
        Some(error) => Fault::NotReady(words(error)),
        None => Fault::Dead(connection::words(error)),
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

/// Takes any certificate: the check is whether the server answers, and sends no secret.
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
