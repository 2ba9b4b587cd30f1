//! `lb services`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::{
    arguments::{Format, Show},
    ask, print, table,
};
use crate::{
    api::UpCount,
    observe::{Observer, ServiceLine},
};

/// One service, as in `-o json`.
#[derive(Debug, Serialize)]
struct ServiceJson {
    #[serde(flatten)]
    line: ServiceLine,
    /// Backends of its pools that take new flows; null if no control plane reports it.
    up: Option<usize>,
    /// Backends of its pools.
    backends: Option<usize>,
}

pub(super) fn show(show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let services = Observer::open(instance)?.services()?;
    let control = ask::health(instance);
    let counts = control.as_ref().ok().map(|control| control.pools());
    let lines = services.into_iter().map(|line| join(line, counts.as_ref()));
    let why = control.as_ref().err();
    if show.output.format == Format::Json {
        print::json(&lines.collect::<Vec<_>>())?;
        return why.map_or(Ok(()), |why| {
            writeln!(io::stderr(), "health is unknown: {why}").context("write to standard error")
        });
    }
    table::print(
        ["SERVICE", "NETWORK", "LISTEN", "POOL", "UP", "FLOWS"],
        lines.map(row),
    )?;
    match why {
        Some(why) => print::line(format_args!("\nhealth is unknown: {why}")),
        None => Ok(()),
    }
}

/// A service with how many backends its pools have up.
fn join(line: ServiceLine, counts: Option<&BTreeMap<&str, UpCount>>) -> ServiceJson {
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
    ServiceJson {
        up: of_pools.map(|count| count.up),
        backends: of_pools.map(|count| count.of),
        line,
    }
}

fn row(service: ServiceJson) -> [String; 6] {
    let ServiceJson { line, up, backends } = service;
    let up = up.zip(backends).map(|(up, of)| UpCount { up, of });
    [
        line.name,
        line.network,
        line.listen,
        line.pools.join(", "),
        up.map_or_else(|| "-".to_owned(), |up| up.to_string()),
        line.flows.to_string(),
    ]
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
        }
    }

    #[test]
    fn the_pools_of_a_service_are_counted_together() {
        let counts = BTreeMap::from([
            ("p", UpCount { up: 2, of: 3 }),
            ("q", UpCount { up: 0, of: 1 }),
            ("other", UpCount { up: 9, of: 9 }),
        ]);
        let up = |pools| row(join(line(pools), Some(&counts)))[4].clone();
        assert_eq!(up(&["p"]), "2/3");
        assert_eq!(up(&["p", "q"]), "2/4");
        let row = row(join(line(&["p"]), None));
        assert_eq!(row[4..], ["-", "7"]);
    }
}
