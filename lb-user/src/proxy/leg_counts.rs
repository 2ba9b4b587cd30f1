//! What connections of shared VIPs add to the counts of their networks, services and backends: those that the data
//! plane has not got.

use std::sync::atomic::{AtomicBool, Ordering};

use lb_common::maps::counts::{
    BYTES_REPLY, BYTES_REQUEST, CONNECT_US, CONNECTS, FAILED, FIRST_BYTE_US, FIRST_BYTES, FLOWS,
    ServiceNumber, backend, bucket, network, service,
};

use crate::dataplane::{
    counts::{CountTable, records},
    flows::{FlowOwners, monotonic_us},
};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the client.
    ToBackend,
    /// From the backend.
    ToClient,
}

/// Of one leg.
#[derive(Debug)]
pub(super) struct LegCounts {
    table: Option<CountTable>,
    owners: FlowOwners,
    /// When its backend was sought, in microseconds of the monotonic clock.
    since: u64,
    has_answered: AtomicBool,
}

impl LegCounts {
    /// Of a leg whose backend was sought at `since`.
    pub(super) const fn new(table: Option<CountTable>, owners: FlowOwners, since: u64) -> Self {
        Self {
            table,
            owners,
            since,
            has_answered: AtomicBool::new(false),
        }
    }

    /// When its backend was sought.
    pub(super) const fn since(&self) -> u64 {
        self.since
    }

    /// The backend has taken the connection, so many microseconds after it was dialled.
    pub(super) fn connected(&self, us: u64) {
        self.add(CONNECTS, 1);
        self.add(CONNECT_US, us);
        self.note(ServiceNumber::connected(bucket(us)));
    }

    /// It is carried, or handed over.
    pub(super) fn began(&self) {
        self.add(FLOWS, 1);
    }

    /// So many bytes went that way.
    pub(super) fn carried(&self, way: CopyDirection, bytes: u64) {
        match way {
            CopyDirection::ToBackend => self.add(BYTES_REQUEST, bytes),
            CopyDirection::ToClient => {
                self.add(BYTES_REPLY, bytes);
                if bytes > 0 && !self.has_answered.swap(true, Ordering::Relaxed) {
                    self.first_byte();
                }
            }
        }
    }

    fn first_byte(&self) {
        let us = monotonic_us().saturating_sub(self.since);
        self.add(FIRST_BYTES, 1);
        self.add(FIRST_BYTE_US, us);
        self.note(ServiceNumber::first_byte(bucket(us)));
    }

    fn add(&self, number: usize, amount: u64) {
        if let Some(table) = &self.table {
            for record in records(self.owners) {
                table.add(record, number, amount);
            }
        }
    }

    fn note(&self, at: ServiceNumber) {
        if let (Some(table), Ok(number)) = (&self.table, usize::try_from(at.number)) {
            table.add(service(self.owners.service) + at.record, number, 1);
        }
    }
}

/// A backend did not take a connection, which another one may.
pub(super) fn note_failure(table: &CountTable, id: u32) {
    table.add(backend(id), FAILED, 1);
}

/// No backend has taken a connection to this service, whose clients have this network.
pub(super) fn note_unreached(table: &CountTable, service_id: u16, network_id: u16) {
    for record in [service(service_id), network(network_id)] {
        table.add(record, FAILED, 1);
    }
}
