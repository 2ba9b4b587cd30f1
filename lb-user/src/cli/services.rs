//! `lb services`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write as _},
};

use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::{Format, Show},
    ask,
    backends::SERVICE_DOWN,
    print, table,
};
use crate::{
    api::{ControlStatus, UpCount},
    observe::{Observer, ServiceLine},
};

/// The answer of `-o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ServicesReport {
    /// What the VIPs listen on, a line for each address and port.
    services: Vec<ServiceReport>,
}

/// One line.
#[derive(Debug, Serialize, JsonSchema)]
struct ServiceReport {
    #[serde(flatten)]
    line: ServiceLine,
    /// Backends of its pools that take new flows; null if no control plane reports it.
    backends_up: Option<usize>,
    /// Backends of its pools; null as that is.
    backends: Option<usize>,
    /// Those of its pools whose backends all fail, though they answer: the service behind them is down, and not their
    /// nodes.
    pools_down: Vec<String>,
}

pub(super) fn show(show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let services = Observer::open(instance)?.services()?;
    let control = ask::health(instance);
    let counts = control.as_ref().ok().map(|control| control.pools());
    let down = control.as_ref().map(ControlStatus::services_down);
    let down = down.unwrap_or_default();
    let lines = services
        .into_iter()
        .map(|line| join(line, counts.as_ref(), &down));
    let why = control.as_ref().err();
    if show.output.format == Format::Json {
        let services = lines.collect();
        print::report(&ServicesReport { services })?;
        return why.map_or(Ok(()), |why| {
            writeln!(io::stderr(), "health is unknown: {why}").context("write to standard error")
        });
    }
    table::print(
        ["SERVICE", "NETWORK", "LISTEN", "POOL", "UP", "FLOWS"],
        lines.flat_map(|service| rows(&service, counts.as_ref())),
    )?;
    match why {
        Some(why) => print::line(format_args!("\nhealth is unknown: {why}")),
        None => Ok(()),
    }
}

/// A service with how many backends its pools have up.
fn join(
    line: ServiceLine,
    counts: Option<&BTreeMap<&str, UpCount>>,
    down: &BTreeSet<&str>,
) -> ServiceReport {
    let is_down = |pool: &&String| down.contains(pool.as_str());
    let of_pools = counts.map(|counts| {
        let pools = line
            .pools
            .iter()
            .filter_map(|pool| counts.get(pool.as_str()));
        pools.fold(UpCount::default(), |sum, count| UpCount {
            up: sum.up + count.up,
            of: sum.of + count.of,
        })
    });
    ServiceReport {
        backends_up: of_pools.map(|count| count.up),
        backends: of_pools.map(|count| count.of),
        pools_down: line.pools.iter().filter(is_down).cloned().collect(),
        line,
    }
}

/// A row for each pool, so that a pool that is down shows, and many fit into the width of a terminal; the service stands
/// in the first one.
fn rows(service: &ServiceReport, counts: Option<&BTreeMap<&str, UpCount>>) -> Vec<[String; 6]> {
    let ServiceLine {
        name,
        network,
        listen,
        pools,
        flows,
        counts: _,
    } = &service.line;
    let up = |pool: &String| match counts {
        Some(counts) => {
            let count = counts.get(pool.as_str()).copied().unwrap_or_default();
            match service.pools_down.contains(pool) {
                true => format!("{count}, {SERVICE_DOWN}"),
                false => count.to_string(),
            }
        }
        None => "-".to_owned(),
    };
    let none = ["-".to_owned()];
    let pools = if pools.is_empty() {
        &none
    } else {
        pools.as_slice()
    };
    let rows = pools.iter().enumerate().map(|(index, pool)| {
        let of_service = match index {
            0 => [
                name.clone(),
                network.clone(),
                listen.clone(),
                flows.to_string(),
            ],
            _ => Default::default(),
        };
        let [name, network, listen, flows] = of_service;
        [name, network, listen, pool.clone(), up(pool), flows]
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pools: &[&str]) -> ServiceLine {
        ServiceLine {
            name: "api".to_owned(),
            network: "tenant-a".to_owned(),
            listen: "192.168.203.110:6443/tcp".to_owned(),
            pools: pools.iter().map(ToString::to_string).collect(),
            flows: 7,
            counts: None,
        }
    }

    #[test]
    fn json_has_the_pools_of_a_service_together() {
        let counts = BTreeMap::from([
            ("p", UpCount { up: 2, of: 3 }),
            ("q", UpCount { up: 0, of: 1 }),
            ("other", UpCount { up: 9, of: 9 }),
        ]);
        let up = |pools| {
            let service = join(line(pools), Some(&counts), &BTreeSet::new());
            (service.backends_up, service.backends)
        };
        assert_eq!(up(&["p"]), (Some(2), Some(3)));
        assert_eq!(up(&["p", "q"]), (Some(2), Some(4)));
        let service = join(line(&["p"]), None, &BTreeSet::new());
        assert_eq!((service.backends_up, service.backends), (None, None));
    }

    #[test]
    fn each_pool_of_a_service_has_a_row() {
        let counts = BTreeMap::from([("p", UpCount { up: 2, of: 3 })]);
        let down = BTreeSet::new();
        let rows = |pools, counts| rows(&join(line(pools), counts, &down), counts);
        let first = [
            "api",
            "tenant-a",
            "192.168.203.110:6443/tcp",
            "p",
            "2/3",
            "7",
        ];
        assert_eq!(rows(&["p"], Some(&counts)), [first]);
        let second = ["", "", "", "gone", "0/0", ""];
        assert_eq!(rows(&["p", "gone"], Some(&counts)), [first, second]);
        assert_eq!(rows(&["p"], None)[0][4..], ["-", "7"]);
        // A service without a pool is there, too.
        assert_eq!(rows(&[], None)[0][3..], ["-", "-", "7"]);
    }

    #[test]
    fn a_pool_whose_service_is_down_is_named() {
        let counts = BTreeMap::from([
            ("p", UpCount { up: 0, of: 3 }),
            ("q", UpCount { up: 0, of: 3 }),
        ]);
        let down = BTreeSet::from(["q", "other"]);
        let service = join(line(&["p", "q"]), Some(&counts), &down);
        let rows = rows(&service, Some(&counts));
        let up: Vec<&str> = rows.iter().map(|row| row[4].as_str()).collect();
        assert_eq!(up, ["0/3", "0/3, service down"]);
        assert_eq!(service.pools_down, ["q"]);
    }
}
