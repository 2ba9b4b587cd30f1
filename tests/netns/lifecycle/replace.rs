//! Programs are replaced in the middle of a transfer: FEATURES A27.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use lb_tests::{
    oracle::{
        links::{Monitor, links},
        observe::tcp_resets,
    },
    product::lb::Lb,
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Topology},
    traffic::client,
};

use crate::flows::life::{config, ensure_all_ids_are_free, only_flow};

const REPLACEMENTS: u32 = 10;

fn lasts() -> Duration {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => Duration::from_secs(30),
        None => Duration::from_secs(12),
    }
}

/// Restarts and take-overs in turn, while a client has every byte back that it sends: no reset, no byte
/// lost, the same links with other programs, and not a word of the kernel about any interface.
#[privileged_test]
fn a27_ten_replacements_in_the_middle_of_a_transfer() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config();
    let node = &topology.nodes[0];
    let address = std::net::SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    let _echo = EchoServer::start(&node.netns, address, node.name)?;
    let mut lb = Lb::start(&topology, &config)?;
    let ends = [&topology.client().netns, &node.netns];
    let resets = || ends.into_iter().map(tcp_resets).sum::<Result<u64>>();
    let resets_before = resets()?;
    let first = links(topology.run())?;
    ensure!(first.len() == 4, "{first:?}");
    let mut programs: BTreeSet<u32> = first.values().map(|link| link.program).collect();
    let monitor = Monitor::start(&topology)?;
    let stop = AtomicBool::new(false);

    let transfer = thread::scope(|scope| {
        let client = &topology.client().netns;
        let transfer = scope.spawn(|| client.inside(|| client::stream(ECHO, 27, &stop)));
        let mut replace = || -> Result<()> {
            let start = Instant::now();
            for round in 1..=REPLACEMENTS {
                if round % 2 == 1 {
                    lb.process().stop()?;
                    lb.restart(&config)?;
                } else {
                    let mut before = lb.take_over(&config)?;
                    ensure!(before.wait_for_end(crate::flows::life::LIMIT)?.success());
                }
                let now = links(topology.run())?;
                let ids = |links: &std::collections::BTreeMap<_, lb_tests::oracle::links::Link>| {
                    links.values().map(|link| link.id).collect::<Vec<_>>()
                };
                assert_eq!(ids(&now), ids(&first), "round {round}");
                for (name, link) in now {
                    // Both NICs have one, and both cells.
                    programs.insert(link.program);
                    ensure!(first[&name].program != link.program, "{name}");
                }
                assert_eq!(programs.len(), 2 * (1 + usize::try_from(round)?));
                ensure!(!transfer.is_finished(), "round {round}: the transfer ended");
                thread::sleep((lasts() * round / REPLACEMENTS).saturating_sub(start.elapsed()));
            }
            assert_eq!(only_flow(&lb)?.state, "established");
            Ok(())
        };
        let replaced = replace();
        stop.store(true, Ordering::Relaxed);
        let transfer = transfer
            .join()
            .map_err(|_| anyhow!("the client panicked"))??;
        replaced.and(transfer)
    })?;

    println!(
        "{REPLACEMENTS} replacements in {:.1?}: {} MB and back, {} Mbit/s",
        transfer.elapsed,
        transfer.bytes >> 20,
        transfer.megabits_per_second()
    );
    assert_eq!(transfer.sent, transfer.received);
    ensure!(
        transfer.elapsed >= lasts() && transfer.bytes > 1 << 20,
        "{transfer:?}"
    );
    monitor.ensure_silent()?;
    assert_eq!(resets()?, resets_before);
    ensure_all_ids_are_free(&topology, &lb)
}
