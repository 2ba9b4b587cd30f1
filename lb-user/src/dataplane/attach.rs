//! Attached once, pinned, and replaced in place by every later process.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use aya::programs::{
    ProgramError, Xdp, XdpMode,
    links::{FdLink, PinnedLink},
    xdp::XdpLink,
};

/// How a program runs on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel has made anything of the frame.
    Native,
    /// In the kernel's stack, after it has: slower.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// How a program came to run on an interface.
#[derive(Debug)]
pub enum Attached {
    /// It replaced that of an earlier process in its pinned link.
    TookOver,
    /// In a new link, which ends with the process until it is pinned.
    New(NewLink),
    /// It does not: native mode is configured, and the driver refused for this cause.
    NoNative(String),
}

/// A link that is not pinned yet.
#[derive(Debug)]
pub struct NewLink {
    link: FdLink,
    pin: PathBuf,
}

impl NewLink {
    /// Lets the link outlive the process.
    ///
    /// # Errors
    ///
    /// If bpffs refuses the pin.
    pub fn keep(self) -> Result<()> {
        let Self { link, pin } = self;
        link.pin(&pin)
            .map(drop)
            .with_context(|| format!("pin a link at {}", pin.display()))
    }
}

/// The pinned links of the programs, each held by this process too: without its pin a link would end, and its
/// program with it.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<PathBuf, FdLink>);

impl Held {
    /// Holds the link that is pinned there. If there is none, the link that was is pinned again; returns
    /// whether it was.
    ///
    /// # Errors
    ///
    /// If bpffs refuses.
    pub fn keep(&mut self, pin: &Path) -> Result<bool> {
        let was_missing = !pin.exists();
        if was_missing {
            let Some(link) = self.0.remove(pin) else {
                return Ok(false);
            };
            let pinned = link.pin(pin);
            pinned.with_context(|| format!("pin a link at {}", pin.display()))?;
        }
        let link = PinnedLink::from_pin(pin);
        let link = link.with_context(|| format!("open the link {}", pin.display()))?;
        self.0.insert(pin.to_owned(), link.into());
        Ok(was_missing)
    }

    /// Lets a link go, whose program is detached.
    pub fn forget(&mut self, pin: &Path) {
        self.0.remove(pin);
    }

    /// Lets all others go.
    pub fn retain(&mut self, is_used: impl Fn(&Path) -> bool) {
        self.0.retain(|pin, _| is_used(pin));
    }
}

/// Runs `program` on `interface`: takes over the pinned link of an earlier process in its mode, or
/// attaches in `mode`.
///
/// # Errors
///
/// If the interface already runs another XDP program, or refuses the generic mode.
pub fn attach(
    program: &mut Xdp,
    name: &str,
    interface: &str,
    ifindex: u32,
    pin: PathBuf,
    mode: Mode,
) -> Result<Attached> {
    if take_over(program, &pin).with_context(|| format!("replace {name} on {interface}"))? {
        return Ok(Attached::TookOver);
    }
    let kernel_mode = match mode {
        Mode::Native => XdpMode::Driver,
        Mode::Generic => XdpMode::Skb,
    };
    let link = match program.attach(ifindex, kernel_mode) {
        Ok(link) => link,
        Err(error) if is_busy(&error) => bail!(
            "attach {name} to {interface}: it already runs an XDP program; `ip link show dev \
             {interface}` names it, `lb down --instance NAME` removes one of ours"
        ),
        Err(error) if mode == Mode::Native && has_no_native(&error) => {
            return Ok(Attached::NoNative(cause(&error)));
        }
        Err(error) => bail!(
            "attach {name} to {interface} in {mode} mode: {}",
            cause(&error)
        ),
    };
    let link: FdLink = program
        .take_link(link)?
        .try_into()
        .map_err(|error| anyhow!("attach {name} to {interface}: no bpf_link: {error}"))?;
    Ok(Attached::New(NewLink { link, pin }))
}

/// Replaces the program of a pinned link in place; returns whether there is such a link. The pin itself is never touched: a
/// hard link is opened in its place, so a crash at any point leaves the program attached.
///
/// # Errors
///
/// If the kernel or bpffs refuses.
pub fn take_over(program: &mut Xdp, pin: &Path) -> Result<bool> {
    if !pin.exists() {
        return Ok(false);
    }
    let name = pin.file_name().unwrap_or_default().to_string_lossy();
    let twin = pin.with_file_name(format!("tmp-{name}"));
    match fs::remove_file(&twin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::hard_link(pin, &twin).with_context(|| format!("hard link {}", twin.display()))?;
    let link: FdLink = PinnedLink::from_pin(&twin)?.unpin()?;
    let link: XdpLink = link.try_into()?;
    match program.attach_to_link(link) {
        Ok(link) => {
            // The pin holds it. In the program it would stay open as long as the process runs.
            drop(program.take_link(link)?);
            Ok(true)
        }
        // The interface of the link is gone, and this one has been given its index.
        Err(ProgramError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(nix::libc::ENOLINK) =>
        {
            fs::remove_file(pin)
                .with_context(|| format!("remove the dead link {}", pin.display()))?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the driver has no native XDP, or none with this MTU; anything else may pass.
fn has_no_native(error: &ProgramError) -> bool {
    let ProgramError::SyscallError(error) = error else {
        return false;
    };
    matches!(
        error.io_error.raw_os_error(),
        Some(nix::libc::EOPNOTSUPP | nix::libc::ERANGE)
    )
}

fn is_busy(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error)
        if error.io_error.kind() == io::ErrorKind::ResourceBusy)
}

/// The system's words for a failed attach.
fn cause(error: &ProgramError) -> String {
    match error {
        ProgramError::SyscallError(error)
            if error.io_error.raw_os_error() == Some(nix::libc::ERANGE) =>
        {
            format!("the MTU is too large for XDP ({})", error.io_error)
        }
        ProgramError::SyscallError(error) => error.io_error.to_string(),
        other => other.to_string(),
    }
}
