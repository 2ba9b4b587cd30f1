//! What the entries of flows have no room for, in this process's memory.
#![expect(
    unsafe_code,
    reason = "the numbers are shared with the kernel's programs"
)]

use std::{path::Path, sync::Arc};

use anyhow::Result;
use lb_common::{
    conntrack::FlowState,
    maps::flow::Flow,
    traffic::{Spilled, spill_place},
};
use memmap2::MmapRaw;

use super::flows::map;

const NAME: &str = "SPILLED";
/// Bytes from one value of the mapped array to the next.
const STRIDE: usize = size_of::<Spilled>();

/// The mapped array `SPILLED`; of a data plane that is older than it is, one without entries.
#[derive(Clone, Debug)]
pub struct SpilledFlows(Option<Arc<MmapRaw>>);

impl SpilledFlows {
    /// Maps the array that is pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let is_there = folder.join(NAME).exists();
        let memory = is_there.then(|| map(folder, NAME, STRIDE)).transpose()?;
        Ok(Self(memory))
    }

    /// One without entries.
    pub const fn none() -> Self {
        Self(None)
    }

    /// What the flow with this id and generation has spilled, if it has.
    pub fn get(&self, id: u32, generation: u32) -> Option<Spilled> {
        let memory = self.0.as_ref()?;
        let at = usize::try_from(spill_place(id)).ok()?.checked_mul(STRIDE)?;
        if at.checked_add(STRIDE)? > memory.len() {
            return None;
        }
        let place: *const Spilled = memory.as_mut_ptr().wrapping_add(at).cast();
        // SAFETY: the value is inside the mapping, which lives as long as `memory`, and aligned to eight bytes; it is
        // plain integers, so one that is being written is a valid value, which the next look corrects.
        let spilled = unsafe { place.read_volatile() };
        (spilled.id == id && spilled.generation == generation).then_some(spilled)
    }

    /// All bytes from the client and from the backend of the flow with this id.
    pub fn bytes(&self, id: u32, flow: &Flow) -> [u64; 2] {
        let generation = FlowState::from_raw(flow.word).generation();
        let spilled = self.get(id, generation).unwrap_or_default();
        [
            spilled.bytes_request.wrapping_add(flow.request().bytes),
            spilled.bytes_reply.wrapping_add(flow.reply().bytes),
        ]
    }
}
