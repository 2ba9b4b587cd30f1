//! A client of an API, by a kubeconfig.

use std::{mem, net::SocketAddr, time::Duration};

use anyhow::Result;
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
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
/// If the kubeconfig makes no client.
pub(super) async fn client(kubeconfig: Kubeconfig, node: Option<SocketAddr>) -> Result<Client> {
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
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
    Ok(bounded::client(ClientBuilder::try_from(config)?))
}
