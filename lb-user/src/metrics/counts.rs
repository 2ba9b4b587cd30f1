//! What the data plane counts of networks, services and backends: as rows, and their metrics.

use std::collections::{BTreeSet, HashMap};

use lb_common::{
    maps::counts::{
        BUCKETS, BYTES_REPLY, BYTES_REQUEST, CONNECT_US, CONNECTS, FAILED, FIRST_BYTE_US,
        FIRST_BYTES, FLOWS, PACKETS_REPLY, PACKETS_REQUEST, REPEATED, Record, SERVICE_RECORDS,
        ServiceNumber, backend, network, service,
    },
    verdict::DropReason,
};
use prometheus_client::metrics::MetricType;

use super::{
    families::{Metric, Value},
    report::ControlReport,
    rows::{BackendCounts, NetworkCounts, RefusalRow, ServiceCounts, TimesOf, TimesRow},
    snapshot::id_of,
};
use crate::{
    dataplane::{counted::Counted, counts::CountTable, flows::FlowTable},
    model::registry::Kind,
};

/// The rows of one look.
#[derive(Debug, Default)]
pub(super) struct CountRows {
    pub(super) networks: Vec<NetworkCounts>,
    pub(super) services: Vec<ServiceCounts>,
    pub(super) backends: Vec<BackendCounts>,
    pub(super) refusals: Vec<RefusalRow>,
    pub(super) times: Vec<TimesRow>,
}

/// The most that each record has had: a look may find less than the one before, of a flow whose entry is claimed.
#[derive(Debug, Default)]
pub(super) struct HighMarks(HashMap<u32, (String, Record)>);

impl HighMarks {
    /// No less than before, as long as the record is of the same object.
    fn raise(&mut self, record: u32, name: &str, now: Record) -> Record {
        match self.0.get_mut(&record) {
            Some((known, most)) if known == name => {
                for (most, now) in most.iter_mut().zip(now) {
                    *most = now.max(*most);
                }
                *most
            }
            _ => {
                self.0.insert(record, (name.to_owned(), now));
                now
            }
        }
    }

    /// Looks at all that is configured.
    pub(super) fn look(
        &mut self,
        table: &CountTable,
        flows: &FlowTable,
        report: &ControlReport,
    ) -> CountRows {
        let config = &report.names.config;
        let ids = &report.names.ids;
        let networks: Vec<(&str, u32)> = config
            .networks
            .iter()
            .filter_map(|one| Some((&*one.name, network(id_of(ids, Kind::Network, &one.name)?))))
            .collect();
        let services: Vec<(&str, &str, u32)> = config
            .services
            .iter()
            .filter_map(|one| {
                let id = id_of(ids, Kind::Service, &one.name)?;
                Some((&*one.name, &*one.network, service(id)))
            })
            .collect();
        let backends = report.status.backends.iter().filter(|one| !one.retired);
        let backends: Vec<_> = backends.map(|one| (one, backend(one.id))).collect();
        let records = networks.iter().map(|(_, record)| *record);
        let records = records.chain(services.iter().map(|(.., record)| *record));
        let records = records.chain(backends.iter().map(|(_, record)| *record));
        let records: BTreeSet<u32> = records.collect();
        let counted = Counted::read(table, flows, records.iter().copied());
        let mut rows = CountRows::default();
        for (name, record) in networks {
            rows.networks.push(NetworkCounts {
                network: name.to_owned(),
                counts: self.raise(record, name, counted.get(record)),
            });
        }
        for (name, network, first) in services {
            let counts = self.raise(first, name, counted.get(first));
            rows.add_service(table, [name, network], first, counts);
        }
        for (one, record) in backends {
            let name = format!("{}/{}", one.pool, one.name);
            rows.backends.push(BackendCounts {
                pool: one.pool.clone(),
                backend: one.name.clone(),
                counts: self.raise(record, &name, counted.get(record)),
            });
        }
        self.0.retain(|record, _| records.contains(record));
        rows
    }
}

impl CountRows {
    /// A service, whose records are those from the `first` on.
    fn add_service(&mut self, table: &CountTable, names: [&str; 2], first: u32, counts: Record) {
        let [service, network] = names.map(ToOwned::to_owned);
        let of_service: Vec<Record> = (first..first + SERVICE_RECORDS)
            .map(|record| table.get(record))
            .collect();
        let number = |at: ServiceNumber| {
            let [record, number] = [at.record, at.number].map(usize::try_from);
            of_service.get(record.ok()?)?.get(number.ok()?).copied()
        };
        let times = |us: usize, at: fn(u32) -> ServiceNumber| {
            let mut times = TimesOf {
                us: counts.get(us).copied().unwrap_or_default(),
                ..TimesOf::default()
            };
            for (bucket, count) in (0..BUCKETS).zip(&mut times.buckets) {
                *count = number(at(bucket)).unwrap_or_default();
            }
            times
        };
        for &reason in DropReason::ALL {
            let count = number(ServiceNumber::refused(reason as u32)).unwrap_or_default();
            if count > 0 {
                self.refusals.push(RefusalRow {
                    service: service.clone(),
                    network: network.clone(),
                    reason: reason.label(),
                    count,
                });
            }
        }
        self.times.push(TimesRow {
            service: service.clone(),
            network: network.clone(),
            connect: times(CONNECT_US, ServiceNumber::connected),
            first_byte: times(FIRST_BYTE_US, ServiceNumber::first_byte),
        });
        self.services.push(ServiceCounts {
            service,
            network,
            counts,
        });
    }
}

