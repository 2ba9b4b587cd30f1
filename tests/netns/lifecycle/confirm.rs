//! `lb run --confirm` and `--careful`: a change on the operator's way in undoes itself.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    leftovers,
    oracle::observe,
    poll, process,
    product::lb::{Lb, binary, start_fails_with},
    servers::peers::Peers,
    topology::{CONFIG, ECHO, MGMT_NIC, TENANT_NIC, Topology},
    traffic::client,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// As [`CONFIRM`] on the command line, and a moment to take everything down.
const UNDONE: Duration = Duration::from_secs(20);
const CONFIRM: &str = "3s";

#[privileged_test]
fn what_nobody_confirms_is_taken_down_again() -> Result<()> {
    let topology = Topology::poc()?;

    let failure = start_fails_with(&topology, CONFIG, &["--confirm", CONFIRM])?;

    assert_eq!(failure.code, Some(1), "{failure:?}");
    assert!(
        failure.stdout.starts_with("ready"),
        "it was up: {failure:?}"
    );
    assert_eq!(
        failure.message(),
        "lb: not confirmed in time: taken down again"
    );
    for nic in [TENANT_NIC, MGMT_NIC] {
        assert!(observe::link(&topology.lb, nic)?.xdp.is_none(), "{nic}");
    }
    assert_eq!(leftovers::traces_of(topology.run()), Vec::<PathBuf>::new());
    Ok(())
}

/// A hang-up is what a lost SSH session leaves; a kill is worse.
#[privileged_test]
fn a_signal_before_the_confirmation_takes_it_down() -> Result<()> {
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGKILL] {
        let topology = Topology::poc()?;
        let mut child = Unconfirmed::start(&topology, CONFIG, "60s")?;
        kill(child.pid()?, signal)?;
        child.0.wait()?;
        for nic in [TENANT_NIC, MGMT_NIC] {
            assert!(
                observe::link(&topology.lb, nic)?.xdp.is_none(),
                "{nic} after {signal}"
            );
        }
        if signal == Signal::SIGKILL {
            down(&topology)?;
        }
        assert_eq!(
            leftovers::traces_of(topology.run()),
            Vec::<PathBuf>::new(),
            "{signal}"
        );
    }
    Ok(())
}

#[privileged_test]
fn enter_keeps_it() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let mut child = Unconfirmed::start(&topology, CONFIG, CONFIRM)?;
    child.confirm()?;

    // Well past the deadline.
    let ended = poll::until("the end of lb", Duration::from_secs(6), || {
        Ok(child.0.try_wait()?)
    });
    assert!(ended.is_err(), "it goes on: {ended:?}");
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;

    kill(child.pid()?, Signal::SIGTERM)?;
    assert_eq!(child.0.wait()?.code(), Some(0));
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;

    let failure = start_fails_with(&topology, CONFIG, &["--confirm", CONFIRM])?;
    assert_eq!(failure.code, Some(1), "{failure:?}");
    assert!(failure.message().contains("is up already"), "{failure:?}");
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    down(&topology)
}

/// `lb run --confirm` that waits for Enter; killed on drop.
pub(crate) struct Unconfirmed(Child);

impl Unconfirmed {
    /// Starts it and waits until it is attached.
    pub(crate) fn start(topology: &Topology, config: &str, patience: &str) -> Result<Self> {
        let config = topology.write("confirm.yaml", config)?;
        let mut command = topology.lb.command("setpriv");
        let child = command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(binary("LB_BIN", "lb")?)
            .args([
                "run",
                "--instance",
                topology.run(),
                "--confirm",
                patience,
                "-c",
            ])
            .arg(config)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start lb")?;
        let child = Self(child);
        let attached = || Ok(observe::link(&topology.lb, TENANT_NIC)?.xdp.map(drop));
        poll::until("the program on the NIC", UNDONE, attached)?;
        Ok(child)
    }

    /// Presses Enter.
    pub(crate) fn confirm(&mut self) -> Result<()> {
        let mut terminal = self.0.stdin.take().context("a pipe")?;
        Ok(terminal.write_all(b"\n")?)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(i32::try_from(self.id())?))
    }
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

pub(crate) fn down(topology: &Topology) -> Result<()> {
    let mut command = topology.lb.command(binary("LB_BIN", "lb")?);
    process::succeed(command.args(["down", "--instance", topology.run()])).map(drop)
}

#[privileged_test]
fn a_careful_start_refuses_the_interface_of_the_default_route() -> Result<()> {
    let topology = Topology::poc()?;
    topology
        .lb
        .run(&format!("ip address add 10.32.96.10/20 dev {MGMT_NIC}"))?;
    topology.lb.run("ip route add default via 10.32.96.105")?;

    let failure = start_fails_with(&topology, CONFIG, &["--careful"])?;

    assert_eq!(failure.code, Some(1), "{failure:?}");
    assert_eq!(
        failure.message(),
        "lb: interface eth1 carries the default route; add `--confirm 60s`: everything is taken \
         down again unless you confirm, or `--no-careful`: it is taken as any other"
    );
    assert_eq!(leftovers::traces_of(topology.run()), Vec::<PathBuf>::new());
    Ok(())
}

/// Without a terminal the first start refuses the interface of a default route, of either family, and the switch says
/// that it is meant; later starts come up again over what is there. On a terminal each start refuses it.
#[privileged_test]
fn the_interface_of_the_default_route_is_taken_when_the_operator_says_so() -> Result<()> {
    for ipv6 in [false, true] {
        let topology = Topology::poc()?;
        if ipv6 {
            topology
                .lb
                .add_ipv6(MGMT_NIC, &["fd00:32::10/64".to_owned()])?;
            topology
                .lb
                .run("ip -6 route add default via fd00:32::105")?;
        } else {
            topology
                .lb
                .run(&format!("ip address add 10.32.96.10/20 dev {MGMT_NIC}"))?;
            topology.lb.run("ip route add default via 10.32.96.105")?;
        }
        let failure = start_fails_with(&topology, CONFIG, &[])?;
        assert_eq!(failure.code, Some(1), "{failure:?}");
        ensure!(failure.message().contains("`--no-careful`"), "{failure:?}");
        assert_eq!(leftovers::traces_of(topology.run()), Vec::<PathBuf>::new());

        let mut lb = Lb::start_with(&topology, CONFIG, &["--no-careful"])?;
        // An upgrade by a unit of before, which does not know the switch.
        lb.process().stop()?;
        lb.restart(CONFIG)?;
        let _before = lb.take_over(CONFIG)?;
        lb.process().stop()?;

        let said = on_a_terminal(&topology, "")?;
        ensure!(said.contains("carries the default route"), "{said}");
        ensure!(!said.contains("--confirm"), "it is up: {said}");
        ensure!(!said.contains("ready: "), "{said}");
        let said = on_a_terminal(&topology, "--no-careful")?;
        ensure!(said.contains("ready: "), "{said}");
        lb.down()?;
    }
    Ok(())
}

/// What `lb run` says on a terminal, which is ended when it is ready.
fn on_a_terminal(topology: &Topology, option: &str) -> Result<String> {
    let config = topology.write("terminal.yaml", CONFIG)?;
    let words = format!(
        "timeout --signal=TERM 8 {} run --instance {} {option} -c {}",
        binary("LB_BIN", "lb")?.display(),
        topology.run(),
        config.display()
    );
    let mut command = topology.lb.command("script");
    let output = command
        .args(["--quiet", "--return", "--command", &words, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .context("start script(1)")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
