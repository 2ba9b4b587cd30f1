//! TLS 1.3 by a post-quantum key (X25519MLKEM768, draft-ietf-tls-ecdhe-mlkem) on both sides: rustls, since the system's openssl
//! has no such group.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use rustls::{
    ClientConfig, ClientConnection, NamedGroup, RootCertStore, ServerConfig, ServerConnection,
    Stream,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    version::TLS13,
};

use crate::{
    netns::Netns,
    servers::{identity::Identity, teller::Teller},
    traffic::{client::open, programs::Named},
};

/// A server that takes no other key, and gives back what it has got behind the name that is its own.
///
/// # Errors
///
/// When the port cannot be bound, or it is no identity.
pub fn serve(
    netns: &Netns,
    address: SocketAddrV4,
    name: &str,
    identity: &Identity,
) -> Result<Teller> {
    let mut provider = rustls_graviola::default_provider();
    let is_post_quantum = |name| name == NamedGroup::X25519MLKEM768;
    provider
        .kx_groups
        .retain(|group| is_post_quantum(group.name()));
    let config = ServerConfig::builder_with_provider(Arc::new(provider));
    let chain = vec![CertificateDer::from_pem_file(identity.certificate())?];
    let key = PrivateKeyDer::from_pem_file(identity.key())?;
    let config = config.with_protocol_versions(&[&TLS13])?;
    let config = config.with_no_client_auth().with_single_cert(chain, key)?;
    let config = Arc::new(config);
    Teller::serving(netns, address, name, move |stream, name| {
        // The client's business to report.
        let _gone: io::Result<()> = answer(stream, name, &config);
    })
}

fn answer(mut stream: &TcpStream, name: &[u8], config: &Arc<ServerConfig>) -> io::Result<()> {
    let session = ServerConnection::new(Arc::clone(config));
    let mut session = session.map_err(io::Error::other)?;
    let mut tls = Stream::new(&mut session, &mut stream);
    tls.write_all(name)?;
    let mut received = Vec::new();
    tls.read_to_end(&mut received)?;
    tls.write_all(&received)?;
    tls.conn.send_close_notify();
    tls.flush()
}

/// What a client has had of a server.
#[derive(Debug)]
pub struct Session {
    /// Bytes of its hello.
    pub hello: usize,
    /// How the two have agreed on a key.
    pub group: Option<NamedGroup>,
    /// What the server has sent.
    pub received: Vec<u8>,
}

/// Sends these bytes to a server, whose certificate is checked, as a client that offers these protocols.
///
/// # Errors
///
/// When the connection or the session fails.
pub fn ask(to: &Named<'_>, protocols: &[&str], data: &[u8]) -> Result<Session> {
    let mut authorities = RootCertStore::empty();
    authorities.add(CertificateDer::from_pem_file(to.certificate)?)?;
    let provider: CryptoProvider = rustls_graviola::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider));
    let config = config.with_safe_default_protocol_versions()?;
    let mut config = config
        .with_root_certificates(authorities)
        .with_no_client_auth();
    let protocols = protocols.iter().map(|protocol| protocol.as_bytes());
    config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    let name = ServerName::try_from(to.name.to_owned())?;
    let mut session = ClientConnection::new(Arc::new(config), name)?;
    let mut stream = open(None, to.at)?;
    let mut hello = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut hello)?;
    }
    stream.write_all(&hello).context("send the hello")?;
    let mut tls = Stream::new(&mut session, &mut stream);
    tls.write_all(data).context("send")?;
    tls.conn.send_close_notify();
    tls.flush().context("close this side")?;
    let mut received = Vec::new();
    tls.read_to_end(&mut received).context("read")?;
    let group = session.negotiated_key_exchange_group();
    Ok(Session {
        hello: hello.len(),
        group: group.map(|group| group.name()),
        received,
    })
}
