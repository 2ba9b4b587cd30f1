//! What is counted of each network's clients, each backend and each service: records of numbers that only grow.
//!
//! A flow is counted where its packets are, in its entry. When a new flow takes the entry, what stands there goes over to
//! the records of the earlier flow's network, backend and service. So a sum is the record and what the entries have.
//!
//! The map `COUNTS` has blocks of [`BLOCK`] records, each made when the first of its records is needed. A block has the
//! records once for the process, and once more for each CPU, which alone writes them: [`place`].

use super::MAX_NETWORKS;

/// Numbers of a record.
pub const NUMBERS: usize = 16;
const PER_RECORD: u32 = 16;
const _: () = assert!(NUMBERS == PER_RECORD as usize);
/// A record: 128 bytes.
pub type Record = [u64; NUMBERS];
/// Records in a block, for each that writes them.
pub const BLOCK: u32 = 64;

/// Flows; of a backend also those that went on to another one.
pub const FLOWS: usize = 0;
/// Bytes of frames from clients.
pub const BYTES_REQUEST: usize = 1;
/// Frames from clients.
pub const PACKETS_REQUEST: usize = 2;
/// Bytes of frames from backends.
pub const BYTES_REPLY: usize = 3;
/// Frames from backends.
pub const PACKETS_REPLY: usize = 4;
/// Connections that the backend has not answered, or refused.
pub const FAILED: usize = 5;
/// SYNs that a client has repeated because they were not answered.
pub const REPEATED: usize = 6;
/// Connections that the backend has answered with a SYN-ACK.
pub const CONNECTS: usize = 7;
/// Microseconds that all of them took, from the SYN to the SYN-ACK.
pub const CONNECT_US: usize = 8;
/// Connections of which the backend's first byte has come; of shared VIPs.
pub const FIRST_BYTES: usize = 9;
/// Microseconds that all of them took, from the client's connection to that byte.
pub const FIRST_BYTE_US: usize = 10;

/// Connections of shared VIPs that the data plane has opened by their hellos; [`FLOWS`] has them too.
pub const BOUND: usize = 11;

/// Records of a service: the first as all have it, then those of the reasons, and of both histograms.
pub const SERVICE_RECORDS: u32 = 8;
const REASONS: u32 = 1;
const CONNECT_TIMES: u32 = 4;
const FIRST_BYTE_TIMES: u32 = 6;

const BACKENDS: u32 = MAX_NETWORKS;
const SERVICES: u32 = BACKENDS + (1 << 16);
/// Blocks of all records that there can be.
pub const BLOCKS: u32 = (SERVICES + (1 << 16) * SERVICE_RECORDS) / BLOCK;
const _: () = assert!(SERVICES.is_multiple_of(BLOCK) && BLOCK.is_multiple_of(SERVICE_RECORDS));

/// The record of a network's clients.
#[inline(always)]
pub const fn network(id: u16) -> u32 {
    id as u32 % MAX_NETWORKS
}

/// The record of a backend.
#[inline(always)]
pub const fn backend(id: u32) -> u32 {
    BACKENDS + (id & 0xffff)
}

/// The first record of a service.
#[inline(always)]
pub const fn service(id: u16) -> u32 {
    SERVICES + id as u32 * SERVICE_RECORDS
}

/// A number of a service that has several: its record, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceNumber {
    /// How far after the first record of the service.
    pub record: u32,
    /// Below [`NUMBERS`].
    pub number: u32,
}

impl ServiceNumber {
    #[inline(always)]
    const fn new(first: u32, index: u32) -> Self {
        Self {
            record: first + index / PER_RECORD,
            number: index % PER_RECORD,
        }
    }

    /// Packets to the service that were refused for the reason with this number; below 48.
    #[inline(always)]
    pub const fn refused(reason: u32) -> Self {
        Self::new(REASONS, reason % (3 * PER_RECORD))
    }

