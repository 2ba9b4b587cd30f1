//! `--trace-drops`: what the programs log of dropped packets, in the words of `lb drops`.

use std::collections::BTreeSet;

use anyhow::Result;
use lb_common::{
    maps::drop_sample::Sample,
    verdict::{DropReason, Hook},
};

use crate::{
    control::control_loop::Control,
    dataplane::{flows::coarse_now, maps::Maps},
    model::{
        packet::SampledPacket,
        registry::{Ids, Kind},
    },
};

/// The log of the programs.
pub(super) struct DropLog {
    /// Takes the records that have come since the last call.
    take: Box<dyn FnMut() -> Vec<String>>,
    maps: Maps,
    /// When records were taken last, as `Flow::last_seen`.
    taken: u32,
}

impl DropLog {
    /// Opens it. It can be opened once.
    ///
    /// # Errors
    ///
    /// If the programs have no log, or the samples cannot be opened.
    pub(super) fn open(control: &mut Control) -> Result<Self> {
        let data_plane = &mut control.running.data_plane;
        let maps = Maps::open(&data_plane.pins.maps())?;
        Ok(Self {
            take: Box::new(data_plane.object.log()?),
            maps,
            taken: coarse_now()?,
        })
    }

    /// Logs what has come since the last call; `ids` has the names of the networks.
    pub(super) fn write(&mut self, ids: &Ids) {
        let since = self.taken;
        // Before the records: a sample that is younger counts next time, too.
        let now = coarse_now().unwrap_or(since);
        self.taken = now;
        let records = (self.take)();
        let name = |network: u16| ids.name(Kind::Network, network.into()).unwrap_or("-");
        let latest = |drop: &Dropped| {
            let sample = self.maps.sample(drop.network, drop.reason as u32);
            let sample = sample.ok().flatten();
            sample.filter(|sample| is_of(sample, drop.hook, now.wrapping_sub(since), now))
        };
        for line in lines(&records, name, latest) {
            tracing::debug!(target: "lb_ebpf", "{line}");
        }
    }
}

/// Whether a sample was taken at this hook, and no longer ago than `elapsed` before `now`.
fn is_of(sample: &Sample, hook: Hook, elapsed: u32, now: u32) -> bool {
    let age = now.wrapping_sub(sample.seen);
    // One that was taken after `now` is older than everything by this arithmetic.
    sample.hook == hook as u16 && (age <= elapsed || age > u32::MAX / 2)
}

/// A record of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dropped {
    hook: Hook,
    network: u16,
    reason: DropReason,
}

impl Dropped {
    /// Reads what `lb-ebpf/src/count.rs` writes; nothing if it is something else, as programs of another version may
    /// write it.
    fn read(record: &str) -> Option<Self> {
        let mut words = record.split(' ');
        let mut number = |key| (words.next()? == key).then(|| words.next()?.parse::<u16>().ok())?;
        let (hook, network) = (number("hook")?, number("network")?);
        let reason = u8::try_from(number("drop")?).ok()?;
        Some(Self {
            hook: Hook::ALL.into_iter().find(|one| *one as u16 == hook)?,
            network,
            reason: DropReason::from_number(reason)?,
        })
    }
}

/// A line for each record. The last one of a hook, network and reason has the packet of the `latest` sample: there is
/// one in about 16 ms, so of those before it the packet is not known.
fn lines<'n>(
    records: &[String],
    name: impl Fn(u16) -> &'n str,
    latest: impl Fn(&Dropped) -> Option<Sample>,
) -> Vec<String> {
    let mut sampled = BTreeSet::new();
    let backwards = records.iter().rev().map(|record| {
        let Some(dropped) = Dropped::read(record) else {
            return record.clone();
        };
        let Dropped {
            hook,
            network,
            reason,
        } = dropped;
        let is_last = sampled.insert((hook as u8, network, reason as u8));
        let sample = is_last.then(|| latest(&dropped)).flatten();
        let packet = sample.map_or_else(String::new, |sample| format!(": {}", words(&sample)));
        let [hook, reason] = [hook.label(), reason.label()];
        format!("{hook} {} {reason}{packet}", name(network))
    });
    let mut lines: Vec<String> = backwards.collect();
    lines.reverse();
    lines
}

/// A sampled packet: VLAN, protocol, ends, flags and length.
fn words(sample: &Sample) -> String {
    let packet = SampledPacket::read(sample);
    let vlan = packet.vlan.map(|vlan| format!("vlan {vlan} "));
    let flags = packet.flags.as_ref().map(|flags| format!(" {flags}"));
    format!(
        "{}{} {}{}, {} bytes",
        vlan.unwrap_or_default(),
        packet.protocol,
        packet.ends(),
        flags.unwrap_or_default(),
        sample.length
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ARP from 10.0.0.1 for 10.0.0.2, as the data plane samples it.
    fn arp() -> Sample {
        let mut bytes = [0; 44];
        let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 1];
        bytes[..14].copy_from_slice(&ethernet);
        bytes[14..32].copy_from_slice(&arp);
        bytes[38..42].copy_from_slice(&[10, 0, 0, 2]);
        let mut sample = Sample {
            length: 60,
            seen: 1,
            ..Sample::default()
        };
        for (word, bytes) in sample.words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        sample
    }

    #[test]
    fn a_record_has_names_and_the_last_one_of_a_kind_its_packet() {
        let records = [
            "hook 0 network 2 drop 15",
            "hook 0 network 0 drop 18",
            "hook 0 network 2 drop 15",
            "hook 1 network 2 drop 16",
            "hook 0 network 9 drop 15",
        ];
        let name = |network| match network {
            2 => "tenant-a",
            9 => "tenant-b",
            _ => "-",
        };
        let latest = |dropped: &Dropped| (dropped.network == 2).then(arp);
        let packet = "arp 10.0.0.1 > 10.0.0.2 request, 60 bytes";
        assert_eq!(
            lines(&records.map(str::to_owned), name, latest),
            [
                "nic tenant-a arp_not_ours".to_owned(),
                "nic - stacked_tag".to_owned(),
                format!("nic tenant-a arp_not_ours: {packet}"),
                format!("cell tenant-a cell_forbidden: {packet}"),
                "nic tenant-b arp_not_ours".to_owned(),
            ]
        );
    }

    #[test]
    fn a_record_of_another_form_stays_as_it_is() {
        for record in [
            "",
            "hook 0 network 2",
            "hook 0 network 2 drop 255",
            "hook 7 network 2 drop 1",
            "hook 0 network 70000 drop 1",
            "network 2 hook 0 drop 1",
        ] {
            assert_eq!(Dropped::read(record), None);
            let found = lines(&[record.to_owned()], |_| "-", |_| Some(arp()));
            assert_eq!(found, [record]);
        }
    }

    #[test]
    fn a_sample_of_before_or_of_another_hook_is_not_the_packets() {
        let sample = |seen, hook| Sample {
            seen,
            hook,
            ..Sample::default()
        };
        for (seen, hook, is_its) in [
            (1000, 0, true),
            (900, 0, true),
            (899, 0, false),
            // It came while this looked.
            (1001, 0, true),
            (1000, 1, false),
        ] {
            let found = is_of(&sample(seen, hook), Hook::Nic, 100, 1000);
            assert_eq!(found, is_its, "{seen} {hook}");
        }
    }
}
