//! A network comes and goes by `lb plan` and `lb reload --confirm` like anything else: FEATURES K5.

use std::{
    fs,
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
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
    topology::{Trunk, VIP},
    traffic::{
        client,
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use lb_user::dataplane::pins::Pins;
use serde_json::json;

use crate::flows::life::LIMIT;

/// The VIP of each tenant, and its shared one.
const API: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
const NAME: &str = "a.lab";
/// Where the node serves each of them.
const TENANTS: [(&str, u16, u16); 2] = [("t1", 2003, 31444), ("t2", 2004, 31445)];
/// Connections of the tenant that stays.
const STAY: usize = 10;
const CONFIRM: &str = "5s";
/// In that, and a process is started.
const GOES_BACK: Duration = Duration::from_secs(40);
/// The thread that keeps privileges until it is confirmed.
const WAY_BACK: &str = "way-back";

/// The first tenants, so many.
fn config(trunk: &Trunk, tenants: usize) -> Config {
    let node = trunk.nodes[0].address;
    let tenants = TENANTS.into_iter().take(tenants);
    tenants.fold(Config::new().mgmt(), |config, (name, vlan, port)| {
        let service = |service: Keys, at| service.on(name).tcp(at);
        config
            .network(name, |network| network.tenant(vlan, "192.168.203.0/24"))
            .mgmt_pool(name, [SocketAddrV4::new(node, port)])
            .service(&format!("api-{name}"), |api| {
                service(api, API).set("pool", name)
            })
            .service(&format!("shared-{name}"), |shared| {
                let routes = json!([{ "names": [NAME], "pool": name }]);
                service(shared, SHARED).set("sni.routes", routes)
            })
    })
}

fn line(trunk: &Trunk, tenant: usize) -> Result<Line<'_>> {
    let (_, _, port) = TENANTS[tenant];
    let client = trunk.tenants[tenant].client();
    let line = Line::new(client, API, &trunk.nodes[0], port)?;
    Ok(line.saying(named(NAME.as_bytes())))
}

/// The process that is the control plane, by the lock.
fn process(trunk: &Trunk) -> Result<String> {
    let lock = fs::read_to_string(Pins::new(trunk.run()).lock())?;
    Ok(lock.trim().to_owned())
}

/// The names of its threads.
fn threads(process: &str) -> Result<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
    let name = |task: std::io::Result<fs::DirEntry>| -> Result<String> {
        let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        Ok(name.trim().to_owned())
    };
    tasks.map(name).collect()
}

/// Whether the second tenant has a cell.
fn has_cell(trunk: &Trunk) -> bool {
    fs::exists(format!("/run/netns/lb.{}.t2", trunk.run())).unwrap_or_default()
}

/// Its clients get no answer any more.
fn is_silent(trunk: &Trunk) -> Result<()> {
    let client = &trunk.tenants[1].client().netns;
    client.run("ip neigh flush dev eth0")?;
    let ping = client.try_run(&format!("ping -c 1 -W 1 {VIP}"))?;
    let arp = client.run(&format!("ip neigh show {VIP}"))?;
    ensure!(!ping.status.success(), "{ping:?}");
    ensure!(!arp.contains("REACHABLE"), "{arp}");
    Ok(())
}

/// Does `work` while a connection talks and others of its tenant come, each way that there is; none may fail.
fn beside<T>(line: &Line<'_>, pair: &Pair, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let talking = scope.spawn(move || {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                pair.talk().context("the connection that stays")?;
                longest = longest.max(begun.elapsed());
                thread::sleep(client::BETWEEN);
            }
            anyhow::Ok(longest)
        });
        let opening = scope.spawn(move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                for at in [API, SHARED] {
                    let opened = line.open_at(at).and_then(|pair| pair.talk());
                    opened.with_context(|| format!("connection {count} to {at}"))?;
                    count += 1;
                }
            }
            anyhow::Ok(count)
        });
        let worked = work();
        stop.store(true, Ordering::Relaxed);
        let longest = talking.join().expect("the talk does not panic")?;
        let count = opening.join().expect("nor do those that open")?;
        println!("{count} connections, the longest word took {longest:.1?}");
        ensure!(count > 10, "{count} connections");
        worked
    })
}

/// Reloads the file with another number of tenants, by another process; what it says.
fn reload(lb: &Lb<'_>, trunk: &Trunk, tenants: usize, options: &[&str]) -> Result<String> {
    let before = process(trunk)?;
    lb.write(&config(trunk, tenants))?;
    let said = lb.tell(&[&["reload"], options].concat())?.done()?;
    ensure!(process(trunk)? != before, "the same process");
    Ok(said)
}

