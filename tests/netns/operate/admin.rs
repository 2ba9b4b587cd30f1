//! The admin socket among links, clients that say nothing, and those that say too much: RELIABILITY 37.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _, symlink},
        net::UnixStream,
    },
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    poll,
    product::lb::{Lb, start_fails, unprivileged},
    topology::Topology,
};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
};

/// How long the operator waits for an answer, at most.
const ANSWER: Duration = Duration::from_secs(1);
/// Clients that say half a request: four times as many as are served at a time.
const SILENT: usize = 64;
/// The most bytes of a request that are taken off, in the socket or by `lb`.
const TAKEN: usize = 4 << 20;

fn runtime(topology: &Topology) -> PathBuf {
    PathBuf::from("/run/lb").join(topology.run())
}

/// RELIABILITY 37: links at the names of the socket and the state, and beside them, are replaced and never
/// followed.
#[privileged_test]
fn r37_links_in_the_runtime_folder_lead_nowhere() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let folder = runtime(&topology);
    fs::create_dir_all(&folder)?;
    let (file, other) = (topology.dir().join("file"), topology.dir().join("other"));
    fs::create_dir(&other)?;
    for kept in [&file, &other.join("kept")] {
        fs::write(kept, "mine")?;
    }
    symlink(&other, folder.join("lb.sock.new"))?;
    let names = ["lb.sock", "state.json", "state.json.copy"];
    for name in names
        .into_iter()
        .chain(["state.json.new", "state.json.copy.new"])
    {
        symlink(&file, folder.join(name))?;
    }

    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    lb.tell(&["backend", "drain", topology.nodes[1].name])?
        .done()?;

    let socket = fs::symlink_metadata(folder.join("lb.sock"))?;
    ensure!(socket.file_type().is_socket(), "{socket:?}");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    for name in &names[1..] {
        let found = fs::symlink_metadata(folder.join(name))?;
        ensure!(found.is_file() && found.len() > 4, "{name}: {found:?}");
    }
    let mut left = fs::read_dir(&other)?;
    assert!(left.next().is_some() && left.next().is_none());
    for kept in [&file, &other.join("kept")] {
        assert_eq!(fs::read_to_string(kept)?, "mine");
        assert_eq!(fs::metadata(kept)?.permissions().mode() & 0o777, 0o644);
    }
    lb.down()
}

/// RELIABILITY 37: a runtime folder that is a link is refused, and nothing is made where it leads.
#[privileged_test]
fn r37_a_runtime_folder_that_is_a_link_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let (folder, other) = (runtime(&topology), topology.dir().join("other"));
    fs::create_dir(&other)?;
    symlink(&other, &folder)?;

    let failure = start_fails(&topology, topology.run(), &site.http(""))?;
    fs::remove_file(&folder)?;

    assert_eq!(failure.code, Some(1), "{failure:?}");
    let said = format!("{} is a symbolic link", folder.display());
    ensure!(failure.message().contains(&said), "{failure:?}");
    assert_eq!(fs::read_dir(&other)?.count(), 0);
    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up"], LIMIT)?;
    lb.down()
}

/// RELIABILITY 37: a peer that sends half a request keeps no other waiting; one that sends too much is cut off.
#[privileged_test]
fn r37_half_a_request_and_a_huge_one_keep_nobody_waiting() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up"], LIMIT)?;
    let socket = runtime(&topology).join("lb.sock");
    let head = "POST /v1/request HTTP/1.1\r\nHost: lb\r\nContent-Length: ";
    for half in [
        String::new(),
        head.to_owned(),
        format!("{head}99\r\n\r\n{{"),
    ] {
        let silent: Vec<UnixStream> = (0..SILENT)
            .map(|_| say(&socket, half.as_bytes()))
            .collect::<Result<_>>()?;
        let asked = Instant::now();
        let said = lb.tell(&["status"])?.done()?;
        let took = asked.elapsed();
        println!("answered after {took:?}");
        ensure!(took < ANSWER, "after {took:?}: {half:?}");
        ensure!(said.contains("generation"), "{said}");
        drop(silent);
    }

    for (huge, status) in [
        (format!("{head}99999999999\r\n\r\n"), "413"),
        (
            head.replace(
                "Content-Length: ",
                "Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
            ),
            "413",
        ),
        (head.to_owned(), "431"),
    ] {
        let (taken, answer) = pour(say(&socket, huge.as_bytes())?);
        println!("{taken} bytes, {answer:?}");
        ensure!(taken < TAKEN, "{taken} bytes of {huge:?}");
        ensure!(answer.is_empty() || answer.contains(status), "{answer}");
    }
    assert_eq!(lb.health()?[0].verdict, "up");
    lb.down()
}

