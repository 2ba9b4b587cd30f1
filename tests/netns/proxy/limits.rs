//! What the kernel lets the process have is little: RELIABILITY 35. Shared VIPs shed clients, and all else
//! goes on.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream},
    os::unix::process::ExitStatusExt as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    fault::cgroup::Memory,
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::Topology,
    traffic::{
        client::{open, was_reset},
        hello::{CAPTURED_NAME, TLS12, hello, named},
    },
};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, alive, connect, wait_for},
    proxy::{
        guard::tellers,
        pending::{closed, hold},
        relayed::have_copied,
        sni::{PORT, SHARED, counted, counted_refusal},
    },
};

/// Descriptors that the process may have.
const DESCRIPTORS: usize = 256;
const FEW: &[&str] = &["prlimit", "--nofile=256"];
/// Descriptors that are left for others in any case.
const LEFT: usize = 32;
/// Clients of shared VIPs that are served at least.
const SERVED: usize = 8;
/// Clients of each of two addresses: more than descriptors, and fewer than one address may have.
const OF_ONE: usize = 200;
/// How long the operator waits for an answer, at most.
const ANSWER: Duration = Duration::from_secs(1);
/// How long it is watched whether a thread has nothing to do, and the time on a CPU that this takes at most.
const WATCHED: Duration = Duration::from_secs(2);
const RESTS: Duration = Duration::from_millis(100);

/// RELIABILITY 35: clients that say half a hello are more than there are descriptors. The oldest of them go,
/// so that a client that sends all of it is served.
#[privileged_test]
fn r35_idle_clients_take_no_descriptors_from_others() -> Result<()> {
    let topology = Topology::poc()?;
    let scene = Scene::new(&topology)?;
    let mut lb = Lb::start_through(&topology, &scene.config(), FEW)?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    let flows = connect(&topology, 4)?;
    let half = &named(CAPTURED_NAME.as_bytes())[..60];

    let mut idle = Vec::new();
    for client in &topology.clients {
        idle.extend(hold(client, OF_ONE, half)?);
    }

    let all = u64::try_from(idle.len())?;
    poll::until("they are accepted", LIMIT, || {
        Ok((counted(&lb, "accepted")? == all).then_some(()))
    })?;
    let gone = closed(&idle)?;
    println!("{} of {all} are there", idle.len() - gone.len());
    assert_eq!(gone, (0..gone.len()).collect::<Vec<_>>(), "the oldest");
    assert_eq!(
        counted_refusal(&lb, "recycled")?,
        u64::try_from(gone.len())?
    );
    scene.all_else_goes_on(&mut lb, &flows)?;
    scene.is_served()?;
    drop(idle);
    scene.is_served()
}

/// RELIABILITY 35: clients that have a backend are more than there are descriptors for. They are served on,
/// and a client that comes then is refused at once, until one of them leaves.
#[privileged_test]
fn r35_without_descriptors_new_clients_are_refused() -> Result<()> {
    let topology = Topology::poc()?;
    // A connection that is handed over has no descriptors.
    have_copied(&topology)?;
    let scene = Scene::new(&topology)?;
    let mut lb = Lb::start_through(&topology, &scene.config(), FEW)?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    let flows = connect(&topology, 4)?;

    let (served, refused) = scene.fill()?;

    println!("{} are served, {refused} are refused", served.len());
    ensure!(
        served.len() >= SERVED && refused > 0,
        "{refused} are refused"
    );
    assert_eq!(counted_refusal(&lb, "no_descriptors")?, refused);
    assert_eq!(counted(&lb, "routed")?, u64::try_from(served.len())?);
    scene.all_else_goes_on(&mut lb, &flows)?;
    let mut process = lb.process().stderr();
    process.retain(|letter| letter != '\n');
    assert_eq!(process.matches("(no_descriptors)").count(), 1, "said once");
    served
        .iter()
        .try_for_each(|client| scene.talks_on(client))?;
    drop(served);
    poll::until("there is room again", LIMIT, || Ok(scene.is_served().ok()))
}

/// Bytes of memory: those that maps never have, those that are enough beside them, and those that are too few
/// beside what is in use.
const PLENTY: u64 = 1 << 30;
const ENOUGH: u64 = 64 << 20;
const LITTLE: u64 = 4 << 20;
/// Addresses of clients, and how many connections each has that says most of a hello of 64 KB: together as
/// much as a network may have kept.
const ADDRESSES: u8 = 10;
const GREEDY: usize = 60;

/// RELIABILITY 35: 64 MB beside the maps are enough for all the hellos that may be kept. With less the kernel kills the
/// process, and no flow of the data plane is lost, nor is a new one refused.
#[privileged_test]
fn r35_out_of_memory_is_no_end_of_flows() -> Result<()> {
    let topology = Topology::poc()?;
    let scene = Scene::new(&topology)?;
    let group = Memory::new(topology.run(), PLENTY)?;
    let script = group.enter();
    let mut lb = Lb::start_through(&topology, &scene.config(), &["sh", "-c", &script, "sh"])?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    let flows = connect(&topology, 4)?;
    lb.process().stop()?;
    let enough = group.usage()? + ENOUGH;
    group.set(enough)?;
    lb.restart(&scene.config())?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    let used = group.usage()?;

    let held = scene.hold_much();
    let served = scene.is_served();
    // First of all: clients of a process that was killed are reset, too.
    assert_eq!(group.kills()?, 0, "the process had too few bytes");
    served?;
    let (recycled, most) = (counted_refusal(&lb, "recycled")?, group.usage()?);
    println!("{used} bytes, then {most} of {enough}; {recycled} are sent away");
    ensure!(recycled > 0 && most < enough, "{recycled}, {most} bytes");
    let held = held?;
    flows.iter().try_for_each(alive)?;
    drop(held);
    lb.process().stop()?;
    lb.restart(&scene.config())?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;

    group.set(group.usage()? + LITTLE)?;
    // Some are reset with the process.
    let held = scene.hold_much();
    let ended = lb.process().wait_for_end(LIMIT)?;
    drop(held);
    assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32), "{ended}");
    assert_eq!(group.kills()?, 1);
    flows.iter().try_for_each(alive)?;
    assert_eq!(scene.site.who(20)?.len(), 2);
    group.set(enough)?;
    lb.restart(&scene.config())?;
    flows.iter().try_for_each(alive)?;
    scene.is_served()?;
    lb.down()
}

