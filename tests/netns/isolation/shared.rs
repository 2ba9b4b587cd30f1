//! Attacks on what shared VIPs need: SNAT ports of hand-overs, descriptors, the kernel of a cell.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpStream},
    sync::Mutex,
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};
use lb_common::{addr::Mac, wire::header::ACK};
use lb_tests::{
    frames::{
        packet::{self, flags::SYN_ACK},
        raw::RawPort,
        segment::Segment,
    },
    oracle::wire::Wire,
    product::config::Keys,
    topology::{Trunk, VIP},
    traffic::{
        conn_pair,
        flood::Flood,
        hello::{hello, named, names},
    },
};

use super::{
    attack::{Attack, NOWHERE, connect, nowhere},
    endures,
    kind::Kind,
    scene::{ABSENT, NAME, SHARED, Scene, Setup, TENANTS, WEB},
    victim::Victim,
};

/// Segments per second.
const FLOOD: u32 = 10_000;
/// Hellos per second, and for how long: more than there are SNAT ports.
const HELLOS: u32 = 450;
const LEAD: Duration = Duration::from_secs(3);

/// SYNs to a shared VIP that no ACK follows.
#[privileged_test]
fn syns_to_a_shared_vip() -> Result<()> {
    floods("SYNs to a shared VIP", |next| {
        Flood::new([NOWHERE, next], nowhere(), SHARED)
    })
}

/// ACKs of no connection: the kernel of the cell answers each with a RST.
#[privileged_test]
fn acks_to_a_shared_vip() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let [_, next] = scene.hops()?;
    let frame = |port: u16| {
        let source = SocketAddrV4::new(nowhere()[usize::from(port % 100)], port);
        packet::tcp(&source.to_string(), &SHARED.to_string(), ACK)
            .numbers(port.into(), 1)
            .between(NOWHERE, next)
            .bytes()
    };
    let frames = (1024..9216).map(frame).collect();
    let attack = Attack::frames("ACKs to a shared VIP", FLOOD, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack)
}

/// Hellos that guess the number of a SYN-ACK.
#[privileged_test]
fn hellos_that_guess() -> Result<()> {
    let hello = named(NAME.as_bytes());
    floods("hellos that guess", |next| {
        Flood::guessing([NOWHERE, next], nowhere(), SHARED, &hello)
    })
}

/// A flood to the station of `lb`.
fn floods(name: &'static str, flood: impl FnOnce(Mac) -> Flood) -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let [_, next] = scene.hops()?;
    let attack = Attack::flood(name, FLOOD, scene.attacker(), flood(next))?;
    endures(&scene, &mut victim, &attack)
}

/// Cookies that are collected: most in a second, most in all, and least.
const COOKIES: u32 = 20_000;
const COLLECTED: u64 = 160_000;
const LEAST: usize = 10_000;
/// Hellos per second behind them: more than the process serves.
const UNKNOWN: u32 = 20_000;
/// A name that no route leads for.
const STRANGE: &str = "strange.lab";

/// Hellos for which the process is needed, behind right cookies: those of the other tenant need it as well.
#[privileged_test]
fn hellos_with_names_of_no_route() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        config: |config| {
            let never = |sni: Keys| sni.set("sni.late_binding", "never");
            config.service(&format!("sni-{}", TENANTS[1]), never)
        },
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = Victim::start(&scene)?;
    let answers = cookies(&scene)?;
    let [_, next] = scene.hops()?;
    let hello = strange();
    let port = RawPort::open(&scene.attacker().netns, "eth0")?;
    let attack = Attack::new("hellos of no route", UNKNOWN, |number| {
        let answer = &answers[usize::try_from(number)? % answers.len()];
        let behind = answer.sequence.wrapping_add(1);
        let hello = packet::tcp(&answer.to.to_string(), &SHARED.to_string(), ACK)
            .numbers(answer.acknowledgment, behind)
            .payload(&hello);
        port.send(&hello.between(NOWHERE, next).bytes())
    });
    endures(&scene, &mut victim, &attack.after(LEAD))
}

