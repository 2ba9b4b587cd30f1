//! A report of made-up figures, with everything that a report may have, for the tests of what shows it.

use crate::{
    machine::Machine,
    measure::{Better, Rounds, Shape, Spread},
    report::{Goal, Missing, Report, Shown, Suite},
};

/// Not measured.
const NONE: f64 = f64::NAN;
const PEERS: [&str; 6] = ["bare", "lb", "route", "nftables", "HAProxy", "nginx"];

pub(crate) fn report() -> Report {
    Report {
        machine: Machine {
            kernel: "6.18.0".to_owned(),
            cpu: "A CPU of 2.1 GHz".to_owned(),
            cpus: 2,
            jit: true,
            noise: spread([0.0, 0.013, 0.21]),
            stolen: 0.034,
        },
        quick: false,
        rounds: 5,
        seconds: 1712.4,
        suites: vec![program(), packets(), bulk(), sni()],
    }
}

/// Names that need two lines, and so many that a chart needs a row of its own.
fn program() -> Suite {
    let columns = [
        "established request",
        "established reply",
        "established by IPv6",
        "new flow",
        "new flow, policy",
        "from a cell",
        "ICMP error",
        "dropped",
    ];
    let lb = [41.2, 22.1, 44.3, 610.0, 655.0, 38.0, 81.0, 12.1];
    let nat = [32.0, NONE, 34.0, 346.0, NONE, NONE, NONE, 31.0];
    let all = [("lb", lb), ("reference NAT", nat)];
    let paths = rounds(Better::Less, columns, &all);
    Suite {
        name: "program",
        method: "The program alone by BPF_PROG_TEST_RUN: a wrapper rewrites the headers to the next of N flows \
                 and tail-calls it; the wrapper's own time is subtracted. Times are of the thread's CPU clock."
            .to_owned(),
        charts: vec![paths.chart("Paths", "ns", "path", Shape::Bars, Some("reference NAT"))],
        checked: vec!["15 000 000 runs, and every verdict was right".to_owned()],
        goals: vec![
            goal("reply / request, 64k flows", [0.5, 0.25], Some([0.22, 0.24, 0.29])),
            Goal::cost("request, lb / reference NAT, 1k flows", Some(spread([1.2, 1.3, 1.5]))),
        ],
        ..Suite::default()
    }
}

/// Lines, of which some end early, and bars.
fn packets() -> Suite {
    let columns = ["1k", "64k", "1M"];
    let small = [
        ("bare", [80.0, 120.0, 96.0]),
        ("lb", [162.0, 251.0, 287.0]),
        ("route", [504.0, 459.0, 491.0]),
        ("nftables", [981.0, 1371.0, 1686.0]),
    ];
    let large = [
        ("bare", [87.0, 91.0, 99.0]),
        ("lb", [151.0, 262.0, NONE]),
        ("route", [537.0, 540.0, NONE]),
        ("nftables", [1084.0, 1422.0, NONE]),
    ];
    let new = [
        ("lb", [1.91e6, 1.48e6, 1.12e6]),
        ("nftables", [181e3, 144e3, 97e3]),
    ];
    let cost = |title, values: &[_]| {
        let rounds = rounds(Better::Less, columns, values);
        rounds.chart(title, "ns per packet", "flows", Shape::Lines, Some("bare"))
    };
    let new = rounds(Better::More, columns, &new);
    let [ipvs, flowtable] = [("IPVS", "ip_vs"), ("flowtable", "nf_flow_table")];
    Suite {
        name: "packets",
        method: "UDP frames of valid checksums, generator, contestant and sink in one core's softirq; the \
                 generator's own time is subtracted. Every packet's address and port are checked at the sink."
            .to_owned(),
        charts: vec![
            cost("64 bytes", &small),
            cost("1514 bytes", &large),
            new.chart("New flows", "flows/s", "flows", Shape::Bars, Some("nftables")),
        ],
        checked: vec!["60 000 000 packets arrived right, none was lost".to_owned()],
        goals: vec![
            goal("packets, lb / bare at 1k flows", [0.45, 0.55], Some([0.44, 0.49, 0.53])),
            goal("packets, lb / nftables at 1M flows", [4.5, 6.0], Some([5.1, 5.9, 7.4])),
            goal("new flows/s, lb / nftables", [10.0, 20.0], Some([7.1, 7.8, 8.2])),
            goal("path cost at 1M / at 1k flows", [2.0, 1.6], None),
        ],
        contestants: vec![
            shown("nftables", "1.0.6", "table ip nat {\n\tchain prerouting {}\n}\n"),
            shown("lb", "0.1.0", "vip: <an address>\n"),
        ],
        missing: [ipvs, flowtable]
            .map(|(name, module)| Missing {
                name,
                why: format!("the kernel has no {module}"),
            })
            .into(),
    }
}

