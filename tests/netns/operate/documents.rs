//! What the documents have a reader run does what they say.

use std::{
    fs::{self, Permissions},
    net::SocketAddrV6,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    documents::{self, End, Page, Place, Snippet},
    netns::Netns,
    process::{self, Process},
    product::lb::binary,
    servers::{
        echo::EchoServer,
        identity::Identity,
        peers::{Peers, Serves},
    },
    topology::{ADDRESS, API_NODE_PORT, BRIDGE, OneIp, Site, Topology, address6},
};

/// How long a snippet may take, in seconds: on a machine that is slow, and does other things, too.
const LIMIT_SECS: &str = "180";
/// How long `lb run` may take until it is ready.
const START: Duration = Duration::from_secs(180);

/// Each page has a data plane and a folder of its own, and its snippets run in their order.
#[privileged_test]
fn snippets_of_the_documents_do_what_the_page_says() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = documents::read(&root)?;
    let readme = pages.iter().find(|page| page.name == "README.md");
    let first = readme.and_then(|page| page.configuration.as_deref());
    let first = first.context("README has a first configuration")?;

    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    let _peers = Peers::start(&topology)?;
    let nodes = topology.nodes.iter();
    let six = nodes.map(|node| {
        let address = SocketAddrV6::new(address6(node), API_NODE_PORT, 0, 0);
        EchoServer::start(&node.netns, address, node.name)
    });
    let _six = six.collect::<Result<Vec<_>>>()?;
    let one = OneIp::build()?;
    let _guests = guests(&one)?;
    let labs = [
        Lab::new(&topology, &topology.client().netns)?,
        Lab::new(&one, &one.clients[0].netns)?,
    ];

    let (mut ran, mut host_only, mut failed) = (0, 0, Vec::new());
    for page in &pages {
        let configuration = page.configuration.as_deref().unwrap_or(first);
        let [two_arms, one_address] = &labs;
        let lab = match configuration.contains(BRIDGE) {
            true => one_address,
            false => two_arms,
        };
        let is_run = |snippet: &&Snippet| snippet.place != Place::RealHost;
        let count = page.snippets.iter().filter(is_run).count();
        ran += count;
        host_only += page.snippets.len() - count;
        if count > 0
            && let Err(error) = lab.run(page, configuration)
        {
            failed.push(format!("{error:#}"));
        }
    }
    println!("{ran} snippets of the documents ran, {host_only} are for a real host alone");
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    ensure!(ran > 0, "no document has a snippet");
    Ok(())
}

fn guests(one: &OneIp) -> Result<Peers<'_>> {
    let identity = Identity::create(one, "api", &[ADDRESS])?;
    let guests = one.backends.iter().map(|guest| {
        let serves = Serves {
            name: guest.name.to_owned(),
            https: Some(API_NODE_PORT),
            ..Serves::default()
        };
        (guest, serves)
    });
    Peers::start_on(one, identity, guests)
}

/// Where pages run.
struct Lab<'s> {
    site: &'s Site,
    client: &'s Netns,
    /// PATH, with `lb` of this instance and `sudo` first.
    path: String,
}