/// A member of `admin.group` gets what changes nothing, over the socket, and is refused the rest; a user that is no
/// member is refused all. A reload takes the group away.
#[privileged_test]
fn members_of_the_group_may_look_and_change_nothing() -> Result<()> {
    const GROUP: &str = "65533";
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("");
    let lb = Lb::start(&topology, &config.clone().set("admin.group", GROUP))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let socket = runtime(&topology).join("lb.sock");
    let mode = fs::metadata(&socket)?.permissions().mode() & 0o777;
    ensure!([0o660, 0o666].contains(&mode), "{mode:o}");

    // The program may lie where no other user can read.
    unprivileged(&topology, "-all")?;
    let program = topology.dir().join("lb");
    let run = |groups: &str, words: &str| {
        topology.lb.try_run(&format!(
            "setpriv --reuid=65534 --regid=65534 {groups} -- {} {words} --instance {}",
            program.display(),
            topology.run()
        ))
    };
    let member = |words: &str| run(&format!("--groups={GROUP}"), words);
    let stranger = |words: &str| run("--clear-groups", words);
    let answer = member("events")?;
    let printed = String::from_utf8_lossy(&answer.stdout);
    ensure!(
        answer.status.success() && printed.contains("started ("),
        "{answer:?}"
    );
    let name = topology.nodes[0].name;
    for order in [
        &format!("backend drain {name}"),
        &format!("node disable {name}"),
        "flows --kill --all",
        "reload",
        "confirm",
    ] {
        let refused = member(order)?;
        let words = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{order}: {refused:?}");
        ensure!(words.contains("may only look"), "{order}: {words}");
    }
    let own = member(&format!("plan {}", lb.file().display()))?;
    ensure!(own.status.success(), "{own:?}");
    let other = member("plan /etc/passwd")?;
    let words = String::from_utf8_lossy(&other.stderr);
    ensure!(
        !other.status.success() && words.contains("the file of the instance alone"),
        "{other:?}"
    );
    let refused = stranger("events")?;
    let words = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        !refused.status.success() && words.contains("only root"),
        "{refused:?}"
    );
    let ordered = lb.events()?.into_iter().filter(|event| event.by.is_some());
    assert_eq!(ordered.count(), 0);

    lb.reload(&config)?;
    poll::until("the socket without the group", LIMIT, || {
        let mode = fs::metadata(&socket)?.permissions().mode() & 0o777;
        Ok((mode == 0o600).then_some(()))
    })?;
    ensure!(
        !member("events")?.status.success(),
        "a member is served still"
    );
    lb.down()
}

fn say(socket: &PathBuf, bytes: &[u8]) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(bytes)?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends more until the connection is closed: how much, and the answer if there was one.
fn pour(mut stream: UnixStream) -> (usize, String) {
    let mut taken = 0;
    while taken < TAKEN
        && let Ok(bytes) = stream.write(&[b'1'; 8192])
    {
        taken += bytes;
    }
    let mut answer = Vec::new();
    // A server that did not read all of it resets.
    let _reset = stream.read_to_end(&mut answer);
    (taken, String::from_utf8_lossy(&answer).into_owned())
}
