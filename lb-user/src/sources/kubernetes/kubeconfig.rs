//! Kubeconfigs: of a file, which is watched, or of a Secret.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Error, Result, ensure};
use hyper::header::HeaderValue;
use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError, NamedAuthInfo};
use secrecy::ExposeSecret as _;
use tokio::time;

use super::secret::HubSecret;
use crate::config::{Credentials, KubernetesCluster};

/// How often a kubeconfig and its files are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Where the kubeconfig of a cluster is.
pub(super) enum KubeconfigSource {
    File(PathBuf),
    Secret(HubSecret),
}

impl KubeconfigSource {
    /// `hub` is the cluster through which this one is reached.
    pub(super) fn new(cluster: &KubernetesCluster, hub: Option<&KubernetesCluster>) -> Self {
        match &cluster.credentials {
            Credentials::File(path) => Self::File(path.clone()),
            Credentials::Secret(name) => {
                let hub = match hub.map(|hub| &hub.credentials) {
                    Some(Credentials::File(path)) => Some(path.clone()),
                    _ => None,
                };
                Self::Secret(HubSecret::new(name.clone(), hub))
            }
        }
    }

    /// The kubeconfig as it is now; the files that it is of are watched.
    ///
    /// # Errors
    ///
    /// If there is none, or it has what `lb` does not use.
    pub(super) async fn read(&mut self, files: &mut WatchedFiles) -> Result<Kubeconfig> {
        match self {
            Self::File(path) => of_file(path, files),
            Self::Secret(secret) => secret.read().await,
        }
    }
}

/// The kubeconfig of a file, with the tokens of the files that it names.
///
/// # Errors
///
/// If it or a token cannot be read, or a user is known by a program. Nothing of what is secret is in the words.
pub(super) fn of_file(path: &Path, files: &mut WatchedFiles) -> Result<Kubeconfig> {
    files.watch(path);
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| unreadable(path, error))?;
    for NamedAuthInfo {
        name, auth_info, ..
    } in &mut kubeconfig.auth_infos
    {
        let Some(user) = auth_info else {
            continue;
        };
        let words = || format!("user {name} of {}", path.display());
        runs_no_program(user).with_context(words)?;
        let named = [&user.token_file, &user.client_certificate, &user.client_key];
        named
            .into_iter()
            .flatten()
            .for_each(|path| files.watch(path));
        if let Some(file) = user.token_file.take().filter(|_| user.token.is_none()) {
            let token = fs::read_to_string(&file);
            let token = token.with_context(|| format!("read the token of {}, {file}", words()))?;
            user.token = Some(token.into());
        }
        trim_token(user).with_context(words)?;
    }
    Ok(kubeconfig)
}

/// What is wrong with a file, without what it has.
fn unreadable(path: &Path, error: KubeconfigError) -> Error {
    match error {
        KubeconfigError::Parse(error) => {
            let line = error.location().map_or(0, |location| location.line());
            Error::msg(format!(
                "{}: line {line} is not that of a kubeconfig",
                path.display()
            ))
        }
        error => Error::new(error),
    }
}

/// The kubeconfig that a Secret has. It comes from the API of the hub: no file of this host is read because it says so, and
/// nothing of it is in an error.
///
/// # Errors
///
/// If it is none, or names a program or a file, goes through a proxy, or does not check the certificate of the API.
pub(super) fn of_secret(text: &str) -> Result<Kubeconfig> {
    let kubeconfig = Kubeconfig::from_yaml(text);
    let mut kubeconfig = kubeconfig.map_err(|_| Error::msg("it cannot be read as a kubeconfig"))?;
    let users = kubeconfig.auth_infos.iter_mut();
    for user in users.filter_map(|named| named.auth_info.as_mut()) {
        runs_no_program(user)?;
        let files = [&user.token_file, &user.client_certificate, &user.client_key];
        ensure!(files.iter().all(|file| file.is_none()), NO_FILES);
        trim_token(user)?;
    }
    for cluster in kubeconfig.clusters.iter().flat_map(|named| &named.cluster) {
        let Cluster {
            certificate_authority,
            certificate_authority_data,
            proxy_url,
            insecure_skip_tls_verify,
            ..
        } = cluster;
        ensure!(
            certificate_authority.is_none() && certificate_authority_data.is_some(),
            NO_FILES
        );
        ensure!(
            proxy_url.is_none() && *insecure_skip_tls_verify != Some(true),
            "it has `proxy-url` or `insecure-skip-tls-verify`: expected neither"
        );
    }
    Ok(kubeconfig)
}

/// What is wrong with a Secret that names files.
const NO_FILES: &str = "none of this host's files is read for it: expected `certificate-authority-data`, and \
                        `client-certificate-data` and `client-key-data`, or a token";

fn runs_no_program(user: &AuthInfo) -> Result<()> {
    ensure!(
        user.exec.is_none() && user.auth_provider.is_none(),
        "it has `exec` or `auth-provider`, and lb runs no programs: expected a token, a tokenFile or a client certificate"
    );
    Ok(())
}

/// Takes the newline off that ends a file, as kubectl does.
///
/// # Errors
///
/// If the token can be in no header: the client panics where it makes one of it.
fn trim_token(user: &mut AuthInfo) -> Result<()> {
    if let Some(token) = &user.token {
        let token = token.expose_secret().trim();
        let is_token = HeaderValue::try_from(token).is_ok() && !token.is_empty();
        ensure!(
            is_token,
            "its token is empty, or has characters that no token has"
        );
        user.token = Some(token.to_owned().into());
    }
    Ok(())
}

/// Files, as they were when they were read.
#[derive(Default)]
pub(super) struct WatchedFiles(Vec<(PathBuf, Stamp)>);

