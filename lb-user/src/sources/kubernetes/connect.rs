//! A client of an API, by a kubeconfig.

use std::{iter, mem, net::SocketAddr, time::Duration};

use anyhow::{Error, Result};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError},
};

use super::bounded;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the API may say nothing: longer than a request for changes stays open.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of the API at the server of the kubeconfig, or at `node` instead: then the API's certificate is for the host of
/// that server all the same.
///
/// # Errors
///
/// If the kubeconfig makes no client; nothing of it is in the words, as a line of a key is in those of the client.
pub(super) async fn client(kubeconfig: Kubeconfig, node: Option<SocketAddr>) -> Result<Client> {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|error| unusable(&error, incomplete(&error)))?;
    if let Some(node) = node {
        let server = mem::replace(&mut config.cluster_url, format!("https://{node}/").parse()?);
        let name = server.host().map(str::to_owned);
        config.tls_server_name = config.tls_server_name.or(name);
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // Errors are noted, and the pauses after them are bounded by the follower.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config);
    let builder = builder.map_err(|error| unusable(&error, NO_IDENTITY))?;
    Ok(bounded::client(builder))
}

/// What is wrong with what is there.
const NO_IDENTITY: &str = "a certificate or key of the kubeconfig is none";

/// Which file of a kubeconfig cannot be read, if it is that, or else these words.
fn unusable(error: &(dyn std::error::Error + 'static), words: &str) -> Error {
    let mut chain = iter::successors(Some(error), |error| error.source());
    let unread = chain.find_map(|error| match error.downcast_ref() {
        Some(LoadDataError::ReadFile(error, path)) => {
            Some(format!("read {}: {error}", path.display()))
        }
        _ => None,
    });
    Error::msg(unread.unwrap_or_else(|| words.to_owned()))
}

/// What a kubeconfig lacks.
const fn incomplete(error: &KubeconfigError) -> &'static str {
    match error {
        KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_) => {
            "the kubeconfig has no current context"
        }
        KubeconfigError::LoadClusterOfContext(_)
        | KubeconfigError::MissingClusterUrl
        | KubeconfigError::ParseClusterUrl(_) => {
            "the current context of the kubeconfig has no cluster with a server"
        }
        _ => NO_IDENTITY,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    use super::*;

    /// What is wrong with a kubeconfig whose user has these keys.
    async fn error(user: Value) -> String {
        let kubeconfig = json!({
            "clusters": [{ "name": "k", "cluster": { "server": "https://k" } }],
            "users": [{ "name": "k", "user": user }],
            "contexts": [{ "name": "k", "context": { "cluster": "k", "user": "k" } }],
            "current-context": "k",
        });
        let kubeconfig = serde_json::from_value(kubeconfig).unwrap();
        format!("{:#}", client(kubeconfig, None).await.err().unwrap())
    }

    /// One that has lost its first newline is in the words of the library, byte by byte.
    #[tokio::test]
    async fn nothing_of_a_key_is_in_an_error() {
        let key = "-----BEGIN EC PRIVATE KEY-----t0p\n-----END EC PRIVATE KEY-----\n";
        let key = serde_json::to_value(ByteString(key.as_bytes().to_vec())).unwrap();
        let user = json!({ "client-certificate-data": key, "client-key-data": key });
        assert_eq!(error(user).await, NO_IDENTITY);
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_named() {
        let user = json!({ "client-certificate": "/none/k.crt", "client-key": "/none/k.key" });
        let words = "read /none/k.crt: No such file or directory (os error 2)";
        assert_eq!(error(user).await, words);
    }
}
