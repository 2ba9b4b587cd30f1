//! `lb drops`: dropped and refused packets by reason, and the latest one of each.

use anyhow::Result;
use lb_common::{
    maps::drop_sample::Sample,
    verdict::{DropReason, Hook, Verdict, counter, refusal_slot},
};

use super::{DropLine, Observer, SampleLine, SampledPacket};
use crate::{
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
                        lines.push(DropLine {
                            hook: hook.label(),
                            network: self.name(Kind::Network, u32::from(network)),
                            reason: reason.label(),
                            dropped,
                            refused,
                            help: reason.help(),
                            samples: own.iter().map(|sample| line(sample, now)).collect(),
                        });
                    }
                }
            }
        }
        Ok(lines)
    }
}

fn line(sample: &Sample, now: u32) -> SampleLine {
    SampleLine {
        age_seconds: Seconds::from_millis(millis_since(sample.seen, now)),
        length: sample.length,
        packet: SampledPacket::read(sample),
    }
}