fn number(counts: &Record, place: usize) -> Option<Value> {
    counts.get(place).copied().map(Value::Whole)
}

/// A sum of microseconds in seconds.
#[expect(clippy::cast_precision_loss, reason = "of 285 years")]
pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1_000_000.0
}

/// One that there is none of yet has no sample.
fn some(counts: &Record, place: usize) -> Option<Value> {
    counts
        .get(place)
        .copied()
        .filter(|count| *count > 0)
        .map(Value::Whole)
}

fn sum(counts: &Record, place: usize) -> Option<Value> {
    let us = counts.get(place).copied().filter(|us| *us > 0)?;
    Some(Value::Real(seconds(us)))
}

/// A metric of what is counted of one kind of objects.
macro_rules! counted {
    ($object:literal new_flows) => {
        counted!(
            $object,
            "_new_flows_total",
            "Flows that have begun.",
            number,
            FLOWS
        )
    };
    ($object:literal request_bytes) => {
        counted!(
            $object,
            "_request_bytes_total",
            "Bytes from clients: of frames, and of data where the process copies.",
            number,
            BYTES_REQUEST
        )
    };
    ($object:literal request_frames) => {
        counted!(
            $object,
            "_request_frames_total",
            "Frames from clients; not of connections that the process copies.",
            number,
            PACKETS_REQUEST
        )
    };
    ($object:literal reply_bytes) => {
        counted!(
            $object,
            "_reply_bytes_total",
            "Bytes from backends, as those from clients.",
            number,
            BYTES_REPLY
        )
    };
    ($object:literal reply_frames) => {
        counted!(
            $object,
            "_reply_frames_total",
            "Frames from backends, as those from clients.",
            number,
            PACKETS_REPLY
        )
    };
    ($object:literal failed_connects) => {
        counted!(
            $object,
            "_failed_connects_total",
            "Connections that were not answered, or refused.",
            number,
            FAILED
        )
    };
    ($object:literal repeated_syns) => {
        counted!(
            $object,
            "_repeated_syns_total",
            "SYNs that clients have repeated because there was no answer.",
            number,
            REPEATED
        )
    };
    ($object:literal connects) => {
        counted!(
            $object,
            "_connects_total",
            "Connections that a backend has answered.",
            number,
            CONNECTS
        )
    };
    ($object:literal connects_seconds) => {
        counted!(
            $object,
            "_connects_seconds_total",
            "How long all of these took, from the SYN to the SYN-ACK.",
            sum,
            CONNECT_US
        )
    };
    ($object:literal first_bytes) => {
        counted!(
            $object,
            "_first_bytes_total",
            "Connections of shared VIPs of which the backend's first byte has come.",
            some,
            FIRST_BYTES
        )
    };
    ($object:literal first_bytes_seconds) => {
        counted!(
            $object,
            "_first_bytes_seconds_total",
            "How long all of these took, from when the backend was sought.",
            sum,
            FIRST_BYTE_US
        )
    };
    ($object:literal, $name:literal, $help:literal, $value:ident, $place:ident) => {
        Metric {
            name: concat!("lb_", $object, $name),
            kind: MetricType::Counter,
            help: $help,
            value: |row| $value(&row.counts, $place),
        }
    };
}

pub(super) const NETWORK_COUNTS: &[Metric<NetworkCounts>] = &[
    counted!("network" new_flows),
    counted!("network" request_bytes),
    counted!("network" request_frames),
    counted!("network" reply_bytes),
    counted!("network" reply_frames),
    counted!("network" failed_connects),
    counted!("network" repeated_syns),
    counted!("network" connects),
    counted!("network" connects_seconds),
    counted!("network" first_bytes),
    counted!("network" first_bytes_seconds),
];

/// Times are in the histograms.
pub(super) const SERVICE_COUNTS: &[Metric<ServiceCounts>] = &[
    counted!("service" new_flows),
    counted!("service" request_bytes),
    counted!("service" request_frames),
    counted!("service" reply_bytes),
    counted!("service" reply_frames),
    counted!("service" failed_connects),
    counted!("service" repeated_syns),
];

/// Repeated SYNs are among the answers of backends.
pub(super) const BACKEND_COUNTS: &[Metric<BackendCounts>] = &[
    counted!("backend" new_flows),
    counted!("backend" request_bytes),
    counted!("backend" request_frames),
    counted!("backend" reply_bytes),
    counted!("backend" reply_frames),
    counted!("backend" failed_connects),
    counted!("backend" connects),
    counted!("backend" connects_seconds),
    counted!("backend" first_bytes),
    counted!("backend" first_bytes_seconds),
];

/// A histogram of a service.
pub(super) struct TimesMetric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) times: fn(&TimesRow) -> &TimesOf,
}

pub(super) const TIMES: [TimesMetric; 2] = [
    TimesMetric {
        name: "lb_service_connect_seconds",
        help: "How long backends take to answer a SYN.",
        times: |row| &row.connect,
    },
    TimesMetric {
        name: "lb_service_first_byte_seconds",
        help: "How long backends of a shared VIP take for the first byte, from when they were sought.",
        times: |row| &row.first_byte,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_never_falls_while_the_object_is_the_same() {
        let mut marks = HighMarks::default();
        let with = |flows| {
            let mut record = Record::default();
            record[FLOWS] = flows;
            record
        };
        assert_eq!(marks.raise(300, "a", with(7)), with(7));
        assert_eq!(marks.raise(300, "a", with(5)), with(7));
        assert_eq!(marks.raise(300, "a", with(9)), with(9));
        assert_eq!(marks.raise(300, "b", with(1)), with(1), "another object");
    }
}
