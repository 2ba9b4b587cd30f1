//! A real kube-apiserver with etcd, on loopback of a namespace, and kubectl as the other client. No controllers run: what
//! they would write, slices and statuses, the test writes.

use std::{
    ffi::OsStr,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{netns::Netns, poll, process, process::Process};

/// How long it may take until it answers: five seconds on an idle machine, minutes where its programs have yet to come
/// from a slow disk.
const START: Duration = Duration::from_secs(300);
/// Where that of a hub listens.
const LOOPBACK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 6443);
/// The groups that tests use, and those without which it is not ready.
const GROUPS: [&str; 12] = [
    "v1",
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "discovery.k8s.io/v1beta1",
    "networking.k8s.io/v1",
    "node.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
];
/// Where it says that it is ready, but for the objects that it makes itself.
const READY: &str = "/readyz?exclude=poststarthook/rbac/bootstrap-roles\
                     &exclude=poststarthook/scheduling/bootstrap-system-priority-classes";
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";
/// Users with a token each: the administrator, and the ServiceAccount of `config/kubernetes`.
fn tokens(of_lb: &str) -> String {
    format!("admin,admin,1,system:masters\n{of_lb},{LB},2\n")
}

/// How the API knows the ServiceAccount `lb` in the namespace `lb`.
const LB: &str = "system:serviceaccount:lb:lb";

/// The API server, with its data; all of it ends with this.
#[derive(Debug)]
pub struct ApiServer<'t> {
    netns: &'t Netns,
    at: SocketAddrV4,
    folder: PathBuf,
    programs: PathBuf,
    etcd: Option<Process>,
    server: Option<Process>,
}

impl<'t> ApiServer<'t> {
    /// Starts it in a namespace, with its files in a new folder in `parent`; it is ready when this returns.
    ///
    /// # Errors
    ///
    /// Without the programs (`LB_KUBE_APISERVER`), or when one does not start.
    pub fn start(netns: &'t Netns, parent: &Path) -> Result<Self> {
        Self::start_at(netns, parent, LOOPBACK, "kubernetes")
    }

    /// The same, at an address, with a certificate for that and for `name`, which the folder is called by.
    ///
    /// # Errors
    ///
    /// As of `start`.
    pub fn start_at(netns: &'t Netns, parent: &Path, at: SocketAddrV4, name: &str) -> Result<Self> {
        let program = std::env::var_os("LB_KUBE_APISERVER");
        let program = program.context("LB_KUBE_APISERVER is not set: run by `cargo xtask test`")?;
        let programs = Path::new(&program)
            .parent()
            .context("its folder")?
            .to_owned();
        let folder = parent.join(name);
        std::fs::create_dir(&folder)?;
        make_keys(&folder, *at.ip(), name)?;
        let mut api = Self {
            etcd: None,
            netns,
            at,
            folder,
            programs,
            server: None,
        };
        api.restart_etcd()?;
        api.restart()?;
        Ok(api)
    }

