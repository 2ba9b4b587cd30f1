//! The faults of an operator's first day, made one after the other: which of `lb status`, the page and the metrics show each
//! of them, and how soon.

mod views;

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll, process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::answers::Answers,
    topology::{ECHO, ECHO_NODE_PORT, TENANT_NIC, Topology, VIP},
};
use serde_json::{Value, json};

use self::views::{Views, has_drop, is, is_some, named, number, of_pool};
use super::page::{LISTEN, is_open, page};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, HEALTH_PORT, Site, wait_for},
    proxy::sni::{self, SHARED},
};

/// Where a fault must be seen: within this time, on a machine that is busy.
const SOON: Duration = Duration::from_secs(8);
/// A port of the nodes where nothing listens.
const CLOSED: u16 = 39_998;
const NEVER_THERE: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 199);
/// In the tenant's prefix, and no VIP.
const NO_VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 111);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const VIPS: [(&str, u16); 6] = [
    ("dead", 7001),
    ("strict", 7002),
    ("moved", 7003),
    ("wrong", 7004),
    ("gone", 7005),
    ("never", 7006),
];

/// Whether each of them shows a fault.
type Seen<'f> = dyn Fn(&Views) -> [bool; 3] + 'f;

/// A load balancer and the time at which each view showed a fault.
struct Faults<'t> {
    topology: &'t Topology,
    lb: Lb<'t>,
}

impl Faults<'_> {
    /// Makes a fault, and prints how soon each view shows it; fails where one of those does not that are to.
    fn make(
        &self,
        name: &str,
        shown: [bool; 3],
        fault: impl FnOnce() -> Result<()>,
        seen: &Seen<'_>,
    ) -> Result<()> {
        let before = seen(&Views::now(&self.topology.lb, &self.lb)?);
        ensure!(before == [false; 3], "{name}: seen before: {before:?}");
        fault()?;
        let begun = Instant::now();
        let mut times = [None; 3];
        let complete = poll::until(name, SOON, || {
            let now = seen(&Views::now(&self.topology.lb, &self.lb)?);
            let passed = begun.elapsed();
            for (time, now) in times.iter_mut().zip(now) {
                *time = time.or(now.then_some(passed));
            }
            let is_there = times
                .iter()
                .zip(shown)
                .all(|(time, shown)| !shown || time.is_some());
            Ok(is_there.then_some(()))
        });
        let [status, page, metrics] = times.map(|time| match time {
            Some(time) => format!("{:.1} s", time.as_secs_f32()),
            None => "-".to_owned(),
        });
        println!("| {name} | {status} | {page} | {metrics} |");
        complete.with_context(|| format!("{name}: {times:?}"))
    }

    /// A client's connection to a service, which may fail.
    fn connect(&self, port: u16) -> Result<bool> {
        let client = &self.topology.client().netns;
        client.inside(|| is_open(VIP, port))
    }
}

fn config(topology: &Topology, site: &Site<'_>) -> Config {
    let node = |index: usize, port| SocketAddrV4::new(topology.nodes[index].address, port);
    let pools = [
        ("dead", node(2, ECHO_NODE_PORT)),
        ("moved", node(0, ECHO_NODE_PORT)),
        ("wrong", node(0, CLOSED)),
        ("gone", node(3, ECHO_NODE_PORT)),
    ];
    let config = pools.into_iter().fold(site.http(""), |config, (pool, at)| {
        config.mgmt_pool(pool, [at])
    });
    let checked = |config: Config, pool: &str, port: Option<u16>| {
        config.pool(pool, |pool| {
            let pool = pool.set("health", Keys::from(FAST));
            match port {
                Some(port) => pool.set("health.tcp.port", port),
                None => pool.set("health.tcp", json!({})),
            }
        })
    };
    let config = checked(config, "dead", Some(HEALTH_PORT));
    let config = checked(config, "moved", None);
    let services = VIPS.into_iter().filter(|(name, _)| *name != "never");
    let config = services.fold(config, |config, (name, port)| {
        let pool = if name == "strict" { "echo-a" } else { name };
        config.tcp_service_to(name, SocketAddrV4::new(VIP, port), pool)
    });
    config
        .service("shared", |service| {
            let routes = Keys::from("routes: [{ names: [a.lab], pool: echo-a }]");
            service.on("tenant-a").tcp(SHARED).set("sni", routes)
        })
        .set("admin.http.listen", LISTEN)
}

