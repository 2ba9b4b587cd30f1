//! What an operator reads on a terminal, and what a pipe or a file gets of it.

use std::{fs, net::SocketAddrV4, process::Command};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll, process,
    product::lb::{Lb, binary, start_fails_with},
    topology::{ECHO, Topology},
    traffic::client,
};
use serde_json::json;

use crate::flows::{
    account::send_syn,
    life::{LIMIT, config, line},
};

/// Each dropped packet is logged with the names of `lb drops`, and with its ends where it was sampled.
#[privileged_test]
fn a_dropped_packet_is_logged_with_names() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| {
        service.with("deny: [192.168.203.51/32]")
    });
    let mut lb = Lb::start_with(&topology, &config, &["--trace-drops"])?;
    let denied = &topology.clients[1];
    for port in [20_001, 20_002] {
        let from = SocketAddrV4::new(denied.address, port);
        send_syn(&topology, denied, from)?;
        let words = format!("nic tenant-a denied: tcp {from} > {ECHO} SYN, 54 bytes");
        lb.process().wait_for_stderr(&words, LIMIT)?;
    }
    let log = lb.process().stderr();
    let lines = log.lines().filter(|line| line.contains(" denied"));
    assert_eq!(lines.count(), 2, "{log}");
    ensure!(!log.contains("hook 0"), "{log}");
    Ok(())
}

/// A plan and the answer of a reload say how many flows end, and of how many.
#[privileged_test]
fn a_change_says_how_many_flows_it_ends() -> Result<()> {
    let topology = Topology::poc()?;
    let before = config();
    let lb = Lb::start(&topology, &before)?;
    let stays = line(&topology)?;
    let _pairs = [stays.open()?, stays.open()?];
    let other = &topology.clients[1].netns;
    let _ends = other.inside(|| client::open(None, ECHO))??;
    let after = before.clone().service("echo-a", |service| {
        service.with("deny: [192.168.203.51/32]")
    });
    let file = topology.write("after.yaml", &after)?;
    let file = file.to_str().context("a path")?;
    let words = "ends: service echo-a: the flows of clients that it does not allow any more end \
                (1 of 3 flows)";
    let plan = lb.tell(&["plan", file])?;
    assert_eq!(plan.code, Some(3), "{plan:?}");
    let found = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("ends: "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(found(&plan.stdout), [words]);
    assert_eq!(found(&lb.tell(&["reload", file])?.done()?), [words]);
    poll::until("the end of the flow", LIMIT, || {
        Ok((lb.flows()?.len() == 2).then_some(()))
    })?;

    // Nothing of it ends; a backend that goes has the others.
    let gone = after
        .clone()
        .pool("echo-a", |pool| pool.set("backends", json!([])));
    let file = topology.write("gone.yaml", &gone)?;
    let plan = lb.tell(&["plan", file.to_str().context("a path")?])?;
    let ends = found(&plan.stdout);
    ensure!(
        ends.len() == 1
            && ends[0].starts_with("ends: backend echo-a/")
            && ends[0].ends_with(" (2 flows)"),
        "{plan:?}"
    );
    Ok(())
}

/// Has the process that runs log something, and answer.
fn ensure_it_goes_on(lb: &Lb<'_>) -> Result<()> {
    for _ in 0..3 {
        lb.tell(&["reload"])?.done()?;
    }
    let applied = lb.events()?;
    let applied = applied.iter().filter(|event| event.kind == "reload");
    ensure!(applied.count() >= 3, "{:?}", lb.events()?);
    Ok(())
}

/// A control plane whose standard output and error no process reads any more goes on. `--detach` relays what the new
/// process logs until it is ready, and leaves the pipe then, so that its reader ends.
#[privileged_test]
fn a_control_plane_outlives_the_readers_of_its_output() -> Result<()> {
    let topology = Topology::poc()?;
    let readers = r#"exec "$0" "$@" > >(exec head -n 1) 2> >(exec head -n 1 >&2)"#;
    let config = config();
    let mut lb = Lb::start_through(&topology, &config, &["bash", "-c", readers])?;
    ensure_it_goes_on(&lb)?;

    let file = lb.file();
    let file = file.to_str().context("a path")?;
    let said = lb.tell(&["run", "-c", file, "--takeover", "--detach"])?;
    assert_eq!(said.code, Some(0), "{said:?}");
    ensure!(said.stdout.starts_with("ready: "), "{said:?}");
    ensure!(
        said.stderr.contains("what it logs from here on is lost"),
        "{said:?}"
    );
    assert_eq!(lb.process().wait_for_end(LIMIT)?.code(), Some(0));
    ensure_it_goes_on(&lb)?;
    // One that this test can end takes over from it.
    lb.take_over(&config)?;
    ensure_it_goes_on(&lb)
}

/// A first start that cannot go on before the operator has confirmed it leaves nothing, and the next one is a first one.
#[privileged_test]
fn a_start_that_fails_before_it_is_confirmed_is_undone() -> Result<()> {
    let topology = Topology::poc()?;
    let options = ["--confirm", "60s"];
    let socket = format!("/run/lb/{}/lb.sock", topology.run());
    fs::create_dir_all(format!("{socket}/in-the-way"))?;
    let failure = start_fails_with(&topology, &config(), &options)?;
    assert_eq!(failure.code, Some(1), "{failure:?}");
    ensure!(
        failure
            .message()
            .starts_with("lb: not confirmed, and taken down again: open the admin socket"),
        "{failure:?}"
    );
    // The folder of the instance is gone with what it had.
    let lb = Lb::start_with(&topology, &config(), &options)?;
    lb.down()
}

/// Where the last reload was refused, `lb health` says so behind the rest, and its exit code is another one only where
/// that is wanted.
#[privileged_test]
fn a_stale_configuration_is_in_the_line_for_monitoring() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let health = |words: &[&str]| -> Result<(Option<i32>, String)> {
        let said = lb.tell(&[&["health"], words].concat())?;
        Ok((said.code, said.stdout.trim_end().to_owned()))
    };
    let ok = "ok: 2 of 2 backends up";
    assert_eq!(health(&["--strict"])?, (Some(0), ok.to_owned()));
    lb.write("version: [1")?;
    assert_eq!(lb.tell(&["reload"])?.code, Some(2));
    for (words, code) in [(&[][..], 0), (&["--strict"], 1)] {
        let (found, line) = health(words)?;
        let begin = format!("{ok}; configuration is stale: the last reload was refused (");
        ensure!(
            line.starts_with(&begin) && line.ends_with(" ago)"),
            "{line}"
        );
        assert_eq!(found, Some(code), "{line}");
    }
    lb.write(&config())?;
    lb.tell(&["reload"])?.done()?;
    assert_eq!(health(&["--strict"])?, (Some(0), ok.to_owned()));
    Ok(())
}

/// What follows the events ends with its reader, and not with the event that it could not print.
#[privileged_test]
fn what_follows_the_events_ends_with_its_reader() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    lb.reload(&config().service("echo-a", |service| service.with("idle_timeout: 3m")))?;
    let (program, instance) = (binary("LB_BIN", "lb")?, topology.run());
    let words = format!(
        "{} events --follow --instance {instance} | head -2",
        program.display()
    );
    let mut shell = Command::new("timeout");
    let line = process::succeed(shell.args(["10", "sh", "-c", &words]))?;
    ensure!(line.contains("reload"), "{line}");
    Ok(())
}
