//! Counts of flows: ten connections are ten more, and no sum falls, whatever becomes of the process and the configuration.

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::{ECHO, ECHO_NODE_PORT, Topology, VIP},
    traffic::client,
};

use super::page::{LISTEN, Samples, next_page, page, samples};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
};

const CONNECTIONS: u32 = 10;
const OF_SERVICE: &str = r#"{service="echo-a",network="tenant-a"}"#;
const OF_NETWORK: &str = r#"{network="tenant-a"}"#;

/// The samples once the service has this many flows.
fn samples_with(topology: &Topology, flows: u32) -> Result<Samples> {
    let name = format!("lb_service_new_flows_total{OF_SERVICE}");
    poll::until("the flows", LIMIT, || {
        let now = samples(&next_page(&topology.lb)?)?;
        let found = now.get(&name).copied().unwrap_or_default();
        ensure!(found <= f64::from(flows), "{found} flows, expected {flows}");
        Ok((found >= f64::from(flows)).then_some(now))
    })
}

fn connect(topology: &Topology) -> Result<()> {
    topology.client().netns.inside(|| {
        for number in 0..CONNECTIONS {
            let text = format!("number {number}");
            ensure!(client::echo(ECHO, &text)? == text);
        }
        Ok(())
    })?
}

/// The sums of these objects; those of the process begin anew.
fn sums(samples: &Samples, labels: &str) -> Samples {
    let is_one = |name: &str| {
        let (name, of) = name.split_at(name.find('{').unwrap_or(name.len()));
        of == labels && name.ends_with("_total") && !name.contains("lost")
    };
    let all = samples.iter().filter(|(name, _)| is_one(name));
    all.map(|(name, value)| (name.clone(), *value)).collect()
}

fn ensure_no_less(before: &Samples, after: &Samples) -> Result<()> {
    for (name, before) in before {
        let after = after.get(name).with_context(|| format!("{name} is gone"))?;
        ensure!(after >= before, "{name} falls from {before} to {after}");
    }
    Ok(())
}

/// G2; and over a kill, and while the service is not configured.
#[privileged_test]
fn g2_ten_connections_are_ten_more_and_no_sum_falls() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let other = format!("{VIP}:7100");
    let config = site
        .http("")
        .tcp_service_to("other", other, "echo-a")
        .set("admin.http.listen", LISTEN);
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    page(&topology.lb)?;
    connect(&topology)?;
    let first = samples_with(&topology, CONNECTIONS)?;
    let value = |name: &str, labels: &str| -> Result<f64> {
        let name = format!("{name}{labels}");
        first.get(&name).copied().with_context(|| name.clone())
    };
    for (name, wanted) in [
        ("lb_service_failed_connects_total", 0),
        ("lb_service_connect_seconds_count", CONNECTIONS),
    ] {
        let found = value(name, OF_SERVICE)?;
        ensure!((found - f64::from(wanted)).abs() < 0.5, "{name}: {found}");
    }
    // SYN, ACK, data, FIN and the ACKs of both directions.
    let frames = value("lb_service_request_frames_total", OF_SERVICE)?;
    ensure!(frames >= f64::from(4 * CONNECTIONS), "{frames}");
    let of_backends = ["n1", "n2"].map(|name| {
        let labels = format!(r#"{{pool="echo-a",backend="{name}"}}"#);
        value("lb_backend_new_flows_total", &labels)
    });
    let of_backends = of_backends.into_iter().sum::<Result<f64>>()?;
    assert!((of_backends - f64::from(CONNECTIONS)).abs() < 0.5);

    lb.kill()?;
    lb.restart(&config)?;
    connect(&topology)?;
    let second = samples_with(&topology, 2 * CONNECTIONS)?;
    for labels in [OF_SERVICE, OF_NETWORK] {
        let before = sums(&first, labels);
        ensure!(before.len() >= 7, "{before:?}");
        ensure_no_less(&before, &sums(&second, labels))?;
    }

    lb.write(&config.without("services", "echo-a"))?;
    lb.tell(&["reload"])?.done()?;
    let third = samples(&next_page(&topology.lb)?)?;
    assert_eq!(sums(&third, OF_SERVICE), Samples::new());
    ensure_no_less(&sums(&second, OF_NETWORK), &sums(&third, OF_NETWORK))?;
    lb.down()
}

/// The connects of the service that took no longer than these seconds, of all that took less than the longest bucket.
fn connects_within(samples: &Samples, seconds: f64) -> Result<f64> {
    let buckets = samples.iter().filter_map(|(name, count)| {
        let labels = name.strip_prefix("lb_service_connect_seconds_bucket")?;
        let (_, bound) = labels.split_once(r#"le=""#)?;
        let (bound, _) = bound.split_once('"')?;
        let is_ours = labels.contains(r#"service="echo-a""#);
        is_ours.then_some((bound.parse::<f64>().ok()?, *count))
    });
    let within = buckets.filter(|(bound, _)| *bound <= seconds);
    let largest = within.max_by(|(one, _), (other, _)| one.total_cmp(other));
    Ok(largest.context("a bucket")?.1)
}

/// G8: a backend whose frames wait 20 ms or more for their turn has its connects in other buckets.
#[privileged_test]
fn g8_a_slower_backend_moves_the_buckets() -> Result<()> {
    let topology = Topology::poc()?;
    let _site = Site::new(&topology, 1)?;
    let node = &topology.nodes[0];
    let at = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    let config = Config::poc()
        .mgmt_pool("echo-a", [at])
        .tcp_service("echo-a", ECHO)
        .set("admin.http.listen", LISTEN);
    let lb = Lb::start(&topology, &config)?;
    page(&topology.lb)?;
    connect(&topology)?;
    let before = samples_with(&topology, CONNECTIONS)?;
    let all = f64::from(CONNECTIONS);
    assert!(
        (connects_within(&before, 0.02)? - all).abs() < 0.5,
        "{before:#?}"
    );

    // A SYN-ACK of 74 bytes waits for 74 ms, but for the first one.
    let qdisc = "root tbf rate 8kbit burst 100 latency 5s";
    node.netns.run(&format!("tc qdisc add dev eth0 {qdisc}"))?;
    connect(&topology)?;
    let after = samples_with(&topology, 2 * CONNECTIONS)?;
    let fast = connects_within(&after, 0.02)? - all;
    ensure!((0.0..=1.0).contains(&fast), "{fast} of {all} within 20 ms");
    assert!((connects_within(&after, 1.1)? - 2.0 * all).abs() < 0.5);
    let sum = |samples: &Samples| {
        samples
            .get(&format!("lb_service_connect_seconds_sum{OF_SERVICE}"))
            .copied()
    };
    let more = sum(&after)
        .zip(sum(&before))
        .map(|(after, before)| after - before);
    let least = 0.02 * (all - 1.0);
    ensure!(
        more > Some(least),
        "{more:?} s, expected more than {least} s"
    );
    lb.down()
}
