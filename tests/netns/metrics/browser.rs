//! The page of `admin.http` in Chromium: what it shows is what `lb` reports, whatever names clients send. `tests/page` has what is
//! done inside of the browser.

use std::{
    fs::{self, Permissions},
    net::SocketAddrV4,
    os::unix::fs::PermissionsExt as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::{answers::Answers, echo::EchoServer},
    topology::{ECHO, ECHO_NODE_PORT, Host, Trunk, VIP},
    traffic::{client, hello::named},
};
use serde_json::{Value, json};

use super::{
    browser_long::long,
    chromium::Browser,
    page::{LISTEN, curl, is_open, page},
};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, HEALTH_PORT, at_endpoints, wait_for},
    proxy::sni::{SHARED, send},
};

const TOKEN: &str = "0123456789abcdef0123";
/// Connections of each tenant.
const CONNECTIONS: usize = 10;
/// How much later than `lb backends` the page may show a verdict: it gets an overview a second.
const MAX_LATER: Duration = Duration::from_secs(3);
/// What no page may get as it is, and `lb` shows with its bytes.
const HOSTILE: [&[u8]; 3] = [b"<script>alert(1)</script>", b"a\nb", b"\x1b[2J"];

fn health(nodes: &[Host]) -> Result<Vec<Answers>> {
    let at = |node: &Host| SocketAddrV4::new(node.address, HEALTH_PORT);
    let start = |node: &Host| Answers::start(&node.netns, at(node));
    nodes.iter().map(start).collect()
}

fn echo_servers(nodes: &[Host]) -> Result<Vec<EchoServer<'_>>> {
    let mut servers = Vec::new();
    for node in nodes {
        let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        servers.push(EchoServer::start(&node.netns, address, node.name)?);
    }
    Ok(servers)
}

/// Two tenants with the same VIP and two nodes each, and a shared VIP of the second.
fn config(trunk: &Trunk) -> Config {
    let prefix = "192.168.203.0/24";
    let [a, b] = &trunk.tenants;
    let pool = |nodes: &[Host]| -> Vec<Value> {
        let backend = |node: &Host| {
            let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
            json!({ "name": node.name, "address": address })
        };
        nodes.iter().map(backend).collect()
    };
    let with = |pool: Vec<Value>| {
        let checked = move |one: Keys| one.on("mgmt").set("backends", pool);
        move |one: Keys| checked(one).set("health", at_endpoints(FAST))
    };
    let sni = "routes: [{ names: [a.lab], pool: echo-b }]";
    Config::new()
        .mgmt()
        .network(a.name, |one| one.tenant(a.vlan, prefix))
        .network(b.name, |one| one.tenant(b.vlan, prefix))
        .pool("echo-a", with(pool(&trunk.nodes[..2])))
        .pool("echo-b", with(pool(&trunk.nodes[2..])))
        .service("echo-a", |one| {
            one.on(a.name).tcp(ECHO).set("pool", "echo-a")
        })
        .service("echo-b", |one| {
            one.on(b.name).tcp(ECHO).set("pool", "echo-b")
        })
        .service("names", |one| {
            one.on(b.name).tcp(SHARED).set("sni", Keys::from(sni))
        })
        .set("admin.http.listen", LISTEN)
}

/// Connections, packets to no service, and names that go nowhere.
fn traffic(trunk: &Trunk) -> Result<()> {
    for tenant in &trunk.tenants {
        tenant.client().netns.inside(|| {
            for number in 0..CONNECTIONS {
                let text = format!("number {number}");
                ensure!(client::echo(ECHO, &text)? == text);
            }
            ensure!(!is_open(VIP, 9), "port 9 has no service");
            Ok(())
        })??;
    }
    for name in HOSTILE {
        send(trunk.tenants[1].client(), &[&named(name)])?;
    }
    Ok(())
}

/// What each command answers.
fn answers(lb: &Lb<'_>) -> Result<Value> {
    let answer = |words: &[&str]| lb.ask_json::<Value>(words);
    Ok(json!({
        "status": answer(&["status"])?,
        "services": answer(&["services"])?,
        "backends": answer(&["backends"])?,
        "drops": answer(&["drops"])?,
        "names": answer(&["drops", "--names"])?,
        "events": answer(&["events"])?,
    }))
}

/// Every value is that of the command that has it.
fn compare(browser: &mut Browser, lb: &Lb<'_>) -> Result<()> {
    let before = answers(lb)?;
    let shown = browser.ask(&json!({ "do": "settle" }))?;
    let after = answers(lb)?;
    browser
        .expect_none(&json!({ "do": "compare", "page": shown, "before": before, "after": after }))
}

