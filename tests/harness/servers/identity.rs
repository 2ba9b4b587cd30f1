//! Keys and certificates, made by openssl.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{process, topology::Site};

/// A key and a certificate that is its own authority.
#[derive(Clone, Debug)]
pub struct Identity {
    key: PathBuf,
    certificate: PathBuf,
}

impl Identity {
    /// Makes one for `name` and the VIPs.
    ///
    /// # Errors
    ///
    /// When openssl fails.
    pub fn create(site: &Site, name: &str, addresses: &[Ipv4Addr]) -> Result<Self> {
        let file = |kind: &str| site.dir().join(format!("{name}.{kind}"));
        let identity = Self {
            key: file("key"),
            certificate: file("crt"),
        };
        let names: Vec<String> = addresses.iter().map(|a| format!(",IP:{a}")).collect();
        process::succeed(
            Command::new("openssl")
                .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split(' '))
                .args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")])
                .arg("-addext")
                .arg(format!("subjectAltName=DNS:{name}{}", names.concat()))
                .arg("-keyout")
                .arg(&identity.key)
                .arg("-out")
                .arg(&identity.certificate),
        )?;
        Ok(identity)
    }

    /// Makes one for `name` that this one has signed as its authority.
    ///
    /// # Errors
    ///
    /// When openssl fails.
    pub fn sign(&self, site: &Site, name: &str) -> Result<Self> {
        self.sign_as(site, name, "")
    }

    /// Makes one for `name` that this one has signed as its authority, for a server that is a client as well.
    ///
    /// # Errors
    ///
    /// When openssl fails.
    pub fn sign_for_both_ends(&self, site: &Site, name: &str) -> Result<Self> {
        self.sign_as(site, name, "extendedKeyUsage=serverAuth,clientAuth\n")
    }

    /// With more lines of extensions.
    fn sign_as(&self, site: &Site, name: &str, extensions: &str) -> Result<Self> {
        let file = |kind: &str| site.dir().join(format!("{name}.{kind}"));
        let (signed, request) = (
            Self {
                key: file("key"),
                certificate: file("crt"),
            },
            file("csr"),
        );
        process::succeed(
            Command::new("openssl")
                .args("req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split(' '))
                .args(["-subj", &format!("/CN={name}"), "-keyout"])
                .arg(&signed.key)
                .arg("-out")
                .arg(&request),
        )?;
        let names = site.write(
            &format!("{name}.ext"),
            &format!("subjectAltName=DNS:{name}\nbasicConstraints=critical,CA:FALSE\n{extensions}"),
        )?;
        process::succeed(
            Command::new("openssl")
                .args("x509 -req -days 2 -in".split(' '))
                .arg(&request)
                .arg("-CA")
                .arg(&self.certificate)
                .arg("-CAkey")
                .arg(&self.key)
                .arg("-CAcreateserial")
                .arg("-extfile")
                .arg(&names)
                .arg("-out")
                .arg(&signed.certificate),
        )?;
        Ok(signed)
    }

    /// The private key, as a PEM file.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// The certificate, as a PEM file.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }
}
