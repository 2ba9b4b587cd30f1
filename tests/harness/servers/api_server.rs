//! A real kube-apiserver with etcd, on loopback of a namespace, and kubectl as the other client. No controllers run: what
//! they would write, slices and statuses, the test writes.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{netns::Netns, poll, process, process::Process};

/// How long it may take until it answers: five seconds on an idle machine.
const START: Duration = Duration::from_secs(60);
/// Where it listens.
const URL: &str = "https://127.0.0.1:6443";
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";
/// Users, with tokens that are their names.
const TOKENS: &str = "admin,admin,1,system:masters\nlb,lb,2\n";

/// The API server, with its data; all of it ends with this.
#[derive(Debug)]
pub struct ApiServer<'t> {
    netns: &'t Netns,
    folder: PathBuf,
    programs: PathBuf,
    _etcd: Process,
    server: Option<Process>,
}

impl<'t> ApiServer<'t> {
    /// Starts it in a namespace, with its files in a new folder in `parent`; it is ready when this returns.
    ///
    /// # Errors
    ///
    /// Without the programs (`LB_KUBE_APISERVER`), or when one does not start.
    pub fn start(netns: &'t Netns, parent: &Path) -> Result<Self> {
        let program = std::env::var_os("LB_KUBE_APISERVER");
        let program = program.context("LB_KUBE_APISERVER is not set: run by `cargo xtask test`")?;
        let programs = Path::new(&program)
            .parent()
            .context("its folder")?
            .to_owned();
        let folder = parent.join("kubernetes");
        std::fs::create_dir(&folder)?;
        make_keys(&folder)?;
        let etcd = [
            "--name=k".to_owned(),
            format!("--data-dir={}", folder.join("etcd").display()),
            format!("--listen-client-urls={ETCD}"),
            format!("--advertise-client-urls={ETCD}"),
            format!("--listen-peer-urls={ETCD_PEER}"),
            format!("--initial-advertise-peer-urls={ETCD_PEER}"),
            format!("--initial-cluster=k={ETCD_PEER}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let mut api = Self {
            _etcd: start(netns, &folder, &programs, "etcd", &etcd)?,
            netns,
            folder,
            programs,
            server: None,
        };
        api.restart()?;
        Ok(api)
    }

    /// Starts the server again, with its data.
    ///
    /// # Errors
    ///
    /// When it does not answer in time.
    pub fn restart(&mut self) -> Result<()> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let words = [
            format!("--etcd-servers={ETCD}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--secure-port=6443".to_owned(),
            "--advertise-address=192.0.2.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--cert-dir={}", self.folder.display()),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("accounts.pub")),
            format!(
                "--service-account-signing-key-file={}",
                file("accounts.key")
            ),
            "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
            "--service-node-port-range=30000-32767".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ];
        let server = start(
            self.netns,
            &self.folder,
            &self.programs,
            "kube-apiserver",
            &words,
        )?;
        self.server = Some(server);
        poll::until("a ready API server", START, || {
            let server = self.server.as_mut().context("the server")?;
            ensure!(
                server.ended()?.is_none(),
                "it has ended: {}",
                server.stderr()
            );
            let ready = self.kubectl(&["get", "--raw=/readyz"]);
            Ok(ready.is_ok_and(|text| text == "ok").then_some(()))
        })
    }

    /// Kills the server.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn kill(&mut self) -> Result<()> {
        let mut server = self.server.take().context("the server runs")?;
        server.signal(Signal::SIGKILL)?;
        server.wait_for_end(Duration::from_secs(10)).map(drop)
    }

    /// A kubeconfig of a user: `admin`, who may all, or `lb`, who may what the test lets it.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{user}.kubeconfig"));
        let authority = self.folder.join("server.crt");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "k", "cluster": { "server": URL, "certificate-authority": authority } }],
            "users": [{ "name": user, "user": { "token": user } }],
            "contexts": [{ "name": "k", "context": { "cluster": "k", "user": user } }],
            "current-context": "k",
        });
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Runs kubectl as the admin: what it prints.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn kubectl<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        process::succeed(self.kubectl_command()?.args(words))
    }

    fn kubectl_command(&self) -> Result<Command> {
        let mut command = self.netns.command(self.programs.join("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig("admin")?);
        command.env("HOME", &self.folder);
        Ok(command)
    }

    /// Makes objects as they are here, whether they are there or not.
    ///
    /// # Errors
    ///
    /// When the API refuses one.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let path = self.folder.join("apply.json");
        std::fs::write(&path, list.to_string())?;
        let path = path.display().to_string();
        self.kubectl(&["apply", "--filename", &path]).map(drop)
    }

    /// Changes the status of an object by a strategic merge patch, as its controller would; `object` is below the API's root.
    ///
    /// # Errors
    ///
    /// When the API refuses it.
    pub fn patch_status(&self, object: &str, status: &Value) -> Result<()> {
        let url = format!("{URL}/{object}/status");
        let data = json!({ "status": status }).to_string();
        let mut curl = self.netns.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--request", "PATCH"]);
        curl.arg("--cacert").arg(self.folder.join("server.crt"));
        curl.args(["--header", "Authorization: Bearer admin"]);
        curl.args([
            "--header",
            "Content-Type: application/strategic-merge-patch+json",
        ]);
        curl.args(["--data", &data, &url]);
        process::succeed(&mut curl).map(drop)
    }

    /// Makes a Node that is ready, with an internal address.
    ///
    /// # Errors
    ///
    /// When the API refuses it.
    pub fn add_node(&self, name: &str, address: &str) -> Result<()> {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        self.apply(&[node])?;
        let status = json!({
            "addresses": [{ "type": "InternalIP", "address": address }],
            "conditions": [condition("True")],
        });
        self.patch_status(&format!("api/v1/nodes/{name}"), &status)
    }

    /// Makes a Node ready, or not.
    ///
    /// # Errors
    ///
    /// When the API refuses it.
    pub fn set_ready(&self, node: &str, ready: bool) -> Result<()> {
        let condition = condition(if ready { "True" } else { "Unknown" });
        let status = json!({ "conditions": [condition] });
        self.patch_status(&format!("api/v1/nodes/{node}"), &status)
    }
}

fn condition(ready: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({ "type": "Ready", "status": ready, "reason": "Test", "lastHeartbeatTime": time, "lastTransitionTime": time })
}

fn start(
    netns: &Netns,
    folder: &Path,
    programs: &Path,
    name: &str,
    words: &[String],
) -> Result<Process> {
    let program = programs.join(name);
    let program = program.to_str().context("its path is text")?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Process::start(&netns.path(), folder, name, program, &words)
}

/// A certificate of the server for its address, and a pair of keys for service accounts.
fn make_keys(folder: &Path) -> Result<()> {
    let openssl = |words: &str| {
        let mut openssl = Command::new("openssl");
        openssl.current_dir(folder).args(words.split(' '));
        process::succeed(&mut openssl).map(drop)
    };
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=kube-apiserver \
         -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout server.key -out server.crt",
    )?;
    openssl("genrsa -out accounts.key 2048")?;
    openssl("rsa -in accounts.key -pubout -out accounts.pub")?;
    std::fs::write(folder.join("tokens.csv"), TOKENS).context("write the tokens")
}
