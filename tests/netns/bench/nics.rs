//! The bench on lab hosts with NICs of their own: one is the load balancer's namespace, the other one is the wire's.
//!
//! ```text
//!  lab host [ lb, lb-bench ] eth0 --- w0 [ lb-bench generator ]
//!                            eth1 --- w1 10.201.1.1 to .4
//!                            eth2 --- w2 what to send, what came
//! ```

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_tests::{
    leftovers,
    oracle::observe,
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        cpu,
        lb::{Failure, binary},
    },
    topology::path::{Path, address},
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The instance of the lb that is measured.
const INSTANCE: &str = "bench";
/// Where the generator is asked.
const GENERATOR: SocketAddrV4 = SocketAddrV4::new(address(2, 0, 1), 7100);
const CLIENTS: Ipv4Addr = address(0, 64, 0);
/// Segments of each stream with `--quick`, and how many streams there are.
const SEGMENTS: f64 = 100_000.0;
const STREAMS: usize = 4;

const CONFIG: &str = "version: 1
networks:
  tenant: { role: tenant, interface: eth0, prefixes: [10.200.0.0/16] }
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.201.0.0/16], snat: [10.201.2.1] }
pools:
  api:
    network: mgmt
    backends: [\"10.201.1.1:30700\", \"10.201.1.2:30700\", \"10.201.1.3:30700\", \"10.201.1.4:30700\"]
services:
  api: { network: tenant, listen: [\"10.200.0.10:7000/tcp\"], pool: api }
";

/// How long a start may take, a quick bench, and an end in the middle.
const START: Duration = Duration::from_secs(60);
const BENCH: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(60);

/// Everything that arrives is right, is counted, and afterwards the host is as it was.
#[privileged_test]
fn lb_is_measured_with_a_configuration_of_ones_own_and_a_generator_elsewhere() -> Result<()> {
    let path = hosts()?;
    for cpus in 1..=cpu::all()?.len().min(2) {
        let words = ["--from", "w0", "--to", "w1", "--cpus", &cpus.to_string()];
        let _generator = generate(&path, &words)?;

        let mut bench = measure(&path, CONFIG, CLIENTS, &["--quick"])?;
        let status = bench.wait_for_end(BENCH)?;

        let (said, complaints) = (bench.stdout(), bench.stderr());
        assert_eq!(status.code(), Some(0), "{said}\n{complaints}");
        assert_eq!(complaints, "");
        assert!(said.contains("Delivered"), "{said}");
        let report = std::fs::read_to_string(folder(&path).join("report.json"))?;
        ensure_reported(&serde_json::from_str(&report)?, cpus)?;
        assert!(folder(&path).join("report.html").exists());
        ensure_as_before(&path)?;
    }
    Ok(())
}

/// Ctrl-C, and a generator that is gone, while segments are on their way; a bench that was killed is no trouble for the
/// next one.
#[privileged_test]
fn what_ends_the_bench_in_the_middle_takes_lb_down() -> Result<()> {
    let path = hosts()?;
    let mut generator = generate(&path, &["--from", "w0", "--to", "w1"])?;

    let mut bench = start_and_wait_for_lb(&path)?;
    bench.signal(Signal::SIGKILL)?;
    bench.wait_for_end(END)?;
    assert!(has_program(&path, "eth0")?, "the data plane goes on");

    let mut bench = start_and_wait_for_lb(&path)?;
    bench.signal(Signal::SIGINT)?;
    ensure_failed(&mut bench, "interrupted")?;
    ensure_as_before(&path)?;

    let mut bench = start_and_wait_for_lb(&path)?;
    generator.signal(Signal::SIGKILL)?;
    ensure_failed(&mut bench, "hear the generator: it has hung up")?;
    ensure_as_before(&path)
}

/// One line for the operator, and nothing of lb.
#[privileged_test]
fn what_cannot_be_measured_is_said_before_lb_is_started() -> Result<()> {
    let path = hosts()?;
    let outside = Ipv4Addr::new(10, 9, 0, 1);
    let gap = Config::read(CONFIG).pool("api", |api| api.set("backends.2", "10.201.1.30:30700"));
    for (config, clients, words) in [
        (
            CONFIG,
            CLIENTS,
            "reach `lb-bench generator` at 10.202.0.1:7100: Connection refused",
        ),
        (
            CONFIG,
            outside,
            "--clients 10.9.0.1 is no address that network tenant lets in",
        ),
        (
            &gap,
            CLIENTS,
            "the backends of pool api: 10.201.1.4:30700 is not next to the others",
        ),
    ] {
        let mut bench = measure(&path, config, clients, &["--quick"])?;
        ensure_failed(&mut bench, words)?;
        ensure_as_before(&path)?;
    }
    Ok(())
}

/// The file is valid, but the service is not for the generator: its message says where to look, and lb is taken down.
#[privileged_test]
fn segments_that_do_not_arrive_end_the_bench() -> Result<()> {
    let path = hosts()?;
    let _generator = generate(&path, &["--from", "w0", "--to", "w1"])?;
    let others = |api: Keys| api.set("allow", ["10.200.1.0/24"]);
    let others = Config::read(CONFIG).service("api", others);

    let mut bench = measure(&path, &others, CLIENTS, &["--quick"])?;

    let words =
        "connections 0 to 250: none reaches a backend: does the configuration let 10.200.64.0 in";
    ensure_failed(&mut bench, words)?;
    ensure_as_before(&path)
}

/// A NIC without native XDP, one that is too small, and one that is not there.
#[privileged_test]
fn a_nic_that_the_generator_cannot_use_is_named_with_the_reason() -> Result<()> {
    let path = hosts()?;
    path.wire
        .ip_batch("link add br0 type bridge\nlink set ws1 mtu 1400\n")?;
    for (nic, words) in [
        ("br0", "br0: its driver has no native XDP"),
        ("ws1", "ws1 has an MTU of 1400"),
        ("eth9", "this host has no interface eth9"),
    ] {
        let mut generator = start_generator(&path, &["--from", "w0", "--to", nic])?;
        ensure_failed(&mut generator, words)?;
        assert_eq!(observe::link(&path.wire, "w0")?.xdp, None);
    }
    Ok(())
}

/// Both lab hosts, with a network between them for what is asked.
fn hosts() -> Result<Path> {
    let path = Path::build()?;
    let backends = (1..=4).map(|last| format!("addr add {}/16 dev w1\n", address(1, 1, last)));
    let backends: String = backends.collect();
    let control = format!("addr add {}/24 dev w2\n", GENERATOR.ip());
    path.wire.ip_batch(&(backends + &control))?;
    path.lb
        .ip_batch(&format!("addr add {}/24 dev eth2\n", address(2, 0, 2)))?;
    Ok(path)
}

fn start_generator(path: &Path, nics: &[&str]) -> Result<Process> {
    let listen = GENERATOR.to_string();
    let words = [&["generator", "--listen", &listen], nics].concat();
    let program = binary("LB_BENCH_BIN", "lb-bench")?;
    Process::start(&path.wire.path(), path.dir(), "generator", program, &words)
}

/// One that is ready.
fn generate(path: &Path, nics: &[&str]) -> Result<Process> {
    let mut generator = start_generator(path, nics)?;
    generator.wait_for_stdout("ready", START)?;
    Ok(generator)
}

/// Where the report goes.
fn folder(path: &Path) -> PathBuf {
    path.dir().join("report")
}

fn measure(path: &Path, config: &str, clients: Ipv4Addr, more: &[&str]) -> Result<Process> {
    let [config, output] = [path.write("lb.yaml", config)?, folder(path)];
    let mut words: Vec<String> = ["--config", "--output", "--generator", "--clients"]
        .into_iter()
        .zip([
            config.display().to_string(),
            output.display().to_string(),
            GENERATOR.to_string(),
            clients.to_string(),
        ])
        .flat_map(|(word, value)| [word.to_owned(), value])
        .collect();
    words.extend(more.iter().map(|&word| word.to_owned()));
    let program = binary("LB_BENCH_BIN", "lb-bench")?;
    Process::start(&path.lb.path(), path.dir(), "bench", program, &words)
}

/// A bench that takes minutes, with streams that take seconds each, once it has opened its connections.
fn start_and_wait_for_lb(path: &Path) -> Result<Process> {
    // One that was killed has left a data plane, through which segments may still be on their way.
    let before = observe::link(&path.lb, "eth0")?.xdp;
    let bench = measure(path, CONFIG, CLIENTS, &["--rounds", "100"])?;
    poll::until("another program on eth0", START, || {
        let now = observe::link(&path.lb, "eth0")?.xdp;
        Ok((now.is_some() && now != before).then_some(()))
    })?;
    let before = observe::link(&path.wire, "w1")?.rx_packets;
    poll::until("segments at the backends", START, || {
        let now = observe::link(&path.wire, "w1")?.rx_packets;
        Ok((now > before + 100_000).then_some(()))
    })?;
    Ok(bench)
}

fn ensure_failed(bench: &mut Process, words: &str) -> Result<()> {
    let status = bench.wait_for_end(END)?;
    let failure = Failure {
        code: status.code(),
        stdout: bench.stdout(),
        stderr: bench.stderr(),
    };
    assert_eq!(failure.code, Some(1), "{failure:?}");
    assert_eq!(failure.stderr.lines().count(), 1, "{failure:?}");
    let message = failure.message();
    assert!(message.starts_with("lb-bench: "), "{failure:?}");
    assert!(message.contains(words), "`{words}` is not in: {failure:?}");
    Ok(())
}

/// No lb on the load balancer's host, nor anything of it.
fn ensure_as_before(path: &Path) -> Result<()> {
    assert_eq!(leftovers::traces_of(INSTANCE), Vec::<PathBuf>::new());
    for nic in ["eth0", "eth1"] {
        assert!(!has_program(path, nic)?, "{nic} has an XDP program");
    }
    let running = Command::new("ip")
        .args(["netns", "pids", path.lb.name()])
        .output()?;
    assert_eq!(String::from_utf8_lossy(&running.stdout), "");
    Ok(())
}

fn has_program(path: &Path, nic: &str) -> Result<bool> {
    Ok(observe::link(&path.lb, nic)?.xdp.is_some())
}

/// The report has what was measured: how much was delivered is this machine's business, but what was not lost is right.
fn ensure_reported(report: &Value, cpus: usize) -> Result<()> {
    let suite = &report["suites"][0];
    assert_eq!(suite["name"], "lab");
    assert_eq!(suite["contestants"][0]["configuration"], CONFIG);
    let method = suite["method"].as_str().context("a method")?;
    assert!(
        method.contains("eth0: native XDP, eth1: native XDP"),
        "{method}"
    );
    assert!(method.contains(&format!(", {cpus} CPU")), "{method}");

    let [delivered, lost, cpu] = [0, 1, 2].map(|chart| medians(&suite["charts"][chart]));
    let (delivered, lost, cpu) = (delivered?, lost?, cpu?);
    assert_eq!([delivered.len(), lost.len(), cpu.len()], [STREAMS; 3]);
    assert!(delivered.iter().all(|rate| *rate > 0.0), "{delivered:?}");
    let is_share = |share: &f64| (0.0..100.0).contains(share);
    assert!(lost.iter().all(is_share), "{lost:?}");
    let arrived: f64 = lost
        .iter()
        .map(|lost| SEGMENTS * (1.0 - lost / 100.0))
        .sum();
    let checked = format!(
        "{} segments that arrived, each of them right",
        arrived.round()
    );
    assert_eq!(suite["checked"], serde_json::json!([checked]));
    println!(
        "{checked}; million a second: {delivered:?}; lost, in %: {lost:?}; CPU, in ns: {cpu:?}"
    );
    Ok(())
}

/// The medians of a chart, by size and number of flows.
fn medians(chart: &Value) -> Result<Vec<f64>> {
    assert_eq!(chart["columns"], serde_json::json!(["1k", "32k"]));
    let series = chart["series"].as_array().context("series")?;
    let names: Vec<&Value> = series.iter().map(|series| &series["name"]).collect();
    assert_eq!(names, ["64 B", "1518 B"]);
    let values = series
        .iter()
        .filter_map(|series| series["values"].as_array());
    values
        .flatten()
        .map(|value| value["median"].as_f64().context("a median"))
        .collect()
}
