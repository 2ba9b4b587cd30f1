//! The names that clients request: in the flow log, in `lb flows`, and refused ones in `lb drops --names`.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    topology::{Host, Topology, VIP},
    traffic::hello::{TLS12, hello as nameless, named},
};
use serde_json::{Value, json};

use crate::{
    handoff::connections::handed_over,
    proxy::{
        bind::hellos,
        hosts,
        relayed::{NAME, SOON, config, fast_line},
        sni::{self, ROUTES, send},
    },
};

/// Connections by name whose lines are counted.
const CONNECTIONS: usize = 200;
/// Bytes of frames without data: with the options of a SYN-ACK, and with timestamps alone.
const SYN_ACK: u64 = 74;
const BARE: u64 = 66;
/// Names of a flood, far more than are kept.
const FLOOD: usize = 300;
/// Names that are kept of a service.
const KEPT: usize = 64;
/// What no terminal, file or page may get as it is.
const HOSTILE: [&[u8]; 3] = [b"<script>", b"a\nb", b"\x1b[2J"];
/// The same as it is shown.
const SHOWN: [&str; 3] = [r"\x3cscript\x3e", r"a\x0ab", r"\x1b[2J"];

/// The lines of a log so far.
fn lines(log: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let lines = whole.map(|line| serde_json::from_str(line).context(line.to_owned()));
    lines.collect()
}

/// What `lb drops --names` has, without the times: name, reason, count and latest client, sorted.
fn refused(lb: &Lb<'_>) -> Result<Vec<Value>> {
    let answer: Value = lb.ask_json(&["drops", "--names"])?;
    let names = answer["names"].as_array().context("names")?;
    let mut found: Vec<Value> = names
        .iter()
        .map(|one| json!([one["name"], one["reason"], one["count"], one["client"]]))
        .collect();
    found.sort_by_key(Value::to_string);
    Ok(found)
}

/// G4 by name: each connection that was handed over has two lines, both with its name, its bytes are those on the wire,
/// and it is known how long it was. Before the hand-over the VIP's socket has sent a SYN-ACK and the acknowledgment of the
/// hello.
#[privileged_test]
fn g4_connections_that_are_handed_over_are_in_the_flow_log_with_their_names() -> Result<()> {
    are_logged("never", SYN_ACK + BARE, |lb| {
        usize::try_from(handed_over(lb)?).map_err(Into::into)
    })
}

/// The same of those that XDP has opened, but for its SYN-ACK.
#[privileged_test]
fn g4_connections_that_are_bound_are_in_the_flow_log_with_their_names() -> Result<()> {
    are_logged("always", SYN_ACK, |lb| {
        let bound = hellos(lb)?.remove("bound");
        Ok(usize::try_from(bound.unwrap_or_default())?)
    })
}

/// With this `late_binding`, and so many bytes to each client that are no flow's; `count` is that of connections whose bytes are
/// all counted.
fn are_logged(
    late_binding: &str,
    unlogged: u64,
    count: impl FnOnce(&Lb<'_>) -> Result<usize>,
) -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let config = config(&topology)
        .service("shared", |shared| {
            shared.set("sni.late_binding", late_binding)
        })
        .set("log.flows", &log);
    let lb = Lb::start(&topology, &config)?;
    let line = fast_line(&topology)?;
    let filter = format!("tcp and host {VIP}");
    let client = topology.client();
    let replies = Wire::received(&client.netns, "eth0", &filter, topology.dir())?;
    let mut expected = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        let pair = line.open()?;
        pair.talk()?;
        expected.insert(pair.client.local_addr()?.to_string(), pair.snat.to_string());
        if expected.len() == 1 {
            let flows = lb.flows()?;
            let names: Vec<Option<&str>> = flows.iter().map(|flow| flow.name.as_deref()).collect();
            assert_eq!(names, [Some(NAME)]);
        }
    }
    let copied = CONNECTIONS - count(&lb)?;
    ensure!(copied * 20 < CONNECTIONS, "{copied} are copied");
    let count = 2 * CONNECTIONS;
    let lines = poll::until("the flow log", SOON, || {
        let lines = lines(&log)?;
        Ok((lines.len() >= count).then_some(lines))
    })?;
    assert_eq!(lines.len(), count);
    let mut began = BTreeMap::new();
    let mut ended = BTreeMap::new();
    for line in &lines {
        assert_eq!(line["name"], NAME, "{line}");
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        if line["event"] == "began" {
            began.insert(text("client"), text("snat"));
        } else {
            ensure!(line["duration_ms"].is_u64(), "{line}");
            ensure!(line["reason"].is_string(), "{line}");
            ended.insert(text("client"), text("snat"));
        }
    }
    assert_eq!(began, expected);
    assert_eq!(ended, expected);
    let bytes = lines.iter().filter_map(|line| line["bytes_reply"].as_u64());
    let logged = bytes.sum::<u64>() + u64::try_from(CONNECTIONS)? * unlogged;
    let on_wire = u64::try_from(replies.stop()?.iter().map(Vec::len).sum::<usize>())?;
    // Of one that is copied only what is in its segments is counted.
    let most = on_wire / 100 + 10 * BARE * u64::try_from(copied)?;
    ensure!(
        on_wire.abs_diff(logged) <= most,
        "{logged} bytes of replies in the log, {on_wire} on the wire"
    );
    Ok(())
}

