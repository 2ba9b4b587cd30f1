//! The TLS between boxes: version 1.3, and both ends have certificates of the boxes' own CA, with their names in them.

use std::sync::Arc;

use anyhow::{Context as _, Error, Result};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, verify_server_name},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier},
    version::TLS13,
};

use crate::config::{Authorities, Ha, box_files};

/// What a box shows its peer, and what it asks of it. Read anew for each session: certificates are renewed.
struct Identity {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn read(ha: &Ha) -> Result<Self> {
        let error = |key: &str, path: &std::path::Path, error: String| {
            Error::msg(format!("{} ({key}) {error}", path.display()))
        };
        let roots = Authorities::read(ha.ca.clone()).roots();
        let chain = box_files::certificates(&ha.certificate);
        let own = box_files::key(&ha.key);
        Ok(Self {
            roots: roots.map_err(|words| error("ha.ca", &ha.ca, words))?,
            chain: chain.map_err(|words| error("ha.certificate", &ha.certificate, words))?,
            key: own.map_err(|words| error("ha.key", &ha.key, words))?,
        })
    }
}

/// For the sessions that peers begin.
///
/// # Errors
///
/// What is wrong with the files.
pub(super) fn server(ha: &Ha) -> Result<Arc<ServerConfig>> {
    let Identity { roots, chain, key } = Identity::read(ha)?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let builder = ServerConfig::builder_with_provider(provider);
    let mut config = builder
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier.build()?)
        .with_single_cert(chain, key)
        .context("use ha.certificate with ha.key")?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For the sessions that this box begins.
///
/// # Errors
///
/// What is wrong with the files.
pub(super) fn client(ha: &Ha) -> Result<Arc<ClientConfig>> {
    let Identity { roots, chain, key } = Identity::read(ha)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .context("use ha.certificate with ha.key")?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The name that the certificate of a box has.
///
/// # Errors
///
/// If it is none of a host.
pub(super) fn name(of: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(of.to_owned()).with_context(|| format!("the box {of} as a host name"))
}

/// Whether a certificate is that of the box with this name.
///
/// # Errors
///
/// If it is not.
pub(super) fn verify(chain: Option<&[CertificateDer<'_>]>, of: &str) -> Result<()> {
    let certificate = chain.and_then(<[_]>::first).context("no certificate")?;
    let parsed = ParsedCertificate::try_from(certificate)?;
    verify_server_name(&parsed, &name(of)?)
        .with_context(|| format!("the certificate of the peer is not one for the box {of}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::health::tests::certificate::Certificates;

    fn certificates() -> Certificates {
        let all = Certificates::new();
        for name in ["lb1", "lb2"] {
            all.make(name, &format!("subjectAltName=DNS:{name}"), Some("ca"));
        }
        all.make("strange", "subjectAltName=DNS:lb2", Some("other"));
        for name in ["lb1", "lb2", "strange"] {
            let key = all.path(&format!("{name}.key"));
            fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        }
        all
    }

    fn ha(all: &Certificates, name: &str) -> Ha {
        let path = |file: String| -> PathBuf { all.path(&file) };
        Ha {
            box_name: name.to_owned(),
            boxes: Vec::new(),
            marker: [10, 32, 96, 60].into(),
            ca: path("ca.pem".to_owned()),
            certificate: path(format!("{name}.pem")),
            key: path(format!("{name}.key")),
        }
    }

    /// A session of the box with the files of `dials` with lb1; what either end finds wrong.
    async fn meet(all: &Certificates, dials: &str, says: &str) -> [Option<String>; 2] {
        let (near, far) = tokio::io::duplex(1 << 14);
        let acceptor = TlsAcceptor::from(server(&ha(all, "lb1")).unwrap());
        let connector = TlsConnector::from(client(&ha(all, dials)).unwrap());
        let serve = async {
            let mut stream = acceptor.accept(far).await?;
            verify(stream.get_ref().1.peer_certificates(), says)?;
            stream.write_u8(7).await?;
            anyhow::Ok(())
        };
        let dial = async {
            let mut stream = connector.connect(name("lb1")?, near).await?;
            assert_eq!(stream.read_u8().await?, 7);
            anyhow::Ok(())
        };
        let (served, dialled) = tokio::join!(serve, dial);
        [served, dialled].map(|end| end.err().map(|error| format!("{error:#}")))
    }

    #[tokio::test]
    async fn only_the_boxes_of_a_pair_have_a_session() {
        let all = certificates();
        assert_eq!(meet(&all, "lb2", "lb2").await, [None, None]);
        let [served, dialled] = meet(&all, "strange", "lb2").await;
        assert!(served.unwrap().contains("UnknownIssuer") && dialled.is_some());
        let [served, _] = meet(&all, "lb2", "lb3").await;
        assert!(served.unwrap().contains("not one for the box lb3"));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_key() {
        let all = certificates();
        let ha = Ha {
            key: all.path("lb3.key"),
            ..ha(&all, "lb1")
        };
        let error = server(&ha).unwrap_err().to_string();
        assert!(error.contains("lb3.key (ha.key) cannot be read"), "{error}");
    }
}
