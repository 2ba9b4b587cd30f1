//! Certificates, as `openssl` makes them.

use std::{fs, path::PathBuf, process::Command, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tempfile::TempDir;

/// The name in the certificate, beside the address of the loopback interface.
pub(super) const NAME: &str = "lb.example";

/// A CA and a server's certificate that it has signed; and another CA.
pub(crate) struct Certificates {
    folder: TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        // Without the extensions of the distribution's configuration.
        let empty = "[req]\ndistinguished_name = name\n[name]\n";
        fs::write(folder.path().join("openssl.cnf"), empty).expect("a file");
        let all = Self { folder };
        all.make("ca", "basicConstraints=critical,CA:TRUE", None);
        all.make("other", "basicConstraints=critical,CA:TRUE", None);
        let names = format!("subjectAltName=DNS:{NAME},IP:127.0.0.1");
        all.make("server", &names, Some("ca"));
        all
    }

    /// A key in `NAME.key`, and its certificate in `NAME.pem`.
    pub(crate) fn make(&self, name: &str, extension: &str, signer: Option<&str>) {
        let mut openssl = Command::new("openssl");
        openssl.current_dir(self.folder.path());
        openssl.args("req -x509 -config openssl.cnf -days 2 -nodes -newkey ec".split(' '));
        openssl.args("-pkeyopt ec_paramgen_curve:prime256v1".split(' '));
        openssl.args(["-subj", &format!("/CN={name}"), "-addext", extension]);
        openssl.args(["-keyout", &format!("{name}.key")]);
        openssl.args(["-out", &format!("{name}.pem")]);
        if let Some(signer) = signer {
            openssl.args(["-CA", &format!("{signer}.pem")]);
            openssl.args(["-CAkey", &format!("{signer}.key")]);
        }
        let output = openssl.output().expect("openssl runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{openssl:?}: {said}");
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// What a server needs that has this certificate.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).expect("a key");
        let server = versions().with_no_client_auth();
        Arc::new(server.with_single_cert(self.chain(), key).expect("a pair"))
    }

    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let server = CertificateDer::from_pem_file(self.path("server.pem"));
        vec![server.expect("a certificate")]
    }
}

/// The beginning of a server that speaks every version.
pub(super) fn versions() -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    speaking(rustls::ALL_VERSIONS)
}

pub(super) fn speaking(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
}