/// Asserts that a table has one line for each of so many names, and no byte that drives a terminal.
fn ensure_tame(lb: &Lb<'_>, names: usize) -> Result<String> {
    let table = lb.tell(&["drops", "--names"])?.done()?;
    let is_tame = |byte: u8| byte == b'\n' || byte.is_ascii_graphic() || byte == b' ';
    ensure!(table.bytes().all(is_tame), "{table:?}");
    assert_eq!(table.lines().count(), names + 1, "{table}");
    Ok(table)
}

/// Names that have no route, that are none, and none at all, with reason and client; and of a flood of names its sender
/// loses its own.
#[privileged_test]
fn a_refused_sni_is_named() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &sni::config(&topology, ROUTES))?;
    let [client, loud] = [&topology.clients[0], &topology.clients[1]];
    assert_eq!(refused(&lb)?, [Value::Null; 0]);
    for _ in 0..2 {
        send(client, &[&named(b"D.lab")])?;
    }
    for name in HOSTILE {
        send(client, &[&named(name)])?;
    }
    send(client, &[&nameless(TLS12, &[])])?;
    send(client, &[b"GET / HTTP/1.1\r\n\r\n"])?;
    let long = [b'x'; 999];
    send(client, &[&named(&long)])?;
    let address = client.address;
    let mut expected: Vec<Value> = SHOWN
        .iter()
        .map(|name| json!([name, "name", 1, address]))
        .chain([
            json!(["d.lab", "no_match", 2, address]),
            json!([null, "no_name", 1, address]),
            json!([null, "not_tls", 1, address]),
            json!(["x".repeat(255), "name", 1, address]),
        ])
        .collect();
    expected.sort_by_key(Value::to_string);
    assert_eq!(refused(&lb)?, expected);
    let table = ensure_tame(&lb, expected.len())?;
    for name in SHOWN {
        ensure!(table.contains(name), "{name}: {table}");
    }

    flood(loud)?;
    let names = refused(&lb)?;
    assert_eq!(names.len(), KEPT);
    ensure!(expected.iter().all(|one| names.contains(one)), "{names:?}");
    let last = json!([format!("{}.lab", FLOOD - 1), "no_match", 1, loud.address]);
    ensure!(names.contains(&last), "{names:?}");
    Ok(())
}

fn flood(client: &Host) -> Result<()> {
    for number in 0..FLOOD {
        send(client, &[&named(format!("{number}.lab").as_bytes())])?;
    }
    Ok(())
}

/// The same of the Host of a request. A line end or an escape in one is no request at all.
#[privileged_test]
fn a_refused_host_is_named() -> Result<()> {
    let topology = Topology::poc()?;
    let site = hosts::Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.config(""))?;
    let client = topology.client();
    let get = |host: &str, status: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = hosts::send(client, &request)?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {answer}"
        );
        Ok(())
    };
    get("e.lab", "421")?;
    get("E.lab:80", "421")?;
    get("<script>", "400")?;
    get("a.lab", "200")?;
    for raw in ["\x1b[2J", "a\n\x1b[2Jb"] {
        get(raw, "400")?;
    }
    let address = client.address;
    let expected = [
        json!([r"\x3cscript\x3e", "bad_request", 1, address]),
        json!(["e.lab", "no_match", 2, address]),
        json!([null, "bad_request", 2, address]),
    ];
    assert_eq!(refused(&lb)?, expected);
    ensure_tame(&lb, expected.len()).map(drop)
}