    /// Connections whose SYN-ACK took a time of this [`bucket`].
    #[inline(always)]
    pub const fn connected(bucket: u32) -> Self {
        Self::new(CONNECT_TIMES, bucket % BUCKETS)
    }

    /// Connections whose first byte took a time of this [`bucket`].
    #[inline(always)]
    pub const fn first_byte(bucket: u32) -> Self {
        Self::new(FIRST_BYTE_TIMES, bucket % BUCKETS)
    }
}

/// Buckets of a histogram.
pub const BUCKETS: u32 = 20;
/// The bound of the first bucket, as the power of two of microseconds.
const FIRST_BUCKET: u32 = 6;

/// The bucket of a time in microseconds: the first whose bound it is within, or the last one, which has none.
#[inline(always)]
pub const fn bucket(us: u64) -> u32 {
    let mut bucket = 0;
    while bucket < BUCKETS - 1 && us > bound(bucket) {
        bucket += 1;
    }
    bucket
}

/// The longest time of a bucket but the last, in microseconds: 64, 128 and so on up to 16.8 seconds.
#[inline(always)]
pub const fn bound(bucket: u32) -> u64 {
    1 << (FIRST_BUCKET + bucket)
}

/// The block of a record.
#[inline(always)]
pub const fn block(record: u32) -> u32 {
    record / BLOCK
}

/// Entries of a block on a machine with so many CPUs.
pub const fn entries(cpus: u32) -> u32 {
    BLOCK * (1 + cpus)
}

/// The place of a record in its block, as this CPU writes it; the process has those before all CPUs.
#[inline(always)]
pub const fn place(record: u32, cpu: u32) -> u32 {
    BLOCK * (1 + cpu) + record % BLOCK
}

/// The place of a record in its block, as the process writes it.
#[inline(always)]
pub const fn place_of_process(record: u32) -> u32 {
    record % BLOCK
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::verdict::DropReason;

    #[test]
    fn no_two_have_the_same_record() {
        let networks = (0..256).map(network);
        let backends = [0, 1, 65_535].map(backend);
        let services = [0, 1, u16::MAX].map(service);
        let parts = services
            .iter()
            .flat_map(|&first| first..first + SERVICE_RECORDS);
        let all: Vec<u32> = networks.chain(backends).chain(parts).collect();
        let apart: BTreeSet<u32> = all.iter().copied().collect();
        assert_eq!(apart.len(), all.len());
        assert_eq!(apart.last().map(|&last| block(last)), Some(BLOCKS - 1));
    }

    #[test]
    fn no_two_numbers_of_a_service_have_the_same_place() {
        let reasons = (0..DropReason::ALL.len()).map(|reason| reason.try_into().unwrap());
        let numbers: Vec<ServiceNumber> = reasons
            .map(ServiceNumber::refused)
            .chain((0..BUCKETS).map(ServiceNumber::connected))
            .chain((0..BUCKETS).map(ServiceNumber::first_byte))
            .collect();
        let apart: BTreeSet<_> = numbers.iter().map(|at| (at.record, at.number)).collect();
        assert_eq!(apart.len(), numbers.len());
        assert!(
            numbers
                .iter()
                .all(|at| (1..SERVICE_RECORDS).contains(&at.record))
        );
    }

    #[test]
    fn a_time_is_within_the_bound_of_its_bucket() {
        for (us, wanted) in [
            (0, 0),
            (64, 0),
            (65, 1),
            (128, 1),
            (20_000, 9),
            (16_777_216, 18),
        ] {
            assert_eq!(bucket(us), wanted, "{us} us");
            assert!(us <= bound(wanted));
        }
        assert_eq!((bucket(16_777_217), bucket(u64::MAX)), (19, 19));
    }

    #[test]
    fn each_cpu_has_places_of_its_own() {
        let last = BLOCK * 7 - 1;
        assert_eq!(place_of_process(last), BLOCK - 1);
        assert_eq!(place(last, 0), 2 * BLOCK - 1);
        assert_eq!(place(last, 3) + 1, entries(4));
    }
}
