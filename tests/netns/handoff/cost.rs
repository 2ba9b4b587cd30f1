//! What it costs to carry a connection: handed over, copied by us, through HAProxy, and packet by packet
//! without a name. Printed, side by side in one run; asserted is only that each went the way it says.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::lb::Lb,
    topology::{Host, SNAT, Topology, VIP},
    traffic::{
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use nix::unistd::{SysconfVar, sysconf};

use crate::proxy::{
    relayed::{NAME, PORT, SHARED, SOON},
    sni::counted,
};

/// Where the data plane alone decides.
const PLAIN: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
const CHUNK: usize = 1 << 16;

/// How much each of them carries in a round, how often one byte goes there and back, and how many rounds.
struct Tier {
    bytes: usize,
    pings: usize,
    rounds: usize,
}

fn tier() -> Tier {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => Tier {
            bytes: 1 << 30,
            pings: 20_000,
            rounds: 5,
        },
        None => Tier {
            bytes: 32 << 20,
            pings: 1000,
            rounds: 1,
        },
    }
}

/// What one of them took in each round: CPU seconds of the whole machine and of the balancer's process for a
/// GB, Gbit/s, and the time there and back, half of all and 99 of 100.
type Row = [f64; 5];
const COLUMNS: [&str; 5] = ["CPU s/GB", "of it process", "Gbit/s", "p50 us", "p99 us"];

/// HAProxy in a load balancer's place, with the same addresses.
fn haproxy(topology: &Topology) -> Result<Process> {
    let lb = &topology.lb;
    lb.run(&format!("ip addr add {VIP}/24 dev eth0"))?;
    lb.run(&format!("ip addr add {SNAT}/20 dev eth1"))?;
    let node = topology.nodes[0].address;
    let text = format!(
        "global
  nbthread 1
defaults
  mode tcp
  option splice-auto
  timeout connect 10s
  timeout client 1m
  timeout server 1m
frontend shared
  bind {SHARED}
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  use_backend a if {{ req_ssl_sni -i {NAME} }}
backend a
  server one {node}:{PORT}
"
    );
    let file = topology.write("haproxy.cfg", &text)?;
    let words = ["-db", "-f", file.to_str().context("a path")?];
    let process = Process::start(&lb.path(), topology.dir(), "haproxy", "haproxy", &words)?;
    poll::until("HAProxy listens", SOON, || {
        Ok(lb.run("ss -Hltn")?.contains(":443 ").then_some(()))
    })
    .with_context(|| process.stderr())?;
    Ok(process)
}

/// The CPU time that all CPUs have spent on anything.
fn busy() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let first = text.lines().next().context("a line")?;
    let ticks: Vec<u64> = first
        .split_whitespace()
        .skip(1)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // user, nice, system; then idle and waiting; then both kinds of interrupts.
    seconds(ticks[..3].iter().chain(&ticks[5..7]).sum())
}

/// The CPU time of a process.
fn spent(process: &Process) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
    let (_, fields) = text.rsplit_once(") ").context("fields")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    seconds(ticks.sum::<Result<u64, _>>()?)
}

#[expect(clippy::cast_precision_loss, reason = "figures to look at")]
fn seconds(ticks: u64) -> Result<f64> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("ticks of a second")?;
    Ok(ticks as f64 / per_second as f64)
}

/// Sends zeros one way.
fn pour(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) -> Result<()> {
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<()> {
            let chunk = [0; CHUNK];
            (0..bytes / CHUNK).try_for_each(|_| from.write_all(&chunk))?;
            Ok(())
        });
        let mut chunk = [0; CHUNK];
        let mut left = bytes;
        while left > 0 {
            let read = to.read(&mut chunk)?;
            ensure!(read > 0, "it ended with {left} bytes to come");
            left -= read;
        }
        sender.join().map_err(|_| anyhow!("the sender panicked"))?
    })
}

/// One byte there and back, so many times; sorted.
fn ping(pair: &Pair, count: usize) -> Result<Vec<Duration>> {
    let (mut client, mut server) = (&pair.client, &pair.server);
    client.set_nodelay(true)?;
    thread::scope(|scope| {
        let answers = scope.spawn(move || -> Result<()> {
            let mut byte = [0];
            for _ in 0..count {
                server.read_exact(&mut byte)?;
                server.write_all(&byte)?;
            }
            Ok(())
        });
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begin = Instant::now();
            client.write_all(&[1])?;
            client.read_exact(&mut [0])?;
            times.push(begin.elapsed());
        }
        answers.join().map_err(|_| anyhow!("it panicked"))??;
        times.sort_unstable();
        Ok(times)
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures to look at")]
fn round(line: &Line<'_>, process: &Process, tier: &Tier) -> Result<Row> {
    let pair = line.open()?;
    let gigabytes = tier.bytes as f64 / 1e9;
    let (all, own, begin) = (busy()?, spent(process)?, Instant::now());
    pour(&pair.server, &pair.client, tier.bytes)?;
    let took = begin.elapsed().as_secs_f64();
    let (all, own) = (busy()? - all, spent(process)? - own);
    let times = ping(&pair, tier.pings)?;
    let micros = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    Ok([
        all / gigabytes,
        own / gigabytes,
        8.0 * gigabytes / took,
        micros(50),
        micros(99),
    ])
}

fn median(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    [
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    ]
}

/// CPU for a GB and ping-pong, in turns.
#[privileged_test]
fn what_each_way_costs_is_printed() -> Result<()> {
    let [topology, beside] = [Topology::poc()?, Topology::poc()?];
    let tier = tier();
    let mut haproxy = haproxy(&beside)?;
    let node = topology.nodes[0].address;
    let config = crate::proxy::relayed::config(&topology).tcp_service_to("plain", PLAIN, "a");
    let mut lb = Lb::start(&topology, &config)?;
    let [client, copied] = [&topology.clients[0], &topology.clients[1]];
    copied.netns.set_sysctl("ipv4/tcp_timestamps", "0")?;

    let hello = named(NAME.as_bytes());
    let ways: [(&str, &Host, SocketAddrV4); 4] = [
        ("handed over", client, SHARED),
        ("own copy", copied, SHARED),
        ("HAProxy", &beside.clients[0], SHARED),
        ("plain L4", client, PLAIN),
    ];
    let mut rows: [Vec<Row>; 4] = Default::default();
    for turn in 0..tier.rounds {
        for place in 0..ways.len() {
            let way = (turn + place) % ways.len();
            let (name, client, to) = ways[way];
            let (site, process) = match name {
                "HAProxy" => (&beside, &mut haproxy),
                _ => (&topology, lb.process()),
            };
            let line = Line::new(client, to, &site.nodes[0], PORT)?.saying(hello.clone());
            rows[way].push(round(&line, process, &tier).context(name)?);
        }
    }
    println!("{node}: median [least, most] of {} rounds", tier.rounds);
    for ((name, ..), rows) in ways.iter().zip(&rows) {
        let cells = COLUMNS.iter().enumerate().map(|(column, title)| {
            let [middle, least, most] = median(rows.iter().map(|row| row[column]));
            format!("{title} {middle:.2} [{least:.2}, {most:.2}]")
        });
        println!("{name:>12}: {}", cells.collect::<Vec<_>>().join(", "));
    }
    let rounds = u64::try_from(tier.rounds)?;
    assert_eq!(counted(&lb, "handed_over")?, rounds);
    assert_eq!(counted(&lb, "routed")?, 2 * rounds);
    Ok(())
}
