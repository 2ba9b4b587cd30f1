//! What was: the client that had a SNAT port, and drops since the last look. FEATURES G5.

use std::{fs, net::SocketAddrV4, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll, process,
    product::lb::Lb,
    topology::{ECHO, Topology},
};
use serde_json::{Value, json};

use crate::flows::{
    account::send_syn,
    life::{LIMIT, config, line},
};

/// The time now, as another program tells it.
fn now() -> Result<String> {
    let mut date = Command::new("date");
    let time = process::succeed(date.args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]))?;
    Ok(time.trim().to_owned())
}

/// G5: a backend's operator has a SNAT port and a time; the client is known while its connection lives, after its end,
/// and when the log was rotated.
#[privileged_test]
fn g5_a_snat_port_and_a_time_tell_the_client() -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let lb = Lb::start(&topology, &config().set("log.flows", &log))?;
    let line = line(&topology)?;
    let before = now()?;
    thread::sleep(Duration::from_millis(20));
    let pair = line.open()?;
    let (client, port) = (pair.client.local_addr()?.to_string(), pair.snat.to_string());
    thread::sleep(Duration::from_millis(20));
    let during = now()?;
    let at = |time: &str| -> Result<Value> {
        let answer: Value = lb.ask_json(&["who", &port, "--at", time])?;
        let flows = answer["flows"].as_array().context("flows")?;
        ensure!(flows.len() == 1, "{answer:#}");
        Ok(flows[0].clone())
    };
    let count = |event: &str| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        log.matches(&format!(r#""event":"{event}""#)).count()
    };
    poll::until("the beginning", LIMIT, || {
        Ok((count("began") == 1).then_some(()))
    })?;
    let flow = at(&during)?;
    let expected = [json!(client), json!(true), Value::Null, Value::Null];
    assert_eq!(
        ["client", "live", "ended", "reason"].map(|key| flow[key].clone()),
        expected
    );

    pair.client.shutdown(std::net::Shutdown::Both)?;
    pair.server.shutdown(std::net::Shutdown::Both)?;
    poll::until("the end", LIMIT, || Ok((count("ended") == 1).then_some(())))?;
    thread::sleep(Duration::from_millis(20));
    let after = now()?;
    let mut rotated = log.clone();
    rotated.set_extension("json.1");
    for is_rotated in [false, true] {
        if is_rotated {
            fs::rename(&log, &rotated)?;
            drop(line.open()?);
            poll::until("a new file", LIMIT, || {
                Ok((count("began") == 1).then_some(()))
            })?;
        }
        let flow = at(&during)?;
        let found =
            ["client", "live", "reason", "snat", "vip", "service"].map(|key| flow[key].clone());
        let expected = [
            json!(client),
            json!(false),
            json!("finished"),
            json!(port),
            json!(ECHO.to_string()),
            json!("echo-a"),
        ];
        assert_eq!(found, expected, "rotated: {is_rotated}");
        for key in ["began", "ended"] {
            let time = flow[key].as_str().with_context(|| format!("{flow:#}"))?;
            ensure!(
                (key == "began") == (time < during.as_str()),
                "{key}: {flow:#}"
            );
        }
        for none in [&before, &after] {
            let said = lb.tell(&["who", &port, "--at", none])?;
            let words = format!("lb: no flow had the SNAT port {port} at {none}, by ");
            ensure!(
                said.code == Some(1) && said.stdout.is_empty() && said.stderr.starts_with(&words),
                "{said:?}"
            );
            ensure!(
                said.stderr.contains("flows.json, which begin at "),
                "{said:?}"
            );
        }
    }
    let table = lb.tell(&["who", &port, "--at", &during])?.done()?;
    ensure!(
        table.lines().count() == 2 && table.contains(&client),
        "{table}"
    );
    let said = lb.tell(&["who", &port, "--at", "2026-11-26T11:28:42"])?;
    assert_eq!(said.code, Some(2), "{said:?}");

    // Without a log it is not known, and what to do is.
    let quiet = Topology::poc()?;
    let lb = Lb::start(&quiet, &config())?;
    let said = lb.tell(&["who", &port, "--at", &during])?;
    ensure!(
        said.code == Some(1)
            && said.stderr.contains("writes no flow log")
            && said.stderr.contains("log.flows"),
        "{said:?}"
    );
    Ok(())
}

/// Each look shows what came since the one before, at a terminal and in JSON by itself, and the service that it came for.
#[privileged_test]
fn drops_since_the_last_look_are_shown() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| {
        service.with("deny: [192.168.203.51/32]")
    });
    let mut lb = Lb::start(&topology, &config)?;
    let denied = &topology.clients[1];
    let send = |lb: &Lb<'_>, ports: std::ops::Range<u16>, total: u64| -> Result<()> {
        for port in ports {
            send_syn(&topology, denied, SocketAddrV4::new(denied.address, port))?;
        }
        poll::until("the drops", LIMIT, || {
            // A look in another form is not the last look at a terminal; here nothing else reads JSON.
            Ok((lb.dropped("denied")? == total).then_some(()))
        })
    };
    let row = |lb: &Lb<'_>| -> Result<Vec<String>> {
        let table = lb.tell(&["drops"])?.done()?;
        let row = table.lines().find(|row| row.contains(" denied "));
        let row = row.with_context(|| table.clone())?;
        Ok(row.split_whitespace().take(7).map(str::to_owned).collect())
    };
    send(&lb, 20_001..20_003, 2)?;
    assert_eq!(row(&lb)?, ["nic", "tenant-a", "denied", "2", "0", "-", "-"]);
    send(&lb, 20_003..20_006, 5)?;
    let news = row(&lb)?;
    assert_eq!(news[..6], ["nic", "tenant-a", "denied", "5", "0", "3"]);
    ensure!(news[6].parse::<f64>()? > 0.0, "{news:?}");
    assert_eq!(row(&lb)?[3..], ["5", "0", "0", "0"]);

    let look = |lb: &Lb<'_>| -> Result<Value> { lb.ask_json(&["drops"]) };
    let denied_of = |answer: &Value| -> Result<Value> {
        let drops = answer["drops"].as_array().context("drops")?;
        let found = drops.iter().find(|drop| drop["reason"] == "denied");
        found.cloned().context("no denied packet")
    };
    let answer = look(&lb)?;
    let drop = denied_of(&answer)?;
    // The poll above was the last look.
    assert_eq!(drop["since_last"], 0, "{answer:#}");
    ensure!(answer["seconds"].is_f64(), "{answer:#}");
    assert_eq!(drop["samples"][0]["service"], "echo-a", "{drop:#}");
    let table = lb.tell(&["drops"])?.done()?;
    let sample = table
        .lines()
        .find(|line| line.starts_with(" denied") || line.starts_with("denied"));
    ensure!(
        sample.is_some_and(|line| line.contains(" echo-a ")),
        "{table}"
    );
    ensure!(table.contains("since the last `lb drops`, "), "{table}");

    // Another data plane counts anew.
    let file = topology.write("again.yaml", &config)?;
    lb.process().stop()?;
    lb.tell(&["down"])?.done()?;
    lb.restart(&fs::read_to_string(file)?)?;
    send(&lb, 20_001..20_002, 1)?;
    assert_eq!(row(&lb)?[3..], ["1", "0", "-", "-"]);
    Ok(())
}
