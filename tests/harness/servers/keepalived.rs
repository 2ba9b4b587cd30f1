//! Debian's keepalived on both boxes: it gives the marker to one of them, and to the other one when that is gone.
//!
//! A box gets the marker when it hears the other one neither on the sync LAN nor on the management LAN, so the loss of
//! one of them makes no second active box. How that is done is in `config/keepalived`.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    poll,
    process::Process,
    product::lb::binary,
    topology::{BoxName, MARKER, MGMT_NIC, SYNC_NIC, TwoBoxes},
};

const TEMPLATE: &str = include_str!("../../../config/keepalived/keepalived.conf");
/// What takes the place of a command of `lb` where that is not there.
const NOTHING: &str = "/bin/true";
/// How long it may take until it listens.
const START: Duration = Duration::from_secs(10);
/// How long a killed one may take to be gone.
const END: Duration = Duration::from_secs(10);
/// Of the host's address on the management LAN.
const MGMT_BITS: u8 = 20;

/// keepalived on one box, until this is dropped.
#[derive(Debug)]
pub struct Keepalived {
    process: Process,
    /// The id of its child, which speaks VRRP.
    child: PathBuf,
}

impl Keepalived {
    /// Starts it on a box, whose host gets an address on the management LAN. The one that is started first gets
    /// the marker.
    ///
    /// # Errors
    ///
    /// When it is not there, or refuses its configuration.
    pub fn start(pair: &TwoBoxes, name: BoxName) -> Result<Self> {
        Self::start_by(pair, name, &config(name, [NOTHING; 2]))
    }

    /// The same beside `lb` on both boxes, by whose health the marker goes, and which is silent without it.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_beside_lb(pair: &TwoBoxes, name: BoxName) -> Result<Self> {
        let program = binary("LB_BIN", "lb")?;
        let command = |words| {
            format!(
                "{} {words} --instance {}",
                program.display(),
                pair.site(name).run()
            )
        };
        let commands = [command("health --box"), command("ha fence")];
        let commands = commands.each_ref().map(String::as_str);
        Self::start_by(pair, name, &config(name, commands))
    }

    /// As [`Self::start`], where `vip` moves with the marker, between NICs of this name.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_with_vip(
        pair: &TwoBoxes,
        name: BoxName,
        vip: Ipv4Addr,
        nic: &str,
    ) -> Result<Self> {
        let marker = format!("{MARKER}/32 dev lo\n");
        let both = format!("{marker}{vip}/24 dev {nic}\n");
        Self::start_by(
            pair,
            name,
            &config(name, [NOTHING; 2]).replace(&marker, &both),
        )
    }

    fn start_by(pair: &TwoBoxes, name: BoxName, config: &str) -> Result<Self> {
        let site = pair.site(name);
        let host = format!("{}/{MGMT_BITS}", name.host());
        site.lb
            .run(&format!("ip addr replace {host} dev {MGMT_NIC}"))?;
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path in text");
        let config = text(&site.write("keepalived.conf", config)?)?;
        let [parent, child] = ["parent.pid", "child.pid"].map(|file| site.dir().join(file));
        let (parent, child_text) = (text(&parent)?, text(&child)?);
        // It stays in front, without health checks, writes its log to its output, and ends when its child does.
        let how = ["-n", "-P", "-l", "-D", "-G", "-R"];
        let files = ["-f", &config, "-p", &parent, "-r", &child_text];
        let args = [how, files].concat();
        let process = Process::start(
            &site.lb.path(),
            site.dir(),
            "keepalived",
            "keepalived",
            &args,
        )?;
        let mut keepalived = Self { process, child };
        keepalived.wait_for_start()?;
        Ok(keepalived)
    }

    /// Its log.
    pub fn log(&self) -> String {
        [self.process.stdout(), self.process.stderr()].concat()
    }

    /// Has it end in order: it gives the marker up, and lets the other one know.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn begin_stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)
    }

    /// The same, and waits until it has ended.
    ///
    /// # Errors
    ///
    /// When it had to be killed.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop().map(drop)
    }

    /// Ends it at once, as a loss of power does: it says nothing more, and the marker stays where it is.
    ///
    /// # Errors
    ///
    /// When it has ended already.
    pub fn kill(mut self) -> Result<()> {
        let child = self.child_id()?.context("it has no child")?;
        // The parent has the id of its child until it has run, and this process that of the parent: neither can
        // be that of another process.
        self.process.signal(Signal::SIGSTOP)?;
        kill(child, Signal::SIGKILL).context("kill the child")?;
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait_for_end(END).map(drop)
    }

    fn wait_for_start(&mut self) -> Result<()> {
        let started = poll::until("keepalived is up", START, || {
            let ended = self.process.ended()?;
            ensure!(ended.is_none(), "keepalived ended");
            let is_up = self.child_id()?.is_some() && self.log().contains("Startup complete");
            Ok(is_up.then_some(()))
        });
        started.with_context(|| self.log())
    }

    fn child_id(&self) -> Result<Option<Pid>> {
        let text = fs::read_to_string(&self.child).unwrap_or_default();
        let id = Some(text.trim()).filter(|id| !id.is_empty());
        let id = id.map(|id| id.parse().map(Pid::from_raw));
        id.transpose().context("the id of keepalived's child")
    }
}

/// Both have the same one but for their addresses, and the first one has the higher priority.
fn config(name: BoxName, [health, fence]: [&str; 2]) -> String {
    let other = name.other();
    let priority = match name {
        BoxName::Lb1 => "200",
        BoxName::Lb2 => "199",
    };
    let words = [
        ("LB_HEALTH", health.to_owned()),
        ("LB_FENCE", fence.to_owned()),
        ("PRIORITY", priority.to_owned()),
        ("SYNC_NIC", SYNC_NIC.to_owned()),
        ("MGMT_NIC", MGMT_NIC.to_owned()),
        ("OWN_SYNC", name.sync().ip().to_string()),
        ("PEER_SYNC", other.sync().ip().to_string()),
        ("OWN_HOST", name.host().to_string()),
        ("PEER_HOST", other.host().to_string()),
        ("MARKER", MARKER.to_string()),
    ];
    words
        .iter()
        .fold(TEMPLATE.to_owned(), |text, (word, value)| {
            text.replace(word, value)
        })
}
