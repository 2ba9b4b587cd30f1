//! A scrape of many services: how large it is, how long it takes, and what clients notice of it.

use std::{
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{Topology, VIP},
    traffic::client,
};
use serde_json::json;

use super::page::{LISTEN, curl, next_page, page, promtool, samples};

const EACH: u16 = 10;
/// The first NodePort, and the first port of services.
const FIRST_PORT: u16 = 30_000;
/// How long a scrape may take.
const MAX_SCRAPE: Duration = Duration::from_millis(500);
/// Scrapes that are measured, and the rest between them: a page is made anew for each.
const SCRAPES: usize = 3;
/// How long a new connection may take meanwhile.
const MAX_CONNECT: Duration = Duration::from_secs(1);

/// How many services there are: a start with all of them takes half a minute.
fn services() -> u16 {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 1000,
        None => 100,
    }
}

/// Services, each with a pool of ten backends.
fn config(topology: &Topology) -> Config {
    let config = (0..services()).fold(Config::poc(), |config, number| {
        let backends = (0..EACH).map(|index| {
            let nodes = &topology.nodes;
            let node = usize::from(index) % nodes.len();
            let port = FIRST_PORT + number * EACH + index;
            SocketAddrV4::new(nodes[node].address, port)
        });
        let name = format!("s{number}");
        config
            .mgmt_pool(&name, backends)
            .tcp_service(&name, SocketAddrV4::new(VIP, FIRST_PORT + number))
    });
    config
        .set(
            "limits",
            json!({ "services": 1100, "pools": 1100, "backends": 11_000 }),
        )
        .set("admin.http.listen", LISTEN)
}

/// How long connections took, one after the other, until `stop`: the longest, and how many.
fn connect(topology: &Topology, stop: &AtomicBool) -> Result<(Duration, usize)> {
    let to = SocketAddrV4::new(VIP, FIRST_PORT);
    topology.client().netns.inside(|| {
        let (mut longest, mut count) = (Duration::ZERO, 0);
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            client::who(None, to).with_context(|| format!("connection {count}"))?;
            longest = longest.max(start.elapsed());
            count += 1;
            thread::sleep(client::BETWEEN);
        }
        Ok((longest, count))
    })?
}

#[privileged_test]
fn a_scrape_of_many_services_is_made_within_half_a_second() -> Result<()> {
    let topology = Topology::poc()?;
    let echo = (0..EACH).map(|index| {
        let node = &topology.nodes[usize::from(index) % topology.nodes.len()];
        let at = SocketAddrV4::new(node.address, FIRST_PORT + index);
        EchoServer::start(&node.netns, at, node.name)
    });
    let _echo = echo.collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let lb = Lb::start(&topology, &config(&topology))?;
    println!("started within {:?}", begun.elapsed());
    page(&topology.lb)?;
    let stop = AtomicBool::new(false);
    let url = format!("http://{LISTEN}/metrics");
    let ((longest, count), scrapes) = thread::scope(|scope| {
        let clients = scope.spawn(|| connect(&topology, &stop));
        let scrapes = (0..SCRAPES).map(|_| {
            // So long is a page good.
            thread::sleep(Duration::from_millis(1100));
            let start = Instant::now();
            let (status, text) = curl(&topology.lb, &[&url])?;
            ensure!(status == 200, "{status}: {text}");
            Ok((start.elapsed(), text.len()))
        });
        let scrapes = scrapes.collect::<Result<Vec<_>>>();
        stop.store(true, Ordering::Relaxed);
        let clients = clients.join().ok().context("the clients panicked")?;
        Ok::<_, anyhow::Error>((clients?, scrapes?))
    })?;
    for (took, bytes) in &scrapes {
        println!("{bytes} bytes in {} ms", took.as_millis());
    }
    println!("{count} connections meanwhile, the longest took {longest:?}");
    for words in [&["status"][..], &["top", "-o", "json"]] {
        let start = Instant::now();
        lb.tell(words)?.done()?;
        println!("lb {words:?} took {:?}", start.elapsed());
    }
    let overview = format!("http://{LISTEN}/v1/overview");
    let start = Instant::now();
    let (status, json) = curl(&topology.lb, &[&overview])?;
    println!(
        "an overview has {} bytes and took {:?}",
        json.len(),
        start.elapsed()
    );
    assert_eq!(status, 200);

    let text = next_page(&topology.lb)?;
    assert_eq!(promtool(&text)?, "");
    let now = samples(&text)?;
    let of = |name: &str| now.keys().filter(|key| key.starts_with(name)).count();
    assert_eq!(of("lb_service_flows{"), usize::from(services()));
    assert_eq!(
        of("lb_backend_flows{"),
        usize::from(services()) * usize::from(EACH)
    );
    println!("{} samples", now.len());
    // The first one may have found a busy machine.
    let fastest = scrapes
        .iter()
        .map(|(took, _)| *took)
        .min()
        .unwrap_or_default();
    ensure!(fastest <= MAX_SCRAPE, "{fastest:?}");
    ensure!(longest < MAX_CONNECT, "{longest:?}");
    lb.down()
}
