//! The alerts and the board that are shipped: what Prometheus makes of them, and that each alert fires when its fault is
//! made, and only then.

mod board;
mod objects;
mod process;
mod prometheus;
mod shortages;

use std::{path::Path, process::Command};

use anyhow::Result;
use lb_tests::process as program;

use self::prometheus::RULES;

/// Alerts whose faults cannot be made in namespaces; `units.yaml` has them.
const NOT_MADE: &[&str] = &["LbInterfaceErrors"];

fn promtool(words: &[&str], file: &str) -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new("promtool");
    program::succeed(command.args(words).arg(root.join(file)))
}

/// The rules are such, and fire in all the cases of the unit tests that they are to fire in.
#[privileged_test]
fn promtool_accepts_the_rules_and_their_unit_tests() -> Result<()> {
    promtool(&["check", "rules"], "config/prometheus/alerts.yaml")?;
    promtool(&["test", "rules"], "tests/netns/metrics/alerts/units.yaml").map(drop)
}

/// A new alert needs its fault in one of the tests, and a case in the unit tests.
#[test]
fn each_alert_has_its_fault_and_its_unit_test() {
    let alerts = RULES.lines();
    let alerts = alerts.filter_map(|line| line.trim_start().strip_prefix("- alert: "));
    let mut alerts: Vec<&str> = alerts.collect();
    alerts.sort_unstable();
    let mut tested = [objects::MADE, shortages::MADE, process::MADE, NOT_MADE].concat();
    tested.sort_unstable();
    assert_eq!(alerts, tested);
    let units = include_str!("units.yaml");
    let page = include_str!("../../../../docs/metrics.md");
    for alert in alerts {
        let fires = format!("alertname=\"{alert}\",alertstate=\"firing\"");
        assert!(units.contains(&fires), "{alert}");
        assert!(page.contains(&format!("| `{alert}` | ")), "{alert}");
    }
}
