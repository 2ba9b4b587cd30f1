//! One machine of QEMU: without a network but for wires between NICs of its own, in software, because a virtual machine cannot be counted on to lend what
//! a guest's kernel needs of KVM.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};

use super::{apt::Release, image::Image};
use crate::workspace::Workspace;

/// Memory, in MiB; what the guest does not touch is not taken.
const MEMORY: &str = "3072";
const CPUS: &str = "2";
/// The kernel's words. A busy machine's timer interrupts may come too late for its check of them at boot. Linux 6.1
/// waits for a grace period of RCU at each test run of a program, and an emulated one is long: 19 minutes of the packet
/// suite, where it is expedited four.
const WORDS: &str = "console=ttyS0 panic=-1 oops=panic quiet loglevel=5 net.ifnames=0 no_timer_check \
                     rcupdate.rcu_expedited=1";
/// What a kernel's log has for a fault of its own.
const COMPLAINTS: [&str; 4] = ["BUG:", "WARNING:", "Oops", "Call Trace"];
/// Lines of the console's end that explain a machine that ended too early.
const LAST_LINES: usize = 25;

/// What a machine has printed.
pub(super) struct Said {
    pub(super) output: String,
    console: String,
}

/// One thread for all CPUs. With a thread for each, a CPU may go on in code that another one has just changed, and
/// Linux dies of a breakpoint that it has taken out already: where two run programs of XDP, whose dispatcher is written
/// anew for each.
const ACCELERATOR: &str = "tcg,thread=single";

/// Runs a machine to its end, or for so long.
///
/// # Errors
/// When QEMU cannot be started.
pub(super) fn run(
    workspace: &Workspace,
    release: &Release,
    image: &Image,
    timeout: Duration,
) -> Result<Said> {
    let (console, output) = (image.file("console"), image.file("output"));
    let serial = |file: &Path| format!("file:{}", file.display());
    let machine = workspace.command("timeout").args(["-k", "5"]);
    let machine = machine.arg(timeout.as_secs().to_string());
    let machine = machine.args(["qemu-system-x86_64", "-accel", ACCELERATOR, "-cpu", "max"]);
    let machine = machine.args(["-smp", CPUS, "-m", MEMORY, "-nodefaults", "-no-user-config"]);
    let machine = machine.args(["-no-reboot", "-display", "none", "-monitor", "none"]);
    let machine = machine.args(nics());
    let machine = machine.args(["-serial", &serial(&console), "-serial", &serial(&output)]);
    let machine = machine.arg("-kernel").arg(&release.image);
    let machine = machine.arg("-initrd").arg(&image.archive);
    let ended = machine.args(["-append", WORDS]).announced_output()?;
    let read = |file: &Path| {
        let bytes = fs::read(file).with_context(|| {
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            format!("read {}; QEMU said: {said}", file.display())
        });
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""))
    };
    Ok(Said {
        output: read(&output)?,
        console: read(&console)?,
    })
}

/// Two wires with a virtio NIC at each end: those of the tenants and of the backends first, then their peers.
fn nics() -> Vec<String> {
    let ends = ["eth0", "eth1", "c0", "b0"].iter().enumerate();
    let nics = ends.flat_map(|(number, name)| {
        [
            "-netdev".to_owned(),
            format!("hubport,id={name},hubid={}", number % 2),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev={name},mac=02:00:00:00:00:0{number}"),
        ]
    });
    nics.collect()
}

impl Said {
    /// The first line of the kernel's log that reports a fault of its own.
    pub(super) fn complaint(&self) -> Option<&str> {
        let is_complaint = |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word));
        self.console.lines().find(is_complaint)
    }

    /// The last lines of its console.
    pub(super) fn console_end(&self) -> String {
        let lines: Vec<_> = self.console.lines().collect();
        let first = lines.len().saturating_sub(LAST_LINES);
        lines.get(first..).unwrap_or_default().join("\n")
    }
}
