//! Chromium, which `tests/page/driver.mjs` drives: an order is a line of JSON, and so is what came of it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::{netns::Netns, poll};
use serde_json::{Value, json};

use crate::flows::life::LIMIT;

/// Chromium with `tests/page/driver.mjs`.
pub(super) struct Browser {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Browser {
    pub(super) fn start(netns: &Netns) -> Result<Self> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut command = netns.command("node");
        let command = command
            .arg(scripts.join("driver.mjs"))
            .env("LB_PAGE_MODULES", target("page-driver")?);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.context("start node")?;
        Ok(Self {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().context("the output of node")?),
            child,
        })
    }

    /// What came of an order.
    pub(super) fn ask(&mut self, order: &Value) -> Result<Value> {
        let start = Instant::now();
        let orders = self.orders.as_mut().context("the input of node")?;
        writeln!(orders, "{order}").context("write to node")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line).context("node has ended")?;
        println!("{} took {:?}", order["do"], start.elapsed());
        match answer.get("error") {
            Some(error) => bail!("{}: {}", order["do"], error.as_str().unwrap_or_default()),
            None => Ok(answer["ok"].take()),
        }
    }

    /// The same, where the answer is a list of what is wrong.
    pub(super) fn expect_none(&mut self, order: &Value) -> Result<()> {
        let wrong = self.ask(order)?;
        ensure!(wrong == json!([]), "{}: {wrong:#}", order["do"]);
        Ok(())
    }
}

impl Drop for Browser {
    /// Without orders the driver closes the browser, and ends.
    fn drop(&mut self) {
        self.orders = None;
        let ended = poll::until("the end of node", LIMIT, || Ok(self.child.try_wait()?));
        if ended.is_err() {
            // Its browser ends with it.
            let _gone = self.child.kill();
        }
    }
}

/// A folder in the one that the test was built into.
pub(super) fn target(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("find the running program")?;
    let release = program.ancestors().find(|one| one.ends_with("release"));
    let target = release.and_then(Path::parent).context("a target folder")?;
    Ok(target.join(name))
}
