//! A full neighbour table: entries of both families, in a namespace of their own, none of which the kernel
//! can take back. The table is one for all namespaces, so nothing else may run meanwhile.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{netns::Netns, poll, topology::Site};

/// From one attempt to take the places that have come free to the next, and how many are tried.
const PAUSE: Duration = Duration::from_millis(10);
const BATCH: u32 = 32;
/// How long it may take to fill the table. Namespaces of the tests before may still be on their way out, and
/// their entries with them; the kernel's lock of the network (RTNL) is theirs meanwhile.
const FILLS: Duration = Duration::from_secs(180);

/// Entries that fill the table as long as this lives.
#[derive(Debug)]
pub struct Crowd {
    netns: Netns,
    ip: Child,
    stops: Arc<AtomicBool>,
    filler: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Fills the table of both families.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the namespace, or the table does not get full.
    pub fn new(site: &Site) -> Result<Self> {
        let netns = Netns::create(format!("{}-crowd", site.run()))?;
        netns.ip_batch("link add v0 type veth peer name v1\nlink set v0 up\nlink set v1 up\n")?;
        netns.add_ipv6("v0", &["fd00:199::1/64".to_owned()])?;
        for family in ["ipv4", "ipv6"] {
            // The timer of an entry that is reachable holds it.
            let key = format!("{family}/neigh/v0/base_reachable_time_ms");
            netns.set_sysctl(&key, "3600000")?;
        }
        // Inside: `ip -n` would mount a file system of its own first.
        let start = || {
            Command::new("ip")
                .args(["-force", "-batch", "-"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        };
        let mut ip = netns.inside(start)?.context("start ip -batch")?;
        let input = ip.stdin.take().context("ip has a standard input")?;
        let most = fs::read_to_string("/proc/sys/net/ipv4/neigh/default/gc_thresh3")?;
        let most: u32 = most.trim().parse().context("the size of the table")?;
        let stops = Arc::new(AtomicBool::new(false));
        let mut crowd = Self {
            netns,
            ip,
            stops: Arc::clone(&stops),
            filler: None,
        };
        crowd.filler = Some(thread::spawn(move || fill(input, most, &stops)));
        let mut room = None;
        let full = poll::until("a full table", FILLS, || {
            room = crowd.ensure_full().err();
            Ok(room.is_none().then_some(()))
        });
        full.with_context(|| {
            let counts = ["arp_cache", "ndisc_cache"].map(|cache| {
                fs::read_to_string(format!("/proc/net/stat/{cache}")).unwrap_or_default()
            });
            let ended = crowd.ip.try_wait();
            let room = room.map(|error| error.to_string());
            format!("of {most}: {room:?}; ip: {ended:?}\n{}", counts.concat())
        })?;
        Ok(crowd)
    }

    /// Fails if there is room for one more entry.
    ///
    /// # Errors
    ///
    /// Then.
    pub fn ensure_full(&self) -> Result<()> {
        for address in ["10.192.0.1", "fd00:192::1"] {
            let entry = format!("{address} lladdr 02:00:00:00:00:01 dev v0");
            let added = self
                .netns
                .try_run(&format!("ip neigh add {entry} nud stale"))?;
            if added.status.success() {
                self.netns.run(&format!("ip neigh del {entry}"))?;
                bail!("there is room for {address}");
            }
        }
        Ok(())
    }
}

/// Keeps the table full until it is stopped.
fn fill(mut ip: ChildStdin, most: u32, stops: &AtomicBool) {
    let mut number = 0;
    while !stops.load(Ordering::Relaxed) {
        let count = if number < most { most } else { BATCH };
        let mut lines = String::new();
        for number in number..number + count {
            let number = number % (most + most / 8);
            let [_, high, middle, low] = number.to_be_bytes();
            let high = 200 + high;
            let end = "lladdr 02:00:00:00:00:01 dev v0 nud reachable";
            let _infallible = writeln!(lines, "neigh replace 10.{high}.{middle}.{low} {end}");
            let _infallible = writeln!(lines, "neigh replace fd00:200::{number:x} {end}");
        }
        number = number.saturating_add(count);
        if ip.write_all(lines.as_bytes()).is_err() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        let _gone = self.ip.kill();
        let _gone = self.ip.wait();
        if let Some(filler) = self.filler.take() {
            let _panicked = filler.join();
        }
    }
}
