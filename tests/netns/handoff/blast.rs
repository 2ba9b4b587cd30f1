//! Clients that do not wait behind their hello, as TLS lets them with early data, and backends that do not
//! wait for it: FEATURES B15.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::lb::Lb,
    seeded_rng::Dice,
    servers::teller::{Teller, ask},
    topology::Topology,
    traffic::hello::named,
};

use crate::{
    handoff::{
        connections::{HANDED_OVER, outcomes},
        opener::{BOUND, Opener},
    },
    proxy::{
        relayed::{PORT, SHARED, wait_for},
        sni::{NAMES, counted},
    },
};

/// Bytes behind a hello: less than a segment, about one, and more than are sent on in one go.
const SIZES: [usize; 9] = [1, 100, 1400, 1500, 14_600, 65_000, 65_536, 100_000, 200_000];
/// Into how many pieces the bytes go at most, some of which come at each moment of a hand-over.
const PIECES: usize = 300;
/// Each this often.
const ROUNDS: usize = 5;
/// The first node hears before it speaks, the second one speaks at once.
const WAYS: [(&str, &str); 2] = [(NAMES[0], "hears first"), (NAMES[1], "speaks first")];

/// B15: all bytes come, whether XDP or the process goes on with the connection.
#[privileged_test]
fn b15_who_does_not_wait_behind_his_hello_loses_nothing() -> Result<()> {
    a_client_that_does_not_wait_loses_nothing(Opener::Process)
}

/// The same where XDP opens what it can.
#[privileged_test]
fn b15_a_bound_client_that_does_not_wait_loses_nothing() -> Result<()> {
    a_client_that_does_not_wait_loses_nothing(Opener::Xdp)
}

fn a_client_that_does_not_wait_loses_nothing(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let [first, second] = [0, 1].map(|index| &topology.nodes[index]);
    let at = |address| SocketAddrV4::new(address, PORT);
    let _hears = Teller::start_listening(&first.netns, at(first.address), NAMES[0])?;
    let _speaks = Teller::start(&second.netns, at(second.address), NAMES[1])?;
    let lb = Lb::start(&topology, &opener.names(&topology))?;
    let client = &topology.client().netns;
    let mut dice = Dice::new(7);
    for (name, way) in WAYS {
        for size in SIZES {
            let hello = named(name.as_bytes());
            let byte = || u8::try_from(dice.below(256)).unwrap_or_default();
            let data: Vec<u8> = std::iter::repeat_with(byte).take(size).collect();
            let whole = [&hello[..], &data].concat();
            let (half, rest) = data.split_at(size / 2);
            let trickle = data.chunks(size / PIECES + 1);
            let trickle: Vec<&[u8]> = [&hello[..]].into_iter().chain(trickle).collect();
            let before = outcomes(&lb)?;
            for pieces in [
                &[&whole[..]][..],
                &[&hello, &data],
                &[&hello, half, rest],
                &trickle,
            ] {
                for round in 0..ROUNDS {
                    let who = client.inside(|| ask(SHARED, pieces, Duration::ZERO))?;
                    let words = || format!("{way}, {size} in {}, {round}", pieces.len());
                    let who = who.with_context(words)?;
                    ensure!(who.as_deref() == Some(name), "{}: {who:?}", words());
                }
            }
            let now = outcomes(&lb)?;
            let grown = now.iter().filter_map(|(reason, count)| {
                let more = count - before.get(reason).copied().unwrap_or_default();
                (more > 0).then(|| format!("{reason} {more}"))
            });
            let grown: Vec<String> = grown.collect();
            println!("{way}, {size} bytes: {}", grown.join(", "));
        }
    }
    let all = u64::try_from(WAYS.len() * SIZES.len() * 4 * ROUNDS)?;
    let seen = outcomes(&lb)?;
    println!("{seen:?}");
    let bound = seen.get(BOUND).copied().unwrap_or_default();
    assert_eq!(counted(&lb, "routed")? + bound, all);
    assert_eq!(seen.values().sum::<u64>(), all);
    for reason in seen.keys() {
        let known = [
            opener.outcome(),
            HANDED_OVER,
            "client_goes_on",
            "backend_spoke",
        ];
        ensure!(known.contains(&reason.as_str()), "{seen:?}");
    }
    wait_for(&lb, 0)
}
