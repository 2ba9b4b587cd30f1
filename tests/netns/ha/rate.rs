//! Many new flows a second beside a standby: how long each takes to stand ready there, and what that costs the active box.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::usage;
use lb_tests::{
    frames::{packet, raw::RawPort},
    product::{config::Config, lb::Lb},
    topology::{BoxName, Site, TENANT_NIC, Topology, TwoBoxes, VIP, mac_of},
    traffic::pace::Pace,
};
use lb_user::{
    control::apply::read_ids,
    dataplane::{maps::Maps, pins::Pins},
    model::registry::Kind,
};

use nix::sys::socket::{setsockopt, sockopt};

use super::{Boxes, SYNCED, config};

const SERVICE: SocketAddrV4 = SocketAddrV4::new(VIP, 7040);
const NODE_PORT: u16 = 30_740;
/// New flows per second, as a goal, and how many: fewer than an address has ports.
const RATE: u32 = 20_000;
const FLOWS: u16 = 40_000;
/// As many flows of UDP as a network may have at a time.
const UDP_FLOWS: u32 = 65_536;
/// The first port of the client.
const FIRST_PORT: u16 = 10_000;
/// Bytes of datagrams that wait at the node.
const ROOM: usize = 32 << 20;
/// When the number of flows has stood still for so long, all have come that come: a busy machine loses some datagrams.
const STILL: Duration = Duration::from_millis(300);
/// Between two looks at both tables.
const LOOK: Duration = Duration::from_millis(2);

/// With a service of UDP at the first node.
fn with_datagrams(pair: &TwoBoxes) -> Config {
    let node = SocketAddrV4::new(pair.nodes[0].address, NODE_PORT);
    config(pair)
        .network("tenant-a", |tenant| tenant.set("udp_flows", UDP_FLOWS))
        .mgmt_pool("datagrams", [node])
        .service("datagrams", |service| {
            service.on("tenant-a").udp(SERVICE).pool("datagrams")
        })
}

/// The number of live flows of a box, replicas among them.
pub(super) struct Table {
    maps: Maps,
    network: u16,
}

impl Table {
    pub(super) fn of(site: &Site) -> Result<Self> {
        let maps = Maps::open(&Pins::new(site.run()).maps())?;
        let id = read_ids(&maps)?.get(Kind::Network, "tenant-a");
        Ok(Self {
            maps,
            network: u16::try_from(id.context("a network")?)?,
        })
    }

    pub(super) fn live(&self) -> Result<u32> {
        self.maps.usage(usage::network(self.network))
    }
}

/// CPU time of the thread for the other box, and of the whole process.
fn cpu_times(lb: &Lb<'_>) -> Result<[Duration; 2]> {
    let process = PathBuf::from(format!("/proc/{}", lb.id()));
    let mut of_pair = Duration::ZERO;
    for task in fs::read_dir(process.join("task"))? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == "ha" {
            of_pair = ticks(&task.join("stat"))?;
        }
    }
    Ok([of_pair, ticks(&process.join("stat"))?])
}

/// The times in the fields 14 and 15 of a file as proc_pid_stat(5) has it, in hundredths of a second.
fn ticks(stat: &std::path::Path) -> Result<Duration> {
    let text = fs::read_to_string(stat)?;
    let (_, fields) = text.rsplit_once(") ").context("a name in brackets")?;
    let mut fields = fields.split(' ').skip(11);
    let mut next = || -> Result<u64> { Ok(fields.next().context("a time")?.parse()?) };
    Ok(Duration::from_millis(10 * (next()? + next()?)))
}

/// Live flows here and there, as they were seen.
type Sample = (Instant, [u32; 2]);

/// How long after the active box the other one has had so many flows, for all numbers of flows that were seen at the first one; sorted.
fn lags(samples: &[Sample]) -> Vec<Duration> {
    let mut there = samples.iter().peekable();
    let mut lags = Vec::new();
    for (at, [here, _]) in samples {
        while there.next_if(|(_, [_, ready])| ready < here).is_some() {}
        let Some((ready, _)) = there.peek() else {
            break;
        };
        lags.push(ready.saturating_duration_since(*at));
    }
    lags.sort_unstable();
    lags
}

