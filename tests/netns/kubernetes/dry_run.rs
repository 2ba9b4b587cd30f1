//! `lb discover --dry-run`: what an API has for a file is printed, and nothing is done.

use std::process::Command;

use anyhow::{Context as _, Result};
use lb_tests::{
    process,
    product::{config::Config, lb},
    topology::Topology,
};
use serde_json::{Value, json};

use super::{Hub, KAS, NAMESPACE, load_balancer::SERVICE};

/// Exit code and standard output.
fn dry_run(topology: &Topology, config: &Config, words: &[&str]) -> Result<(Option<i32>, String)> {
    let file = topology.write("dry-run.yaml", config)?;
    let mut lb: Command = topology.lb.command(lb::binary("LB_BIN", "lb")?);
    lb.args(["discover", "--dry-run"]).arg(file).args(words);
    let output = process::finish(&mut lb)?;
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    ))
}

#[privileged_test]
fn what_would_be_is_printed_and_not_done() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hub = Hub::new(&topology)?;
    hub.api.grant("load-balancer.yaml", NAMESPACE)?;
    let balancers = json!([
        { "service": SERVICE, "vip": KAS.ip() },
        { "service": "a/gone", "vip": KAS.ip() },
    ]);
    let config = hub
        .config()?
        .set("kubernetes.hub.load_balancers", balancers);
    hub.make_balancer(SERVICE, 30_918)?;
    hub.api.add_node("local", "127.0.0.1")?;
    let before = hub.service(SERVICE)?;
    let wanted = format!(
        "cluster hub: answers\n\
         pool kas: n1 at 10.32.96.105:30918, n2 at 10.32.96.106:30918\n\
         refused: pool kas: node local of port https of service {SERVICE} of hub: 127.0.0.1 is in no `backends` prefix of \
         network mgmt\n\
         service a/gone of hub: its status is left as it is: there is no such Service\n\
         service {SERVICE} of hub: its status would get 192.168.203.110\n"
    );
    assert_eq!(dry_run(&topology, &config, &[])?, (Some(0), wanted));
    assert_eq!(hub.service(SERVICE)?, before);

    hub.api.kill()?;
    let (code, text) = dry_run(&topology, &config, &["--output", "json"])?;
    let report: Value = serde_json::from_str(&text).context("read the report")?;
    let why = &report["clusters"][0]["unanswered"];
    assert_eq!(why, "Connection refused (os error 111)");
    assert_eq!(
        (code, &report["pools"][0]["backends"]),
        (Some(1), &json!([]))
    );

    let wrong = config.set("kubernetes.hub.kubeconfig", "kubeconfig");
    assert_eq!(dry_run(&topology, &wrong, &[])?, (Some(2), String::new()));
    Ok(())
}
