//! `lb drops`.

mod last_look;
pub(super) mod names;

use anyhow::Result;

use super::{
    arguments::{Format, Show},
    observed, print, table,
};
use crate::{model::ago::ago, observe::SampledPacket, reports::drops::DropsReport};

pub(super) fn show(show: &Show) -> Result<()> {
    let Show { instance, output } = show;
    let mut drops = observed::open(&instance.name)?.drops()?;
    let since = last_look::note(&instance.name, output.format, &mut drops);
    if output.format == Format::Json {
        let seconds = since.seconds;
        return print::report(&DropsReport { drops, seconds });
    }
    let mut samples = Vec::new();
    for line in &mut drops {
        for sample in line.samples.drain(..) {
            samples.push((line.reason, line.network.clone(), sample));
        }
    }
    table::print(
        [
            "HOOK", "NETWORK", "REASON", "DROPPED", "REFUSED", "NEW", "/S", "MEANING",
        ],
        drops.into_iter().map(|line| {
            [
                line.hook.to_owned(),
                line.network,
                line.reason.to_owned(),
                line.dropped.to_string(),
                line.refused.to_string(),
                line.since_last
                    .map_or_else(none, |packets| packets.to_string()),
                since.rate(line.since_last).map_or_else(none, rate),
                line.help.to_owned(),
            ]
        }),
    )?;
    if let Some(seconds) = since.seconds {
        let ago = ago(seconds.as_millis());
        print::line(format_args!(
            "\nNEW and /S: since the last `lb drops`, {ago} ago"
        ))?;
    }
    if samples.is_empty() {
        return Ok(());
    }
    print::line("\nThe latest packet of each network for each reason:\n")?;
    table::print(
        [
            "REASON",
            "AGO",
            "NETWORK",
            "SERVICE",
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
                sample.service.unwrap_or_else(none),
                vlan.map_or_else(none, |vlan| vlan.to_string()),
                protocol,
                ends,
                flags.unwrap_or_else(none),
                sample.length.to_string(),
            ]
        }),
    )
}

/// What stands for nothing.
fn none() -> String {
    "-".to_owned()
}

/// Packets a second, of few of them the tenths as well.
fn rate(packets: f64) -> String {
    match packets {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{packets:.1}"),
        _ => format!("{packets:.0}"),
    }
}
