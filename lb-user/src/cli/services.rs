//! `lb services`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use anyhow::{Context as _, Result};

use super::{
    arguments::{Format, Show},
    ask, observed, print, table,
};
use crate::{
    api::{ControlStatus, UpCount},
    observe::ServiceLine,
    reports::{
        backends::SERVICE_DOWN,
        services::{ServiceReport, ServicesReport},
    },
};

pub(super) fn show(show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let observer = observed::open(instance)?;
    let control = ask::health(instance);
    let report = ServicesReport::new(&observer, &control)?;
    let why = control.as_ref().err();
    if show.output.format == Format::Json {
        print::report(&report)?;
        return why.map_or(Ok(()), |why| {
            writeln!(io::stderr(), "health is unknown: {why}").context("write to standard error")
        });
    }
    let counts = control.as_ref().ok().map(ControlStatus::pools);
    let services = report.services.iter();
    table::print(
        ["SERVICE", "NETWORK", "LISTEN", "POOL", "UP", "FLOWS"],
        services.flat_map(|service| rows(service, counts.as_ref())),
    )?;
    match why {
        Some(why) => print::line(format_args!("\nhealth is unknown: {why}")),
        None => Ok(()),
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::reports::services::join;

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
