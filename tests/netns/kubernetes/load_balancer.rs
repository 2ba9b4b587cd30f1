//! Services of type LoadBalancer get VIPs into their status, and no other object is written.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::{ECHO, Topology},
};
use serde_json::{Value, json};

use super::{FOLLOWED, Hub, KAS, NAMESPACE, PORTS, wait_for_event};

/// The Service that is to have a VIP.
pub(super) const SERVICE: &str = "clusters-tenant-a/kube-apiserver";
/// Another VIP of the tenant.
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 121);

/// How long a status is looked at that is not to change: others are written within a tenth of it.
const UNWRITTEN: Duration = Duration::from_secs(2);

/// A configuration in which the Service is to have this VIP; clients reach it at both.
fn config(hub: &Hub<'_>, vip: Ipv4Addr) -> Result<Config> {
    let balancers = json!([{ "service": SERVICE, "vip": vip }]);
    Ok(hub
        .config()?
        .set("kubernetes.hub.load_balancers", balancers)
        .tcp_service_to("other", SocketAddrV4::new(OTHER, ECHO.port()), "kas"))
}

impl Hub<'_> {
    /// Makes a Service of type LoadBalancer, or changes it to one.
    pub(super) fn make_balancer(&self, service: &str, node_port: u16) -> Result<()> {
        let port = json!({ "name": "https", "port": 6443, "nodePort": node_port });
        self.make(service, &json!({ "type": "LoadBalancer", "ports": [port] }))
    }

    pub(super) fn service(&self, service: &str) -> Result<Value> {
        let (namespace, name) = service.split_once('/').context("NAMESPACE/NAME")?;
        let words = [
            "--namespace",
            namespace,
            "get",
            "service",
            name,
            "--output",
            "json",
        ];
        serde_json::from_str(&self.api.kubectl(&words)?).context("read a Service")
    }

    /// What the status of the Service has of its load balancer.
    fn ingress(&self) -> Result<Value> {
        let service = self.service(SERVICE)?;
        Ok(service["status"]["loadBalancer"]["ingress"].clone())
    }

    fn wait_for_ingress(&self, vip: Ipv4Addr) -> Result<()> {
        let wanted = json!([{ "ip": vip }]);
        let waited = poll::until("the VIP in the status", FOLLOWED, || {
            Ok((self.ingress()? == wanted).then_some(()))
        });
        waited.with_context(|| format!("{:?}", self.ingress()))
    }

    /// Writes a status as another controller does.
    fn set_ingress(&self, ingress: &Value) -> Result<()> {
        let (namespace, name) = SERVICE.split_once('/').context("NAMESPACE/NAME")?;
        let object = format!("api/v1/namespaces/{namespace}/services/{name}");
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        self.api.patch_status(&object, &status)
    }
}

/// D5: a Service that is named gets its VIP before it has a backend, without which its pods do not begin; none of the others
/// is touched.
#[privileged_test]
fn d5_a_service_that_is_named_gets_its_vip_and_no_other_one() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    hub.api.grant("load-balancer.yaml", NAMESPACE)?;
    hub.api.kubectl(&["cordon", "n1", "n2"])?;
    let others = ["default/kube-apiserver", "clusters-tenant-a/konnectivity"];
    for (other, port) in others.into_iter().zip(30_001..) {
        hub.make_balancer(other, port)?;
    }
    let all = || -> Result<Vec<Value>> { others.iter().map(|one| hub.service(one)).collect() };
    let before = all()?;
    let lb = Lb::start(&topology, &config(&hub, *KAS.ip())?)?;
    wait_for_event(
        &lb,
        "is left as it is: it is not of type LoadBalancer",
        FOLLOWED,
    )?;
    assert_eq!(hub.ingress()?, Value::Null);
    hub.make_balancer(SERVICE, PORTS[0])?;
    hub.wait_for_ingress(*KAS.ip())?;
    let words = format!("service {SERVICE} of hub: its status has {} now", KAS.ip());
    wait_for_event(&lb, &words, FOLLOWED)?;
    assert_eq!(lb.backends()?.len(), 0);
    hub.api.kubectl(&["uncordon", "n1", "n2"])?;
    hub.wait_for(&["n1:30918", "n2:30918"], FOLLOWED)?;
    assert_eq!(all()?, before);
    Ok(())
}

/// What another writer has put there stays until it takes it back; what `lb` has written is its own, also after a start and
/// with another VIP.
#[privileged_test]
fn d5_what_another_writer_has_written_stays() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    hub.api.grant("load-balancer.yaml", NAMESPACE)?;
    hub.make_balancer(SERVICE, PORTS[0])?;
    let foreign = json!([{ "ip": "203.0.113.9" }]);
    hub.set_ingress(&foreign)?;
    let mut lb = Lb::start(&topology, &config(&hub, *KAS.ip())?)?;
    let words = "is left as it is: its status has 203.0.113.9, written by curl";
    wait_for_event(&lb, words, FOLLOWED)?;
    // It is looked at again with every change of the Service.
    hub.make_balancer(SERVICE, PORTS[1])?;
    hub.wait_for(&["n1:31000", "n2:31000"], FOLLOWED)?;
    assert_eq!(hub.ingress()?, foreign);
    hub.set_ingress(&Value::Null)?;
    hub.wait_for_ingress(*KAS.ip())?;
    lb.reload(&config(&hub, OTHER)?)?;
    hub.wait_for_ingress(OTHER)?;
    lb.kill()?;
    lb.restart(&config(&hub, *KAS.ip())?)?;
    hub.wait_for_ingress(*KAS.ip())
}

/// A VIP of a reload that waits to be confirmed is written when it is confirmed, and not before.
#[privileged_test]
fn d5_a_vip_that_may_be_undone_is_not_written() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    hub.api.grant("load-balancer.yaml", NAMESPACE)?;
    hub.make_balancer(SERVICE, PORTS[0])?;
    let lb = Lb::start(&topology, &config(&hub, *KAS.ip())?)?;
    hub.wait_for_ingress(*KAS.ip())?;
    let before = hub.service(SERVICE)?;
    lb.write(&config(&hub, OTHER)?)?;
    lb.tell(&["reload", "--confirm", "60s"])?.done()?;
    thread::sleep(UNWRITTEN);
    assert_eq!(hub.service(SERVICE)?, before);
    lb.tell(&["confirm"])?.done()?;
    hub.wait_for_ingress(OTHER)
}

/// Without the role there is an event, and the status is written as soon as the role is there.
#[privileged_test]
fn d5_a_status_that_cannot_be_written_is_tried_again() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    hub.make_balancer(SERVICE, PORTS[0])?;
    let lb = Lb::start(&topology, &config(&hub, *KAS.ip())?)?;
    wait_for_event(&lb, "its status cannot be written: ", FOLLOWED)?;
    assert_eq!(hub.ingress()?, Value::Null);
    hub.wait_for(&["n1:30918", "n2:30918"], FOLLOWED)?;
    hub.api.grant("load-balancer.yaml", NAMESPACE)?;
    hub.wait_for_ingress(*KAS.ip())
}
