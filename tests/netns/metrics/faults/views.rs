//! What `lb status`, the page and the metrics show, and how to find something in it.

use anyhow::{Result, ensure};
use lb_tests::{netns::Netns, product::lb::Lb};
use serde_json::Value;

use crate::metrics::page::{LISTEN, Samples, curl, samples};

/// Where something may be seen.
pub(super) struct Views {
    pub(super) status: Value,
    pub(super) page: Value,
    pub(super) metrics: Samples,
}

impl Views {
    /// Of now; the page and the metrics may be a second old.
    pub(super) fn now(netns: &Netns, lb: &Lb<'_>) -> Result<Self> {
        let get = |path: &str| -> Result<String> {
            let (status, text) = curl(netns, &[&format!("http://{LISTEN}{path}")])?;
            ensure!(status == 200, "{path}: {status}: {text}");
            Ok(text)
        };
        Ok(Self {
            status: lb.ask_json(&["status"])?,
            page: serde_json::from_str(&get("/v1/overview")?)?,
            metrics: samples(&get("/metrics")?)?,
        })
    }
}

/// A number in JSON.
pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// The one of a list with this name.
pub(super) fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|one| one["name"] == name).unwrap_or(&Value::Null)
}

pub(super) fn of_pool<'v>(backends: &'v Value, pool: &str) -> &'v Value {
    let mut all = backends.as_array().into_iter().flatten();
    all.find(|one| one["pool"] == pool).unwrap_or(&Value::Null)
}

pub(super) fn has_drop(page: &Value, reason: &str) -> bool {
    let mut all = page["drops"].as_array().into_iter().flatten();
    all.any(|one| {
        one["reason"] == reason && one["samples"].as_array().is_some_and(|all| !all.is_empty())
    })
}

pub(super) fn sample(metrics: &Samples, begin: &str) -> Option<f64> {
    let found = metrics.iter().filter(|(name, _)| name.starts_with(begin));
    found.map(|(_, value)| *value).reduce(f64::max)
}

pub(super) fn is(metrics: &Samples, begin: &str, wanted: f64) -> bool {
    sample(metrics, begin).is_some_and(|value| (value - wanted).abs() < 0.5)
}

pub(super) fn is_some(metrics: &Samples, begin: &str) -> bool {
    sample(metrics, begin).is_some_and(|value| value > 0.5)
}