/// Each flow stands ready at the other box; how long that took, and at what cost, is printed.
#[privileged_test]
fn new_flows_stand_ready_at_any_rate() -> Result<()> {
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let boxes = Boxes::start_with(&pair, &with_datagrams(&pair))?;
    let [first, second] = BoxName::ALL.map(|name| Table::of(pair.site(name)));
    let tables = [first?, second?];
    let (client, node) = (pair.client(), &pair.nodes[0]);
    // Answers come to ports without a socket.
    for line in [
        "nft add table ip silent",
        "nft add chain ip silent out { type filter hook output priority 0 ; }",
        "nft add rule ip silent out ip protocol icmp drop",
    ] {
        client.netns.run(line)?;
    }
    let stations = [
        mac_of(&client.netns, "eth0")?,
        pair.site(BoxName::Lb1).mac(TENANT_NIC)?,
    ];
    let frames: Vec<Vec<u8>> = (FIRST_PORT..FIRST_PORT + FLOWS)
        .map(|port| frame(client.address, port, stations))
        .collect();
    let port = RawPort::open(&client.netns, "eth0")?;
    let echo = node
        .netns
        .inside(|| UdpSocket::bind((node.address, NODE_PORT)))??;
    echo.set_read_timeout(Some(Duration::from_millis(100)))?;
    setsockopt(&echo, sockopt::RcvBufForce, &ROOM).context("room for datagrams")?;
    let done = AtomicBool::new(false);
    let before = cpu_times(&boxes.first)?;
    let began = Instant::now();
    let samples = thread::scope(|scope| -> Result<Vec<Sample>> {
        scope.spawn(|| answer(&echo, &done));
        let sent = AtomicUsize::new(0);
        let send = |step: u64| match usize::try_from(step).ok().and_then(|step| frames.get(step)) {
            Some(frame) => {
                sent.fetch_add(1, Ordering::Relaxed);
                port.send(frame)
            }
            None => Ok(()),
        };
        let pace = Pace {
            per_second: RATE,
            threads: 1,
        };
        let watched = pace.beside(&client.netns, &send, || watch(&tables, &sent));
        done.store(true, Ordering::Relaxed);
        Ok(watched?.0)
    })?;
    let after = cpu_times(&boxes.first)?;
    let lags = lags(&samples);
    ensure!(lags.len() > 100, "{} samples", lags.len());
    let place = |percent: usize| lags[(lags.len() - 1) * percent / 100];
    let (_, [came, _]) = *samples.last().context("samples")?;
    ensure!(
        came * 100 >= u32::from(FLOWS) * 95,
        "{came} flows of {FLOWS}"
    );
    let last = samples.iter().find(|(_, [here, _])| *here == came);
    println!(
        "{came} new flows in {:.1?}: they stand ready after p50 {:.0?}, p99 {:.0?}, at most {:.0?}",
        last.context("the last flow")?.0 - began,
        place(50),
        place(99),
        place(100)
    );
    let [of_pair, whole] = [0, 1].map(|place| after[place] - before[place]);
    println!(
        "CPU time of lb in {:.1?}: {of_pair:?} for the other box, {whole:?} in all",
        began.elapsed()
    );
    Ok(())
}

fn frame(client: Ipv4Addr, port: u16, [from, next]: [lb_common::addr::Mac; 2]) -> Vec<u8> {
    let from_client = SocketAddrV4::new(client, port).to_string();
    let frame = packet::udp(&from_client, &SERVICE.to_string());
    frame.payload(b"request").between(from, next).bytes()
}

/// Answers each datagram until it is done.
fn answer(echo: &UdpSocket, done: &AtomicBool) {
    let mut bytes = [0; 64];
    while !done.load(Ordering::Relaxed) {
        if let Ok((length, from)) = echo.recv_from(&mut bytes) {
            // What is lost is no flow in full use.
            let _lost = echo.send_to(&bytes[..length], from);
        }
    }
}

/// Looks at both tables until all that was sent has come, and stands ready at the other box.
fn watch(tables: &[Table; 2], sent: &AtomicUsize) -> Result<Vec<Sample>> {
    let start = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    let mut changed = start;
    loop {
        let [here, there] = tables.each_ref().map(Table::live);
        let seen = [here?, there?];
        if samples.last().is_none_or(|(_, before)| *before != seen) {
            changed = Instant::now();
        }
        samples.push((Instant::now(), seen));
        let is_sent = sent.load(Ordering::Relaxed) >= usize::from(FLOWS);
        if is_sent && seen[0] == seen[1] && changed.elapsed() > STILL {
            return Ok(samples);
        }
        ensure!(start.elapsed() < SYNCED, "{seen:?} flows of {FLOWS}");
        thread::sleep(LOOK);
    }
}