/// A backend that is gone is shown as soon as `lb backends` has it.
fn dies(browser: &mut Browser, lb: &Lb<'_>, node: &Answers) -> Result<()> {
    node.refuse();
    let start = Instant::now();
    let wait = |table: &str, row: String, key: &str, value: &str| json!({ "do": "wait", "table": table, "row": row, "key": key, "value": value });
    let reported = thread::scope(|scope| {
        let reported = scope.spawn(|| {
            poll::until("the verdict", LIMIT, || {
                let is_dead = lb.backends()?.iter().any(|one| one.state == "dead");
                Ok(is_dead.then(|| start.elapsed()))
            })
        });
        browser.ask(&wait("backends", "echo-a/n2".to_owned(), "state", "dead"))?;
        browser.ask(&wait("services", format!("echo-a {ECHO}/tcp"), "up", "1/2"))?;
        reported.join().ok().context("the thread panicked")?
    })?;
    let shown = start.elapsed();
    println!("lb backends has it after {reported:?}, the page after {shown:?}");
    let later = shown.saturating_sub(reported);
    ensure!(later < MAX_LATER, "{later:?} later than lb backends");
    Ok(())
}

/// A tenant's link shows what is of this tenant, and nothing of the other one.
fn filter(browser: &mut Browser) -> Result<()> {
    let mut rows = browser.ask(&json!({ "do": "rows", "fragment": "#network=tenant-b" }))?;
    let services = [format!("echo-b {ECHO}/tcp"), format!("names {SHARED}/tcp")];
    for (table, wanted) in [
        ("networks", json!(["tenant-b"])),
        ("services", json!(services)),
        ("backends", json!(["echo-b/n3", "echo-b/n4"])),
        ("shared", json!(["names"])),
        ("drops", json!(["nic tenant-b no_service"])),
        ("verdicts", json!([])),
        ("events", json!([])),
        ("quotas", json!(["tenant-b mgmt IPv4"])),
    ] {
        assert_eq!(rows[table], wanted, "{table}: {rows:#}");
    }
    let names = rows["names"].take();
    let names = names.as_array().context("names")?;
    assert_eq!(names.len(), HOSTILE.len(), "{names:?}");
    rows = browser.ask(&json!({ "do": "rows", "fragment": "#network=tenant-a" }))?;
    assert_eq!(rows["backends"], json!(["echo-a/n2", "echo-a/n1"]));
    for table in ["names", "shared", "shares"] {
        assert_eq!(rows[table], json!([]), "{table}");
    }
    // Only that its backend is dead.
    assert_eq!(rows["events"].as_array().map(Vec::len), Some(1), "{rows:#}");
    rows = browser.ask(&json!({ "do": "rows", "fragment": "#q=n%20echo&problems" }))?;
    assert_eq!(rows["backends"], json!(["echo-a/n2"]));
    browser
        .ask(&json!({ "do": "rows", "fragment": "" }))
        .map(drop)
}

/// With a token the page asks for it, and keeps it out of its address.
fn login(browser: &mut Browser, trunk: &Trunk, lb: &Lb<'_>, url: &str) -> Result<()> {
    let token = trunk.write("token", TOKEN)?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    lb.write(&config(trunk).set("admin.http.token_file", token.display().to_string()))?;
    lb.tell(&["reload"])?.done()?;
    poll::until("a token is needed", LIMIT, || {
        let got = curl(&trunk.lb, &[&format!("http://{LISTEN}/v1/overview")]).ok();
        Ok(got.filter(|(status, _)| *status == 401).map(drop))
    })?;
    browser.ask(&json!({ "do": "open", "url": url }))?;
    let said = browser.ask(&json!({ "do": "login", "token": TOKEN }))?;
    assert_eq!(said, json!({ "unauthorized": 2, "url": url }));
    browser.expect_none(&json!({ "do": "faults" }))
}

#[privileged_test]
fn the_page_shows_what_lb_reports_and_runs_nothing_that_clients_send() -> Result<()> {
    let trunk = Trunk::build()?;
    let nodes = health(&trunk.nodes)?;
    let _echo = echo_servers(&trunk.nodes)?;
    let lb = Lb::start(&trunk, &config(&trunk))?;
    let mut browser = Browser::start(&trunk.lb)?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    page(&trunk.lb)?;
    let url = format!("http://{LISTEN}/");
    browser.ask(&json!({ "do": "open", "url": url }))?;
    traffic(&trunk)?;

    compare(&mut browser, &lb)?;
    dies(&mut browser, &lb, &nodes[1])?;
    compare(&mut browser, &lb)?;
    filter(&mut browser)?;
    browser.ask(&json!({ "do": "keyboard" }))?;
    browser.expect_none(&json!({ "do": "check" }))?;
    let (_, overview) = curl(&trunk.lb, &[&format!("{url}v1/overview")])?;
    let overview: Value = serde_json::from_str(&overview)?;
    for scene in ["rates", "unknown", "hostile"] {
        browser.ask(&json!({ "do": scene, "overview": overview }))?;
    }
    browser.expect_none(&json!({ "do": "faults" }))?;
    if std::env::var_os("LB_TEST_LONG").is_some() {
        long(&mut browser, &trunk, &lb, &overview)?;
    }
    login(&mut browser, &trunk, &lb, &url)?;
    lb.down()
}