    /// Starts etcd again, with its data.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn restart_etcd(&mut self) -> Result<()> {
        let words = [
            "--name=k".to_owned(),
            format!("--data-dir={}", self.folder.join("etcd").display()),
            format!("--listen-client-urls={ETCD}"),
            format!("--advertise-client-urls={ETCD}"),
            format!("--listen-peer-urls={ETCD_PEER}"),
            format!("--initial-advertise-peer-urls={ETCD_PEER}"),
            format!("--initial-cluster=k={ETCD_PEER}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let etcd = start(self.netns, &self.folder, &self.programs, "etcd", &words)?;
        self.etcd = Some(etcd);
        Ok(())
    }

    /// Kills etcd.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn kill_etcd(&mut self) -> Result<()> {
        kill(self.etcd.take().context("etcd runs")?)
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
            format!("--bind-address={}", self.at.ip()),
            format!("--secure-port={}", self.at.port()),
            "--advertise-address=192.0.2.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--cert-dir={}", self.folder.display()),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--client-ca-file={}", file("clients.crt")),
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
            // Half of the time until it answers is for groups that no test uses.
            format!(
                "--runtime-config=api/all=false,{}",
                GROUPS.join("=true,") + "=true"
            ),
            "--enable-priority-and-fairness=false".to_owned(),
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
            // It makes that by itself, too, a moment later.
            let has_namespace = || self.kubectl(&["get", "namespace", "default"]).is_ok();
            Ok((self.is_ready(READY) && has_namespace()).then_some(()))
        })
    }

    /// Waits until it has its own roles, too, after which it is ready for the tests.
    ///
    /// # Errors
    ///
    /// When it does not have them in time.
    pub fn wait_for_roles(&self) -> Result<()> {
        poll::until("roles of the API server", START, || {
            Ok(self.is_ready("/readyz").then_some(()))
        })
    }

    fn is_ready(&self, path: &str) -> bool {
        let ready = self.kubectl(&["get", "--raw", path]);
        ready.is_ok_and(|text| text == "ok")
    }

    /// The same, at another port.
    ///
    /// # Errors
    ///
    /// As of `restart`.
    pub fn restart_at(&mut self, port: u16) -> Result<()> {
        self.at.set_port(port);
        self.restart()
    }

    /// Kills the server.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn kill(&mut self) -> Result<()> {
        kill(self.server.take().context("the server runs")?)
    }

    /// A kubeconfig of `lb`, which has its token in a file, and may do what `config/kubernetes` lets it.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_of(&self.url())
    }

    /// The same, with this server.
    ///
    /// # Errors
    ///
    /// As of `kubeconfig`.
    pub fn kubeconfig_of(&self, server: &str) -> Result<PathBuf> {
        self.write_token("lb")?;
        let token = json!({ "tokenFile": self.folder.join("token") });
        self.write_kubeconfig("lb", server, &token)
    }

    /// The kubeconfig of an administrator with a certificate, as HyperShift has it in a Secret: with this server and no files.
    ///
    /// # Errors
    ///
    /// When one of its files cannot be read.
    pub fn admin_kubeconfig(&self, server: &str) -> Result<Value> {
        let data = |name: &str| -> Result<String> {
            let mut base64 = Command::new("base64");
            process::succeed(base64.arg("--wrap=0").arg(self.folder.join(name)))
        };
        let user = json!({
            "client-certificate-data": data("admin.crt")?,
            "client-key-data": data("admin.key")?,
        });
        let authority = json!({ "certificate-authority-data": data("server.crt")? });
        Ok(kubeconfig("admin", server, &authority, &user))
    }

    /// From the next start on administrators have other certificates.
    ///
    /// # Errors
    ///
    /// When they cannot be made.
    pub fn renew_admin(&self) -> Result<()> {
        make_admin(&self.folder)
    }

    fn url(&self) -> String {
        format!("https://{}", self.at)
    }

    /// Writes the file that has the token of `lb`, as `kubectl create token > FILE` does.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write_token(&self, token: &str) -> Result<()> {
        std::fs::write(self.folder.join("token"), format!("{token}\n"))
            .context("write the token of lb")
    }

    /// From the next start on `lb` has this token, and no other one.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn set_token(&self, token: &str) -> Result<()> {
        std::fs::write(self.folder.join("tokens.csv"), tokens(token)).context("write the tokens")
    }

    fn write_kubeconfig(&self, user: &str, server: &str, credentials: &Value) -> Result<PathBuf> {
        let path = self.folder.join(format!("{user}.kubeconfig"));
        let authority = json!({ "certificate-authority": self.folder.join("server.crt") });
        let config = kubeconfig(user, server, &authority, credentials);
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
        let admin = self.write_kubeconfig("admin", &self.url(), &json!({ "token": "admin" }))?;
        command.arg("--kubeconfig").arg(admin);
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

    /// Lets `lb` do what a file of `config/kubernetes` says, there.
    ///
    /// # Errors
    ///
    /// When the API refuses it.
    pub fn grant(&self, file: &str, namespace: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/kubernetes");
        let path = path.join(file).display().to_string();
        let words = ["--namespace", namespace, "apply", "--filename", &path];
        self.kubectl(&words).map(drop)
    }

    /// What of all these `lb` may do in a namespace, as `VERB RESOURCE`; a resource is `NAME[.GROUP][/SUBRESOURCE][:OBJECT]`.
    ///
    /// # Errors
    ///
    /// When the API does not say.
    pub fn granted(
        &self,
        namespace: &str,
        verbs: &[&str],
        resources: &[&str],
    ) -> Result<Vec<String>> {
        let each = |resource| verbs.iter().map(move |verb| (*verb, resource));
        let asked: Vec<(&str, &&str)> = resources.iter().flat_map(each).collect();
        let reviews = asked
            .iter()
            .map(|(verb, resource)| review(namespace, verb, resource));
        let list =
            json!({ "apiVersion": "v1", "kind": "List", "items": reviews.collect::<Vec<_>>() });
        let file = self.folder.join("reviews.json");
        std::fs::write(&file, list.to_string())?;
        let file = file.display().to_string();
        let text = self.kubectl(&["create", "--filename", &file, "--output", "json"])?;
        let answers = serde_json::Deserializer::from_str(&text).into_iter();
        let answers = answers.collect::<Result<Vec<Value>, _>>();
        let answers = answers.context("read what kubectl says")?;
        ensure!(answers.len() == asked.len(), "an answer to each review");
        let granted = asked.iter().zip(answers);
        let granted = granted.filter(|(_, answer)| answer["status"]["allowed"] == true);
        Ok(granted
            .map(|((verb, resource), _)| format!("{verb} {resource}"))
            .collect())
    }

    /// Changes the status of an object by a strategic merge patch, as its controller would; `object` is below the API's root.
    ///
    /// # Errors
    ///
    /// When the API refuses it.
    pub fn patch_status(&self, object: &str, status: &Value) -> Result<()> {
        let url = format!("{}/{object}/status", self.url());
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

/// Whether `lb` may do that.
fn review(namespace: &str, verb: &str, resource: &str) -> Value {
    let (path, object) = resource.split_once(':').unwrap_or((resource, ""));
    let (path, subresource) = path.split_once('/').unwrap_or((path, ""));
    let (name, group) = path.split_once('.').unwrap_or((path, ""));
    let attributes = json!({
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": name,
        "subresource": subresource,
        "name": object,
    });
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": { "user": LB, "resourceAttributes": attributes },
    })
}

