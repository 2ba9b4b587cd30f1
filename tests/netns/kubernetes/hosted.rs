//! A hosted cluster, whose API is reached at nodes of the hub, and whose workers are backends in the network of its tenant.

use std::{
    net::SocketAddrV4,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    servers::{api_server::ApiServer, echo::EchoServer},
    topology::{APPS_HTTPS, APPS_HTTPS_NODE_PORT, Host, TENANT_SNAT, Topology},
};
use lb_user::dataplane::pins::Pins;
use serde_json::json;

use super::{FOLLOWED, Hub, NAMESPACE};

/// The name that the certificate of the hosted API is for.
const API: &str = "api.tenant-a.example";
/// Where the hub has it.
const NODE_PORTS: [u16; 2] = [30_443, 30_444];

/// The Secret that the hub has for the administrator of the hosted cluster.
const SECRET: &str = "tenant-a-admin-kubeconfig";

/// A hosted cluster with one worker and the Service of its router, whose API one node of the hub has.
struct Hosted<'t> {
    hub: Hub<'t>,
    api: ApiServer<'t>,
    workers: [&'t Host; 2],
    _servers: Vec<EchoServer<'t>>,
}

impl<'t> Hosted<'t> {
    fn new(topology: &'t Topology) -> Result<Self> {
        let hub = Hub::new(topology)?;
        topology.lb.ip_batch("addr add 10.32.96.40/20 dev eth1\n")?;
        let node = &topology.nodes[0];
        let at = SocketAddrV4::new(node.address, NODE_PORTS[0]);
        let api = ApiServer::start_at(&node.netns, topology.dir(), at, API)?;
        let [one, two, ..] = &topology.workers[..] else {
            anyhow::bail!("there are two workers");
        };
        let mut servers = Vec::new();
        for worker in [one, two] {
            let at = SocketAddrV4::new(worker.address, APPS_HTTPS_NODE_PORT);
            servers.push(EchoServer::start(&worker.netns, at, worker.name)?);
        }
        let hosted = Self {
            hub,
            api,
            workers: [one, two],
            _servers: servers,
        };
        hosted.publish(NODE_PORTS[0])?;
        hosted.add(one)?;
        hosted
            .api
            .kubectl(&["create", "namespace", "openshift-ingress"])?;
        hosted.api.apply(&[json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "router", "namespace": "openshift-ingress" },
            "spec": { "type": "NodePort", "ports": [{ "port": 443, "nodePort": APPS_HTTPS_NODE_PORT }] },
        })])?;
        Ok(hosted)
    }

    /// The hub has the API at this port.
    fn publish(&self, port: u16) -> Result<()> {
        let port = json!({ "name": "client", "port": 6443, "nodePort": port });
        let service = format!("{NAMESPACE}/hosted");
        self.hub
            .make(&service, &json!({ "type": "NodePort", "ports": [port] }))
    }

    /// Makes a worker a node of the hosted cluster.
    fn add(&self, worker: &Host) -> Result<()> {
        self.api.add_node(worker.name, &worker.address.to_string())
    }

    /// With a pool of the router's nodes, as the API of the hosted cluster says, which is known by these credentials.
    fn config(&self, credentials: &str, value: &str) -> Result<Config> {
        let through =
            json!({ "cluster": "hub", "service": format!("{NAMESPACE}/hosted"), "port": "client" });
        let router =
            json!({ "cluster": "tenant-a", "service": "openshift-ingress/router", "port": 443 });
        let config = self.hub.config()?;
        Ok(config
            .set(&format!("kubernetes.tenant-a.{credentials}"), value)
            .set("kubernetes.tenant-a.through", through)
            .network("tenant-a", |tenant| tenant.set("snat", [TENANT_SNAT]))
            .pool("apps", |pool| {
                pool.on("tenant-a").set("backends.discover", router)
            })
            .tcp_service_to("apps", APPS_HTTPS, "apps"))
    }

    /// Waits until exactly these workers answer.
    fn wait_for(&self, workers: &[&str]) -> Result<()> {
        self.hub.wait_for_at(APPS_HTTPS, workers, FOLLOWED)
    }

    /// What the administrator's kubeconfig has as its key.
    fn key(&self) -> Result<String> {
        let kubeconfig = self.api.admin_kubeconfig(&server())?;
        let key = kubeconfig["users"][0]["user"]["client-key-data"].as_str();
        Ok(key.context("the key")?.to_owned())
    }

    /// The hub has the administrator's kubeconfig, with this server, in the Secret.
    fn keep_secret(&self) -> Result<()> {
        let kubeconfig = self.api.admin_kubeconfig(&server())?;
        self.hub.api.apply(&[json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": SECRET, "namespace": "clusters" },
            "stringData": { "kubeconfig": kubeconfig.to_string() },
        })])
    }
}

