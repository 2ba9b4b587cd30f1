//! `lb services | backends | flows | who | drops | version`.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};
use lb_common::abi::ABI_VERSION;
use serde::Serialize;

use super::{Format, table};
use crate::{
    config::time_text,
    observe::{FlowLine, Observer, Packet},
};

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
    print_flows(flows);
    Ok(())
}

pub(super) fn who(snat: SocketAddrV4, instance: &str, format: Format) -> Result<()> {
    let lines = Observer::open(instance)?.who(snat)?;
    if format == Format::Json {
        return json(&lines);
    }
    if lines.is_empty() {
        println!("no flow has {snat}, and none had it");
        return Ok(());
    }
    print_flows(lines.into_iter().map(|line| line.flow));
    Ok(())
}

fn print_flows(flows: impl IntoIterator<Item = FlowLine>) {
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
            "EXPIRES IN",
        ],
        flows.into_iter().map(|line| {
            let expires_in = expires_in(&line);
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
                expires_in,
            ]
        }),
    );
}

fn expires_in(line: &FlowLine) -> String {
    match line.expires_in_seconds {
        Some(seconds) => time_text(Duration::from_secs(seconds)),
        None if matches!(line.state, "closed" | "ended") => "-".to_owned(),
        None => "never".to_owned(),
    }
}

pub(super) fn drops(instance: &str, format: Format) -> Result<()> {
    let mut drops = Observer::open(instance)?.drops()?;
    if format == Format::Json {
        return json(&drops);
    }
    let mut samples = Vec::new();
    for line in &mut drops {
        for sample in line.samples.drain(..) {
            samples.push((line.reason, line.network.clone(), sample));
        }
    }
    table::print(
        ["HOOK", "NETWORK", "REASON", "DROPPED", "REFUSED", "MEANING"],
        drops.into_iter().map(|line| {
            [
                line.hook.to_owned(),
                line.network,
                line.reason.to_owned(),
                line.packets.to_string(),
                line.refused.to_string(),
                line.help.to_owned(),
            ]
        }),
    );
    if samples.is_empty() {
        return Ok(());
    }
    println!("\nThe latest packet for each reason:\n");
    table::print(
        [
            "REASON",
            "AGO",
            "NETWORK",
            "VLAN",
            "PROTO",
            "FROM > TO",
            "FLAGS",
            "BYTES",
        ],
        samples.into_iter().map(|(reason, network, sample)| {
            let ends = sample.packet.ends();
            let Packet {
                vlan,
                protocol,
                flags,
                source: _,
                destination: _,
            } = sample.packet;
            [
                reason.to_owned(),
                ago(sample.age_ms),
                network,
                vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
                protocol,
                ends,
                flags.unwrap_or_else(|| "-".to_owned()),
                sample.length.to_string(),
            ]
        }),
    );
    Ok(())
}

/// A time in milliseconds for people: a minute matters more than its milliseconds.
pub(super) fn ago(ms: u64) -> String {
    let whole = match ms {
        0..1000 => ms,
        1000..3_600_000 => ms - ms % 1000,
        _ => ms - ms % 60_000,
    };
    time_text(Duration::from_millis(whole))
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

pub(super) fn json(value: &impl Serialize) -> Result<()> {
    println!(
        "{}",
        serde_json::to_string_pretty(value).context("write JSON")?
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_flow_ends_or_never_does() {
        let shown = |state, expires_in_seconds| {
            expires_in(&FlowLine {
                network: String::new(),
                service: String::new(),
                protocol: "tcp",
                client: String::new(),
                vip: String::new(),
                snat: String::new(),
                backend: String::new(),
                state,
                bytes_request: 0,
                bytes_reply: 0,
                idle_seconds: 0,
                expires_in_seconds,
            })
        };
        assert_eq!(shown("established", Some(90)), "1m30s");
        assert_eq!(shown("established", None), "never");
        assert_eq!(shown("closed", None), "-");
        assert_eq!(shown("ended", None), "-");
    }

    #[test]
    fn a_time_is_as_exact_as_it_matters() {
        for (ms, text) in [
            (0, "0s"),
            (7, "7ms"),
            (999, "999ms"),
            (1999, "1s"),
            (3_599_999, "59m59s"),
            (3_600_000, "1h"),
            (90_061_001, "1d1h1m"),
        ] {
            assert_eq!(ago(ms), text);
        }
    }
}
