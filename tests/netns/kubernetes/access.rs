//! What `lb` may do at an API, and how it shows that it is `lb`.

use std::time::Duration;

use anyhow::Result;
use lb_tests::{poll, product::lb::Lb, topology::Topology};

use super::{FOLLOWED, Hub, NAMESPACE, PORTS};

/// D13: the roles that come with `lb` have what it needs, and nothing else.
#[privileged_test]
fn d13_the_roles_have_the_verbs_that_are_used_and_no_others() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    hub.api.wait_for_roles()?;
    hub.api.grant("load-balancer.yaml", NAMESPACE)?;
    let verbs = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "*",
    ];
    let resources = [
        "services",
        "nodes",
        "endpointslices.discovery.k8s.io",
        "hostedclusters.hypershift.openshift.io",
        "routes.route.openshift.io",
        "services/status",
        "hostedclusters.hypershift.openshift.io/status",
        "nodepools.hypershift.openshift.io",
        "nodes/status",
        "nodes/proxy",
        "secrets",
        "secrets:tenant-a-admin-kubeconfig",
        "secrets:tenant-b-admin-kubeconfig",
        "configmaps",
        "pods",
        "pods/exec",
        "serviceaccounts/token",
        "*",
        "roles.rbac.authorization.k8s.io",
    ];
    let read = |resources: &[&str]| -> Vec<String> {
        let each = |resource| {
            verbs[..3]
                .iter()
                .map(move |verb| format!("{verb} {resource}"))
        };
        resources.iter().flat_map(each).collect()
    };
    let few = read(&resources[..3]);
    assert_eq!(hub.api.granted("default", &verbs, &resources)?, few);
    hub.api.grant("hosted-clusters.yaml", "lb")?;
    let mut wanted = read(&resources[..5]);
    assert_eq!(hub.api.granted("default", &verbs, &resources)?, wanted);
    let mut of_the_namespace = wanted.clone();
    of_the_namespace.push("patch services/status".to_owned());
    assert_eq!(
        hub.api.granted(NAMESPACE, &verbs, &resources)?,
        of_the_namespace
    );
    hub.api.kubectl(&["create", "namespace", "clusters"])?;
    hub.api.grant("secret.yaml", "clusters")?;
    wanted.push("get secrets:tenant-a-admin-kubeconfig".to_owned());
    assert_eq!(hub.api.granted("clusters", &verbs, &resources)?, wanted);
    Ok(())
}

/// D13: a token that is none any more changes nothing, and another one in its file is taken without a start.
#[privileged_test]
fn d13_a_token_is_swapped() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hub = Hub::new(&topology)?;
    let mut lb = Lb::start(&topology, &hub.config()?)?;
    let before = ["n1:30918", "n2:30918"];
    hub.wait_for(&before, FOLLOWED)?;
    hub.api.kill()?;
    hub.api.set_token("lb-2")?;
    hub.api.restart()?;
    poll::until("a status with the reason", Duration::from_secs(30), || {
        let status = lb.tell(&["status"])?.done()?;
        Ok(status.contains("Unauthorized (401)").then_some(()))
    })?;
    hub.publish(PORTS[1], "Cluster")?;
    assert_eq!(hub.answers()?, before);
    let process = lb.id();
    hub.api.write_token("lb-2")?;
    hub.wait_for(&["n1:31000", "n2:31000"], FOLLOWED)?;
    assert_eq!((lb.id(), lb.process().ended()?), (process, None));
    Ok(())
}
