//! A hosted cluster, whose API is reached at nodes of the hub, and whose workers are backends in the network of its tenant.

use std::{net::SocketAddrV4, time::Instant};

use anyhow::Result;
use lb_tests::{
    product::lb::Lb,
    servers::{api_server::ApiServer, echo::EchoServer},
    topology::{APPS_HTTPS, APPS_HTTPS_NODE_PORT, TENANT_SNAT, Topology},
};
use serde_json::json;

use super::{FOLLOWED, Hub, NAMESPACE};

/// The name that the certificate of the hosted API is for.
const API: &str = "api.tenant-a.example";
/// Where the hub has it.
const NODE_PORTS: [u16; 2] = [30_443, 30_444];

/// D6: the API of a hosted cluster is reached through the one node of the hub that has it, and where that has it next; a
/// worker that is replaced is followed.
#[privileged_test]
fn d6_a_hosted_cluster_is_reached_through_its_hub_and_followed() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    topology.lb.ip_batch("addr add 10.32.96.40/20 dev eth1\n")?;
    let node = &topology.nodes[0];
    let at = SocketAddrV4::new(node.address, NODE_PORTS[0]);
    let mut hosted = ApiServer::start_at(&node.netns, topology.dir(), at, API)?;
    hosted.grant("lb.yaml", "lb")?;
    let publish = |port| {
        let port = json!({ "name": "client", "port": 6443, "nodePort": port });
        let service = format!("{NAMESPACE}/hosted");
        hub.make(&service, &json!({ "type": "NodePort", "ports": [port] }))
    };
    publish(NODE_PORTS[0])?;
    let [one, two, ..] = &topology.workers[..] else {
        anyhow::bail!("there are two workers");
    };
    let mut servers = Vec::new();
    for worker in [one, two] {
        let at = SocketAddrV4::new(worker.address, APPS_HTTPS_NODE_PORT);
        servers.push(EchoServer::start(&worker.netns, at, worker.name)?);
    }
    hosted.add_node(one.name, &one.address.to_string())?;
    hosted.kubectl(&["create", "namespace", "openshift-ingress"])?;
    hosted.apply(&[json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "router", "namespace": "openshift-ingress" },
        "spec": { "type": "NodePort", "ports": [{ "port": 443, "nodePort": APPS_HTTPS_NODE_PORT }] },
    })])?;
    let through =
        json!({ "cluster": "hub", "service": format!("{NAMESPACE}/hosted"), "port": "client" });
    let router =
        json!({ "cluster": "tenant-a", "service": "openshift-ingress/router", "port": 443 });
    let kubeconfig = hosted.kubeconfig_of(&format!("https://{API}:6443"))?;
    let config = hub
        .config()?
        .set("kubernetes.tenant-a.kubeconfig", kubeconfig)
        .set("kubernetes.tenant-a.through", through)
        .network("tenant-a", |tenant| tenant.set("snat", [TENANT_SNAT]))
        .pool("apps", |pool| {
            pool.on("tenant-a").set("backends.discover", router)
        })
        .tcp_service_to("apps", APPS_HTTPS, "apps");
    let _lb = Lb::start(&topology, &config)?;
    hub.wait_for_at(APPS_HTTPS, &[one.name], FOLLOWED)?;

    hosted.add_node(two.name, &two.address.to_string())?;
    hosted.kubectl(&["delete", "node", one.name])?;
    let replaced = Instant::now();
    hub.wait_for_at(APPS_HTTPS, &[two.name], FOLLOWED)?;
    println!("followed after {:.1?}", replaced.elapsed());

    hosted.kill()?;
    hosted.restart_at(NODE_PORTS[1])?;
    publish(NODE_PORTS[1])?;
    hosted.add_node(one.name, &one.address.to_string())?;
    hub.wait_for_at(APPS_HTTPS, &[one.name, two.name], FOLLOWED)
}
