//! What `-o json` prints is what the schemas in `docs/json` allow, by a validator that is not ours.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    process,
    product::{
        config::{Config, Keys},
        lb::{Lb, binary},
        order::Said,
    },
    topology::{ECHO, Topology},
};
use serde_json::Value;

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, connect, wait_for},
    proxy::sni::{self, SHARED},
};

/// What Debian's package of jsonschema is installed for.
const PYTHON: &str = "/usr/bin/python3";
/// A client that the service denies.
const DENIED: &str = "192.168.203.51/32";
/// Connections in these tests.
const CONNECTIONS: usize = 8;

/// Two checked nodes behind a service that denies a client, and the same pool behind a shared VIP.
fn config(site: &Site<'_>) -> Config {
    site.http("drain_timeout: 1m")
        .service("echo-a", |service| service.set("deny", [DENIED]))
        .service("shared", |service| {
            let routes = Keys::from("routes: [{ names: [a.lab], pool: echo-a }]");
            service.on("tenant-a").tcp(SHARED).set("sni", routes)
        })
}

/// The answers of one instance.
struct Answers<'l, 't> {
    topology: &'t Topology,
    lb: &'l Lb<'t>,
}

impl Answers<'_, '_> {
    /// Runs a command with `-o json`, which ends with this exit code and prints what its schema allows.
    fn of(&self, words: &[&str], code: i32, schema: &str) -> Result<Value> {
        let said = self.lb.tell(&[words, &["-o", "json"]].concat())?;
        self.valid(words, &said, code, schema)
    }

    /// The same of a command that belongs to no instance.
    fn of_none(&self, words: &[&str], code: i32, schema: &str) -> Result<Value> {
        let mut command = Command::new(binary("LB_BIN", "lb")?);
        let output = process::finish(command.args(words).args(["-o", "json"]))?;
        let said = Said {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        self.valid(words, &said, code, schema)
    }

    fn valid(&self, words: &[&str], said: &Said, code: i32, schema: &str) -> Result<Value> {
        ensure!(said.code == Some(code), "{words:?}: {said:?}");
        ensure!(said.stdout.starts_with('{'), "{words:?}: {said:?}");
        self.validate(&said.stdout, schema)
            .with_context(|| format!("{words:?}: {}", said.stdout))
    }

    /// What an answer says, if its schema allows that and no field more in any of its objects.
    fn validate(&self, answer: &str, schema: &str) -> Result<Value> {
        let file = self.topology.write("answer.json", answer)?;
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut python = Command::new(PYTHON);
        python
            .arg(tests.join("netns/operate/json/validate.py"))
            .arg(tests.join(format!("../docs/json/{schema}.schema.json")))
            .arg(file);
        let objects: usize = process::succeed(&mut python)?.trim().parse()?;
        ensure!(objects > 0, "{objects} objects");
        Ok(serde_json::from_str(answer)?)
    }

    /// A file with this configuration.
    fn file(&self, name: &str, config: &str) -> Result<PathBuf> {
        self.topology.write(name, config)
    }
}

/// Asserts that this jq expression is true of an answer.
fn holds(topology: &Topology, answer: &Value, expression: &str) -> Result<()> {
    let file = topology.write("answer.json", &answer.to_string())?;
    let mut jq = Command::new("jq");
    process::succeed(jq.args(["--exit-status", expression]).arg(file))
        .with_context(|| format!("{answer:#}"))
        .map(drop)
}

/// What is read, with flows, a drop, a backend that is dead and a shared VIP: valid, and with the numbers that are.
#[privileged_test]
fn what_is_read_is_what_its_schema_allows() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = config(&site).set("log.flows", topology.dir().join("flows.json"));
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let _connections = connect(&topology, CONNECTIONS)?;
    let answer = sni::ask(topology.client(), Some("b.lab"), "")?;
    ensure!(!answer.contains("BEGIN CERTIFICATE"), "{answer}");
    let denied = &topology.clients[1];
    let refused = denied
        .netns
        .try_run(&format!("curl --silent --max-time 1 http://{ECHO}"))?;
    ensure!(!refused.status.success(), "{DENIED} is served");
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], SOON)?;

    let node = format!("echo-a/{}", topology.nodes[1].name);
    lb.tell(&["backend", "weight", &node, "2"])?.done()?;

    let answers = Answers {
        topology: &topology,
        lb: &lb,
    };
    for (words, schema, expression) in [
        (
            "status",
            "status",
            ".flows.live == 8 and .config.age_seconds < 60 and .shared.shared.refused == { no_match: 1 }
             and .health.backends_up == 1",
        ),
        ("health", "health", ".state == \"ok\" and .backends_up == 1 and .backends == 2"),
        (
            "services",
            "services",
            ".services | map(select(.name == \"echo-a\")) == [.[0]] and .[0].flows == 8 and .[0].backends_up == 1",
        ),
        (
            "backends",
            "backends",
            "[.backends[].share] == [100, 0] and .backends[1].health.verdict == \"dead\"
             and all(.backends[].health.last; .age_seconds < 5 and .took_seconds < 1)",
        ),
        (
            "nodes",
            "nodes",
            "[.nodes[].backends_up] == [1, 0] and .nodes[1].backends_weighted == 1 and ([.nodes[].flows] | add) == 8",
        ),
        (
            "flows",
            "flows",
            "(.flows | length) == 8 and all(.flows[]; .idle_seconds < 60 and .expires_in_seconds > 60)",
        ),
        (
            "drops",
            "drops",
            ".drops | map(select(.reason == \"denied\")) | .[0].dropped + .[0].refused > 0
             and .[0].samples[0].age_seconds < 60",
        ),
        (
            "events",
            "events",
            ".events | any(.kind == \"health\" and (.time | test(\"^20..-..-..T..:..:..[.]...Z$\")))",
        ),
    ] {
        let answer = answers.of(&[words], 0, schema)?;
        holds(&topology, &answer, expression)?;
    }
    let snat = lb.flows()?[0].snat.to_string();
    let who = answers.of(&["who", &snat], 0, "who")?;
    holds(&topology, &who, "(.flows | length) == 1 and .flows[0].live")?;
    let now = process::succeed(Command::new("date").args(["-u", "+%H:%M:%S"]))?;
    let who = answers.of(&["who", &snat, "--at", now.trim()], 0, "who-at")?;
    holds(
        &topology,
        &who,
        "(.files | length) == 1 and (.flows | length) == 1 and .flows[0].live",
    )?;
    let names = answers.of(&["drops", "--names"], 0, "names")?;
    holds(
        &topology,
        &names,
        "(.names | length) == 1 and .names[0].name == \"b.lab\" and .names[0].reason == \"no_match\"",
    )?;
    assert_a_line_for_each_event(&answers)?;
    without_a_control_plane(&topology, lb)
}

