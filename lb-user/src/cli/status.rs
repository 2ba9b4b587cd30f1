//! `lb status`.

use anyhow::Result;

use super::{
    Format,
    show::{ago, json},
    table,
};
use crate::observe::{Observer, RingStatus};

pub(super) fn show(instance: &str, format: Format) -> Result<()> {
    let status = Observer::open(instance)?.status()?;
    if format == Format::Json {
        return json(&status);
    }
    println!("instance {}, version {}\n", status.instance, status.version);
    table::print(
        [
            "NETWORK",
            "ROLE",
            "INTERFACE",
            "VLAN",
            "XDP",
            "MTU",
            "MSS",
            "CELL",
        ],
        status.networks.iter().map(|network| {
            let cell = network.cell.as_deref();
            [
                network.name.clone(),
                network.role.clone(),
                network.interface.clone(),
                network
                    .vlan
                    .map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
                network.mode.to_owned(),
                network.mtu.to_string(),
                network.mss.to_string(),
                cell.unwrap_or("none: the host's addresses").to_owned(),
            ]
        }),
    );
    println!();
    table::print(
        [
            "NETWORK",
            "FLOWS",
            "MOST",
            "HALF-OPEN LAST",
            "UDP LAST",
            "UNRESTED",
            "UNREPORTED",
        ],
        status.networks.into_iter().map(|network| {
            let most = network.max_flows.map(|most| most.to_string());
            [
                network.name,
                network.flows.to_string(),
                most.unwrap_or_else(|| "-".to_owned()),
                lasts(network.half_open),
                lasts(network.udp_flows),
                network.unrested.to_string(),
                network.unreported.to_string(),
            ]
        }),
    );
    println!();
    table::print(
        [
            "HOOK",
            "PASSED",
            "TRANSMITTED",
            "FORWARDED",
            "DELIVERED",
            "DROPPED",
            "REFUSED",
            "TOTAL",
        ],
        status.verdicts.into_iter().map(|(hook, count)| {
            let counts = [
                count.passed,
                count.transmitted,
                count.forwarded,
                count.delivered,
                count.dropped,
                count.refused,
                count.total,
            ];
            let [
                passed,
                transmitted,
                forwarded,
                delivered,
                dropped,
                refused,
                total,
            ] = counts.map(|count| count.to_string());
            [
                hook.to_owned(),
                passed,
                transmitted,
                forwarded,
                delivered,
                dropped,
                refused,
                total,
            ]
        }),
    );
    println!();
    table::print(
        ["SNAT ADDRESS", "NETWORK", "PORTS", "FLOWS", "FREE", "STATE"],
        status.snat.into_iter().map(|snat| {
            [
                snat.address,
                snat.network,
                snat.ports,
                snat.flows.live.to_string(),
                snat.flows.free.to_string(),
                if snat.draining { "draining" } else { "in use" }.to_owned(),
            ]
        }),
    );
    Ok(())
}

/// How long a flow keeps its place in a ring.
fn lasts(ring: RingStatus) -> String {
    match ring.lifetime_ms {
        Some(lifetime_ms) => ago(lifetime_ms),
        None if ring.taken < u64::from(ring.places) => "not full".to_owned(),
        None => "-".to_owned(),
    }
}