/// As the clients of the VIP have it.
fn server() -> String {
    format!("https://{API}:6443")
}

/// D6: the API of a hosted cluster is reached through the one node of the hub that has it, and where that has it next; a
/// worker that is replaced is followed.
#[privileged_test]
fn d6_a_hosted_cluster_is_reached_through_its_hub_and_followed() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hosted = Hosted::new(&topology)?;
    hosted.api.grant("lb.yaml", "lb")?;
    let kubeconfig = hosted.api.kubeconfig_of(&server())?;
    let config = hosted.config("kubeconfig", &kubeconfig.display().to_string())?;
    let [one, two] = hosted.workers;
    let _lb = Lb::start(&topology, &config)?;
    hosted.wait_for(&[one.name])?;

    hosted.add(two)?;
    hosted.api.kubectl(&["delete", "node", one.name])?;
    let replaced = Instant::now();
    hosted.wait_for(&[two.name])?;
    println!("followed after {:.1?}", replaced.elapsed());

    hosted.api.kill()?;
    hosted.api.restart_at(NODE_PORTS[1])?;
    hosted.publish(NODE_PORTS[1])?;
    hosted.add(one)?;
    hosted.wait_for(&[one.name, two.name])
}

/// D6: the Secret of the hosted cluster is read once `lb` may and it is there, also the one after it; without the hub the last
/// one serves. It is nowhere on the disk.
#[privileged_test]
fn d6_a_hosted_cluster_is_known_by_the_secret_of_its_hub() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hosted = Hosted::new(&topology)?;
    let config = hosted
        .config("secret", &format!("clusters/{SECRET}"))?
        .set("kubernetes.hub.secrets", true);
    let [one, two] = hosted.workers;
    let mut lb = Lb::start(&topology, &config)?;
    wait_for_status(&lb, "secrets \"tenant-a-admin-kubeconfig\" is forbidden")?;
    hosted
        .hub
        .api
        .kubectl(&["create", "namespace", "clusters"])?;
    hosted.hub.api.grant("secret.yaml", "clusters")?;
    wait_for_status(&lb, "secrets \"tenant-a-admin-kubeconfig\" not found (404)")?;
    hosted.keep_secret()?;
    hosted.wait_for(&[one.name])?;

    // Other certificates: those of before are refused.
    let key = hosted.key()?;
    hosted.api.kill()?;
    hosted.api.renew_admin()?;
    hosted.api.restart()?;
    wait_for_status(&lb, "Unauthorized (401)")?;
    hosted.keep_secret()?;
    hosted.add(two)?;
    hosted.wait_for(&[one.name, two.name])?;

    hosted.hub.api.kill()?;
    hosted.api.kill()?;
    wait_for_status(&lb, "Connection refused")?;
    hosted.api.restart()?;
    hosted.api.kubectl(&["delete", "node", one.name])?;
    hosted.wait_for(&[two.name])?;

    ensure!(
        !kept(&topology, "openshift-ingress/router")?.is_empty(),
        "nothing is kept"
    );
    for key in [key, hosted.key()?] {
        assert_eq!(kept(&topology, &key)?, "");
        ensure!(!lb.process().stderr().contains(&key), "it is in the log");
        ensure!(
            !lb.tell(&["status", "-o", "json"])?.done()?.contains(&key),
            "it is in the status"
        );
    }
    Ok(())
}

/// The files of `lb` with a text.
fn kept(topology: &Topology, text: &str) -> Result<String> {
    let pins = Pins::new(topology.run());
    let mut grep = Command::new("grep");
    grep.args([
        "--recursive",
        "--files-with-matches",
        "--fixed-strings",
        text,
    ]);
    grep.args([pins.state(), pins.runtime()]);
    Ok(String::from_utf8(grep.output()?.stdout)?)
}

/// Waits until `lb status` says this of the hosted cluster.
fn wait_for_status(lb: &Lb<'_>, words: &str) -> Result<()> {
    let mut seen = String::new();
    let waited = poll::until("a status with the reason", Duration::from_secs(30), || {
        seen = lb.tell(&["status"])?.done()?;
        let mut lines = seen.lines();
        let has = |line: &str| line.contains("stale: cluster tenant-a ") && line.contains(words);
        Ok(lines.any(has).then_some(()))
    });
    waited.with_context(|| format!("{words:?} in {seen}"))
}
