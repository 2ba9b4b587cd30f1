//! `lb nodes`: the machines that backends are on, over all pools; and `lb node`, which overrides all backends of one.

use std::{
    io::{self, Write as _},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::{Format, NodeChange, Show},
    ask, observed, print, table,
};
use crate::{
    api::{BackendHealth, ControlStatus, Filter, FlowLine, Override, Request, UpCount},
    observe::NodeLine,
};

/// Characters of the columns that list something, so that a line fits into 100 columns.
const ADDRESSES_WIDTH: usize = 30;
const POOLS_WIDTH: usize = 24;

/// The answer of `-o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodesReport {
    /// All nodes, in the order in which the file has them.
    nodes: Vec<NodeReport>,
}

/// One node: the backends of all pools that share a name or an address.
#[derive(Debug, Serialize, JsonSchema)]
struct NodeReport {
    /// Its name, or its first address if it has none.
    name: String,
    /// Its addresses.
    addresses: Vec<String>,
    /// The pools that have a backend on it.
    pools: Vec<String>,
    /// Its backends in all pools.
    backends: usize,
    /// Those that take new flows; null if no control plane reports it.
    backends_up: Option<usize>,
    /// Those that the operator has drained; null as that is.
    backends_drained: Option<usize>,
    /// Those that the operator has disabled; null as that is.
    backends_disabled: Option<usize>,
    /// Those to which the operator has given another weight; null as that is.
    backends_weighted: Option<usize>,
    /// Live flows to it, and connections of shared VIPs; also of backends there that only finish their flows.
    flows: usize,
}

/// All nodes.
pub(super) fn show(show: &Show) -> Result<()> {
    let instance = &show.instance.name;
    let nodes = observed::open(instance)?.nodes()?;
    let control = ask::health(instance);
    let legs = ask::legs(instance, &Filter::default());
    let known = control.as_ref().ok();
    let nodes = nodes.into_iter().map(|node| join(node, &legs, known));
    let nodes: Vec<NodeReport> = nodes.collect();
    let why = control.as_ref().err();
    if show.output.format == Format::Json {
        print::report(&NodesReport { nodes })?;
        return why.map_or(Ok(()), |why| {
            writeln!(io::stderr(), "health is unknown: {why}").context("write to standard error")
        });
    }
    print::line(text(&nodes))?;
    match why {
        Some(why) => print::line(format_args!("\nhealth is unknown: {why}")),
        None => Ok(()),
    }
}

/// Overrides file and checks for all backends of a node.
pub(super) fn change(change: NodeChange) -> Result<()> {
    let (name, change, show) = change.parts();
    ask::order(&Request::Node { name, change }, false, &show).map(drop)
}

/// A node with what the control plane knows of its backends, and with its connections of shared VIPs.
fn join(node: NodeLine, legs: &[FlowLine], control: Option<&ControlStatus>) -> NodeReport {
    let backends = control.map(|control| {
        let of_node = control.backends.iter();
        let of_node = of_node.filter(|one| !one.retired && node.ids.contains(&one.id));
        of_node.collect::<Vec<_>>()
    });
    let count = |is_counted: fn(&BackendHealth) -> bool| {
        let backends = backends.as_ref();
        backends.map(|backends| backends.iter().filter(|one| is_counted(one)).count())
    };
    let legs = legs.iter().filter(|leg| is_to(leg, &node.addresses));
    NodeReport {
        backends_up: count(BackendHealth::is_up),
        backends_drained: count(|one| one.overridden == Some(Override::Drain)),
        backends_disabled: count(|one| one.overridden == Some(Override::Disable)),
        backends_weighted: count(|one| matches!(one.overridden, Some(Override::Weight { .. }))),
        name: node.name,
        addresses: node.addresses.iter().map(ToString::to_string).collect(),
        pools: node.pools,
        backends: node.backends,
        flows: node.flows + legs.count(),
    }
}

/// Whether a connection's backend has one of these addresses.
fn is_to(leg: &FlowLine, addresses: &[IpAddr]) -> bool {
    let backend = leg.backend.parse::<SocketAddr>();
    backend.is_ok_and(|backend| addresses.contains(&backend.ip()))
}

fn text(nodes: &[NodeReport]) -> String {
    table::text(
        ["NODE", "ADDRESSES", "POOLS", "UP", "OVERRIDE", "FLOWS"],
        nodes.iter().map(row),
    )
}

fn row(node: &NodeReport) -> [String; 6] {
    let up = node.backends_up.map(|up| UpCount {
        up,
        of: node.backends,
    });
    [
        node.name.clone(),
        some(&node.addresses, ADDRESSES_WIDTH),
        some(&node.pools, POOLS_WIDTH),
        up.map_or_else(|| "-".to_owned(), |up| up.to_string()),
        overrides(node),
        node.flows.to_string(),
    ]
}

/// What is overridden, and of how many of the backends if it is not all of them.
fn overrides(node: &NodeReport) -> String {
    let of = node.backends;
    let counts = [
        ("drained", node.backends_drained),
        ("disabled", node.backends_disabled),
        ("weight", node.backends_weighted),
    ];
    let parts = counts.into_iter().filter_map(|(word, count)| match count? {
        0 => None,
        count if count == of => Some(word.to_owned()),
        count => Some(format!("{word} {count}/{of}")),
    });
    let parts: Vec<String> = parts.collect();
    match parts.is_empty() {
        true => "-".to_owned(),
        false => parts.join(", "),
    }
}