impl WatchedFiles {
    pub(super) fn watch(&mut self, path: impl Into<PathBuf>) {
        let path = path.into();
        let stamp = stamp(&path);
        self.0.push((path, stamp));
    }

    /// Returns when one of them is another one.
    pub(super) async fn changed(&self) {
        let is_same = |(path, before): &(PathBuf, Stamp)| stamp(path) == *before;
        while self.0.iter().all(is_same) {
            time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// What distinguishes one state of a file from another.
type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: &Path) -> Stamp {
    let metadata = path.metadata().ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};
    use tempfile::NamedTempFile;

    use super::*;

    /// The file of a hub at this server, which asks for no credentials.
    pub(crate) fn file_of(server: &str) -> NamedTempFile {
        let kubeconfig = json!({
            "clusters": [{ "name": "hub", "cluster": { "server": server } }],
            "contexts": [{ "name": "hub", "context": { "cluster": "hub" } }],
            "current-context": "hub",
        });
        let file = NamedTempFile::new().unwrap();
        fs::write(&file, kubeconfig.to_string()).unwrap();
        file
    }

    /// A kubeconfig of a Secret, with these keys in its cluster and its user.
    fn with(cluster: &Value, user: &Value) -> String {
        let mut all = json!({
            "clusters": [{ "name": "k", "cluster": {
                "server": "https://api.a.example:6443",
                "certificate-authority-data": "eA==",
            } }],
            "users": [{ "name": "admin", "user": { "token": "t0p" } }],
        });
        let mut set = |place: &str, keys: &Value| {
            let mapping = all.pointer_mut(place).and_then(Value::as_object_mut);
            mapping.unwrap().extend(keys.as_object().unwrap().clone());
        };
        set("/clusters/0/cluster", cluster);
        set("/users/0/user", user);
        all.to_string()
    }

    #[test]
    fn a_secret_has_credentials_itself() {
        let user = json!({ "client-certificate-data": "eA==", "client-key-data": "eA==" });
        let cluster = json!({ "insecure-skip-tls-verify": false });
        let read = of_secret(&with(&cluster, &user)).unwrap();
        assert_eq!((read.clusters.len(), read.auth_infos.len()), (1, 1));
    }

    #[test]
    fn a_secret_names_no_file_no_program_and_no_proxy() {
        let none = json!({});
        let program = json!({ "apiVersion": "v1", "command": "/bin/true" });
        for (cluster, user, words) in [
            (
                json!({ "certificate-authority": "/k" }),
                none.clone(),
                "none of this host's files",
            ),
            (
                json!({ "proxy-url": "http://k" }),
                none.clone(),
                "`proxy-url`",
            ),
            (
                json!({ "insecure-skip-tls-verify": true }),
                none.clone(),
                "`insecure-skip-tls-verify`",
            ),
            (
                none.clone(),
                json!({ "tokenFile": "/k" }),
                "none of this host's files",
            ),
            (
                none.clone(),
                json!({ "client-certificate": "/k" }),
                "none of this host's files",
            ),
            (
                none.clone(),
                json!({ "client-key": "/k" }),
                "none of this host's files",
            ),
            (
                json!({ "certificate-authority-data": null }),
                none.clone(),
                "none of this host's files",
            ),
            (none.clone(), json!({ "token": "t0p\u{7}" }), "no token has"),
            (none.clone(), json!({ "token": " \n" }), "no token has"),
            (none.clone(), json!({ "exec": program }), "runs no programs"),
            (
                none.clone(),
                json!({ "auth-provider": { "name": "k" } }),
                "runs no programs",
            ),
        ] {
            let error = of_secret(&with(&cluster, &user)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    /// The token of the only user.
    fn token(kubeconfig: &Kubeconfig) -> &str {
        let user = kubeconfig.auth_infos[0].auth_info.as_ref().unwrap();
        user.token.as_ref().unwrap().expose_secret()
    }

    /// As `kubectl create token > FILE` has it.
    #[test]
    fn a_token_has_no_newline() {
        let secret = of_secret(&with(&json!({}), &json!({ "token": "t0p\n" })));
        assert_eq!(token(&secret.unwrap()), "t0p");
        let [file, in_file] = [(); 2].map(|()| NamedTempFile::new().unwrap());
        fs::write(&in_file, "t1p\n").unwrap();
        let user = json!({ "token": null, "tokenFile": in_file.path() });
        fs::write(&file, with(&json!({}), &user)).unwrap();
        let mut files = WatchedFiles::default();
        let kubeconfig = of_file(file.path(), &mut files).unwrap();
        assert_eq!(token(&kubeconfig), "t1p");
        let watched = files.0.iter().map(|(path, _)| path.as_path());
        assert_eq!(watched.collect::<Vec<_>>(), [file.path(), in_file.path()]);
        fs::write(&in_file, "").unwrap();
        let error = format!("{:#}", of_file(file.path(), &mut files).unwrap_err());
        assert!(
            error.contains("user admin of ") && error.contains("its token is empty"),
            "{error}"
        );
    }

    #[test]
    fn nothing_of_a_file_is_in_an_error() {
        let file = NamedTempFile::new().unwrap();
        fs::write(&file, "users:\n- { name: a, user: t0p }\n").unwrap();
        let error = of_file(file.path(), &mut WatchedFiles::default()).unwrap_err();
        let words = format!(
            "{}: line 2 is not that of a kubeconfig",
            file.path().display()
        );
        assert_eq!(format!("{error:#}"), words);
    }

    #[test]
    fn nothing_of_a_secret_is_in_an_error() {
        for text in ["users: t0p", "t0p", "users: [{ name: t0p, user: t0p }]"] {
            let error = format!("{:#}", of_secret(text).unwrap_err());
            assert_eq!(error, "it cannot be read as a kubeconfig");
        }
    }
}