/// As many bars as have their values above them.
fn bulk() -> Suite {
    let all = [
        [3.9, 3.2],
        [3.5, 3.1],
        [3.4, 3.1],
        [2.8, 2.2],
        [2.5, 2.2],
        [3.3, 2.6],
    ];
    let per_core = [
        [17.4, 15.0],
        [15.5, 13.1],
        [8.9, 7.9],
        [6.4, 5.5],
        [4.1, 4.0],
        [5.0, 4.0],
    ];
    let chart = |title, values: [[f64; 2]; 6]| {
        let rows: Vec<_> = PEERS.into_iter().zip(values).collect();
        let rounds = rounds(Better::More, ["1 stream", "8 streams"], &rows);
        rounds.chart(title, "Gbit/s", "streams", Shape::Bars, Some("HAProxy"))
    };
    let configuration = "backend b\n\tserver s http://192.0.2.1\n";
    Suite {
        name: "bulk",
        method: "Downloads through the contestant, which has a core of its own.".to_owned(),
        charts: vec![
            chart("Whole path", all),
            chart("Per core of the load balancer", per_core),
        ],
        checked: vec!["312 GB arrived right".to_owned()],
        goals: vec![goal(
            "bulk per core, lb / HAProxy",
            [3.0, 3.8],
            Some([2.9, 3.3, 3.6]),
        )],
        contestants: vec![shown("HAProxy", "2.6.12", configuration)],
        ..Suite::default()
    }
}

/// Bars too thin for their values, one below 0, and a chart of nothing.
fn sni() -> Suite {
    let columns = [
        "concurrency 1",
        "concurrency 8",
        "concurrency 32",
        "concurrency 64",
    ];
    let most = [20_600.0, 18_200.0, 18_800.0, 14_100.0, 9200.0, 11_600.0];
    let mut rate: Vec<_> = PEERS
        .into_iter()
        .zip(most.map(|most| [0.12, 0.7, 1.0, 0.98].map(|share| most * share)))
        .collect();
    rate.push(("lb, hand-off", [1800.0, 9200.0, 13_900.0, 13_200.0]));
    let rate = rounds(Better::More, columns, &rate);
    let over = rounds(Better::Less, ["32"], &[("lb", [-1.2]), ("HAProxy", [4.1])]);
    let nothing = rounds(Better::Less, ["1", "32"], &[("lb", [NONE; 2])]);
    Suite {
        name: "sni",
        method: "A real ClientHello, an answer of 3 KB, and the end.".to_owned(),
        charts: vec![
            rate.chart("Handshakes", "per second", "", Shape::Bars, Some("HAProxy")),
            over.chart("CPU over bare", "us", "concurrency", Shape::Bars, None),
            nothing.chart("By IPv6", "us", "concurrency", Shape::Lines, Some("lb")),
        ],
        ..Suite::default()
    }
}

/// Five rounds around the values.
fn rounds<const N: usize>(
    better: Better,
    columns: [&str; N],
    values: &[(&str, [f64; N])],
) -> Rounds {
    let mut rounds = Rounds::new(values.iter().map(|(name, _)| *name), columns, better);
    for (round, share) in [0.93, 1.0, 0.98, 1.12, 1.02].into_iter().enumerate() {
        for (contestant, (_, values)) in values.iter().enumerate() {
            let share = if contestant == round {
                share * 1.05
            } else {
                share
            };
            for (column, value) in values.iter().enumerate() {
                if value.is_finite() {
                    rounds.add(round, contestant, column, value * share);
                }
            }
        }
    }
    rounds
}

fn goal(what: &str, wanted: [f64; 2], measured: Option<[f64; 3]>) -> Goal {
    Goal::new(what, wanted, measured.map(spread))
}

fn spread([least, median, most]: [f64; 3]) -> Spread {
    Spread {
        median,
        least,
        most,
    }
}

fn shown(name: &'static str, version: &str, configuration: &str) -> Shown {
    Shown {
        name,
        version: version.to_owned(),
        configuration: configuration.to_owned(),
    }
}
