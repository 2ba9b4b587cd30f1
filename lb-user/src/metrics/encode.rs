//! The text of a snapshot, in one of the two formats that Prometheus reads.

use std::fmt;

use lb_common::maps::counts::{BUCKETS, bound};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::Registry,
};

use super::{
    counts::{self, TimesMetric, seconds},
    families::{self, Metric, Value},
    rows::{Row, TimesOf, TimesRow},
    snapshot::MetricsSnapshot,
};

/// The media type by which a client wants OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// A format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextFormat {
    /// Prometheus' own, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl TextFormat {
    /// The one that a client wants, by its `Accept`.
    pub(crate) fn wanted<'a>(mut accepted: impl Iterator<Item = &'a str>) -> Self {
        match accepted.any(|accept| accept.contains(OPEN_METRICS)) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The text, in which room for so many bytes is taken at once.
    ///
    /// # Errors
    ///
    /// None: a text takes everything.
    pub(super) fn text(self, snapshot: MetricsSnapshot, room: usize) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(snapshot));
        let mut text = String::with_capacity(room);
        match self {
            Self::Prometheus => prometheus_text::encode(&mut text, &registry)?,
            Self::OpenMetrics => text::encode(&mut text, &registry)?,
        }
        Ok(text)
    }
}

impl Collector for MetricsSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        write(families::BUILD, &self.build, to)?;
        write(families::INSTANCE, &self.instance, to)?;
        write(families::RELOADS, &self.reloads, to)?;
        write(families::CLUSTERS, &self.clusters, to)?;
        write(families::HA, &self.ha, to)?;
        write(families::NETWORKS, &self.networks, to)?;
        write(families::RINGS, &self.rings, to)?;
        write(families::QUOTAS, &self.quotas, to)?;
        write(families::FRAMES, &self.frames, to)?;
        write(families::HELLOS, &self.hellos, to)?;
        write(families::REASONS, &self.reasons, to)?;
        write(families::SNAT, &self.snat, to)?;
        write(families::SERVICES, &self.services, to)?;
        write(families::POOLS, &self.pools, to)?;
        write(families::BACKENDS, &self.backends, to)?;
        write(families::SHARED, &self.shared, to)?;
        write(families::OUTCOMES, &self.outcomes, to)?;
        write(families::REQUESTS, &self.requests, to)?;
        write(families::INTERFACES, &self.interfaces, to)?;
        write(families::THREADS, &self.threads, to)?;
        write(families::ANSWERED, &self.answered, to)?;
        write(counts::NETWORK_COUNTS, &self.counts.networks, to)?;
        write(counts::SERVICE_COUNTS, &self.counts.services, to)?;
        write(counts::BACKEND_COUNTS, &self.counts.backends, to)?;
        write(families::REFUSALS, &self.counts.refusals, to)?;
        counts::TIMES
            .iter()
            .try_for_each(|metric| write_times(metric, &self.counts.times, to))
    }
}

/// A histogram of the services that have a time in it.
fn write_times(
    metric: &TimesMetric,
    rows: &[TimesRow],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let TimesMetric { name, help, times } = metric;
    let mut rows = rows
        .iter()
        .filter(|row| times(row).buckets.iter().any(|count| *count > 0))
        .peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for row in rows {
        let TimesOf { buckets, us } = (times)(row);
        let bounds = (0..BUCKETS - 1).map(|bucket| seconds(bound(bucket)));
        let bounds = bounds.chain([f64::MAX]);
        let by_bound: Vec<(f64, u64)> = bounds.zip(buckets.iter().copied()).collect();
        let labels = row.labels();
        let mut sample = match &labels {
            Some(labels) => family.encode_family(labels)?,
            None => continue,
        };
        let count = buckets.iter().sum();
        sample.encode_histogram::<NoLabelSet>(seconds(*us), count, &by_bound, None)?;
    }
    Ok(())
}

/// The metrics of rows of one kind; one without a sample is left out.
fn write<R: Row>(
    metrics: &[Metric<R>],
    rows: &[R],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    for metric in metrics {
        let samples = rows
            .iter()
            .filter_map(|row| Some((row, (metric.value)(row)?)));
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            continue;
        }
        let name = match metric.kind {
            MetricType::Counter => metric.name.trim_end_matches("_total"),
            MetricType::Info => metric.name.trim_end_matches("_info"),
            _ => metric.name,
        };
        let mut family = encoder.encode_descriptor(name, metric.help, None, metric.kind)?;
        for (row, value) in samples {
            match row.labels() {
                Some(labels) if metric.kind == MetricType::Info => family.encode_info(&labels)?,
                Some(labels) => sample(metric.kind, value, &mut family.encode_family(&labels)?)?,
                None => sample(metric.kind, value, &mut family)?,
            }
        }
    }
    Ok(())
}

fn sample(kind: MetricType, value: Value, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(value)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        }
        (MetricType::Counter, Value::Real(value)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        }
        (_, Value::Whole(value)) => encoder.encode_gauge(&value),
        (_, Value::Real(value)) => encoder.encode_gauge(&value),
    }
}

#[cfg(test)]
mod tests;