/// Of each fault: `lb status`, the page, the metrics.
#[privileged_test]
fn the_page_and_the_metrics_show_each_fault_of_the_first_day() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let checked = Answers::start(
        &topology.nodes[2].netns,
        SocketAddrV4::new(topology.nodes[2].address, HEALTH_PORT),
    )?;
    let config = config(&topology, &site);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    page(&topology.lb)?;
    let faults = Faults {
        topology: &topology,
        lb,
    };
    println!("| fault | status | page | metrics |");
    of_backends(&faults, &site, &checked)?;
    of_a_file(&faults, &config)?;
    of_clients(&faults)?;
    faults.make(
        "a NIC has no carrier",
        [true; 3],
        || topology.mgmt_lan.ip_batch("link set p-lb down\n"),
        &|views| {
            let networks = |of: &Value| named(of, "mgmt")["carrier"] == false;
            [
                networks(&views.status["networks"]),
                networks(&views.page["status"]["networks"]),
                is(&views.metrics, r#"lb_network_carrier{network="mgmt"}"#, 0.0),
            ]
        },
    )?;
    faults.lb.down()
}

fn of_backends(faults: &Faults<'_>, site: &Site<'_>, checked: &Answers) -> Result<()> {
    faults.make(
        "one backend stops",
        [true; 3],
        || {
            site.health[1].refuse();
            Ok(())
        },
        &|views| {
            [
                number(&views.status["health"]["backends_up"]) < 6,
                views.page["backends"][1]["state"] == "dead",
                is(
                    &views.metrics,
                    r#"lb_backend_up{pool="echo-a",backend="n2"}"#,
                    0.0,
                ),
            ]
        },
    )?;
    faults.make(
        "all backends of an API stop",
        [true; 3],
        || {
            checked.refuse();
            Ok(())
        },
        &|views| {
            [
                views.status["health"]["problems"]
                    .to_string()
                    .contains("pool dead"),
                named(&views.page["services"], "dead")["backends_up"] == 0,
                is(&views.metrics, r#"lb_pool_backends_up{pool="dead""#, 0.0),
            ]
        },
    )?;
    faults.make(
        "a NodePort without a check is wrong",
        [true; 3],
        || faults.connect(7004).map(drop),
        &|views| {
            let failed = |one: &Value| number(&one["counts"]["failed"]) > 0;
            [
                failed(named(&views.status["networks"], "tenant-a")),
                failed(of_pool(&views.page["backends"], "wrong")),
                is_some(
                    &views.metrics,
                    r#"lb_backend_refused_syns_total{pool="wrong""#,
                ),
            ]
        },
    )?;
    faults.make(
        "a node goes, without a check",
        [false, true, true],
        || {
            faults.topology.nodes[3]
                .netns
                .run("ip link set eth0 down")
                .map(drop)
        },
        &|views| {
            let state = &of_pool(&views.page["backends"], "gone")["state"];
            [
                views.status.to_string().contains("unreachable"),
                *state == "unchecked, unreachable",
                is(&views.metrics, r#"lb_backend_up{pool="gone""#, 0.0)
                    || is_some(&views.metrics, "lb_network_unreachable_backends"),
            ]
        },
    )
}

fn of_a_file(faults: &Faults<'_>, config: &Config) -> Result<()> {
    let reload = |config: Config| {
        faults.lb.write(&config)?;
        faults.lb.tell(&["reload"])?.done().map(drop)
    };
    let node = faults.topology.nodes[0].address;
    let config = config.clone();
    let moved = config.pool("moved", |pool| {
        pool.backends([SocketAddrV4::new(node, CLOSED)])
    });
    faults.make(
        "a NodePort with a check is wrong",
        [true; 3],
        || reload(moved.clone()),
        &|views| {
            [
                views.status["health"]["problems"]
                    .to_string()
                    .contains("pool moved"),
                named(&views.page["services"], "moved")["backends_up"] == 0,
                is(&views.metrics, r#"lb_pool_backends_up{pool="moved""#, 0.0),
            ]
        },
    )?;
    let never = moved.mgmt_pool("never", [SocketAddrV4::new(NEVER_THERE, ECHO_NODE_PORT)]);
    let never = never.tcp_service_to("never", SocketAddrV4::new(VIP, 7006), "never");
    faults.make(
        "a node was never there",
        [false, true, true],
        || reload(never.clone()),
        &|views| {
            let state = &of_pool(&views.page["backends"], "never")["state"];
            [
                false,
                *state == "unchecked, unreachable",
                is(&views.metrics, "lb_network_unreachable_backends", 2.0),
            ]
        },
    )?;
    let strict = never.service("strict", |service| {
        service.set("allow", ["192.168.203.51/32"])
    });
    faults.make(
        "an allow-list is wrong",
        [false, true, true],
        || {
            reload(strict)?;
            faults.connect(7002).map(drop)
        },
        &|views| {
            [
                false,
                has_drop(&views.page, "denied"),
                is_some(
                    &views.metrics,
                    r#"lb_drops_total{network="tenant-a",hook="nic",reason="denied"}"#,
                ) || is_some(
                    &views.metrics,
                    r#"lb_answers_total{network="tenant-a",hook="nic",reason="denied"}"#,
                ),
            ]
        },
    )
}

/// What clients do wrong, and what the clients of another network could.
fn of_clients(faults: &Faults<'_>) -> Result<()> {
    let client = faults.topology.client();
    let dropped = |reason: &'static str| {
        move |views: &Views| {
            let begin =
                format!(r#"lb_drops_total{{network="tenant-a",hook="nic",reason="{reason}"}}"#);
            [
                false,
                has_drop(&views.page, reason),
                is_some(&views.metrics, &begin),
            ]
        }
    };
    let mac = faults.topology.mac(TENANT_NIC)?;
    for (name, reason, line) in [
        (
            "a port has no service",
            "no_service",
            format!("curl -m 0.3 http://{VIP}:9/"),
        ),
        (
            "an address is no VIP",
            "arp_not_ours",
            format!("curl -m 0.3 http://{NO_VIP}/"),
        ),
        (
            "a source is spoofed",
            "spoofed",
            format!(
                "ip address add {FOREIGN}/32 dev eth0; curl -m 0.3 --interface {FOREIGN} http://{ECHO}/"
            ),
        ),
        (
            "a client goes straight to a node",
            "not_declared",
            format!(
                "ip route add 10.32.96.105/32 dev eth0; ip neigh add 10.32.96.105 lladdr {mac} dev eth0; \
                 curl -m 0.3 http://10.32.96.105/"
            ),
        ),
    ] {
        let run = || {
            let mut shell = client.netns.command("sh");
            process::finish(shell.args(["-c", &line])).map(drop)
        };
        faults.make(name, [false, true, true], run, &dropped(reason))?;
    }
    faults.make(
        "a name is wrong",
        [true; 3],
        || sni::ask(client, Some("nowhere.lab"), "").map(drop),
        &|views| {
            let refused = &views.status["shared"]["shared"]["refused"];
            let begin = r#"lb_shared_connections_total{service="shared",outcome="refused",reason="no_match"}"#;
            [
                number(&refused["no_match"]) > 0,
                named(&views.page["names"], "nowhere.lab")["reason"] == "no_match",
                is_some(&views.metrics, begin),
            ]
        },
    )
}
