//! Queues of free ids, filled and turned around by programs of the object: one system call for many ids.
//!
//! To run such a program takes nothing that a process gives up after its start. A run is never half done: the
//! kernel looks for signals between the repetitions of a run, and there are none.

use std::mem;

use anyhow::{Context as _, Result, ensure};
use aya::{
    maps::{MapData, MapError, Queue},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use lb_common::{
    batch::{Batch, FAILED, MAX_IDS},
    maps::snat::{FLOWS_PER_ADDRESS, base},
};
use rustix::{
    io::retry_on_intr,
    rand::{GetRandomFlags, getrandom},
};

use super::object::{FILL, Object, TURN};

/// The queue of free ids of a SNAT address, which holds what is above the first one.
pub struct FreeIds {
    first: u32,
    offsets: Queue<MapData, u16>,
}

impl FreeIds {
    /// The queue of the address in this slot.
    pub(super) const fn new(slot: u16, offsets: Queue<MapData, u16>) -> Self {
        Self {
            first: base(slot),
            offsets,
        }
    }

    /// Takes the first id.
    ///
    /// # Errors
    ///
    /// If there is none, or the kernel refuses.
    pub fn pop(&mut self) -> Result<u32, MapError> {
        Ok(self.first + u32::from(self.offsets.pop(0)?))
    }

    /// Puts an id of the address at the end.
    ///
    /// # Errors
    ///
    /// If there is no room, the kernel refuses, or it is another address's id.
    pub fn push(&mut self, id: u32) -> Result<(), MapError> {
        let offset = id
            .checked_sub(self.first)
            .and_then(|id| u16::try_from(id).ok());
        let offset = offset.ok_or(MapError::OutOfBounds {
            index: id,
            max_entries: self.first,
        })?;
        self.offsets.push(&offset, 0)
    }
}

impl Object {
    /// Puts `ids` at the end of the queue of the SNAT address in this slot, in order.
    ///
    /// # Errors
    ///
    /// If there is no such queue, or it has no room.
    pub fn fill(&self, slot: u16, ids: &[u32]) -> Result<()> {
        let program = self.loaded(FILL)?;
        for ids in ids.chunks(MAX_IDS) {
            let filled = run(
                program,
                BatchHead {
                    slot,
                    count: ids.len(),
                    last: 0,
                },
                ids,
            )
            .with_context(|| format!("fill the queue of free ids of SNAT address {slot}"))?;
            ensure!(
                filled.len() == ids.len(),
                "{} of {} free ids went into the queue of SNAT address {slot}",
                filled.len(),
                ids.len()
            );
        }
        Ok(())
    }

    /// Takes every id out of the queue of the SNAT address in this slot and puts it back at once; which they
    /// are. The data plane goes on taking and returning ids meanwhile. The turn ends when the id that it began
    /// with, or at the end of a batch any other, has come round, or when the queue is empty.
    ///
    /// # Errors
    ///
    /// If there is no such queue.
    pub fn turn(&self, slot: u16) -> Result<Met> {
        let program = self.loaded(TURN)?;
        meet(slot, |count, last| {
            run(program, BatchHead { slot, count, last }, &[])
                .with_context(|| format!("turn the queue of free ids of SNAT address {slot}"))
        })
    }
}

/// The ids that a turn meets; `batch` gives so many more, or those up to this one.
fn meet(slot: u16, mut batch: impl FnMut(usize, u32) -> Result<Vec<u32>>) -> Result<Met> {
    let mut met = Met::none(slot);
    let Some(&first) = batch(1, 0)?.first() else {
        return Ok(met);
    };
    met.add(first);
    loop {
        let ids = batch(MAX_IDS, first)?;
        let new = ids.iter().filter(|id| met.add(**id)).count();
        // It need not be the first that comes round: a flow may have taken that.
        if ids.len() < MAX_IDS || new < ids.len() {
            return Ok(met);
        }
    }
}

/// Ids of one SNAT address.
#[derive(Debug)]
pub struct Met {
    first: u32,
    are_met: Vec<bool>,
}

impl Met {
    fn none(slot: u16) -> Self {
        Self {
            first: base(slot),
            are_met: vec![false; FLOWS_PER_ADDRESS.into()],
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        usize::try_from(id.checked_sub(self.first)?).ok()
    }

    /// Whether the id is one of the address that was not met before.
    fn add(&mut self, id: u32) -> bool {
        let place = self.place(id);
        let is_met = place.and_then(|place| self.are_met.get_mut(place));
        is_met.is_some_and(|is_met| !mem::replace(is_met, true))
    }

    /// Whether the id was met.
    pub fn contains(&self, id: u32) -> bool {
        let place = self.place(id);
        place.is_some_and(|place| self.are_met.get(place) == Some(&true))
    }
}

/// The words of a batch before its ids.
#[derive(Clone, Copy)]
struct BatchHead {
    /// Of the SNAT address.
    slot: u16,
    /// How many ids are to be moved.
    count: usize,
    /// The id that the turn ends at; 0 for none.
    last: u32,
}

/// Runs a program on a batch: the ids that it has dealt with.
fn run(program: &SchedClassifier, head: BatchHead, ids: &[u32]) -> Result<Vec<u32>> {
    let head = [head.slot.into(), u32::try_from(head.count)?, head.last];
    let words = head.into_iter().chain(ids.iter().copied());
    let mut batch: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    batch.resize(Batch::BYTES, 0);
    let mut left = vec![0; Batch::BYTES];
    let done = program.test_run(TestRunOptions {
        data_in: Some(&batch),
        data_out: Some(&mut left),
        ..TestRunOptions::default()
    })?;
    ensure!(
        done.return_value != FAILED,
        "there is none, or it refused an id"
    );
    let (words, _) = left.as_chunks();
    let ids = words.iter().map(|bytes| u32::from_ne_bytes(*bytes));
    let count = usize::try_from(done.return_value)?;
    Ok(ids.skip(Batch::HEAD).take(count).collect())
}

/// Fills `bytes` with random ones.
///
/// # Errors
///
/// If the kernel has none.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    // A signal may end a call early.
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let more = retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()));
        filled += more.context("ask the kernel for random numbers")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: std::ops::Range<u32> = base(3)..base(3) + FLOWS_PER_ADDRESS as u32;

    /// A flow takes the first id once it is back, and the others come round and round.
    #[test]
    fn a_turn_ends_though_its_first_id_does_not_come_round() {
        let mut others = (IDS.start + 1..IDS.start + 300).cycle();
        let mut batches = 0;
        let met = meet(3, |count, last| {
            batches += 1;
            if batches == 1 {
                assert_eq!((count, last), (1, 0));
                return Ok(vec![IDS.start]);
            }
            assert_eq!((count, last), (MAX_IDS, IDS.start));
            Ok(others.by_ref().take(count).collect())
        });
        let met = met.unwrap();
        assert_eq!(batches, 1 + 300usize.div_ceil(MAX_IDS));
        assert_eq!(IDS.filter(|id| met.contains(*id)).count(), 300);
    }

    #[test]
    fn an_id_is_met_once_and_no_other_addresses_ids_are() {
        let mut met = Met::none(3);
        let (first, last) = (IDS.start, IDS.end - 1);
        assert_eq!(
            [first, last, first].map(|id| met.add(id)),
            [true, true, false]
        );
        assert_eq!([0, first - 1, last + 1].map(|id| met.add(id)), [false; 3]);
        let ids = [0, first - 1, first, first + 1, last, last + 1];
        let met = ids.map(|id| met.contains(id));
        assert_eq!(met, [false, false, true, false, true, false]);
    }
}
