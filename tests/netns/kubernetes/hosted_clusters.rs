//! HostedClusters of a hub become pools and services, each at a VIP of its own.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::Topology,
};
use serde_json::json;

use super::{FOLLOWED, Hub, NAMESPACE, PORTS, load_balancer::SERVICE, wait_for_event};

/// Where the API of each is, in the order of their age.
const APIS: [SocketAddrV4; 2] = [
    SocketAddrV4::new(Ipv4Addr::new(192, 168, 203, 120), 6443),
    SocketAddrV4::new(Ipv4Addr::new(192, 168, 203, 121), 6443),
];
const RANGE: &str = "192.168.203.120-192.168.203.121";
/// The namespace of the control plane of the second one, and the backends of its API.
const SECOND: &str = "clusters-tenant-b";
const ANSWERS: [[&str; 2]; 2] = [["n1:30918", "n2:30918"], ["n1:31000", "n2:31000"]];

impl Hub<'_> {
    /// Lets the API have HostedClusters, and `lb` read them.
    fn has_hypershift(&self) -> Result<()> {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let version = json!({
            "name": "v1beta1",
            "served": true,
            "storage": true,
            "schema": { "openAPIV3Schema": schema },
        });
        let names = json!({ "kind": "HostedCluster", "plural": "hostedclusters" });
        let name = "hostedclusters.hypershift.openshift.io";
        let spec = json!({
            "group": "hypershift.openshift.io",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        });
        self.api.apply(&[json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": name },
            "spec": spec,
        })])?;
        let crd = format!("crd/{name}");
        self.api
            .kubectl(&["wait", "--for=condition=Established", &crd])?;
        self.api.kubectl(&["create", "namespace", "clusters"])?;
        self.api.grant("hosted-clusters.yaml", "lb")
    }

    /// Makes one whose API is a Service of type LoadBalancer.
    fn make_hosted(&self, name: &str) -> Result<()> {
        let strategy = json!({ "type": "LoadBalancer" });
        let api = json!({ "service": "APIServer", "servicePublishingStrategy": strategy });
        self.api.apply(&[json!({
            "apiVersion": "hypershift.openshift.io/v1beta1",
            "kind": "HostedCluster",
            "metadata": { "name": name, "namespace": "clusters" },
            "spec": { "services": [api] },
        })])
    }

    fn delete_hosted(&self, name: &str) -> Result<()> {
        let words = ["--namespace", "clusters", "delete", "hostedcluster", name];
        self.api.kubectl(&words).map(drop)
    }

    fn hosted_config(&self) -> Result<Config> {
        let hosted = json!([{
            "name": "clusters/*",
            "network": "tenant-a",
            "hub_network": "mgmt",
            "vips": [RANGE],
        }]);
        let health = json!({ "tcp": {}, "interval": "200ms", "timeout": "200ms" });
        Ok(self
            .config()?
            .set("kubernetes.hub.hosted_clusters", hosted)
            .set("defaults.cluster.api.health", health))
    }

    /// Two of them, whose APIs answer.
    fn with_two(&self) -> Result<()> {
        self.api.grant("load-balancer.yaml", NAMESPACE)?;
        self.make_balancer(SERVICE, PORTS[0])?;
        self.api.kubectl(&["create", "namespace", SECOND])?;
        self.api.grant("load-balancer.yaml", SECOND)?;
        self.make_balancer(&format!("{SECOND}/kube-apiserver"), PORTS[1])?;
        self.make_hosted("tenant-a")
    }
}

/// D7: HostedClusters are taken as they come, each gets its VIP, also in the status of its Service, and a start without the
/// API has all of them.
#[privileged_test]
fn d7_hosted_clusters_are_taken_as_they_come() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hub = Hub::new(&topology)?;
    let config = hub.hosted_config()?;
    // The API does not know them yet. That is nothing to other pools of it.
    let mut lb = Lb::start(&topology, &config)?;
    hub.wait_for(&ANSWERS[0], FOLLOWED)?;
    hub.has_hypershift()?;
    hub.with_two()?;
    hub.wait_for_at(APIS[0], &ANSWERS[0], FOLLOWED)?;
    let words = format!(
        "HostedCluster clusters/tenant-a of hub: added at {}",
        APIS[0].ip()
    );
    wait_for_event(&lb, &words, FOLLOWED)?;
    poll::until("the VIP in the status", FOLLOWED, || {
        let ingress = &hub.service(SERVICE)?["status"]["loadBalancer"]["ingress"];
        Ok((*ingress == json!([{ "ip": APIS[0].ip() }])).then_some(()))
    })?;
    // The range has room for two.
    hub.make_hosted("tenant-b")?;
    hub.wait_for_at(APIS[1], &ANSWERS[1], FOLLOWED)?;
    hub.make_hosted("tenant-c")?;
    let words = format!("HostedCluster clusters/tenant-c of hub: no VIP is left of {RANGE}");
    wait_for_event(&lb, &words, FOLLOWED)?;

    let plan = |config: &Config| {
        let file = topology.write("plan.yaml", config)?;
        Ok::<_, anyhow::Error>(lb.tell(&["plan", &file.display().to_string()])?.stdout)
    };
    assert_eq!(plan(&config)?, "nothing changes\n");
    // What the file has comes first, and is shown with what has to go.
    let mine = config.clone().mgmt_pool("mine", ["10.32.96.105:30918"]);
    let taken = plan(&mine.tcp_service_to("mine", APIS[0], "mine"))?;
    let removed = "service tenant-a-api (HostedCluster clusters/tenant-a of hub): removed";
    for wanted in [removed, "service mine: added"] {
        ensure!(taken.contains(wanted), "{taken}");
    }
    hub.api.kill()?;
    lb.kill()?;
    lb.restart(&config)?;
    for (api, wanted) in APIS.into_iter().zip(ANSWERS) {
        assert_eq!(hub.answers_at(api)?, wanted);
    }
    Ok(())
}

/// One that the API has no more stays as long as its checks are good; its VIP is kept for its name, until no other one is
/// left.
#[privileged_test]
fn d10_a_hosted_cluster_that_is_gone_ends_with_its_checks() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hub = Hub::new(&topology)?;
    hub.has_hypershift()?;
    hub.with_two()?;
    let lb = Lb::start(&topology, &hub.hosted_config()?)?;
    hub.wait_for_at(APIS[0], &ANSWERS[0], FOLLOWED)?;
    hub.delete_hosted("tenant-a")?;
    wait_for_event(
        &lb,
        "it is gone there; it stays until its checks fail",
        FOLLOWED,
    )?;
    assert_eq!(hub.answers_at(APIS[0])?, ANSWERS[0]);
    hub.make_hosted("tenant-b")?;
    hub.wait_for_at(APIS[1], &ANSWERS[1], FOLLOWED)?;
    // Only the servers of the first one end.
    let mut ports = PORTS.into_iter().cycle();
    hub.servers.retain(|_| ports.next() == Some(PORTS[1]));
    let words = "HostedCluster clusters/tenant-a of hub: removed";
    wait_for_event(&lb, words, Duration::from_secs(10))?;
    let services: Vec<String> = lb.services()?.into_iter().map(|one| one.name).collect();
    ensure!(
        !services.contains(&"tenant-a-api".to_owned()),
        "{services:?}"
    );
    assert_eq!(hub.answers_at(APIS[1])?, ANSWERS[1]);
    hub.make_hosted("tenant-c")?;
    let words = format!(
        "HostedCluster clusters/tenant-c of hub: added at {}",
        APIS[0].ip()
    );
    wait_for_event(&lb, &words, FOLLOWED)
}
