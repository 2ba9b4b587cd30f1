//! The lab of `cargo xtask run`: FEATURES H1.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use lb_tests::{netns, process::Process, product::lb::binary};
use nix::sys::signal::Signal;

/// The lab builds its networks, loads the programs and drives its traffic in this time.
const PROOF: Duration = Duration::from_secs(180);
const CLEAN_UP: Duration = Duration::from_secs(30);

/// The namespace that this test runs in: the lab makes its own.
const HERE: &str = "/proc/self/ns/net";

/// H1: one command, and the API answers through the VIP.
#[privileged_test]
fn the_lab_proves_itself_once() -> Result<()> {
    let dir = tempfile::tempdir().context("make a temporary folder")?;
    let mut lab = start(dir.path(), &["--once"])?;

    let status = lab.wait_for_end(PROOF)?;

    assert_eq!(status.code(), Some(0), "{}\n{}", lab.stdout(), lab.stderr());
    assert!(
        lab.stdout().contains("tenant-b: curl 192.168.203.110:6443"),
        "{}",
        lab.stdout()
    );
    assert_eq!(namespaces_of(&lab)?, Vec::<String>::new());
    Ok(())
}

/// Three clusters on one address, by SNI and Host, with the file that an operator starts from.
#[privileged_test]
fn the_lab_of_three_clusters_proves_itself_once() -> Result<()> {
    let dir = tempfile::tempdir().context("make a temporary folder")?;
    let mut lab = start(dir.path(), &["--clusters", "--once"])?;

    let status = lab.wait_for_end(PROOF)?;

    assert_eq!(status.code(), Some(0), "{}\n{}", lab.stdout(), lab.stderr());
    let proved = "curl https://api.managed2.linuxera.lab:6443";
    assert!(lab.stdout().contains(proved), "{}", lab.stdout());
    assert_eq!(namespaces_of(&lab)?, Vec::<String>::new());
    Ok(())
}

/// The three load balancers of one tenant, with the file that an operator starts from.
#[privileged_test]
fn the_lab_of_one_tenants_three_load_balancers_proves_itself_once() -> Result<()> {
    let dir = tempfile::tempdir().context("make a temporary folder")?;
    let mut lab = start(dir.path(), &["--poc", "--once"])?;

    let status = lab.wait_for_end(PROOF)?;

    assert_eq!(status.code(), Some(0), "{}\n{}", lab.stdout(), lab.stderr());
    for proved in [
        "curl https://192.168.203.110:6443 ",
        "curl https://konnectivity.tenant-a.example.com ",
        "openssl -servername oauth.tenant-b.example.com ",
    ] {
        assert!(lab.stdout().contains(proved), "{}", lab.stdout());
    }
    assert_eq!(namespaces_of(&lab)?, Vec::<String>::new());
    Ok(())
}

/// Ctrl-C leaves nothing behind.
#[privileged_test]
fn ctrl_c_ends_the_lab_and_removes_everything() -> Result<()> {
    let dir = tempfile::tempdir().context("make a temporary folder")?;
    let mut lab = start(dir.path(), &[])?;
    lab.wait_for_stdout("Ctrl-C", PROOF)?;
    assert!(!namespaces_of(&lab)?.is_empty(), "the lab stays up");

    lab.signal(Signal::SIGINT)?;
    let status = lab.wait_for_end(CLEAN_UP)?;

    assert_eq!(status.code(), Some(0), "{}\n{}", lab.stdout(), lab.stderr());
    assert_eq!(namespaces_of(&lab)?, Vec::<String>::new());
    Ok(())
}

/// Ctrl-C in the middle is no different: whatever is there by then goes.
#[privileged_test]
fn ctrl_c_while_the_lab_is_being_built_removes_everything() -> Result<()> {
    let dir = tempfile::tempdir().context("make a temporary folder")?;
    let mut lab = start(dir.path(), &[])?;
    lab.wait_for_stdout("lab", PROOF)?;

    lab.signal(Signal::SIGINT)?;
    let status = lab.wait_for_end(PROOF)?;

    assert_eq!(status.code(), Some(1), "{}\n{}", lab.stdout(), lab.stderr());
    assert_eq!(namespaces_of(&lab)?, Vec::<String>::new());
    Ok(())
}

fn start(dir: &Path, args: &[&str]) -> Result<Process> {
    Process::start(
        Path::new(HERE),
        dir,
        "lab",
        binary("LB_LAB_BIN", "lb-lab")?,
        args,
    )
}

/// The namespaces that carry the pid of the lab, cells included.
fn namespaces_of(lab: &Process) -> Result<Vec<String>> {
    let run = format!("lbt{}-", lab.id());
    let entries = std::fs::read_dir(netns::FOLDER).context("list the namespaces")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.contains(&run)).collect())
}