/// As many words as there is room for, at least one, and how many more there are.
fn some(words: &[String], width: usize) -> String {
    let texts = (1..=words.len()).rev().map(|shown| {
        let listed = words.get(..shown).unwrap_or_default().join(", ");
        match words.len() - shown {
            0 => listed,
            more => format!("{listed} +{more}"),
        }
    });
    let mut last = String::new();
    for text in texts {
        last = text;
        if last.chars().count() <= width {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        health::HealthVerdict,
        reports::samples::{backend, control},
    };

    fn line() -> NodeLine {
        NodeLine {
            name: "node-2".to_owned(),
            addresses: ["10.32.96.106", "fd00:32:96::106"]
                .map(|address| address.parse().unwrap())
                .into(),
            pools: vec!["kas-a".to_owned(), "ingress-a".to_owned()],
            backends: 3,
            ids: [1, 2, 3, 9].into(),
            flows: 7,
        }
    }

    fn leg(backend: &str) -> FlowLine {
        FlowLine {
            network: "tenant-a".to_owned(),
            service: "shared".to_owned(),
            protocol: "tcp".into(),
            client: "192.168.203.50:40000".to_owned(),
            vip: "192.168.203.110:443".to_owned(),
            snat: "10.32.96.50:1024".to_owned(),
            backend: backend.to_owned(),
            state: "established".into(),
            name: None,
            bytes_request: 0,
            bytes_reply: 0,
            idle_seconds: 0,
            expires_in_seconds: None,
        }
    }

    /// Three backends of the node, with these overrides, and others.
    fn status(overridden: [Option<Override>; 3]) -> ControlStatus {
        let of_node = (1..).zip(overridden).map(|(id, overridden)| BackendHealth {
            overridden,
            ..backend(id, "p", HealthVerdict::Up)
        });
        let retired = BackendHealth {
            retired: true,
            ..backend(9, "p", HealthVerdict::Up)
        };
        let others = [retired, backend(4, "p", HealthVerdict::Up)];
        control(of_node.chain(others).collect())
    }

    fn report(overridden: [Option<Override>; 3]) -> NodeReport {
        join(line(), &[], Some(&status(overridden)))
    }

    #[test]
    fn a_node_has_what_is_known_of_its_backends() {
        let legs = ["10.32.96.106:30443", "10.32.96.105:30443", "-"].map(leg);
        let weight = Some(Override::Weight { weight: 7 });
        let status = status([Some(Override::Drain), weight, None]);
        let json = serde_json::to_value(join(line(), &legs, Some(&status))).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "name": "node-2",
                "addresses": ["10.32.96.106", "fd00:32:96::106"],
                "pools": ["kas-a", "ingress-a"],
                "backends": 3,
                "backends_up": 2,
                "backends_drained": 1,
                "backends_disabled": 0,
                "backends_weighted": 1,
                "flows": 8,
            })
        );
        let unknown = join(line(), &legs, None);
        assert_eq!(
            (unknown.backends_up, unknown.backends_drained),
            (None, None)
        );
        assert_eq!(row(&unknown)[3..], ["-", "-", "8"]);
    }

    #[test]
    fn an_override_of_some_backends_says_of_how_many() {
        use Override::{Disable, Drain};
        for (overridden, words) in [
            ([None; 3], "-"),
            ([Some(Drain); 3], "drained"),
            ([Some(Disable); 3], "disabled"),
            ([Some(Drain), None, Some(Drain)], "drained 2/3"),
            (
                [Some(Drain), Some(Override::Weight { weight: 2 }), None],
                "drained 1/3, weight 1/3",
            ),
        ] {
            assert_eq!(overrides(&report(overridden)), words);
        }
    }

    #[test]
    fn a_list_has_as_many_words_as_there_is_room_for() {
        let words = ["kas-a", "kas-b", "kas-c"].map(str::to_owned);
        for (width, text) in [
            (19, "kas-a, kas-b, kas-c"),
            (18, "kas-a, kas-b +1"),
            (14, "kas-a +2"),
            (0, "kas-a +2"),
        ] {
            assert_eq!(some(&words, width), text, "{width}");
        }
        assert_eq!(some(&[], 9), "");
    }

    #[test]
    fn a_line_fits_into_a_hundred_columns() {
        let pools = (0..120).map(|pool| format!("ingress-{pool}"));
        let node = NodeReport {
            name: "worker-12.hub".to_owned(),
            pools: pools.collect(),
            backends: 240,
            backends_up: Some(240),
            backends_drained: Some(240),
            flows: 1_000_000,
            ..report([None; 3])
        };
        let text = text(&[node]);
        let line = text.lines().nth(1).unwrap();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "worker-12.hub 10.32.96.106, fd00:32:96::106 ingress-0 +119 240/240 drained 1000000"
        );
        assert!(line.len() <= 100, "{}: {line}", line.len());
    }
}