/// A hello of a thousand bytes, so that there is room for few.
fn strange() -> Vec<u8> {
    const NAMES: u16 = 0;
    const PADDING: u16 = 21;
    let names = names(&[(0, STRANGE.as_bytes())]);
    hello(0x303, &[(NAMES, names), (PADDING, vec![0; 1000])])
}

/// SYN-ACKs to addresses that no host has.
fn cookies(scene: &Scene<'_>) -> Result<Vec<Segment>> {
    let attacker = &scene.attacker().netns;
    let filter = format!("tcp and src {VIP} and src port {}", SHARED.port());
    let wire = Wire::received_heads(attacker, "eth0", &filter, scene.trunk.dir())?;
    let [_, next] = scene.hops()?;
    let flood = Flood::new([NOWHERE, next], nowhere(), SHARED);
    let asking = Attack::flood("SYNs", COOKIES, scene.attacker(), flood)?;
    let time = Duration::from_millis(COLLECTED * 1000 / u64::from(COOKIES));
    asking.beside(scene.attacker(), || {
        thread::sleep(time);
        Ok(())
    })?;
    let frames = wire.stop_heads()?.into_iter();
    let answers: Vec<_> = frames
        .filter_map(|frame| Segment::read(&frame.bytes))
        .collect();
    println!("{} cookies", answers.len());
    let are_answers = answers.iter().all(|answer| answer.flags == SYN_ACK);
    ensure!(are_answers && answers.len() > LEAST, "{}", answers.len());
    Ok(answers)
}

/// A hello, and at once the end of the client's side: such a connection is not handed over.
#[privileged_test]
fn half_closed_hellos() -> Result<()> {
    hellos("half-closed hellos", NAME, |mut stream| {
        stream.shutdown(Shutdown::Write)?;
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    })
}

/// A hello, and at once a RST.
#[privileged_test]
fn hellos_that_are_reset() -> Result<()> {
    hellos("hellos that are reset", NAME, conn_pair::reset)
}

/// Hellos whose backend does not answer.
#[privileged_test]
fn hellos_to_a_backend_that_is_not_there() -> Result<()> {
    let held = Mutex::new(Vec::new());
    hellos("hellos without a backend", ABSENT, |stream| {
        let mut held = held.lock().map_err(|_| anyhow!("a step panicked"))?;
        held.push(stream);
        Ok(())
    })
}

fn hellos(
    what: &'static str,
    name: &str,
    then: impl Fn(TcpStream) -> Result<()> + Sync,
) -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let hello = named(name.as_bytes());
    let attack = Attack::new(what, HELLOS, |_| {
        // The attacker's share may be used up.
        let _refused: Result<()> = (|| {
            let mut stream = connect(SHARED)?;
            stream.write_all(&hello)?;
            then(stream)
        })();
        Ok(())
    });
    endures(&scene, &mut victim, &attack.by(16).after(LEAD))
}

/// Descriptors that `lb` may have: fewer than the connections of the attack need, and more than two tenants
/// need otherwise.
const DESCRIPTORS: &[&str] = &["prlimit", "--nofile=2048"];
/// Requests per second.
const REQUESTS: u32 = 300;

/// Requests whose bodies come byte by byte, and never to their end.
#[privileged_test]
fn slow_bodies() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        through: DESCRIPTORS,
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = Victim::start(&scene)?.with(Kind::Web);
    let request = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 1000000\r\n\r\nx");
    let held = Mutex::new(Vec::new());
    let attack = Attack::new("slow bodies", REQUESTS, |number| {
        let mut held = held.lock().map_err(|_| anyhow!("a step panicked"))?;
        let opened = || -> Result<TcpStream> {
            let mut stream = connect(WEB)?;
            stream.write_all(request.as_bytes())?;
            Ok(stream)
        };
        held.extend(opened().ok());
        // One of those that stand says a byte; it may be closed.
        let turn = usize::try_from(number)? % held.len().max(1);
        if let Some(stream) = held.get_mut(turn) {
            let _closed = stream.write_all(b"x");
        }
        Ok(())
    });
    endures(&scene, &mut victim, &attack.after(LEAD))
}
