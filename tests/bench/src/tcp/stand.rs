//! A carrier of connections at work in a path of its own, with a server behind it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    process::Process,
    product::cpu,
    topology::path::{self, Path},
};

use crate::{
    path::configurations::{BACKENDS, NODE_PORT, PORT, VIP},
    path::wire::{Ports, Wire},
    tcp::{
        answer::Speech,
        carrier::Carrier,
        client::{Load, Told},
        cost::{Spenders, threads_of},
        server::READY,
        way::Way,
    },
};

/// How long a program may take until it listens.
pub(super) const START: Duration = Duration::from_secs(10);
/// How much longer than planned a run may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of buffers of all streams at each end.
const BUFFERS: u32 = 1 << 20;
/// The counters of the network namespace of the thread that reads them.
const SNMP: &str = "/proc/thread-self/net/snmp";
/// Where clients connect from: that many addresses in a row, behind the client's own.
pub(super) const CLIENTS: Ipv4Addr = path::address(0, 64, 1);
pub(super) const CLIENT_COUNT: u8 = 16;

/// A carrier with its two ends.
#[derive(Debug)]
pub(crate) struct Stand<'p> {
    pub(crate) way: Way,
    pub(super) path: &'p Path,
    pub(super) carrier: Carrier<'p>,
    server: Process,
    _wire: Wire,
    speech: Speech,
    /// Connections that were made.
    pub(crate) made: u64,
    pub(super) cpus: Cpus,
}

/// Which process runs where, and spends what.
#[derive(Debug)]
pub(super) struct Cpus {
    pub(super) client: usize,
    /// Of the carrier: its process and the kernel's threads that work for it alone.
    carrier: Spenders,
    /// Of all others but the client.
    others: Spenders,
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) told: Told,
    /// CPU time of the carrier, where it has a CPU of its own, and of everything, in seconds.
    pub(crate) carrier: f64,
    pub(crate) whole: f64,
    /// Segments that were sent again, by both ends and the carrier.
    pub(crate) again: u64,
}

/// What is asked in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) answer: u64,
    pub(crate) concurrency: u16,
    /// How long new connections are opened; if not at all, each of those at a time is one.
    pub(crate) millis: u64,
}

impl<'p> Stand<'p> {
    /// Sets it up on one CPU; connections pass when this returns.
    ///
    /// # Errors
    ///
    /// When something does not start.
    pub(crate) fn build(way: Way, path: &'p Path, speech: Speech) -> Result<Self> {
        prepare(path)?;
        let mut wire = Wire::plug(path, Ports::Open)?;
        let [_, cpu] = cpu::two()?;
        let carrier = Carrier::start(way, path, &mut wire, &[cpu])?;
        let server = serve(path, speech, cpu)?;
        let processes = [Some(server.id()), carrier.id()];
        Ok(Self {
            way,
            path,
            carrier,
            _wire: wire,
            speech,
            made: 0,
            cpus: Cpus {
                client: cpu,
                carrier: Spenders::default(),
                others: Spenders::of(processes.into_iter().flatten()).and(&Spenders::softirq(cpu)?),
            },
            server,
        })
    }

    /// Leaves the second CPU to the carrier alone: both ends and the wire move to the first.
    ///
    /// # Errors
    ///
    /// When there is no second one, or the kernel cannot give NAPIs threads.
    pub(crate) fn part(&mut self) -> Result<()> {
        let [ends, own] = cpu::two()?;
        ensure!(ends != own, "it takes two CPUs");
        let server = Spenders::of([self.server.id()]);
        server.bind(ends)?;
        let mut carrier = Spenders::of(self.carrier.id()).and(&Spenders::softirq(own)?);
        for nic in ["eth0", "eth1"] {
            carrier = carrier.and(&threads_of(&self.path.lb, nic, own)?);
        }
        let mut others = server.and(&Spenders::softirq(ends)?);
        for port in ["w0", "w1"] {
            others = others.and(&threads_of(&self.path.wire, port, ends)?);
        }
        self.cpus = Cpus {
            client: ends,
            carrier,
            others,
        };
        Ok(())
    }

