//! `lb drops`.

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::{Format, Show},
    print::{self, ago},
    table,
};
use crate::observe::{DropLine, Observer, SampledPacket};

/// The answer of `-o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DropsReport {
    /// Reasons that packets were dropped or refused for, by hook and network; none without such packets.
    drops: Vec<DropLine>,
}

pub(super) fn show(show: &Show) -> Result<()> {
    let mut drops = Observer::open(&show.instance.name)?.drops()?;
    if show.output.format == Format::Json {
        return print::report(&DropsReport { drops });
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
                line.dropped.to_string(),
                line.refused.to_string(),
                line.help.to_owned(),
            ]
        }),
    )?;
    if samples.is_empty() {
        return Ok(());
    }
    print::line("\nThe latest packet of each network for each reason:\n")?;
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
            let SampledPacket {
                vlan,
                protocol,
                flags,
                source: _,
                destination: _,
            } = sample.packet;
            [
                reason.to_owned(),
                ago(sample.age_seconds.as_millis()),
                network,
                vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
                protocol,
                ends,
                flags.unwrap_or_else(|| "-".to_owned()),
                sample.length.to_string(),
            ]
        }),
    )
}
