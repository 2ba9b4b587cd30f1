//! The numbers of networks, backends and services, in the columns of this CPU.

use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use lb_common::maps::counts::{
    NUMBERS, Record, ServiceNumber, backend, block, network, place, service,
};

use crate::maps::COUNTS;

/// A record, as this CPU writes it.
#[derive(Clone, Copy)]
pub(crate) struct CpuRecord(*mut Record);

impl CpuRecord {
    /// `None` where userspace has made no block for it.
    #[inline(always)]
    fn at(record: u32) -> Option<Self> {
        // SAFETY: the helper has no arguments and no preconditions.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        let block = COUNTS.get(block(record))?;
        Some(Self(block.get_ptr_mut(place(record, cpu))?))
    }

    /// Adds to one of the numbers, by its place.
    #[inline(always)]
    pub(crate) fn add(self, number: usize, amount: u64) {
        if number >= NUMBERS {
            return;
        }
        let number = self.0.cast::<u64>().wrapping_add(number);
        // SAFETY: inside a live value of an array map, which this CPU alone writes.
        let before = unsafe { number.read_volatile() };
        // SAFETY: the same.
        unsafe { number.write_volatile(before.wrapping_add(amount)) };
    }
}

/// What a flow is counted for.
#[derive(Clone, Copy)]
pub(crate) struct CountOwners {
    pub(crate) network: u16,
    pub(crate) service: u16,
    pub(crate) backend: u32,
}

impl CountOwners {
    /// Calls `count` with the record of each, and whether it is the backend's.
    #[inline(always)]
    pub(crate) fn each(self, count: impl Fn(CpuRecord, bool)) {
        let records = [
            (network(self.network), false),
            (service(self.service), false),
            (backend(self.backend), true),
        ];
        for (record, is_backend) in records {
            if let Some(counts) = CpuRecord::at(record) {
                count(counts, is_backend);
            }
        }
    }
}

/// Adds one to a number of a service.
#[inline(always)]
pub(crate) fn note_service(id: u16, at: ServiceNumber) {
    if let Some(counts) = CpuRecord::at(service(id) + at.record) {
        counts.add(at.number as usize, 1);
    }
}

/// A packet to this service was refused for the reason with this number. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_note_refused(service: u32, reason: u32) -> u32 {
    note_service(service as u16, ServiceNumber::refused(reason));
    0
}
