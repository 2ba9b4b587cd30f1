//! The links of an instance's programs, and what the kernel tells of interfaces.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::links::{FdLink, PinnedLink};

use crate::{oracle::raw_map::bpf, poll, process::Process, topology::Site};

/// How long the kernel may take to tell of a change.
const SOON: Duration = Duration::from_secs(20);

/// From these MTUs on lo is changed, which is how a monitor is known to hear.
const BEGIN: u32 = 60_000;
const END: u32 = 61_000;

/// Where an instance keeps its pins.
pub fn pins(instance: &str) -> PathBuf {
    PathBuf::from("/sys/fs/bpf/lb").join(instance)
}

/// What a link is and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its id, new with every attachment.
    pub id: u32,
    /// The id of its program, new with every load.
    pub program: u32,
}

/// The pinned links of an instance, by the names of their pins.
///
/// # Errors
///
/// When one cannot be opened.
pub fn links(instance: &str) -> Result<BTreeMap<String, Link>> {
    let mut links = BTreeMap::new();
    for entry in fs::read_dir(pins(instance).join("links")).context("list the links")? {
        let entry = entry.context("list the links")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let link: FdLink = PinnedLink::from_pin(entry.path())
            .with_context(|| format!("open the link {name}"))?
            .into();
        let info = link.info().context("ask what a link is")?;
        let (id, program) = (info.id(), info.program_id());
        links.insert(name, Link { id, program });
    }
    Ok(links)
}

/// Detaches the program of a pinned link, as `bpftool link detach` does; the link stays.
///
/// # Errors
///
/// When there is no such link, or the kernel refuses.
pub fn detach(pin: &Path) -> Result<()> {
    const GET: nix::libc::c_long = 7;
    const LINK_DETACH: nix::libc::c_long = 34;
    let path = CString::new(pin.as_os_str().as_bytes())?;
    // The path, the descriptor of a folder, flags.
    let mut get = [path.as_ptr().expose_provenance() as u64, 0];
    // SAFETY: the kernel reads the path, which outlives the call, and nothing else.
    let link = unsafe { bpf(GET, &mut get) }.context("open the link")?;
    // SAFETY: the descriptor was made just now, and nothing else has it.
    let link = unsafe { OwnedFd::from_raw_fd(i32::try_from(link)?) };
    let mut detach = u32::try_from(link.as_raw_fd())?;
    // SAFETY: this command takes a descriptor alone.
    unsafe { bpf(LINK_DETACH, &mut detach) }.context("detach the link")?;
    Ok(())
}

/// Everything that the kernel tells of the interfaces of the load balancer's host.
#[derive(Debug)]
pub struct Monitor<'t> {
    site: &'t Site,
    process: Process,
}

impl<'t> Monitor<'t> {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// When `ip` does not start.
    pub fn start(site: &'t Site) -> Result<Self> {
        let words = ["monitor", "link"];
        let (netns, dir) = (site.lb.path(), site.dir());
        let process = Process::start(&netns, dir, "ip-monitor", "ip", &words)?;
        let monitor = Self { site, process };
        monitor.wait_for_mark(BEGIN)?;
        Ok(monitor)
    }

    /// Stops, and fails unless nothing was reported since the start.
    ///
    /// # Errors
    ///
    /// With what was reported.
    pub fn ensure_silent(self) -> Result<()> {
        self.wait_for_mark(END)?;
        let told = self.process.stdout();
        let others: Vec<&str> = lines(&told).filter(|line| !is_mark(line)).collect();
        ensure!(others.is_empty(), "{others:#?}");
        Ok(())
    }

    /// Changes the MTU of an unused interface, from this one on, until the change is reported.
    fn wait_for_mark(&self, mut mtu: u32) -> Result<()> {
        poll::until("the kernel to tell of a change", SOON, || {
            mtu += 1;
            self.site.lb.run(&format!("ip link set lo mtu {mtu}"))?;
            let is_told = self.process.stdout().contains(&format!(" mtu {mtu} "));
            Ok(is_told.then_some(()))
        })
    }
}

/// The lines that begin with the number of an interface.
fn lines(told: &str) -> impl Iterator<Item = &str> {
    told.lines()
        .filter(|line| !line.starts_with([' ', '\t']) && !line.is_empty())
}

fn is_mark(line: &str) -> bool {
    line.contains(" lo: ")
}
