//! How many flows a change ends, for what is printed of it: counted in the flow table beside the data plane.

use std::{
    fmt::{self, Display, Formatter},
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_common::{
    conntrack::{FlowState, State},
    maps::flow::Flow,
};

use super::running::Running;
use crate::{
    dataplane::{flows::FlowTable, labels::Labels},
    flows::evict::selector::{EvictSelector, FIRST_LEG, FlowChoice},
    model::{
        registry::{Ids, Kind},
        snat::{self, SnatSlot},
    },
};

/// The longest time to count in: meanwhile the control plane does nothing else.
const COUNT_TIMEOUT: Duration = Duration::from_millis(200);
/// The number of ids from one look at the clock to the next.
const CLOCK_INTERVAL: u32 = 8192;

/// Flows that end for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedPart {
    /// The reason, as `service api-a: 192.168.203.110:6443/tcp closes, and its flows end`.
    pub words: String,
    /// The flows.
    pub flows: EvictSelector,
    /// Those that they are some of, such as all of the service; none: they are all of what they are of.
    pub of: Option<FlowChoice>,
}

/// How many flows of a part there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    ended: usize,
    of: usize,
}

impl Running {
    /// The words of each part, with how many flows that are. Where these cannot be counted, without.
    pub(super) fn count_ended(&self, parts: Vec<EndedPart>) -> Vec<String> {
        if parts.is_empty() {
            return Vec::new();
        }
        let until = Instant::now() + COUNT_TIMEOUT;
        match self.count(&parts, until) {
            Ok(counts) => {
                let is_whole = Instant::now() < until;
                let counted = parts.iter().zip(counts);
                counted
                    .map(|(part, count)| part.with(count, is_whole))
                    .collect()
            }
            Err(error) => {
                tracing::warn!("flows that end are not counted: {error:#}");
                parts.into_iter().map(|part| part.words).collect()
            }
        }
    }

    fn count(&self, parts: &[EndedPart], until: Instant) -> Result<Vec<Count>> {
        let folder = self.data_plane.pins.maps();
        let (table, labels) = (FlowTable::open(&folder)?, Labels::open(&folder)?);
        let ids = flow_ids(&self.applied.ids)?;
        let flows = ids.into_iter().flatten();
        let flows = flows
            .take_while(|id| id % CLOCK_INTERVAL != 0 || Instant::now() < until)
            .filter_map(|id| {
                let (_, flow) = table.flow(id).filter(|(word, _)| is_live(*word))?;
                let client = labels.client(id, &flow);
                Some((id, flow, client))
            });
        // What the process carries is in no table; its clients are of IPv4.
        let legs = self.legs().all();
        let legs = legs.iter().map(|leg| {
            let flow = leg.flow();
            let client = Ipv4Addr::from(flow.client).into();
            (leg.choice().id.unwrap_or(FIRST_LEG), flow, Some(client))
        });
        let mut counts = vec![Count::default(); parts.len()];
        add(&mut counts, parts, flows);
        add(&mut counts, parts, legs);
        Ok(counts)
    }
}

/// The ids that flows may have, an address each.
fn flow_ids(ids: &Ids) -> Result<Vec<std::ops::Range<u32>>> {
    let mut ranges = Vec::new();
    for (name, id) in ids.of(Kind::Snat) {
        if let Some((_, snat)) = snat::parse_name(name) {
            let slot = SnatSlot::new(u16::try_from(id.saturating_sub(1))?, snat, ids);
            ranges.push(slot.flow_ids());
        }
    }
    Ok(ranges)
}

const fn is_live(word: FlowState) -> bool {
    matches!(
        word.state(),
        State::New | State::Replied | State::Established
    )
}

/// Counts flows, with their ids and clients, each for every part that it is of.
fn add(
    counts: &mut [Count],
    parts: &[EndedPart],
    flows: impl Iterator<Item = (u32, Flow, Option<IpAddr>)>,
) {
    for (id, flow, client) in flows {
        for (count, part) in counts.iter_mut().zip(parts) {
            let is_of = |of: &FlowChoice| of.holds(&flow, id, client);
            count.of += usize::from(part.of.as_ref().is_some_and(is_of));
            let ends = part.flows.holds(&flow, id, client).is_some();
            count.ended += usize::from(ends);
        }
    }
}

impl EndedPart {
    /// The words with a count, which is one of some of the flows where it is not `whole`.
    fn with(&self, Count { ended, of }: Count, is_whole: bool) -> String {
        let at_least = if is_whole { "" } else { "at least " };
        let Self { words, of: all, .. } = self;
        match all {
            // A flow of the listener of a renamed service still has the id of the former.
            Some(_) => format!("{words} ({at_least}{ended} of {} flows)", of.max(ended)),
            None => format!("{words} ({at_least}{})", Flows(ended)),
        }
    }
}

/// A number of flows, in words.
pub(super) struct Flows(pub(super) usize);

impl Display for Flows {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 flow"),
            count => write!(f, "{count} flows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(service: u16, backend: u16) -> Flow {
        Flow {
            service,
            backend_id: backend,
            ..Flow::default()
        }
    }

    fn part(backend: u32, service: Option<u16>) -> EndedPart {
        EndedPart {
            words: "they end".to_owned(),
            flows: EvictSelector {
                backends: [backend].into(),
                ..EvictSelector::default()
            },
            of: service.map(|service| FlowChoice {
                service: Some(service),
                ..FlowChoice::default()
            }),
        }
    }

    #[test]
    fn each_part_has_its_own_count() {
        let parts = [part(7, Some(1)), part(8, None), part(9, Some(2))];
        let flows = [flow(1, 7), flow(1, 7), flow(1, 8), flow(2, 8)];
        let mut counts = vec![Count::default(); parts.len()];
        // In two turns, as of the table and of legs.
        for half in [&flows[..3], &flows[3..]] {
            let flows = half.iter().map(|flow| (4096, *flow, None));
            add(&mut counts, &parts, flows);
        }
        let count = |ended, of| Count { ended, of };
        assert_eq!(counts, [count(2, 3), count(2, 0), count(0, 1)]);
    }

    #[test]
    fn a_count_is_behind_the_words() {
        let with = |of, count: (usize, usize), is_whole| {
            let (ended, all) = count;
            part(7, of).with(Count { ended, of: all }, is_whole)
        };
        assert_eq!(with(Some(1), (3, 9), true), "they end (3 of 9 flows)");
        assert_eq!(with(Some(1), (0, 0), true), "they end (0 of 0 flows)");
        assert_eq!(
            with(Some(1), (3, 9), false),
            "they end (at least 3 of 9 flows)"
        );
        assert_eq!(with(Some(1), (3, 2), true), "they end (3 of 3 flows)");
        assert_eq!(with(None, (1, 0), true), "they end (1 flow)");
        assert_eq!(with(None, (2, 0), true), "they end (2 flows)");
    }

    #[test]
    fn ids_are_those_of_all_snat_addresses() {
        let mut ids = Ids::default();
        assert!(flow_ids(&ids).unwrap().is_empty());
        ids.insert(Kind::Snat, "mgmt/10.32.96.50:1024-2047", 1);
        ids.insert(Kind::Snat, "mgmt/10.32.96.51:1024-1033", 2);
        let ranges = flow_ids(&ids).unwrap();
        let lengths: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        assert_eq!(lengths, [1024, 10]);
        assert!(ranges[0].end <= ranges[1].start, "{ranges:?}");
    }
}