impl<'s> Lab<'s> {
    fn new(site: &'s Site, client: &'s Netns) -> Result<Self> {
        let folder = site.dir().join("bin");
        fs::create_dir(&folder).context("make a folder for programs")?;
        let lb = binary("LB_BIN", "lb")?;
        let (lb, instance) = (lb.display(), site.run());
        let of_instance = format!(
            "case $1 in check|completion|help|version|-*) exec {lb} \"$@\" ;; esac\n\
             exec {lb} \"$@\" --instance {instance}\n"
        );
        for (name, script) in [("lb", of_instance.as_str()), ("sudo", "exec \"$@\"\n")] {
            let program = folder.join(name);
            fs::write(&program, format!("#!/bin/sh\n{script}")).context("write a program")?;
            fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            site,
            client,
            path: format!("{}:{path}", folder.display()),
        })
    }

    /// Runs the snippets of a page; one that fails is the last one.
    fn run(&self, page: &Page, configuration: &str) -> Result<()> {
        let folder = self.site.dir().join(page.name.replace('/', "-"));
        fs::create_dir(&folder).context("make a folder for a page")?;
        fs::write(folder.join("lb.yaml"), configuration).context("write a configuration")?;
        let mut lb = None;
        if page
            .snippets
            .iter()
            .all(|snippet| snippet.end != End::Stays)
        {
            lb = Some(Running::start(
                self,
                &folder,
                "lb run -c lb.yaml --no-careful",
            )?);
        }
        for snippet in &page.snippets {
            let done = match (snippet.place, snippet.end) {
                (Place::RealHost, _) => Ok(()),
                (_, End::Stays) => {
                    Running::start(self, &folder, &snippet.commands).map(|run| lb = Some(run))
                }
                (_, End::Exit(status)) => self.execute(&folder, snippet, status),
            };
            done.with_context(|| format!("{}:{}", page.name, snippet.line))?;
        }
        lb.map_or(Ok(()), |mut lb| lb.end())
    }

    fn execute(&self, folder: &Path, snippet: &Snippet, status: i32) -> Result<()> {
        let netns = match snippet.place {
            Place::Client => self.client,
            Place::LoadBalancer | Place::RealHost => &self.site.lb,
        };
        let commands = &snippet.commands;
        let mut command = netns.command("timeout");
        command.args(["--kill-after=1", LIMIT_SECS, "sh", "-e", "-c", commands]);
        command.current_dir(folder).env("PATH", &self.path);
        command.env("TMPDIR", folder);
        let output = process::finish(&mut command)?;
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        let printed = format!("{stdout}{stderr}");
        ensure!(
            output.status.code() == Some(status),
            "{}, not exit status {status}\n{commands}{printed}",
            output.status
        );
        let shown = snippet.output.as_deref().unwrap_or_default();
        let missing = documents::missing_line(shown, &printed);
        ensure!(missing.is_none(), "{missing:?} is not in\n{printed}");
        Ok(())
    }
}

/// In a configuration with `admin.http`.
const HTTP: &str = "admin:\n  http:";

/// `lb run` of a page; on drop it ends, and so does its data plane.
struct Running {
    process: Process,
    down: Command,
    is_down: bool,
}

impl Running {
    /// Runs commands of which the last one takes the place of the shell, and with it signals; ready when this
    /// returns.
    fn start(lab: &Lab<'_>, folder: &Path, commands: &str) -> Result<Self> {
        let (before, last) = commands
            .trim_end()
            .rsplit_once('\n')
            .unwrap_or(("", commands));
        let script = format!("cd {}\n{before}\nexec {last}", folder.display());
        let path = format!("PATH={}", lab.path);
        let words = [path.as_str(), "sh", "-e", "-c", &script];
        let process = Process::start(&lab.site.lb.path(), folder, "run", "env", &words)?;
        let mut down = lab.site.lb.command("lb");
        down.arg("down").env("PATH", &lab.path);
        let mut running = Self {
            process,
            down,
            is_down: false,
        };
        running.process.wait_for_stdout("ready", START)?;
        let configuration = fs::read_to_string(folder.join("lb.yaml"));
        if configuration.is_ok_and(|it| it.contains(HTTP)) {
            // Opened beside a start that does not wait for it; a reader is not that fast.
            running.process.wait_for_stderr("the page is at", START)?;
        }
        Ok(running)
    }

    fn end(&mut self) -> Result<()> {
        self.is_down = true;
        let stopped = self.process.stop();
        process::succeed(&mut self.down)?;
        stopped.map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_down
            && let Err(error) = self.end()
        {
            process::complain(format_args!("{error:#}"));
        }
    }
}
