//! What has been counted: the records of the data plane, and what stands in the entries of flows.

use std::collections::BTreeMap;

use lb_common::maps::counts::Record;

use super::{
    counts::{CountTable, of_entry, records},
    flows::{FlowOwners, FlowTable},
};

/// Records as they were at a time.
#[derive(Debug)]
pub struct Counted(BTreeMap<u32, Record>);

impl Counted {
    /// Reads these records.
    ///
    /// A record is read before the entries: of a flow whose entry is taken meanwhile, what stood there is missing, and is
    /// there the next time. So no number is ever more than what there was.
    pub fn read(
        table: &CountTable,
        flows: &FlowTable,
        wanted: impl IntoIterator<Item = u32>,
    ) -> Self {
        let wanted = wanted.into_iter().map(|record| (record, table.get(record)));
        let mut counted: BTreeMap<u32, Record> = wanted.collect();
        for (owners, amounts) in in_entries(flows) {
            for record in records(owners) {
                if let Some(sum) = counted.get_mut(&record) {
                    add(sum, &amounts);
                }
            }
        }
        Self(counted)
    }

    /// What a record has; nothing where it was not read.
    pub fn get(&self, record: u32) -> Record {
        self.0.get(&record).copied().unwrap_or_default()
    }
}

/// What stands in entries, by the owners of their flows.
fn in_entries(flows: &FlowTable) -> BTreeMap<FlowOwners, Record> {
    let mut sums = BTreeMap::<FlowOwners, Record>::new();
    for id in 0..flows.entries() {
        if let Some((word, flow)) = flows.counted(id) {
            add(
                sums.entry(FlowOwners::from(&flow)).or_default(),
                &of_entry(word, &flow),
            );
        }
    }
    sums
}

fn add(sum: &mut Record, amounts: &Record) {
    for (sum, amount) in sum.iter_mut().zip(amounts) {
        *sum = sum.wrapping_add(*amount);
    }
}
