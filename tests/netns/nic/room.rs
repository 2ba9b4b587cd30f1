//! The room in the kernel's table of neighbours: made for the first instance on a host, kept until the last
//! has gone. It is the whole host's, so this is done there and not in a namespace.

use std::{io::Write as _, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    leftovers::{self, Run},
    oracle::neighbours::{self, Changed, DEFAULTS, Limits},
    process,
    product::lb::{self, USER},
    topology::CONFIG,
};

const RAISED: Limits = [1024, 8192, 65_536];

/// What `lb` says to these words about an instance.
fn tell(run: &Run, words: &[&str]) -> Result<String> {
    let mut command = Command::new(lb::binary("LB_BIN", "lb")?);
    process::succeed(command.args(words).args(["--instance", run.name()]))
}

#[privileged_test]
fn the_first_instance_of_a_host_makes_room_and_the_last_gives_it_back() -> Result<()> {
    ensure!(
        !Path::new("/run/lb/neighbours.json").exists(),
        "another instance on this host needs the room: `lb down` it first"
    );
    let _limits = Changed::to(DEFAULTS)?;
    let [one, two] = [Run::new()?, Run::new()?];
    let mut file = tempfile::NamedTempFile::new().context("make a file")?;
    file.write_all(CONFIG.as_bytes())?;
    let config = file.path().to_str().context("a name in text")?;
    let prepare =
        |run: &Run, user: &str| tell(run, &["prepare", "--config", config, "--user", user]);

    let said = prepare(&one, "root")?;
    let words = "net.ipv6.neigh.default.gc_thresh3 from 1024 to 65536";
    ensure!(said.contains(words), "{said}");
    ensure!(
        neighbours::now()? == [RAISED; 2],
        "{:?}",
        neighbours::now()?
    );
    for said in [prepare(&one, "root")?, prepare(&two, &USER.to_string())?] {
        ensure!(!said.contains("gc_thresh"), "{said}");
    }
    for _ in 0..2 {
        tell(&one, &["down"])?;
        ensure!(
            neighbours::now()? == [RAISED; 2],
            "{:?}",
            neighbours::now()?
        );
    }
    tell(&two, &["down"])?;
    ensure!(
        neighbours::now()? == [DEFAULTS; 2],
        "{:?}",
        neighbours::now()?
    );
    for run in [&one, &two] {
        let left = leftovers::traces_of(run.name());
        ensure!(left.is_empty(), "{left:?}");
    }
    Ok(())
}
