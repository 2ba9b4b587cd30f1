//! Trouble on a LAN: of the frames that its ports take in, some get lost, some come late and behind others,
//! and some come twice.
//!
//! A program of the switch picks them at random and sends them out of a port where they are read here, and
//! from where they come back, or not. The kernel's netem would do the same, which not every kernel has.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::{
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom,
            send, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use crate::{
    netns::Netns,
    process::complain,
    seeded_rng::Dice,
    topology::{OFFLOADS, set, switch::Switch},
};

/// The port where frames come back, and the end where they are read.
const LATE: &str = "late";
const INNER: &str = "late0";
/// How much later a frame comes at most.
const LATEST: Duration = Duration::from_millis(6);
/// How long is waited for the next frame before those that are due are looked at.
const LOOK_MILLIS: i64 = 1;
/// Longer than any frame.
const LONGEST: usize = 4096;

/// Trouble on one LAN, until this is dropped.
#[derive(Debug)]
pub struct Trouble {
    made: Arc<Made>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// How many frames there was trouble with, by its kind.
#[derive(Debug, Default)]
struct Made {
    lost: AtomicU64,
    late: AtomicU64,
    doubled: AtomicU64,
}

impl Trouble {
    /// Begins with one frame out of so many that come in at these ports of `lan`: a third of those get lost,
    /// a third come late, and a third twice.
    ///
    /// # Errors
    ///
    /// When a port is not there, or there is trouble already.
    pub fn begin(switch: &Switch, lan: &Netns, ports: &[String], out_of: u32) -> Result<Self> {
        lan.ip_batch(&format!(
            "link add {LATE} type veth peer name {INNER}\nlink set {LATE} master br0\n"
        ))?;
        // Those whose frames come back are not there, and no other host is.
        lan.run(&format!(
            "bridge link set dev {LATE} learning off flood off mcast_flood off bcast_flood off"
        ))?;
        for end in [LATE, INNER] {
            set(lan, end, &OFFLOADS)?;
        }
        switch.pass(lan, INNER)?;
        lan.ip_batch(&format!("link set {LATE} up\nlink set {INNER} up\n"))?;
        let socket = lan.inside(open)??;
        let trouble = Self::start(lan, socket)?;
        for port in ports {
            switch.divert(lan, port, LATE, out_of)?;
        }
        Ok(trouble)
    }

    fn start(lan: &Netns, socket: OwnedFd) -> Result<Self> {
        let (made, stop) = (Arc::<Made>::default(), Arc::<AtomicBool>::default());
        let (counted, stopped) = (Arc::clone(&made), Arc::clone(&stop));
        let thread = lan.spawn(move || make(&socket, &counted, &stopped))?;
        Ok(Self {
            made,
            stop,
            thread: Some(thread),
        })
    }

    /// How many frames got lost, came late and came twice.
    pub fn made(&self) -> [u64; 3] {
        let Made {
            lost,
            late,
            doubled,
        } = &*self.made;
        [lost, late, doubled].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        let ended = ended.unwrap_or(Ok(Ok(())));
        if let Err(error) = ended.unwrap_or_else(|_| Err(anyhow!("panicked"))) {
            complain(format_args!("trouble: {error:#}"));
        }
    }
}

/// All frames of the inner end.
fn open() -> Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::EthAll,
    );
    let socket = socket.context("make a packet socket")?;
    let interface = getifaddrs()
        .context("list the interfaces")?
        .filter(|found| found.interface_name == INNER)
        .find_map(|found| found.address?.as_link_addr().copied())
        .context("no inner end")?;
    bind(socket.as_raw_fd(), &interface).context("bind to the inner end")?;
    let look = TimeVal::milliseconds(LOOK_MILLIS);
    setsockopt(&socket, sockopt::ReceiveTimeout, &look).context("set the receive timeout")?;
    Ok(socket)
}

fn make(socket: &OwnedFd, made: &Made, stop: &AtomicBool) -> Result<()> {
    let mut dice = Dice::from_environment();
    let mut waiting = BinaryHeap::new();
    let mut room = vec![0; LONGEST];
    while !stop.load(Ordering::Acquire) {
        match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut room) {
            Ok((length, _)) => {
                let frame = room.get(..length).context("a frame")?;
                let then = Reverse((Instant::now() + dice.up_to(LATEST), frame.to_vec()));
                let count = match dice.below(3) {
                    0 => &made.lost,
                    1 => {
                        waiting.push(then);
                        &made.late
                    }
                    _ => {
                        put_back(socket, frame);
                        waiting.push(then);
                        &made.doubled
                    }
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error).context("receive a frame"),
        }
        while let Some(Reverse((due, _))) = waiting.peek() {
            if *due > Instant::now() {
                break;
            }
            if let Some(Reverse((_, frame))) = waiting.pop() {
                put_back(socket, &frame);
            }
        }
    }
    Ok(())
}

/// One that is not taken is lost, as others are.
fn put_back(socket: &OwnedFd, frame: &[u8]) {
    let _lost = send(socket.as_raw_fd(), frame, MsgFlags::empty());
}