    /// Lets this many streams together have no more than [`BUFFERS`] on their way: the wire drops what its rings have no
    /// room for.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn cap_buffers(&self, streams: u16) -> Result<()> {
        let each = BUFFERS / u32::from(streams);
        let path = self.path;
        for netns in [&path.client.netns, &path.lb, &path.server.netns] {
            for key in ["ipv4/tcp_rmem", "ipv4/tcp_wmem"] {
                netns.set_sysctl(key, &format!("4096\t{}\t{each}", each.min(131_072)))?;
            }
        }
        Ok(())
    }

    /// Makes connections; all of them are right.
    ///
    /// # Errors
    ///
    /// When one is not.
    pub(crate) fn run(&mut self, ask: Ask) -> Result<Taken> {
        let (to, backends) = match self.way.has_vip() {
            true => (SocketAddrV4::new(VIP, PORT), 1),
            false => (
                SocketAddrV4::new(path::address(1, 1, 1), NODE_PORT),
                BACKENDS,
            ),
        };
        let load = Load {
            to,
            backends,
            from: CLIENTS,
            clients: CLIENT_COUNT,
            speech: self.speech,
            answer: ask.answer,
            concurrency: ask.concurrency,
            millis: ask.millis,
            first: self.made,
        };
        let again = self.sent_again()?;
        let before = [self.cpus.carrier.spent()?, self.cpus.others.spent()?];
        let told = self
            .ask(&load)
            .with_context(|| format!("through {}", self.way.name()))?;
        let carrier = self.cpus.carrier.spent()? - before[0];
        let others = self.cpus.others.spent()? - before[1];
        self.made += told.connections;
        Ok(Taken {
            told,
            carrier,
            whole: carrier + others + told.cpu,
            again: self.sent_again()? - again,
        })
    }

    fn ask(&self, load: &Load) -> Result<Told> {
        let words = serde_json::to_string(load)?;
        let (host, cpu) = (&self.path.client.netns, self.cpus.client);
        let mut client = end(self.path, &host.path(), "client", cpu, &["client", &words])?;
        let limit = Duration::from_millis(load.millis) + TIMEOUT;
        let status = client.wait_for_end(limit)?;
        ensure!(
            status.success(),
            "the client: {}; the server: {}",
            client.stderr().trim(),
            self.server.stderr().trim()
        );
        serde_json::from_str(&client.stdout()).context("read what the client tells")
    }

    fn sent_again(&self) -> Result<u64> {
        let path = self.path;
        let hosts = [&path.client.netns, &path.lb, &path.server.netns];
        hosts
            .into_iter()
            .map(|netns| retransmissions(&netns.inside(|| fs::read_to_string(SNMP))??))
            .sum()
    }

    /// How many connections `lb` has handed over to its programs, of those of the shared VIP.
    ///
    /// # Errors
    ///
    /// When this is not `lb`, or it does not tell.
    pub(crate) fn handed_over(&self) -> Result<u64> {
        let Carrier::Lb(lb) = &self.carrier else {
            anyhow::bail!("{} hands nothing over", self.way.name())
        };
        let status: serde_json::Value = lb.ask_json(&["status"])?;
        let count = status["shared"]["shared"]["handed_over"].as_u64();
        count.with_context(|| format!("no count of hand-overs in {status}"))
    }

    /// How many connections XDP has opened by late binding.
    ///
    /// # Errors
    ///
    /// As for [`Self::handed_over`].
    pub(crate) fn bound(&self) -> Result<u64> {
        let Carrier::Lb(lb) = &self.carrier else {
            anyhow::bail!("{} binds nothing", self.way.name())
        };
        let status: serde_json::Value = lb.ask_json(&["status"])?;
        let networks = status["networks"].as_array().into_iter().flatten();
        let counts = networks.filter_map(|network| network["hellos"]["bound"].as_u64());
        Ok(counts.sum())
    }
}

/// Gives a path its backends and clients.
pub(super) fn prepare(path: &Path) -> Result<()> {
    path.add_backends(BACKENDS)?;
    let clients = (0..CLIENT_COUNT).map(|place| {
        let address = Ipv4Addr::from(u32::from(CLIENTS) + u32::from(place));
        format!("addr add {address}/32 dev c0\n")
    });
    path.client.netns.ip_batch(&clients.collect::<String>())?;
    settle(path)
}

/// Starts a server on a CPU; it listens when this returns.
pub(super) fn serve(path: &Path, speech: Speech, cpu: usize) -> Result<Process> {
    let port = NODE_PORT.to_string();
    let mut words = vec!["server".to_owned(), "--port".to_owned(), port];
    if let Speech::Bytes(length) = speech {
        words.extend(["--request".to_owned(), length.to_string()]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let name = format!("server-{cpu}");
    let mut server = end(path, &path.server.netns.path(), &name, cpu, &words)?;
    server.wait_for_stdout(READY, START)?;
    Ok(server)
}

/// Starts this program as one of the two ends.
pub(super) fn end(
    path: &Path,
    netns: &std::path::Path,
    name: &str,
    cpu: usize,
    words: &[&str],
) -> Result<Process> {
    let program = std::env::current_exe().context("find the running program")?;
    let program = program.to_str().context("a program's name")?;
    let cpu = cpu.to_string();
    let words = [&["-c", &cpu, program], words].concat();
    Process::start(netns, path.dir(), name, "taskset", &words)
}

/// The TCP segments that a host has sent again.
fn retransmissions(snmp: &str) -> Result<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp: "));
    let (names, values) = lines.next().zip(lines.next()).context("lines of TCP")?;
    let mut both = names.split(' ').zip(values.split(' '));
    let found = both.find(|(name, _)| *name == "RetransSegs");
    let (_, count) = found.context("a count of retransmissions")?;
    Ok(count.parse()?)
}

/// The same for all. Connections are not paced: this congestion control is the only one that every namespace may
/// choose. And they do not linger at the server, because behind one address others would meet them.
fn settle(path: &Path) -> Result<()> {
    for netns in [&path.client.netns, &path.lb, &path.server.netns] {
        netns.set_sysctl("ipv4/tcp_congestion_control", "reno")?;
    }
    let server = &path.server.netns;
    server.set_sysctl("ipv4/tcp_max_tw_buckets", "0")?;
    // Above a minute, the end that has closed first waits for the other's FIN as a whole socket.
    server.set_sysctl("ipv4/tcp_fin_timeout", "120")?;
    path.lb
        .set_sysctl("ipv4/ip_local_port_range", "1024\t65535")
}

#[cfg(test)]
mod tests {
    use super::retransmissions;

    #[test]
    fn the_value_is_the_one_below_its_name() {
        let snmp = "Ip: Forwarding\nIp: 2\nTcp: OutSegs RetransSegs InErrs\nTcp: 70 5 0\n";
        assert_eq!(retransmissions(snmp).expect("a count"), 5);
        assert!(retransmissions("Tcp: OutSegs\nTcp: 70\n").is_err());
    }
}
