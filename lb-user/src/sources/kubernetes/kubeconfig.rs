//! Kubeconfigs: of a file, which is watched, or of a Secret.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Error, Result, ensure};
use kube::config::{AuthInfo, Cluster, Kubeconfig, NamedAuthInfo};
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

/// The kubeconfig of a file.
///
/// # Errors
///
/// If it cannot be read, or its user is known by a program.
pub(super) fn of_file(path: &Path, files: &mut WatchedFiles) -> Result<Kubeconfig> {
    files.watch(path);
    let kubeconfig = Kubeconfig::read_from(path)?;
    for (name, user) in users(&kubeconfig) {
        let words = || format!("user {name} of {}", path.display());
        runs_no_program(user).with_context(words)?;
        let named = [&user.token_file, &user.client_certificate, &user.client_key];
        named
            .into_iter()
            .flatten()
            .for_each(|path| files.watch(path));
    }
    Ok(kubeconfig)
}

/// The kubeconfig that a Secret has. It comes from the API of the hub: no file of this host is read because it says so, and
/// nothing of it is in an error.
///
/// # Errors
///
/// If it is none, or names a program or a file, goes through a proxy, or does not check the certificate of the API.
pub(super) fn of_secret(text: &str) -> Result<Kubeconfig> {
    let kubeconfig = Kubeconfig::from_yaml(text);
    let kubeconfig = kubeconfig.map_err(|_| Error::msg("it cannot be read as a kubeconfig"))?;
    for (_, user) in users(&kubeconfig) {
        runs_no_program(user)?;
        let files = [&user.token_file, &user.client_certificate, &user.client_key];
        ensure!(files.iter().all(|file| file.is_none()), NO_FILES);
    }
    for cluster in kubeconfig.clusters.iter().flat_map(|named| &named.cluster) {
        let Cluster {
            certificate_authority,
            proxy_url,
            insecure_skip_tls_verify,
            ..
        } = cluster;
        ensure!(certificate_authority.is_none(), NO_FILES);
        ensure!(
            proxy_url.is_none() && *insecure_skip_tls_verify != Some(true),
            "it has `proxy-url` or `insecure-skip-tls-verify`: expected neither"
        );
    }
    Ok(kubeconfig)
}

/// What is wrong with a Secret that names files.
const NO_FILES: &str = "it names files, and none of this host is read for it: expected `certificate-authority-data`, \
                        `client-certificate-data` and `client-key-data`, or a token";

fn users(kubeconfig: &Kubeconfig) -> impl Iterator<Item = (&str, &AuthInfo)> {
    let named = kubeconfig.auth_infos.iter();
    named.filter_map(
        |NamedAuthInfo {
             name, auth_info, ..
         }| Some((&**name, auth_info.as_ref()?)),
    )
}

fn runs_no_program(user: &AuthInfo) -> Result<()> {
    ensure!(
        user.exec.is_none() && user.auth_provider.is_none(),
        "it has `exec` or `auth-provider`, and lb runs no programs: expected a token, a tokenFile or a client certificate"
    );
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
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A kubeconfig of a Secret, with these keys in its cluster and its user.
    fn with(cluster: &Value, user: &Value) -> String {
        let mut all = json!({
            "clusters": [{ "name": "k", "cluster": { "server": "https://api.a.example:6443" } }],
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
        let cluster =
            json!({ "certificate-authority-data": "eA==", "insecure-skip-tls-verify": false });
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
                "names files",
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
            (none.clone(), json!({ "tokenFile": "/k" }), "names files"),
            (
                none.clone(),
                json!({ "client-certificate": "/k" }),
                "names files",
            ),
            (none.clone(), json!({ "client-key": "/k" }), "names files"),
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

    #[test]
    fn nothing_of_a_secret_is_in_an_error() {
        for text in ["users: t0p", "t0p", "users: [{ name: t0p, user: t0p }]"] {
            let error = format!("{:#}", of_secret(text).unwrap_err());
            assert_eq!(error, "it cannot be read as a kubeconfig");
        }
    }
}