/// The tenant is added, which has connections then, and is taken back; then it is added, and stays; and goes. The other
/// tenant's connections go on all the time.
#[privileged_test]
fn k5_a_tenant_comes_and_goes_by_a_reload_that_is_confirmed() -> Result<()> {
    let trunk = Trunk::build()?;
    let (first, second) = (line(&trunk, 0)?, line(&trunk, 1)?);
    let mut lb = Lb::start(&trunk, &config(&trunk, 1))?;
    let mut pairs = first.open_many(STAY)?;
    pairs.push(first.open_at(SHARED)?);
    let talk = || pairs.iter().try_for_each(Pair::talk);
    is_silent(&trunk)?;

    let file = trunk.write("two.yaml", &config(&trunk, 2))?;
    let maps = lb.maps()?;
    let plan = lb.tell(&["plan", file.to_str().context("a path")?])?;
    assert_eq!(plan.code, Some(3), "{plan:?}");
    for words in [
        "network t2: added: {",
        "warning: network t2 is new: `lb reload` starts a new process, which takes over",
    ] {
        ensure!(plan.stdout.contains(words), "{plan:?}");
    }
    assert_eq!(lb.maps()?, maps);

    beside(&first, &pairs[0], || {
        let begun = Instant::now();
        let said = reload(&lb, &trunk, 2, &["--confirm", CONFIRM])?;
        println!("added within {:.1?}", begun.elapsed());
        ensure!(
            said.contains("goes back to what was before in 5s"),
            "{said}"
        );
        ensure!(has_cell(&trunk));
        ensure!(threads(&process(&trunk)?)?.contains(&WAY_BACK.to_owned()));
        let guest = second.open()?;
        guest.talk()?;
        second.open_at(SHARED)?.talk()?;
        poll::until("the tenant is gone", GOES_BACK, || {
            Ok((!has_cell(&trunk)).then_some(()))
        })?;
        println!("gone after {:.1?}", begun.elapsed());
        poll::until("what was before", LIMIT, || {
            let events = lb.events().unwrap_or_default();
            let mut events = events.iter();
            Ok(events.any(|event| event.kind == "rollback").then_some(()))
        })
    })?;
    is_silent(&trunk)?;
    talk()?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("was not confirmed in time"), "{status}");

    let said = beside(&first, &pairs[0], || {
        reload(&lb, &trunk, 2, &["--confirm", "10m"])
    })?;
    ensure!(said.contains("in 10m"), "{said}");
    lb.tell(&["confirm"])?.done()?;
    poll::until("no privileges", LIMIT, || {
        let threads = threads(&process(&trunk)?)?;
        Ok((!threads.iter().any(|name| name == WAY_BACK)).then_some(()))
    })?;
    let guest = second.open()?;
    guest.talk()?;
    talk()?;

    let said = beside(&first, &pairs[0], || reload(&lb, &trunk, 1, &[]))?;
    ensure!(said.contains("applied"), "{said}");
    ensure!(!has_cell(&trunk));
    is_silent(&trunk)?;
    talk()?;
    // One that this test can end takes over from it.
    lb.take_over(&config(&trunk, 1)).map(drop)
}

/// A network that the host refuses leaves the process that runs, and says why.
#[privileged_test]
fn a_tenant_that_the_host_refuses_changes_nothing() -> Result<()> {
    let trunk = Trunk::build()?;
    let first = line(&trunk, 0)?;
    let mut lb = Lb::start(&trunk, &config(&trunk, 1))?;
    let pair = first.open()?;
    let before = process(&trunk)?;
    let wrong = config(&trunk, 2).network("t2", |t2| t2.set("interface", "none0"));
    lb.write(&wrong)?;
    let said = lb.tell(&["reload", "--confirm", CONFIRM])?;
    ensure!(
        said.code == Some(1) && said.stderr.contains("none0"),
        "{said:?}"
    );
    // Nothing waits to be confirmed.
    lb.write(&config(&trunk, 1).set("timeouts.half_open", "20s"))?;
    lb.tell(&["reload"])?.done()?;
    assert_eq!(process(&trunk)?, before);
    ensure!(!has_cell(&trunk));
    pair.talk()?;
    first.open()?.talk()?;
    lb.process().stop().map(drop)
}
