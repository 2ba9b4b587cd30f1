//! A Secret of a hub that has the kubeconfig of a hosted cluster. It is asked for by its name, and is in memory only.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Error, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Resource as _,
    api::{GetParams, Request},
    config::Kubeconfig,
};
use tokio::time;

use super::{
    connect,
    follow::{NOT_FOUND, status, words},
    kubeconfig::{self, WatchedFiles},
};
use crate::config::ObjectName;

/// The key of the Secret, as HyperShift has it.
const KEY: &str = "kubeconfig";
/// How long the hub may take to say what it has.
const SECRET_TIMEOUT: Duration = Duration::from_secs(5);
/// `lb` may not read it (any more).
const FORBIDDEN: u16 = 403;
/// The most bytes of a kubeconfig, ten times those of HyperShift's.
const MAX_BYTES: usize = 64 << 10;

/// A Secret with a kubeconfig.
pub(super) struct HubSecret {
    name: ObjectName,
    /// The kubeconfig of the hub, if that has a file.
    hub: Option<PathBuf>,
    /// What it had when the hub answered last.
    last: Option<Box<Kubeconfig>>,
}

impl HubSecret {
    pub(super) const fn new(name: ObjectName, hub: Option<PathBuf>) -> Self {
        Self {
            name,
            hub,
            last: None,
        }
    }

    /// The kubeconfig that it has. While the hub does not say that is the last one.
    ///
    /// # Errors
    ///
    /// If there is none, or the hub refuses it.
    pub(super) async fn read(&mut self) -> Result<Kubeconfig> {
        let asked = time::timeout(SECRET_TIMEOUT, self.ask()).await;
        let asked = asked.unwrap_or_else(|_| Err(Error::msg("no answer")));
        match (asked, &self.last) {
            (Err(error), Some(last)) if !is_answer(&error) => Ok((**last).clone()),
            (asked, _) => {
                let read = asked.and_then(|secret| kubeconfig_of(&secret));
                self.last = read.as_ref().ok().cloned().map(Box::new);
                read.map_err(|error| {
                    let words = words(&error);
                    Error::msg(format!("secret {} of the hub: {words}", self.name))
                })
            }
        }
    }

    async fn ask(&self) -> Result<Secret> {
        let hub = self.hub.as_ref().context("it has no kubeconfig")?;
        let hub = kubeconfig::of_file(hub, &mut WatchedFiles::default())?;
        let client = connect::client(hub, None).await?;
        let ObjectName { namespace, name } = &self.name;
        let secrets = Request::new(Secret::url_path(&(), Some(namespace)));
        let text = client.request_text(secrets.get(name, &GetParams::default())?);
        // In the words of an error there is what was read, and so in the log of the client.
        serde_json::from_str(&text.await?).map_err(|_| Error::msg(NO_SECRET))
    }
}

/// What is wrong with an answer that is no Secret.
const NO_SECRET: &str = "the answer is no Secret";

/// Whether the hub has said that there is none for `lb`.
fn is_answer(error: &Error) -> bool {
    let code = status(error.as_ref()).map(|status| status.code);
    matches!(code, Some(FORBIDDEN | NOT_FOUND))
}

fn kubeconfig_of(secret: &Secret) -> Result<Kubeconfig> {
    let data = secret.data.as_ref().and_then(|data| data.get(KEY));
    let data = data.with_context(|| format!("it has no key `{KEY}`"))?;
    ensure!(
        data.0.len() <= MAX_BYTES,
        "its kubeconfig has more than {MAX_BYTES} bytes"
    );
    let text = str::from_utf8(&data.0).map_err(|_| Error::msg("its kubeconfig is no text"))?;
    kubeconfig::of_secret(text)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use k8s_openapi::ByteString;
    use serde_json::json;
    use tempfile::NamedTempFile;

    use super::*;

    /// A hub that gives one answer to each connection, or none.
    fn hub(answers: Vec<Option<(u16, String)>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for answer in answers {
                let (mut client, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let bytes = client.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..bytes]);
                let path = "GET /api/v1/namespaces/clusters/secrets/a-admin ";
                assert!(request.starts_with(path), "{request}");
                if let Some((status, text)) = answer {
                    let bytes = text.len();
                    let head = format!("HTTP/1.1 {status} Is\r\nContent-Length: {bytes}\r\n\r\n");
                    client.write_all((head + &text).as_bytes()).unwrap();
                }
            }
        });
        server
    }

    fn secret_of(server: &str) -> (NamedTempFile, HubSecret) {
        let file = kubeconfig::tests::file_of(server);
        let name = "clusters/a-admin".to_owned().try_into().unwrap();
        let secret = HubSecret::new(name, Some(file.path().to_owned()));
        (file, secret)
    }

    /// The answer with a Secret whose kubeconfig has this context.
    fn answer(key: &str, context: &str) -> Option<(u16, String)> {
        let kubeconfig = json!({ "current-context": context }).to_string();
        let mut secret = Secret::default();
        let data = secret.data.insert(BTreeMap::new());
        data.insert(key.to_owned(), ByteString(kubeconfig.into_bytes()));
        Some((200, serde_json::to_string(&secret).unwrap()))
    }

    fn refusal(code: u16) -> Option<(u16, String)> {
        let status =
            json!({ "kind": "Status", "status": "Failure", "message": "said", "code": code });
        Some((code, status.to_string()))
    }

    #[tokio::test]
    async fn the_last_one_serves_while_the_hub_does_not_answer() {
        let refused = "secret clusters/a-admin of the hub: said (403)";
        let server = hub(vec![
            answer(KEY, "one"),
            refusal(503),
            refusal(429),
            refusal(401),
            None,
            answer(KEY, "two"),
            refusal(403),
            refusal(503),
            answer("token", "three"),
            Some((200, "{\"data\": 7}".to_owned())),
        ]);
        let (_file, mut secret) = secret_of(&server);
        let mut read = Vec::new();
        for _ in 0..10 {
            let kubeconfig = secret.read().await;
            let context = kubeconfig.map(|kubeconfig| kubeconfig.current_context.unwrap());
            read.push(context.unwrap_or_else(|error| error.to_string()));
        }
        let no_more = "secret clusters/a-admin of the hub: said (503)";
        let no_key = "secret clusters/a-admin of the hub: it has no key `kubeconfig`";
        let no_secret = format!("secret clusters/a-admin of the hub: {NO_SECRET}");
        assert_eq!(read[..6], ["one", "one", "one", "one", "one", "two"]);
        assert_eq!(read[6..], [refused, no_more, no_key, &no_secret]);
    }

    #[tokio::test]
    async fn a_hub_without_a_kubeconfig_has_no_secret() {
        let name = "clusters/a-admin".to_owned().try_into().unwrap();
        let error = HubSecret::new(name, None).read().await.unwrap_err();
        let words = "secret clusters/a-admin of the hub: it has no kubeconfig";
        assert_eq!(error.to_string(), words);
    }
}
