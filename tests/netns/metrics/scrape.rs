//! What a scrape shows is what `lb` reports otherwise.

use std::{
    fs::{self, Permissions},
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::lb::Lb,
    servers::teller,
    topology::{ECHO, Topology, VIP},
    traffic::{
        client,
        hello::{CAPTURED_NAME, named},
    },
};

use super::page::{LISTEN, Samples, curl, is_open, next_page, page, promtool, samples};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
    proxy::{guard, sni::SHARED},
};

/// Connections that stay open.
const OPEN: u16 = 5;
/// Connections to a port without a service.
const LOST: usize = 3;

fn value(samples: &Samples, name: &str) -> Result<f64> {
    let value = samples.get(name).copied();
    value.with_context(|| format!("{name} is not among {:#?}", samples.keys()))
}

/// The values are those of `lb status`, `services`, `backends` and `drops`, and promtool takes the page.
#[privileged_test]
fn a_scrape_shows_what_lb_reports_and_promtool_accepts_it() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("").set("admin.http.listen", LISTEN);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let client = &topology.client().netns;
    let first = samples(&page(&topology.lb)?)?;
    let open = client.inside(|| {
        let open = (0..OPEN).map(|_| client::open(None, ECHO));
        open.collect::<Result<Vec<_>>>()
    })??;
    let lost = (0..LOST).filter(|_| client.inside(|| is_open(VIP, 9)).unwrap_or(true));
    assert_eq!(lost.count(), 0);
    let before = lb.status()?;
    let text = next_page(&topology.lb)?;
    let after = lb.status()?;

    assert_eq!(promtool(&text)?, "");
    let now = samples(&text)?;
    for (name, wanted) in [
        (
            r#"lb_service_flows{service="echo-a",network="tenant-a"}"#,
            OPEN.into(),
        ),
        (r#"lb_network_flows{network="tenant-a"}"#, OPEN.into()),
        (r#"lb_network_carrier{network="tenant-a"}"#, 1.0),
        (r#"lb_pool_backends_up{pool="echo-a",network="mgmt"}"#, 2.0),
        (r#"lb_pool_backends{pool="echo-a",network="mgmt"}"#, 2.0),
        (r#"lb_backend_up{pool="echo-a",backend="n1"}"#, 1.0),
        (r#"lb_backend_weight{pool="echo-a",backend="n2"}"#, 1.0),
        (r#"lb_config_reloads_total{result="applied"}"#, 0.0),
        ("lb_control_responds", 1.0),
        ("lb_config_generation", 1.0),
        ("lb_config_last_reload_success", 1.0),
    ] {
        assert!(
            (value(&now, name)? - wanted).abs() < 1e-9,
            "{name}: {now:#?}"
        );
    }
    let flows = ["n1", "n2"].map(|name| {
        value(
            &now,
            &format!(r#"lb_backend_flows{{pool="echo-a",backend="{name}"}}"#),
        )
    });
    let flows = flows.into_iter().sum::<Result<f64>>()?;
    assert!((flows - f64::from(OPEN)).abs() < 1e-9, "{flows}");

    let drops = value(
        &now,
        r#"lb_drops_total{network="tenant-a",hook="nic",reason="no_service"}"#,
    )?;
    #[expect(clippy::cast_precision_loss, reason = "a few packets")]
    let is_dropped = drops >= LOST as f64 && drops <= lb.dropped("no_service")? as f64;
    assert!(is_dropped, "{drops}");
    between(&now, &before, &after)?;

    // Counters do not fall, and the thread that serves them is among the threads.
    value(&now, r#"lb_thread_cpu_seconds_total{thread="metrics"}"#)?;
    let last = samples(&next_page(&topology.lb)?)?;
    for (older, newer) in [(&first, &now), (&now, &last)] {
        for (name, before) in older.iter().filter(|(name, _)| is_counter(name)) {
            let after = newer.get(name).with_context(|| format!("{name} is gone"))?;
            ensure!(after >= before, "{name} falls from {before} to {after}");
        }
    }
    drop(open);
    lb.down()
}

fn is_counter(name: &str) -> bool {
    let name = name.split_once('{').map_or(name, |(name, _)| name);
    name.ends_with("_total")
}

/// Verdicts and SNAT ports lie between those of two looks.
#[expect(clippy::cast_precision_loss, reason = "a few packets")]
fn between(
    now: &Samples,
    before: &lb_tests::oracle::query::Status,
    after: &lb_tests::oracle::query::Status,
) -> Result<()> {
    let seen = |hook: &str, verdict: &str| {
        let rest = format!(r#",hook="{hook}",verdict="{verdict}"}}"#);
        let of_all = now
            .iter()
            .filter(|(name, _)| name.starts_with("lb_frames_total{") && name.ends_with(&rest));
        of_all.map(|(_, count)| count).sum::<f64>()
    };
    for (hook, [low, high]) in [
        ("nic", [before.verdicts.nic, after.verdicts.nic]),
        ("cell", [before.verdicts.cell, after.verdicts.cell]),
    ] {
        for (verdict, low, high) in [
            ("passed", low.passed, high.passed),
            ("transmitted", low.transmitted, high.transmitted),
            ("forwarded", low.forwarded, high.forwarded),
            ("delivered", low.delivered, high.delivered),
            ("consumed", low.consumed, high.consumed),
            ("dropped", low.dropped, high.dropped),
            ("refused", low.refused, high.refused),
        ] {
            let seen = seen(hook, verdict);
            let fits = seen >= low as f64 && seen <= high as f64;
            ensure!(fits, "{hook} {verdict}: {seen}, expected {low} to {high}");
        }
    }
    for snat in &after.snat {
        let labels = format!(
            r#"{{network="{}",address="{}",state="in_use"}}"#,
            snat.network, snat.address
        );
        let ports = value(now, &format!("lb_snat_ports{labels}"))?;
        let used = value(now, &format!("lb_snat_ports_used{labels}"))?;
        assert!((ports - snat.flows.capacity as f64).abs() < 1e-9, "{ports}");
        ensure!(
            used >= f64::from(OPEN) && used <= ports,
            "{used} of {ports}"
        );
    }
    Ok(())
}

/// What is no request for metrics by a name of this host, with the token, is refused; a reload brings the token.
#[privileged_test]
fn only_a_read_with_a_host_and_the_token_is_answered() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let config = site.http("").set("admin.http.listen", LISTEN);
    let lb = Lb::start(&topology, &config)?;
    page(&topology.lb)?;
    let url = format!("http://{LISTEN}/metrics");
    let status = |arguments: &[&str]| curl(&topology.lb, arguments).map(|(status, _)| status);
    assert_eq!(status(&["-X", "POST", "-d", "x", &url])?, 405);
    assert_eq!(status(&["-H", "Host: evil.example", &url])?, 421);
    assert_eq!(status(&["-H", "Host: localhost", &url])?, 200);
    assert_eq!(status(&["-H", "Host;", &url])?, 400);
    assert_eq!(status(&[&format!("http://{LISTEN}/")])?, 200);
    assert_eq!(status(&[&format!("http://{LISTEN}/index.html")])?, 404);
    let (_, head) = curl(&topology.lb, &["-I", &url])?;
    for line in ["text/plain; version=0.0.4", "nosniff", "no-store"] {
        ensure!(head.contains(line), "{line} is not in {head}");
    }
    let (_, open) = curl(
        &topology.lb,
        &[
            "-H",
            "Accept: application/openmetrics-text; version=1.0.0",
            &url,
        ],
    )?;
    ensure!(
        open.ends_with("# EOF\n"),
        "{}",
        &open[open.len().saturating_sub(80)..]
    );
    let health = curl(&topology.lb, &[&format!("http://{LISTEN}/healthz")])?;
    assert_eq!(health, (200, "ok\n".to_owned()));

    let token = topology.write("token", "0123456789abcdef0123\n")?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let with_token = config.set("admin.http.token_file", token.display().to_string());
    lb.write(&with_token)?;
    lb.tell(&["reload"])?.done()?;
    poll::until("the token is needed", LIMIT, || {
        Ok(status(&[&url]).ok().filter(|status| *status == 401))
    })?;
    let authorization = "Authorization: Bearer 0123456789abcdef0123";
    assert_eq!(status(&["-H", authorization, &url])?, 200);
    assert_eq!(
        status(&["-H", "Authorization: Bearer 0123456789abcdef0124", &url])?,
        401
    );
    let (_, text) = curl(&topology.lb, &["-H", authorization, &url])?;
    let now = samples(&text)?;
    assert!((value(&now, r#"lb_config_reloads_total{result="applied"}"#)? - 1.0).abs() < 1e-9);
    assert!(value(&now, r#"lb_http_answers_total{code="401"}"#)? >= 1.0);

    lb.write(&site.http(""))?;
    lb.tell(&["reload"])?.done()?;
    poll::until("the port is closed", LIMIT, || {
        Ok(status(&[&url]).is_err().then_some(()))
    })?;
    lb.down()
}

/// The process that takes over has the port within a moment, and one that is taken stops nothing.
#[privileged_test]
fn a_take_over_takes_the_port_and_a_port_that_is_taken_stops_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let config = site.http("").set("admin.http.listen", LISTEN);
    let holder = topology
        .lb
        .inside(|| std::net::TcpListener::bind(LISTEN))??;
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"], LIMIT)?;
    assert_eq!(site.who(1)?.len(), 1);
    poll::until("the event", LIMIT, || {
        let said = lb.tell(&["events"])?.done()?;
        Ok(said.contains("Address already in use").then_some(()))
    })?;
    drop(holder);
    page(&topology.lb)?;

    let mut before = lb.take_over(&config)?;
    before.wait_for_end(LIMIT)?;
    let now = samples(&page(&topology.lb)?)?;
    let started = value(&now, "process_start_time_seconds")?;
    ensure!(started > 1e9, "{started}");
    assert_eq!(site.who(1)?.len(), 1);
    lb.down()
}

/// Hellos by what has become of them: those that XDP has opened, of a name that it does not know, and of a service that has all the
/// connections that it may have.
#[privileged_test]
fn hellos_are_on_the_page_by_their_ends() -> Result<()> {
    const MOST: usize = 3;
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let config = guard::config(&topology, "late_binding: always")
        .service("shared", |shared| shared.set("max_flows", MOST))
        .set("admin.http.listen", LISTEN);
    let _lb = Lb::start(&topology, &config)?;
    let client = &topology.client().netns;
    let ask = |name: &str| {
        let ask = || teller::ask(SHARED, &[&named(name.as_bytes())], Duration::ZERO);
        client.inside(ask)?
    };
    for _ in 0..2 {
        assert_eq!(ask("strange.lab")?, None);
    }
    let open = || {
        let mut stream = client::open(None, SHARED)?;
        stream.write_all(&named(CAPTURED_NAME.as_bytes()))?;
        stream.read_exact(&mut [0])?;
        Ok(stream)
    };
    let open = client.inside(|| (0..MOST).map(|_| open()).collect::<Result<Vec<_>>>())??;
    let refused = ask(CAPTURED_NAME);
    ensure!(!matches!(refused, Ok(Some(_))), "{refused:?}");
    let now = samples(&next_page(&topology.lb)?)?;
    let hellos = |end| {
        let name = format!(r#"lb_hellos_total{{network="tenant-a",end="{end}"}}"#);
        value(&now, &name)
    };
    // On a slow machine a client repeats what the process has not taken yet.
    for (end, least) in [("bound", 3.0), ("unopened", 1.0), ("unrouted", 2.0)] {
        let count = hellos(end)?;
        ensure!((least..least + 3.0).contains(&count), "{end}: {count}");
    }
    drop(open);
    Ok(())
}
