//! The threads of a network share its shared VIPs: K14.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    product::{
        config::{Config, Keys},
        cpu,
        lb::Lb,
    },
    servers::teller::{Teller, ask},
    topology::{Topology, VIP},
    traffic::{client::open, hello::named},
};
use serde_json::json;

use crate::proxy::relayed::have_copied;

/// The shared VIPs: routed by SNI, and by Host.
const SNI: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
const HTTP: SocketAddrV4 = SocketAddrV4::new(VIP, 80);
const NAME: &str = "a.lab";
/// Where the node serves both.
const PORT: u16 = 31443;
const HTTP_PORT: u16 = 31080;
/// The threads of the clients' network.
const THREADS: &str = "vip-tenant-a";
/// Clients at a time of each VIP.
const CLIENTS: usize = 8;
/// How long they come.
const WATCHED: Duration = Duration::from_secs(3);
/// How much more CPU time one thread may take than the other: they would take the same if nothing else ran here.
const UNEVEN: f64 = 3.0;

fn config(topology: &Topology) -> Config {
    let at = |port| [SocketAddrV4::new(topology.nodes[0].address, port)];
    let routes = |pool: &str| json!([{ "names": [NAME], "pool": pool }]);
    let service = |service: Keys, vip| service.on("tenant-a").tcp(vip);
    Config::poc()
        .mgmt_pool("sni", at(PORT))
        .mgmt_pool("http", at(HTTP_PORT))
        .service("sni", |sni| {
            let sni = service(sni, SNI).set("sni.routes", routes("sni"));
            sni.set("sni.late_binding", "never")
        })
        .service("http", |http| {
            service(http, HTTP).set("http.routes", routes("http"))
        })
}

/// Answers requests at the node, each on a connection of its own.
fn serve(topology: &Topology) -> Result<()> {
    let node = &topology.nodes[0];
    let address = (node.address, HTTP_PORT);
    let listener = node.netns.inside(|| TcpListener::bind(address))??;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    Ok(())
}

/// To the end of the connection, whatever ends it.
fn answer(mut stream: TcpStream) -> Option<()> {
    let mut request = [0; 4096];
    while stream.read(&mut request).ok()? > 0 {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnode";
        stream.write_all(answer).ok()?;
    }
    Some(())
}

/// One request on a connection of its own.
fn get() -> Result<()> {
    let mut stream = open(None, HTTP)?;
    let head = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    ensure!(said.starts_with("HTTP/1.1 200 "), "{said}");
    ensure!(said.ends_with("node"), "{said}");
    let _ended = stream.shutdown(Shutdown::Both);
    Ok(())
}

/// One connection whose backend says its name.
fn name() -> Result<()> {
    let hello = named(NAME.as_bytes());
    let reached = ask(SNI, &[&hello], Duration::ZERO)?;
    ensure!(reached.as_deref() == Some("node"), "{reached:?}");
    Ok(())
}

/// Has several clients do this, one after the other, while `watch` runs; none may fail. How often they did.
pub(crate) fn with_clients<T>(
    topology: &Topology,
    connect: fn() -> Result<()>,
    watch: impl FnOnce() -> Result<T>,
) -> Result<(T, usize)> {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    topology.client().netns.inside(|| {
                        while !stop.load(Ordering::Relaxed) {
                            let done = count.fetch_add(1, Ordering::Relaxed);
                            connect().with_context(|| format!("connection {done}"))?;
                        }
                        anyhow::Ok(())
                    })?
                })
            })
            .collect();
        let watched = watch();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok((watched?, count.load(Ordering::Relaxed)))
    })
}

/// K14: with several CPUs connections of a network are carried by several threads, evenly, whichever way they are
/// routed; and a take-over beside them loses none.
#[privileged_test]
fn k14_the_threads_of_a_network_share_its_connections() -> Result<()> {
    let cpus = cpu::all()?.len();
    let topology = Topology::poc()?;
    have_copied(&topology)?;
    let node = &topology.nodes[0];
    node.netns.keep_flows_on_a_cpu("eth0")?;
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start(&node.netns, address, "node")?;
    serve(&topology)?;
    let config = config(&topology);
    let mut lb = Lb::start(&topology, &config)?;
    for (what, connect) in [("sni", name as fn() -> Result<()>), ("http", get)] {
        let (spent, count) = with_clients(&topology, connect, || {
            let before = lb.process().cpu_times(THREADS)?;
            let start = Instant::now();
            thread::sleep(WATCHED);
            let after = lb.process().cpu_times(THREADS)?;
            println!("{what}: {:.1?}", start.elapsed());
            let spent = after.into_iter().map(|(thread, time)| {
                let before = before.get(&thread).copied().unwrap_or_default();
                time.saturating_sub(before).as_secs_f64()
            });
            Ok(spent.collect::<Vec<f64>>())
        })?;
        println!("{what}: {count} connections, CPU seconds of the threads {spent:.2?}");
        assert_eq!(spent.len(), cpus.min(8), "threads");
        let most = spent.iter().copied().fold(0.0, f64::max);
        let least = spent.iter().copied().fold(f64::MAX, f64::min);
        ensure!(most <= UNEVEN * least, "{what}: {spent:.2?}");
        let (mut before, count) = with_clients(&topology, connect, || lb.take_over(&config))?;
        println!("{what}: {count} connections beside a take-over");
        before.wait_for_end(WATCHED * 3)?;
    }
    Ok(())
}
