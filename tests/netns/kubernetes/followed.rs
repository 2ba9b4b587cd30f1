//! A NodePort, a node and an endpoint change, and traffic follows.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology, traffic::client};
use serde_json::json;

use super::{FOLLOWED, Hub, KAS, NAMESPACE, PORTS, wait_for_event};

/// D4: a service gets another NodePort while clients connect, of which none fails: the old port is there for a while.
#[privileged_test]
fn d4_a_nodeport_changes_and_traffic_follows() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    let lb = Lb::start(&topology, &hub.config()?)?;
    hub.wait_for(&["n1:30918", "n2:30918"], FOLLOWED)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let clients = scope.spawn(|| {
            let client = &topology.client().netns;
            client.inside(|| -> Result<u32> {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    client::who(None, KAS).with_context(|| format!("connection {count}"))?;
                    count += 1;
                }
                Ok(count)
            })?
        });
        hub.publish(PORTS[1], "Cluster")?;
        let changed = Instant::now();
        let followed = hub.wait_for(&["n1:31000", "n2:31000"], FOLLOWED);
        println!("followed after {:.1?}", changed.elapsed());
        is_over.store(true, Ordering::Relaxed);
        let count = clients.join().expect("the clients do not panic")?;
        println!("{count} connections, none of them failed");
        followed
    })?;
    let words = "n1 from 10.32.96.105:30918 to 10.32.96.105:31000";
    wait_for_event(&lb, words, FOLLOWED)?;
    assert_eq!(lb.status()?.flows.live, 0);
    Ok(())
}

/// D8: a node that is not ready, cordoned or excluded gets no new flows; a node that comes does.
#[privileged_test]
fn d8_nodes_come_and_go() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    let _lb = Lb::start(&topology, &hub.config()?)?;
    let both = ["n1:30918", "n2:30918"];
    hub.wait_for(&both, FOLLOWED)?;
    hub.api.kubectl(&["cordon", "n1"])?;
    hub.wait_for(&both[1..], FOLLOWED)?;
    hub.api.kubectl(&["uncordon", "n1"])?;
    hub.wait_for(&both, FOLLOWED)?;
    hub.api.set_ready("n2", false)?;
    hub.wait_for(&both[..1], FOLLOWED)?;
    hub.api.set_ready("n2", true)?;
    hub.wait_for(&both, FOLLOWED)?;
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    hub.api
        .kubectl(&["label", "node", "n1", &format!("{label}=")])?;
    hub.wait_for(&both[1..], FOLLOWED)?;
    let third = &topology.nodes[2];
    hub.api.add_node(third.name, &third.address.to_string())?;
    hub.wait_for(&["n2:30918", "n3:30918"], FOLLOWED)?;
    hub.api.kubectl(&["delete", "node", "n2"])?;
    hub.wait_for(&["n3:30918"], FOLLOWED)
}

/// D9: with `externalTrafficPolicy: Local` only nodes with an endpoint get flows. This API has slices of v1beta1.
#[privileged_test]
fn d9_a_local_service_is_reached_where_its_endpoints_are() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    let endpoint = |node: &str| {
        hub.api.apply(&[json!({
            "apiVersion": "discovery.k8s.io/v1beta1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-apiserver-1",
                "namespace": NAMESPACE,
                "labels": { "kubernetes.io/service-name": "kube-apiserver" },
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.128.0.7"],
                "conditions": { "ready": true },
                "topology": { "kubernetes.io/hostname": node },
            }],
            "ports": [{ "name": "https", "port": 6443 }],
        })])
    };
    endpoint("n1")?;
    let _lb = Lb::start(&topology, &hub.config()?)?;
    hub.wait_for(&["n1:30918", "n2:30918"], FOLLOWED)?;
    hub.publish(PORTS[0], "Local")?;
    hub.wait_for(&["n1:30918"], FOLLOWED)?;
    endpoint("n2")?;
    hub.wait_for(&["n2:30918"], FOLLOWED)
}

/// C11: an object of the API that names an address that is none of the network's backends is refused, and nothing is
/// programmed for it.
#[privileged_test]
fn c11_a_poisoned_node_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    let lb = Lb::start(&topology, &hub.config()?)?;
    let both = ["n1:30918", "n2:30918"];
    hub.wait_for(&both, FOLLOWED)?;
    let addresses = || -> Result<Vec<String>> {
        let backends = lb.backends()?.into_iter();
        Ok(backends.map(|backend| backend.address).collect())
    };
    // What is applied is written down after it serves.
    let before = poll::until("both backends in the list", FOLLOWED, || {
        Ok(Some(addresses()?).filter(|backends| backends.len() == 2))
    })?;
    let worker = topology.workers[0].address.to_string();
    for (name, address) in [("local", "127.0.0.1"), ("tenant", worker.as_str())] {
        hub.api.add_node(name, address)?;
        let words = format!(
            "node {name} of port https of service {NAMESPACE}/kube-apiserver of hub: {address} is in no"
        );
        wait_for_event(&lb, &words, FOLLOWED)?;
    }
    let after = addresses()?;
    ensure!(after == before, "{before:?} before, {after:?} after");
    hub.wait_for(&both, FOLLOWED)
}
