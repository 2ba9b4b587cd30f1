//! The access log of a service that is routed by Host; nginx's own is the witness.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology};
use serde_json::{Value, json};

use crate::proxy::hosts::{SHARED, Site, curl, send};

/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);
/// Requests of one connection.
const REQUESTS: usize = 40;

/// The lines of a log, once there are so many.
fn wait_for_lines(log: &Path, count: usize) -> Result<Vec<Value>> {
    poll::until("the lines of the access log", SOON, || {
        let text = fs::read_to_string(log).unwrap_or_default();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let lines: Vec<Value> = whole
            .map(|line| serde_json::from_str(line).context(line.to_owned()))
            .collect::<Result<_>>()?;
        Ok((lines.len() >= count).then_some(lines))
    })
}

/// Each request is a line, whatever became of it, and those that a backend has answered are those that it has logged.
#[privileged_test]
fn each_request_is_a_line_of_the_access_log() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let log = topology.dir().join("http.json");
    let _lb = Lb::start(&topology, &site.config("").set("log.http", &log))?;
    let client = topology.client();
    let urls: Vec<String> = (0..REQUESTS)
        .map(|number| format!("http://{SHARED}/{number}?q=%3Cscript%3E"))
        .collect();
    curl(
        client,
        &format!("-A probe/1 -H Host:a.lab {}", urls.join(" ")),
    )?;
    for (target, host) in [
        ("/", "e.lab"),
        ("/x", "c.lab"),
        ("/", "<script>"),
        ("/", "d.lab"),
    ] {
        send(
            client,
            &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        )?;
    }
    let lines = wait_for_lines(&log, REQUESTS + 4)?;
    assert_eq!(lines.len(), REQUESTS + 4);
    let node = |index: usize| json!(format!("{}:31080", topology.nodes[index].address));
    let null = Value::Null;
    for line in &lines {
        assert_eq!(line["network"], "tenant-a", "{line}");
        assert_eq!(line["service"], "shared", "{line}");
        assert_eq!(line["vip"], SHARED.to_string(), "{line}");
        assert_eq!(line["method"], "GET", "{line}");
        let from = line["client"].as_str().unwrap_or_default();
        ensure!(from.starts_with(&format!("{}:", client.address)), "{line}");
        ensure!(
            line["time"].is_string() && line["duration_ms"].is_u64(),
            "{line}"
        );
    }
    let parts = |line: &Value| {
        ["host", "path", "status", "refused", "backend", "user_agent"].map(|key| line[key].clone())
    };
    for (number, line) in lines[..REQUESTS].iter().enumerate() {
        let path = json!(format!("/{number}?q=%3Cscript%3E"));
        let expected = [
            json!("a.lab"),
            path,
            json!(200),
            null.clone(),
            node(0),
            json!("probe/1"),
        ];
        assert_eq!(parts(line), expected);
        // What nginx has answered: `a a.lab CLIENT SNAT;`.
        let body = format!("a a.lab {} {};", client.address, lb_tests::topology::SNAT);
        assert_eq!(line["bytes"], body.len(), "{line}");
    }
    let rest: Vec<[Value; 6]> = lines[REQUESTS..].iter().map(parts).collect();
    let refused = |host: &str, path: &str, status: u16, why: Value, backend: Value| {
        [
            json!(host),
            json!(path),
            json!(status),
            why,
            backend,
            null.clone(),
        ]
    };
    let expected = [
        refused("e.lab", "/", 421, json!("no_match"), null.clone()),
        refused("c.lab", "/x", 308, null.clone(), null.clone()),
        refused("<script>", "/", 400, json!("bad_request"), null.clone()),
        // No server listens there.
        refused("d.lab", "/", 502, json!("unreachable"), null.clone()),
    ];
    assert_eq!(rest, expected);
    let text = fs::read_to_string(&log)?;
    ensure!(
        text.contains(r"\u003cscript\u003e") && !text.contains('<'),
        "{text}"
    );

    let witness = topology.dir().join("a/access.log");
    let logged = poll::until("nginx's own log", SOON, || {
        let text = fs::read_to_string(&witness).unwrap_or_default();
        Ok((text.lines().count() >= REQUESTS).then_some(text))
    })?;
    assert_eq!(logged.lines().count(), REQUESTS, "{logged}");
    let theirs: BTreeSet<&str> = logged.lines().collect();
    let ours: Vec<String> = lines[..REQUESTS]
        .iter()
        .map(|line| {
            let path = line["path"].as_str().unwrap_or_default();
            format!("GET {path} {} {}", line["status"], line["bytes"])
        })
        .collect();
    assert_eq!(
        ours.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        theirs
    );
    Ok(())
}
