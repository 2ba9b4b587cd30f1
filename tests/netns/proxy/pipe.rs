//! What follows a ClientHello is moved by the kernel and not copied by us: FEATURES B14, as strace sees it.

use std::{
    fs,
    io::Read,
    net::{Shutdown, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::lb::Lb,
    topology::Topology,
    traffic::{
        conn_pair::Pair,
        hello::named,
        pattern::{Pattern, copy_digest},
    },
};

use crate::proxy::relayed;

/// Bytes that go each way, and the word each way that a line begins with.
const BULK: u64 = 20 << 20;
const WORDS: u64 = 7 + 5;
/// How long strace may take.
const SOON: Duration = Duration::from_secs(10);
/// The threads that carry bytes: those of the clients' network and that of the backends'.
const THREADS: [&str; 2] = ["vip-tenant-a", "vip-mgmt"];
/// All by which bytes are moved.
const CALLS: &str = "splice,tee,sendfile,read,readv,pread64,preadv,preadv2,recvfrom,recvmsg,recvmmsg,\
    write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,sendmmsg,vmsplice,io_uring_enter";
/// Bytes beside the hello: threads wake each other by a number.
const WAKES: u64 = 256;

/// B14: only the hello is copied, once in and once out; all that follows it goes by `splice`, into a pipe and
/// out of it.
#[privileged_test]
fn b14_what_follows_the_hello_is_not_copied() -> Result<()> {
    let topology = Topology::poc()?;
    let line = relayed::line(&topology)?;
    let mut lb = Lb::start(&topology, &relayed::config(&topology))?;
    let calls = topology.dir().join("calls");
    let _strace = strace(&topology, lb.process(), &calls.to_string_lossy())?;

    let Pair { client, server, .. } = line.open()?;
    carry(&client, &server, BULK)?;
    carry(&server, &client, BULK)?;

    let expected = 2 * (WORDS + 2 * BULK);
    let (spliced, copied) = poll::until("all calls", SOON, || {
        let (spliced, copied) = bytes(&fs::read_to_string(&calls)?);
        Ok((spliced >= expected).then_some((spliced, copied)))
    })?;
    println!("{spliced} bytes by splice, {copied} copied");
    assert_eq!(spliced, expected);
    let hello = u64::try_from(named(relayed::NAME.as_bytes()).len())?;
    ensure!(
        (2 * hello..=2 * hello + WAKES).contains(&copied),
        "{copied} bytes copied for a hello of {hello}"
    );
    Ok(())
}

/// Notes the calls of the threads in a file.
fn strace(topology: &Topology, lb: &Process, file: &str) -> Result<Process> {
    let mut words = ["-e", "signal=none", "-s", "0", "-o", file, "-e"]
        .map(str::to_owned)
        .to_vec();
    words.push(format!("trace={CALLS}"));
    let threads = THREADS
        .iter()
        .map(|name| lb.threads(name))
        .collect::<Result<Vec<_>>>()?
        .concat();
    for thread in &threads {
        words.extend(["-p".to_owned(), thread.to_string()]);
    }
    let mut strace = Process::start(
        &topology.lb.path(),
        topology.dir(),
        "strace",
        "strace",
        &words,
    )?;
    for thread in &threads {
        strace.wait_for_stderr(&format!("Process {thread} attached"), SOON)?;
    }
    Ok(strace)
}

/// Sends so many bytes from one end to the other.
pub(crate) fn carry(from: &TcpStream, mut to: &TcpStream, bytes: u64) -> Result<()> {
    carry_to(from, &mut to, (bytes, bytes))
}

/// The same to a client that reads as it likes; equal seeds make equal bytes.
pub(crate) fn carry_to(
    mut from: &TcpStream,
    to: &mut impl Read,
    (bytes, seed): (u64, u64),
) -> Result<()> {
    thread::scope(|scope| {
        let sender = scope.spawn(move || Pattern::new(seed).send(&mut from, bytes));
        let received = copy_digest(to, bytes);
        if received.is_err() {
            // No copy waits for room any more.
            let _ended = from.shutdown(Shutdown::Both);
        }
        let sent = sender.join().expect("the sender does not panic");
        let (received, sent) = (received?, sent?);
        ensure!(sent == received, "other bytes came than went");
        Ok(())
    })
}

/// How many bytes the calls have moved by `splice`, and how many otherwise.
fn bytes(calls: &str) -> (u64, u64) {
    let (mut spliced, mut copied) = (0, 0);
    for line in calls.lines() {
        // A call that another thread's came between ends on a line of its own.
        let is_splice = line.contains(" splice(") || line.contains("<... splice resumed>");
        let result = line
            .rsplit_once(" = ")
            .and_then(|(_, result)| result.split(' ').next());
        let Some(Ok(bytes)) = result.map(str::parse::<u64>) else {
            continue;
        };
        match is_splice {
            true => spliced += bytes,
            false => copied += bytes,
        }
    }
    (spliced, copied)
}