fn kill(mut process: Process) -> Result<()> {
    process.signal(Signal::SIGKILL)?;
    process.wait_for_end(Duration::from_secs(10)).map(drop)
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

fn kubeconfig(user: &str, server: &str, authority: &Value, credentials: &Value) -> Value {
    let mut cluster = authority.clone();
    cluster["server"] = server.into();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "k", "cluster": cluster }],
        "users": [{ "name": user, "user": credentials }],
        "contexts": [{ "name": "k", "context": { "cluster": "k", "user": user } }],
        "current-context": "k",
    })
}

/// A new key with a certificate, which signs itself unless there is an authority.
const NEW_KEY: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";

fn openssl(folder: &Path, words: &str) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.current_dir(folder).args(words.split(' '));
    process::succeed(&mut openssl).map(drop)
}

/// A certificate of an administrator, and the authority of the clients.
fn make_admin(folder: &Path) -> Result<()> {
    let authority = format!("{NEW_KEY} -subj /CN=clients -keyout clients.key -out clients.crt");
    openssl(folder, &authority)?;
    let admin = format!(
        "{NEW_KEY} -subj /O=system:masters/CN=system:admin -CA clients.crt -CAkey clients.key \
         -addext basicConstraints=critical,CA:FALSE -keyout admin.key -out admin.crt"
    );
    openssl(folder, &admin)
}

/// A certificate of the server for its address and a name, those of an administrator, and a pair of keys for service accounts.
fn make_keys(folder: &Path, address: Ipv4Addr, name: &str) -> Result<()> {
    let server = format!(
        "{NEW_KEY} -subj /CN=kube-apiserver -addext subjectAltName=IP:{address},DNS:{name} \
         -addext basicConstraints=critical,CA:FALSE -keyout server.key -out server.crt"
    );
    openssl(folder, &server)?;
    make_admin(folder)?;
    openssl(folder, "genrsa -out accounts.key 2048")?;
    openssl(folder, "rsa -in accounts.key -pubout -out accounts.pub")?;
    std::fs::write(folder.join("tokens.csv"), tokens("lb")).context("write the tokens")
}
