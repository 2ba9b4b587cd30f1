//! What a shared VIP keeps for clients that have not said what they want yet: RELIABILITY 12, FEATURES B13.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use lb_tests::{
    poll,
    product::lb::Lb,
    servers::teller,
    topology::{Host, Topology},
    traffic::{
        client::open,
        hello::{CAPTURED_NAME, SERVER_NAME, TLS12, captured_of, hello, names},
    },
};

use crate::proxy::{
    guard::{config, tellers},
    sni::{SHARED, counted_refusal, send},
};

/// The alert of RFC 8446 section 6 for a hello that is longer than may be.
const ILLEGAL_PARAMETER: [u8; 7] = [21, 3, 1, 0, 2, 2, 47];
/// How long a thing may take that takes no time, and in which all is over that is on its way.
const SOON: Duration = Duration::from_secs(10);
const SETTLED: Duration = Duration::from_millis(500);

/// A hello that is longer than the service takes is refused with an alert; a shorter one is served.
#[privileged_test]
fn r12_a_hello_has_a_size() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, "max_hello: 1024"))?;
    let client = topology.client();
    let [short, long] = ["curl-h2", "like-chrome131"].map(captured_of);
    let (short, long) = (short?.bytes, long?.bytes);
    ensure!(short.len() == 517 && long.len() > 1024, "{}", long.len());

    assert_eq!(send(client, &[&long])?, ILLEGAL_PARAMETER);
    assert_eq!(counted_refusal(&lb, "long")?, 1);
    let reached = client
        .netns
        .inside(|| teller::ask(SHARED, &[&short], Duration::ZERO))??;
    ensure!(reached.as_deref() == Some("a"), "{reached:?}");
    assert_eq!(counted_refusal(&lb, "long")?, 1);
    Ok(())
}

/// A hello of more than 64 KiB is served where the service says so, and refused where it does not.
#[privileged_test]
fn r12_a_hello_may_be_longer() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, ""))?;
    let client = topology.client();
    let name = (SERVER_NAME, names(&[(0, CAPTURED_NAME.as_bytes())]));
    let long = hello(TLS12, &[(21, vec![0; 65_480]), name]);
    ensure!(long.len() > (64 << 10) + 4 + 5 * 5, "{}", long.len());

    assert_eq!(send(client, &[&long])?, ILLEGAL_PARAMETER);
    assert_eq!(counted_refusal(&lb, "long")?, 1);
    lb.reload(&config(&topology, "max_hello: 131396"))?;
    let reached = client
        .netns
        .inside(|| teller::ask(SHARED, &[&long], Duration::ZERO))??;
    ensure!(reached.as_deref() == Some("a"), "{reached:?}");
    assert_eq!(counted_refusal(&lb, "long")?, 1);
    Ok(())
}

/// How many connections of an address may be pending, and how many bytes of them are kept.
const OF_ONE: usize = 256;
const BYTES_OF_ONE: usize = 4 << 20;

/// One connection too many of an address that sends one byte takes the place of its oldest, and no other.
#[privileged_test]
fn r12_an_address_has_so_many_connections() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config(&topology, "hello_timeout: 1m"))?;
    let [greedy, other] = &topology.clients[..] else {
        bail!("there are two clients");
    };
    let byte = &captured_of("curl-h2")?.bytes[..1];
    // The oldest of all, and of its address: of those that come at once any may be first at a thread.
    let others = hold(other, 1, byte)?;
    let mut held = hold(greedy, 1, byte)?;
    thread::sleep(SETTLED);
    held.extend(hold(greedy, OF_ONE - 1, byte)?);
    thread::sleep(SETTLED);
    assert_eq!(closed(&held)?, Vec::<usize>::new());

    held.extend(hold(greedy, 1, byte)?);

    is_recycled(&lb, 1)?;
    assert_eq!(closed(&held)?, [0]);
    assert_eq!(closed(&others)?, Vec::<usize>::new());
    Ok(())
}

/// What each of those keeps that hold a part of a hello.
const PART: usize = 60 << 10;
const HOLDING: usize = 70;

/// Whose unfinished hellos are more bytes than one address may have kept loses the oldest of them, and not one
/// more than it takes: what is left of 70 times 60 KiB must not be more than 4 MiB.
#[privileged_test]
fn r12_an_address_has_so_many_bytes() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, "hello_timeout: 1m"))?;
    let [greedy, other] = &topology.clients[..] else {
        bail!("there are two clients");
    };
    let padding = (21, vec![0; 65_000]);
    let name = (SERVER_NAME, names(&[(0, CAPTURED_NAME.as_bytes())]));
    let whole = hello(TLS12, &[padding, name]);
    let fitting = BYTES_OF_ONE / PART;
    let held = hold(greedy, fitting, &whole[..PART])?;
    thread::sleep(SETTLED);
    assert_eq!(closed(&held)?, Vec::<usize>::new());

    let newer = hold(greedy, HOLDING - fitting, &whole[..PART])?;

    let gone: Vec<usize> = (0..HOLDING - fitting).collect();
    is_recycled(&lb, gone.len())?;
    assert_eq!(closed(&held)?, gone);
    assert_eq!(closed(&newer)?, Vec::<usize>::new());
    let reached = other
        .netns
        .inside(|| teller::ask(SHARED, &[&whole], Duration::ZERO))??;
    ensure!(reached.as_deref() == Some("a"), "{reached:?}");
    // The connections that are left may go on.
    let Some(mut last) = newer.last() else {
        bail!("no connection is left");
    };
    last.write_all(&whole[PART..])?;
    last.set_nonblocking(false)?;
    last.set_read_timeout(Some(SOON))?;
    let mut said = [0];
    last.read_exact(&mut said)?;
    assert_eq!(said, *b"a");
    Ok(())
}

/// Connections of a client, one after the other, each of which says this and no more.
pub(crate) fn hold(client: &Host, count: usize, says: &[u8]) -> Result<Vec<TcpStream>> {
    let from: Ipv4Addr = client.address;
    let open = || -> Result<TcpStream> {
        let mut stream = open(Some(from), SHARED)?;
        stream.write_all(says)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    client
        .netns
        .inside(|| (0..count).map(|_| open()).collect())?
}

/// Waits until so many have been sent away for others, and no more are.
fn is_recycled(lb: &Lb<'_>, count: usize) -> Result<()> {
    let count = u64::try_from(count)?;
    poll::until("those who are too many go", SOON, || {
        Ok((counted_refusal(lb, "recycled")? >= count).then_some(()))
    })?;
    thread::sleep(SETTLED);
    assert_eq!(counted_refusal(lb, "recycled")?, count);
    Ok(())
}

/// The numbers of those that have been closed, without a word.
pub(crate) fn closed(held: &[TcpStream]) -> Result<Vec<usize>> {
    let mut closed = Vec::new();
    for (number, mut stream) in held.iter().enumerate() {
        match stream.read(&mut [0]) {
            Ok(0) => closed.push(number),
            Ok(_) => bail!("number {number} got bytes"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(closed)
}
