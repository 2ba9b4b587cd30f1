//! Connections that are handed over while their segments get lost, come late and come twice, on all sides:
//! FEATURES B15.

use std::{
    net::{Shutdown, SocketAddrV4},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    oracle::observe,
    product::lb::Lb,
    servers::teller::{Teller, ask},
    topology::{Host, Topology},
    traffic::{
        conn_pair::{Line, Pair},
        hello::named,
    },
};

use crate::{
    handoff::{
        connections::{HANDED_OVER, hears_the_end, outcomes},
        opener::Opener,
    },
    proxy::{
        bind::hellos,
        pipe::carry,
        relayed::{PORT, SHARED, wait_for},
        sni::{NAMES, counted},
    },
};

/// One frame of so many: a third of them get lost, and so on, which is 1 % of each kind.
const OUT_OF: u32 = 33;
/// Connections that carry much, and who of them comes at the same time.
const CARRIERS: u64 = 20;
/// SACKs that come so late that they are wrong: some among a million segments. Where none is translated it is
/// tens of thousands.
const FEW: u64 = 200;
/// Short ones: clients at a time, and connections of each.
const AT_ONCE: usize = 20;
const EACH: usize = 15;

/// Bytes each way of one connection. No two carry as many, and so not the same bytes either.
fn much(number: u64) -> u64 {
    let all = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 200 << 20,
        None => 16 << 20,
    };
    all / CARRIERS + 1000 * number
}

/// B15: all bytes of all connections are right, and no end is reset, whether the trouble comes before the
/// hand-over, in it or after it.
#[privileged_test]
fn b15_loss_disorder_and_duplicates_change_nothing() -> Result<()> {
    in_trouble(Opener::Process, |lb| {
        let outcomes = outcomes(lb)?;
        let routed = counted(lb, "routed")?;
        println!("{outcomes:?}");
        assert_eq!(outcomes.values().sum::<u64>(), routed);
        let handed_over = outcomes[HANDED_OVER];
        ensure!(
            handed_over * 100 >= routed * 90,
            "{handed_over} of {routed}"
        );
        Ok(())
    })
}

/// The same where XDP opens each connection: nothing but the client repeats what was lost of it on the way.
#[privileged_test]
fn loss_disorder_and_duplicates_change_nothing_of_what_xdp_opens() -> Result<()> {
    in_trouble(Opener::Xdp, |lb| {
        let hellos = hellos(lb)?;
        println!("{hellos:?}");
        let all = CARRIERS + u64::try_from(AT_ONCE * EACH)?;
        ensure!(hellos["bound"] * 100 >= all * 90, "{hellos:?} of {all}");
        Ok(())
    })
}

/// Carries bytes and makes short connections in trouble; `check` looks at what `lb` counts.
fn in_trouble(opener: Opener, check: impl FnOnce(&Lb<'_>) -> Result<()>) -> Result<()> {
    let topology = Topology::poc()?;
    let [client, carrier, node] = [topology.client(), &topology.nodes[0], &topology.nodes[1]];
    let line = Line::new(client, SHARED, carrier, PORT)?.saying(named(NAMES[0].as_bytes()));
    let _teller =
        Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), NAMES[1])?;
    let lb = Lb::start(&topology, &opener.names(&topology))?;
    let ends = [client, carrier, node];
    let before = broken(&ends)?;
    let trouble = topology.trouble(OUT_OF)?;

    thread::scope(|scope| {
        let carriers = scope.spawn(|| carry_all(&line));
        let refused = ask_all(client)?;
        ensure!(refused <= 2, "{refused} got no server");
        carriers.join().map_err(|_| anyhow!("a carrier panicked"))?
    })?;

    let made = trouble.each_ref().map(|trouble| trouble.made());
    drop(trouble);
    println!("lost, late, doubled {made:?}");
    let discarded = ends.map(|host| observe::sacks_discarded(&host.netns));
    println!("wrong SACKs: {discarded:?}");
    for count in made.as_flattened() {
        ensure!(*count > 20, "there was no trouble: {made:?}");
    }
    check(&lb)?;
    assert_eq!(broken(&ends)?, before);
    for host in ends {
        let discarded = observe::sacks_discarded(&host.netns)?;
        ensure!(discarded < FEW, "{}: {discarded} wrong SACKs", host.name);
    }
    wait_for(&lb, 0)
}

/// Connections of each host that were broken by a reset.
fn broken(hosts: &[&Host]) -> Result<Vec<u64>> {
    let hosts = hosts.iter();
    hosts.map(|host| observe::tcp_broken(&host.netns)).collect()
}

/// Connections that carry bytes both ways and close one side after the other.
fn carry_all(line: &Line<'_>) -> Result<()> {
    let pairs = line.open_many(usize::try_from(CARRIERS)?)?;
    thread::scope(|scope| {
        let work = |(number, pair): (u64, &'_ Pair)| {
            let bytes = much(number);
            let (client, server) = (&pair.client, &pair.server);
            let there = thread::scope(|scope| {
                let there = scope.spawn(|| carry(client, server, bytes));
                carry(server, client, bytes + 1)?;
                there.join().map_err(|_| anyhow!("a transfer panicked"))?
            });
            there.with_context(|| format!("connection {number}"))?;
            client.shutdown(Shutdown::Write)?;
            hears_the_end(server)?;
            server.shutdown(Shutdown::Write)?;
            hears_the_end(client)
        };
        let threads: Vec<_> = (0..CARRIERS)
            .zip(&pairs)
            .map(|each| scope.spawn(move || work(each)))
            .collect();
        let mut ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a carrier panicked"))?
        });
        ended.try_for_each(|ended| ended)
    })
}

/// Short connections, many at a time; how many of them got no server.
fn ask_all(client: &Host) -> Result<usize> {
    let name = NAMES[1];
    let hello = &named(name.as_bytes());
    let come = || -> Result<usize> {
        let mut refused = 0;
        for round in 0..EACH {
            let who = ask(SHARED, &[hello], Duration::ZERO);
            let who = who.with_context(|| format!("connection {round}"))?;
            match who.as_deref() {
                None => refused += 1,
                Some(who) => ensure!(who == name, "{who} for {name}"),
            }
        }
        Ok(refused)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(move || client.netns.inside(come)?))
            .collect();
        let mut refused = 0;
        for thread in threads {
            refused += thread.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(refused)
    })
}
