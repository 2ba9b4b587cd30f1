//! Backends that a real kube-apiserver has: what it says is followed, what is none of the network's is refused, and what it
//! does not say changes nothing. Services of type LoadBalancer get VIPs, and nothing else is written.

mod access;
mod chaos;
mod dry_run;
mod followed;
mod hosted;
mod hosted_clusters;
mod load_balancer;
mod outage;

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    servers::{api_server::ApiServer, echo::EchoServer},
    topology::{Topology, VIP},
    traffic::client,
};
use serde_json::{Value, json};

/// Where clients reach the service.
const KAS: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
const NAMESPACE: &str = "clusters-tenant-a";
/// NodePorts of the service, before and after a change.
const PORTS: [u16; 2] = [30_918, 31_000];
/// A change is followed within a second; the rest is for a machine that does other things, too.
const FOLLOWED: Duration = Duration::from_secs(4);

/// A hub with an API server that knows the first two nodes, and servers at both ports of all nodes.
struct Hub<'t> {
    topology: &'t Topology,
    api: ApiServer<'t>,
    servers: Vec<EchoServer<'t>>,
}

impl<'t> Hub<'t> {
    fn new(topology: &'t Topology) -> Result<Self> {
        let api = ApiServer::start(&topology.lb, topology.dir())?;
        api.kubectl(&["create", "namespace", NAMESPACE])?;
        api.grant("lb.yaml", "lb")?;
        let mut servers = Vec::new();
        for node in &topology.nodes {
            for port in PORTS {
                let at = SocketAddrV4::new(node.address, port);
                servers.push(EchoServer::start(
                    &node.netns,
                    at,
                    &format!("{}:{port}", node.name),
                )?);
            }
        }
        let hub = Self {
            topology,
            api,
            servers,
        };
        for node in &topology.nodes[..2] {
            hub.api.add_node(node.name, &node.address.to_string())?;
        }
        hub.publish(PORTS[0], "Cluster")?;
        Ok(hub)
    }

    /// Makes the service, or changes it.
    fn publish(&self, node_port: u16, policy: &str) -> Result<()> {
        let port = json!({ "name": "https", "port": 6443, "nodePort": node_port });
        let spec = json!({ "type": "NodePort", "ports": [port], "externalTrafficPolicy": policy });
        self.make(&format!("{NAMESPACE}/kube-apiserver"), &spec)
    }

    /// Makes a service, or changes it, by `NAMESPACE/NAME`.
    fn make(&self, service: &str, spec: &Value) -> Result<()> {
        let (namespace, name) = service.split_once('/').context("NAMESPACE/NAME")?;
        self.api.apply(&[json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": namespace },
            "spec": spec,
        })])
    }

    fn config(&self) -> Result<Config> {
        let kubeconfig = self.api.kubeconfig()?;
        let wanted = json!({
            "cluster": "hub",
            "service": format!("{NAMESPACE}/kube-apiserver"),
            "port": "https",
        });
        Ok(Config::poc()
            .set("kubernetes.hub.kubeconfig", kubeconfig)
            .pool("kas", |pool| {
                pool.on("mgmt").set("backends.discover", wanted)
            })
            .tcp_service_to("kas", KAS, "kas"))
    }

    /// The servers that answer twenty connections, in order.
    fn answers(&self) -> Result<Vec<String>> {
        self.answers_at(KAS)
    }

    fn answers_at(&self, vip: SocketAddrV4) -> Result<Vec<String>> {
        let client = &self.topology.client().netns;
        let ask = || (0..20).map(|_| Ok(client::who(None, vip)?.node)).collect();
        let mut names: Vec<String> = client.inside(|| -> Result<Vec<String>> { ask() })??;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Waits until exactly these answer.
    fn wait_for(&self, wanted: &[&str], limit: Duration) -> Result<()> {
        self.wait_for_at(KAS, wanted, limit)
    }

    fn wait_for_at(&self, vip: SocketAddrV4, wanted: &[&str], limit: Duration) -> Result<()> {
        poll::until(&format!("answers of {wanted:?}"), limit, || {
            Ok((self.answers_at(vip).ok().as_deref() == Some(&owned(wanted))).then_some(()))
        })
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Waits for an event of discovery with these words.
fn wait_for_event(lb: &Lb<'_>, words: &str, limit: Duration) -> Result<()> {
    let waited = poll::until(&format!("an event with {words:?}"), limit, || {
        let events = events(lb)?;
        Ok(events
            .iter()
            .any(|event| event.contains(words))
            .then_some(()))
    });
    waited.with_context(|| format!("{:#?}", events(lb)))
}

/// The objects and words of the events of discovery.
fn events(lb: &Lb<'_>) -> Result<Vec<String>> {
    let events = lb.events()?.into_iter();
    let discovery = events.filter(|event| event.kind == "discovery");
    Ok(discovery
        .map(|event| format!("{}: {}", event.object, event.words))
        .collect())
}
