//! The verdict at two levels: a service that is down behind nodes that are fine. FEATURES E14.

use std::{thread, time::Duration};

use anyhow::{Result, bail, ensure};
use lb_tests::{
    poll,
    product::{config::Keys, lb::Lb},
    servers::answers::Answers,
    topology::{ECHO, Topology},
    traffic::conn_pair::refused,
};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, HEALTH_PORT, SOON, Site, at_endpoints, wait_for},
};

/// From the last verdict until all that follows from it is an event.
const SETTLED: Duration = Duration::from_secs(3);

/// What `lb events` has of checks.
fn events(lb: &Lb<'_>) -> Result<Vec<String>> {
    let events = lb.events()?.into_iter();
    let events = events.filter(|event| event.kind == "health");
    Ok(events
        .map(|event| format!("{}: {}", event.object, event.words))
        .collect())
}

fn states(lb: &Lb<'_>) -> Result<Vec<String>> {
    let backends = lb.backends()?.into_iter();
    Ok(backends.map(|backend| backend.state).collect())
}

/// What `lb` says of a question, whatever its exit code.
fn answer(lb: &Lb<'_>, question: &[&str]) -> Result<String> {
    Ok(lb.tell(question)?.stdout)
}

/// E14: the servers of all four nodes stop, and the nodes go on: one event that the service is down and one that it is
/// back, and no node is dead. The same where its answers change meanwhile, and over a restart.
#[privileged_test]
fn e14_a_service_that_is_down_is_one_event() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 4)?;
    let tcp = Keys::from(FAST).set("tcp.port", HEALTH_PORT);
    let config = site.config(tcp, "");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    assert_eq!(events(&lb)?, [""; 0]);

    site.health.iter().for_each(Answers::refuse);
    wait_for(&lb, &["dead"; 4], SOON)?;
    let down =
        "pool echo-a: service down: 4 of 4 backends answer, and none serves: connection refused";
    thread::sleep(SETTLED);
    assert_eq!(events(&lb)?, [down]);
    assert_eq!(states(&lb)?, ["service down"; 4]);
    refused(topology.client(), ECHO)?;
    let health = answer(&lb, &["health"])?;
    let problem = "pool echo-a: service down: 0/4 backends up, though 4 answer";
    ensure!(
        health.starts_with("degraded: ") && health.contains(problem),
        "{health}"
    );
    let services = answer(&lb, &["services"])?;
    ensure!(services.contains("0/4, service down"), "{services}");
    let dead = answer(&lb, &["backends", "--state", "dead", "-o", "json"])?;
    ensure!(
        dead.contains("\"backends\": []") || dead.contains("\"backends\":[]"),
        "{dead}"
    );
    let log = lb.process().stderr();
    assert_eq!(log.matches("service down").count(), 1, "{log}");
    assert_eq!(log.matches("-> dead").count(), 0, "{log}");

    lb.kill()?;
    lb.restart(&config)?;
    wait_for(&lb, &["dead"; 4], LIMIT)?;
    assert_eq!(states(&lb)?, ["service down"; 4]);
    site.health.iter().for_each(|one| one.answer(200));
    wait_for(&lb, &["up"; 4], SOON)?;
    thread::sleep(SETTLED);
    let found = events(&lb)?;
    // What happened before the kill is still known.
    let [before, back] = found.as_slice() else {
        bail!("two events wanted, found {found:?}");
    };
    assert_eq!(*before, down);
    ensure!(
        back.starts_with("pool echo-a: service up again: backend "),
        "{back}"
    );
    assert_eq!(states(&lb)?, ["up"; 4]);
    assert_eq!(site.who(40)?.len(), 4);
    Ok(())
}

/// One server of four that stops is a backend that is dead, and all that answer with 503 are a service; the node that
/// does not follow is named.
#[privileged_test]
fn a_backend_that_fails_alone_is_an_event_of_its_own() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 4)?;
    let lb = Lb::start(&topology, &site.config(at_endpoints(FAST), ""))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;

    let alone = &topology.nodes[1];
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead", "up", "up"], SOON)?;
    let named = |part: &str| {
        let found = poll::until("the event", SOON, || {
            let found = events(&lb)?;
            Ok(found
                .iter()
                .any(|event| event.contains(part))
                .then_some(found))
        })?;
        anyhow::Ok(found.len())
    };
    assert_eq!(named("up -> dead: connection refused")?, 1);
    assert_eq!(states(&lb)?, ["up", "dead", "up", "up"]);

    site.health.iter().for_each(|one| one.answer(503));
    wait_for(&lb, &["not_ready"; 4], SOON)?;
    let down = "service down: 4 of 4 backends answer, and none serves: 503 Service Unavailable";
    named(down)?;
    assert_eq!(states(&lb)?, ["service down"; 4]);
    for node in [0, 2, 3] {
        site.health[node].answer(200);
    }
    wait_for(&lb, &["up", "not_ready", "up", "up"], SOON)?;
    named("service up again")?;
    // It has so long to follow the others.
    named("up -> not ready: 503")?;
    let all = events(&lb)?;
    let of_backends: Vec<&String> = all
        .iter()
        .filter(|one| one.starts_with("backend "))
        .collect();
    ensure!(
        of_backends.iter().all(|event| event.contains(alone.name)),
        "{all:?}"
    );
    Ok(())
}
