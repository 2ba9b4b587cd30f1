//! `lb status | services | backends | flows | drops | version`.

use anyhow::{Context as _, Result};
use lb_common::abi::ABI_VERSION;
use serde::Serialize;

use super::{Format, table};
use crate::observe::Observer;

pub(super) fn status(instance: &str, format: Format) -> Result<()> {
    let status = Observer::open(instance)?.status()?;
    if format == Format::Json {
        return json(&status);
    }
    println!("instance {}, version {}\n", status.instance, status.version);
    table::print(
        ["NETWORK", "ROLE", "INTERFACE", "VLAN", "XDP", "CELL"],
        status.networks.into_iter().map(|network| {
            [
                network.name,
                network.role,
                network.interface,
                network
                    .vlan
                    .map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
                network.mode.to_owned(),
                network
                    .cell
                    .unwrap_or_else(|| "none: the host's addresses".to_owned()),
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
            "TOTAL",
        ],
        status.verdicts.into_iter().map(|(hook, count)| {
            let counts = [
                count.passed,
                count.transmitted,
                count.forwarded,
                count.delivered,
            ];
            let [passed, transmitted, forwarded, delivered] = counts.map(|count| count.to_string());
            let (dropped, total) = (count.dropped.to_string(), count.total.to_string());
            [
                hook.to_owned(),
                passed,
                transmitted,
                forwarded,
                delivered,
                dropped,
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

pub(super) fn services(instance: &str, format: Format) -> Result<()> {
    let services = Observer::open(instance)?.services();
    if format == Format::Json {
        return json(&services);
    }
    table::print(
        ["SERVICE", "NETWORK", "LISTEN", "POOL"],
        services
            .into_iter()
            .map(|line| [line.name, line.network, line.listen, line.pool]),
    );
    Ok(())
}

pub(super) fn backends(instance: &str, format: Format) -> Result<()> {
    let backends = Observer::open(instance)?.backends()?;
    if format == Format::Json {
        return json(&backends);
    }
    table::print(
        ["POOL", "BACKEND", "ADDRESS", "WEIGHT", "NEXT HOP"],
        backends.into_iter().map(|line| {
            let next_hop = line.next_hop.unwrap_or_else(|| "not resolved".to_owned());
            [
                line.pool,
                line.name,
                line.address,
                line.weight.to_string(),
                next_hop,
            ]
        }),
    );
    Ok(())
}

pub(super) fn flows(instance: &str, format: Format) -> Result<()> {
    let flows = Observer::open(instance)?.flows()?;
    if format == Format::Json {
        return json(&flows);
    }
    table::print(
        [
            "NETWORK",
            "SERVICE",
            "PROTO",
            "CLIENT",
            "VIP",
            "SNAT",
            "BACKEND",
            "STATE",
            "BYTES TO",
            "BYTES FROM",
            "IDLE S",
        ],
        flows.into_iter().map(|line| {
            [
                line.network,
                line.service,
                line.protocol.to_owned(),
                line.client,
                line.vip,
                line.snat,
                line.backend,
                line.state.to_owned(),
                line.bytes_request.to_string(),
                line.bytes_reply.to_string(),
                line.idle_seconds.to_string(),
            ]
        }),
    );
    Ok(())
}

pub(super) fn drops(instance: &str, format: Format) -> Result<()> {
    let drops = Observer::open(instance)?.drops()?;
    if format == Format::Json {
        return json(&drops);
    }
    table::print(
        ["HOOK", "NETWORK", "REASON", "PACKETS", "MEANING"],
        drops.into_iter().map(|line| {
            let packets = line.packets.to_string();
            [
                line.hook.to_owned(),
                line.network,
                line.reason.to_owned(),
                packets,
                line.help.to_owned(),
            ]
        }),
    );
    Ok(())
}

pub(super) fn version(format: Format) -> Result<()> {
    #[derive(Serialize)]
    struct Version {
        version: &'static str,
        abi: u32,
    }
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        abi: ABI_VERSION,
    };
    if format == Format::Json {
        return json(&version);
    }
    println!(
        "lb {} (pinned state version {})",
        version.version, version.abi
    );
    Ok(())
}

fn json(value: &impl Serialize) -> Result<()> {
    println!(
        "{}",
        serde_json::to_string_pretty(value).context("write JSON")?
    );
    Ok(())
}