/// A service of the data plane whose backends are checked, and a shared VIP.
struct Scene<'t> {
    site: Site<'t>,
    _teller: Teller,
    hello: Vec<u8>,
}

impl<'t> Scene<'t> {
    fn new(topology: &'t Topology) -> Result<Self> {
        Ok(Self {
            site: Site::new(topology, 2)?,
            _teller: tellers(topology)?,
            hello: named(CAPTURED_NAME.as_bytes()),
        })
    }

    fn config(&self) -> Config {
        let node = SocketAddrV4::new(self.site.topology.nodes[0].address, PORT);
        let routes = json!([{ "names": [CAPTURED_NAME], "pool": "a" }]);
        // A connection that XDP opens takes nothing of the process.
        let sni = Keys::from("hello_timeout: 1m, late_binding: never").set("routes", routes);
        let shared = |shared: Keys| shared.on("tenant-a").tcp(SHARED).set("sni", sni);
        let checked = self.site.http("");
        checked.mgmt_pool("a", [node]).service("shared", shared)
    }

    /// A client of the shared VIP reaches its backend.
    fn is_served(&self) -> Result<()> {
        let netns = &self.site.topology.client().netns;
        let asked = netns.inside(|| teller::ask(SHARED, &[&self.hello], Duration::ZERO))??;
        ensure!(asked.as_deref() == Some("a"), "{asked:?}");
        Ok(())
    }

    /// Clients that stay with their backend, and how many more were refused.
    fn fill(&self) -> Result<(Vec<TcpStream>, u64)> {
        let (mut served, mut refused) = (Vec::new(), 0);
        for _ in 0..OF_ONE {
            let netns = &self.site.topology.client().netns;
            let mut client = match netns.inside(|| open(None, SHARED))? {
                Err(error) if was_reset(&error) => {
                    refused += 1;
                    continue;
                }
                client => client?,
            };
            // A client that is refused may have been reset by now.
            let _reset = client.write_all(&self.hello);
            let mut said = [0; 2];
            match client.read_exact(&mut said) {
                Ok(()) if said == [b'a', 0xff] => served.push(client),
                _ => refused += 1,
            }
        }
        Ok((served, refused))
    }

    /// Clients that say most of a long hello, and stay.
    fn hold_much(&self) -> Result<Vec<TcpStream>> {
        let padding = (21, vec![0; 65_000]);
        let long = hello(TLS12, &[padding]);
        let client = self.site.topology.client();
        let mut held = Vec::new();
        for last in 0..ADDRESSES {
            let address = Ipv4Addr::new(192, 168, 203, 180 + last);
            let add = format!("addr replace {address}/24 dev eth0\n");
            client.netns.ip_batch(&add)?;
            let open = || -> Result<TcpStream> {
                let mut stream = open(Some(address), SHARED)?;
                stream.write_all(&long[..60 << 10])?;
                Ok(stream)
            };
            let opened: Result<Vec<_>> = client
                .netns
                .inside(|| (0..GREEDY).map(|_| open()).collect())?;
            held.extend(opened?);
        }
        Ok(held)
    }

    /// A client that has a backend gets back from it what it has sent.
    fn talks_on(&self, mut client: &TcpStream) -> Result<()> {
        client.write_all(b"more")?;
        client.shutdown(Shutdown::Write)?;
        let mut back = Vec::new();
        client.read_to_end(&mut back)?;
        assert_eq!(back, [&self.hello[..], b"more"].concat());
        Ok(())
    }

    /// Flows live and begin, backends are checked, the operator is answered, no thread is busy, and there are
    /// descriptors left.
    fn all_else_goes_on(&self, lb: &mut Lb<'_>, flows: &[TcpStream]) -> Result<()> {
        flows.iter().try_for_each(alive)?;
        assert_eq!(self.site.who(20)?.len(), 2);
        let asked = Instant::now();
        let health = lb.health()?;
        ensure!(asked.elapsed() < ANSWER, "after {:?}", asked.elapsed());
        assert!(health.iter().all(|one| one.verdict == "up"), "{health:?}");
        lb.reload(
            &self
                .config()
                .pool("echo-a", |pool| pool.set("health.fall", 2)),
        )?;
        self.site.health[1].refuse();
        wait_for(lb, &["up", "dead", "up"], LIMIT)?;

        let before = lb.process().cpu_time("vip-tenant-a")?;
        thread::sleep(WATCHED);
        let busy = lb.process().cpu_time("vip-tenant-a")? - before;
        ensure!(busy < RESTS, "{busy:?} in {WATCHED:?}");
        println!("{busy:?} in {WATCHED:?}");
        // Checks, which have theirs of what is left, come and go.
        let folder = format!("/proc/{}/fd", lb.process().id());
        poll::until("descriptors that are left", ANSWER, || {
            let open = fs::read_dir(&folder)?.count();
            println!("{open} descriptors");
            Ok((open + LEFT <= DESCRIPTORS).then_some(()))
        })
    }
}