/// Of the stream, each line is an object of its own.
fn assert_a_line_for_each_event(answers: &Answers<'_, '_>) -> Result<()> {
    let mut follow = Command::new("timeout");
    follow.args(["--kill-after=1", "2"]);
    follow.arg(binary("LB_BIN", "lb")?);
    follow.args(["events", "--follow", "-o", "json", "--instance"]);
    let output = process::finish(follow.arg(answers.topology.run()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let events = answers.lb.events()?;
    ensure!(lines.len() == events.len(), "{lines:?}, and {events:?}");
    for line in lines {
        answers
            .validate(line, "event")
            .with_context(|| line.to_owned())?;
    }
    Ok(())
}

/// What only the control plane knows is null then.
fn without_a_control_plane(topology: &Topology, mut lb: Lb<'_>) -> Result<()> {
    lb.kill()?;
    let answers = Answers { topology, lb: &lb };
    let answer = answers.of(&["status"], 0, "status")?;
    holds(
        topology,
        &answer,
        ".config == null and .health.state == \"unknown\"",
    )?;
    let answer = answers.of(&["services"], 0, "services")?;
    holds(topology, &answer, "all(.services[]; .backends_up == null)")?;
    let answer = answers.of(&["backends"], 0, "backends")?;
    holds(topology, &answer, "all(.backends[]; .health == null)")?;
    let answer = answers.of(&["nodes"], 0, "nodes")?;
    holds(
        topology,
        &answer,
        "all(.nodes[]; .backends_up == null and .backends == 1)",
    )?;
    let answer = answers.of(&["health"], 3, "health")?;
    holds(topology, &answer, "(.problems | length) == 1")
}

/// What changes something, or would, and what belongs to no instance.
#[privileged_test]
fn what_comes_of_a_change_is_what_its_schema_allows() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let before = config(&site);
    let lb = Lb::start(&topology, &before)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let answers = Answers {
        topology: &topology,
        lb: &lb,
    };
    let after = before
        .clone()
        .service("echo-a", |service| service.set("max_flows", 7));
    let after = answers.file("after.yaml", &after)?;
    let after = after.to_str().context("a path")?;

    let plan = answers.of(&["plan", after], 3, "change")?;
    holds(
        &topology,
        &plan,
        ".answer == \"changes\" and (.keys | length) == 1 and .confirm_seconds == null",
    )?;
    let reload = answers.of(&["reload", after, "--confirm", "60s"], 0, "change")?;
    holds(
        &topology,
        &reload,
        ".answer == \"changes\" and .confirm_seconds == 60",
    )?;
    let status = answers.of(&["status"], 0, "status")?;
    holds(
        &topology,
        &status,
        ".config | .generation == 2 and .confirm_seconds > 0 and .confirm_seconds <= 60",
    )?;
    let done = answers.of(&["confirm"], 0, "change")?;
    holds(&topology, &done, ".answer == \"done\"")?;

    let name = topology.nodes[1].name;
    let node = format!("echo-a/{name}");
    for words in [
        &["backend", "weight", &node, "3"][..],
        &["node", "drain", name],
        &["node", "disable", name],
        &["node", "enable", name],
        &["backend", "disable", &node],
        &["backend", "enable", &node],
        &["backend", "drain", &node],
        &["flows", "--kill", "--all"],
    ] {
        let done = answers.of(words, 0, "change")?;
        holds(
            &topology,
            &done,
            ".answer == \"done\" and (.lines | length) > 0",
        )?;
    }
    let backends = answers.of(&["backends"], 0, "backends")?;
    let drained =
        ".backends[1].health | .overridden.override == \"drain\" and .drain_seconds <= 60";
    holds(&topology, &backends, drained)?;
    for what in ["backend", "node"] {
        let refused = answers.of(&[what, "drain", "nope"], 2, "change")?;
        holds(&topology, &refused, ".answer == \"refused\" and .usage")?;
    }

    let check = answers.of_none(&["check", after], 0, "check")?;
    holds(
        &topology,
        &check,
        ".ok and .capacity[0].flows > 0 and .config.services[0].max_flows == 7",
    )?;
    let broken = answers.file(
        "broken.yaml",
        &fs::read_to_string(after)?.replace("version", "revision"),
    )?;
    let broken = broken.to_str().context("a path")?;
    let check = answers.of_none(&["check", broken], 2, "check")?;
    holds(
        &topology,
        &check,
        "(.ok | not) and (.problems | length) > 0 and .config == null",
    )?;
    answers.of_none(&["version"], 0, "version")?;
    Ok(())
}
