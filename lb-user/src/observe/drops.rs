//! `lb drops`: dropped and refused packets by reason, and the latest one of each.

use std::net::SocketAddr;

use anyhow::Result;
use lb_common::{
    maps::drop_sample::Sample,
    verdict::{DropReason, Hook, Verdict, counter, refusal_slot},
};

use super::{DropLine, Observer, SampleLine, SampledPacket};
use crate::{
    config::{Config, Listen},
    dataplane::flows::coarse_now,
    flows::log::clock::millis_since,
    model::{registry::Kind, seconds::Seconds},
};

impl Observer {
    /// Counted drops and refusals, without the reasons that have none.
    ///
    /// # Errors
    ///
    /// If the counters or samples cannot be read.
    pub fn drops(&self) -> Result<Vec<DropLine>> {
        let now = coarse_now()?;
        let mut lines = Vec::new();
        for hook in Hook::ALL {
            for network in self.counted_networks() {
                let counters = self.maps.counters(hook, network)?;
                for &reason in DropReason::ALL {
                    let dropped = counter(&counters, Verdict::Dropped(reason).slot());
                    let refused = counter(&counters, refusal_slot(reason as u32, true));
                    if dropped + refused > 0 {
                        let sample = self.maps.sample(network, reason as u32)?;
                        let own = sample.filter(|sample| sample.hook == hook as u16);
                        let name = self.name(Kind::Network, u32::from(network));
                        let sample = |sample| line(sample, now, &name, self.config());
                        lines.push(DropLine {
                            hook: hook.label(),
                            reason: reason.label(),
                            dropped,
                            refused,
                            since_last: None,
                            help: reason.help(),
                            samples: own.iter().map(sample).collect(),
                            network: name,
                        });
                    }
                }
            }
        }
        Ok(lines)
    }
}

fn line(sample: &Sample, now: u32, network: &str, config: &Config) -> SampleLine {
    let packet = SampledPacket::read(sample);
    SampleLine {
        age_seconds: Seconds::from_millis(millis_since(sample.seen, now)),
        length: sample.length,
        service: service(&packet, network, config).map(str::to_owned),
        packet,
    }
}

/// The service of a network's clients that listens at one end of a packet; of one without ports, the only one that has
/// the address.
fn service<'c>(packet: &SampledPacket, network: &str, config: &'c Config) -> Option<&'c str> {
    let ends = [&packet.destination, &packet.source];
    ends.into_iter().flatten().find_map(|end| {
        let is_there = |listen: &Listen| match end.parse::<SocketAddr>() {
            Ok(end) => {
                let protocol = listen.protocol.to_string();
                (listen.address, listen.port) == (end.ip(), end.port())
                    && protocol == packet.protocol
            }
            Err(_) => end.parse() == Ok(listen.address),
        };
        let services = config
            .services
            .iter()
            .filter(|service| service.network == network);
        let mut found = services.filter(|service| service.listen.iter().any(is_there));
        let first = found.next()?;
        found.next().is_none().then_some(first.name.as_str())
    })
}
