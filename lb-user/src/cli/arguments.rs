//! What can be said on the command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::color::When;
use crate::{api, config::parse_time, flows::log::moment::Moment};

/// The file of a command that names none.
const CONFIG: &str = "/etc/lb/lb.yaml";

/// A time that is over, and how it was written.
#[derive(Clone, Debug)]
pub(super) struct NamedTime {
    pub(super) moment: Moment,
    pub(super) text: String,
}

impl NamedTime {
    fn read(text: &str) -> Result<Self, String> {
        let moment = Moment::read(text, jiff::Timestamp::now())?;
        let text = text.to_owned();
        Ok(Self { moment, text })
    }
}

/// What stands at the end of a command's help.
fn examples(lines: &[&str]) -> String {
    format!("Examples:\n  {}", lines.join("\n  "))
}

#[derive(Debug, Parser)]
#[command(name = "lb", about = "XDP load balancer: VIPs to NodePorts", version)]
pub(super) struct Cli {
    /// Whether headers and words of states have colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = When::Auto)]
    pub(super) color: When,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the control plane until SIGINT or SIGTERM; the data plane goes on without it
    #[command(after_help = examples(&[
        "lb run --confirm 60s            # a first start that undoes itself",
        "lb run --takeover --detach      # the process of a new program takes over",
    ]))]
    Run {
        /// Configuration file
        #[arg(short, long, value_name = "FILE", default_value = CONFIG)]
        config: PathBuf,
        #[command(flatten)]
        instance: Instance,
        /// Take over from the process that runs this instance, if there is one: it finishes what it carries
        #[arg(long, conflicts_with = "confirm")]
        takeover: bool,
        /// Leave the new process running and return when it is ready, or fail as it does
        #[arg(long, requires = "takeover")]
        detach: bool,
        /// Switch over from the pinned state of another version of lb: established flows end, counters begin
        /// anew. Without --takeover, also make the maps of flows as large as the limits want them: no flow ends
        #[arg(long, conflicts_with = "confirm")]
        migrate: bool,
        /// Take everything down again after this time (90s, 5m, at most 1d) unless Enter is pressed before
        #[arg(long, value_name = "TIME", value_parser = confirm_time)]
        confirm: Option<Duration>,
        /// Refuse interfaces that carry the default route or this SSH session, unless --confirm; so it is without this
        /// on a terminal, and where nothing of the instance was ever applied
        #[arg(long, conflicts_with = "no_careful")]
        careful: bool,
        /// Take such interfaces as any others
        #[arg(long)]
        no_careful: bool,
        /// Log every dropped packet of the data plane: slow, for debugging
        #[arg(long)]
        trace_drops: bool,
        /// How the log is written: as text, as JSON, or as the journal reads it; default: that of LB_LOG_FORMAT, or what
        /// standard error leads to
        #[arg(long, value_name = "FORMAT", value_parser = ["text", "json", "journal"])]
        log_format: Option<String>,
    },
    /// As root, make what `lb run` of another user must find: bpffs, folders, the namespaces of cells, room for
    /// neighbours
    #[command(after_help = examples(&[
        "lb prepare --user lb",
    ]))]
    Prepare {
        /// Configuration file
        #[arg(short, long, value_name = "FILE", default_value = CONFIG)]
        config: PathBuf,
        #[command(flatten)]
        instance: Instance,
        /// The user that will run it, by name or number; what other users have left becomes that user's
        #[arg(long, value_name = "NAME", default_value = "root")]
        user: String,
    },
    /// Validate a configuration file: exit 0, or 2 with all of its problems
    #[command(after_help = examples(&[
        "lb check my.yaml",
        "lb check --expand my.yaml | less",
        "render | lb check -",
    ]))]
    Check {
        /// Configuration file; `-` is standard input
        #[arg(default_value = CONFIG)]
        file: PathBuf,
        /// Print the configuration with everything written out, as a file that means the same
        #[arg(long)]
        expand: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Ask the clusters of Kubernetes of a file what they have for it, and print what `lb` would do with that, without doing it:
    /// exit 0 if all answer, 1 if not, 2 if the file is wrong
    #[command(after_help = examples(&[
        "lb discover --dry-run my.yaml",
        "lb discover --dry-run --expand my.yaml | less",
    ]))]
    Discover {
        /// Configuration file
        #[arg(default_value = CONFIG)]
        file: PathBuf,
        /// Nothing is applied or written: the one way there is, as `lb run` is the other one
        #[arg(long, required = true)]
        dry_run: bool,
        /// Print the file with hosted clusters, defaults, nodes and clusters written out
        #[arg(long)]
        expand: bool,
        #[command(flatten)]
        output: Output,
    },
    /// What a reload of a file would change, without changing anything: exit 0 if nothing does, 3 if something
    #[command(after_help = examples(&[
        "lb plan my.yaml",
        "lb plan --operations my.yaml",
    ]))]
    Plan {
        /// Configuration file
        #[arg(default_value = CONFIG)]
        file: PathBuf,
        /// Also each operation on the maps of the data plane
        #[arg(long)]
        operations: bool,
        #[command(flatten)]
        show: Show,
    },
    /// Have the running control plane apply its file as it is now, or another one; a new process takes over where networks
    /// come, go or move
    #[command(after_help = examples(&[
        "lb reload --confirm 30s && lb confirm",
    ]))]
    Reload {
        /// Configuration file; without one it is the file that is applied
        file: Option<PathBuf>,
        /// Go back to what was before after this time (90s, 5m, at most 1d) unless `lb confirm` comes
        #[arg(long, value_name = "TIME", value_parser = confirm_time)]
        confirm: Option<Duration>,
        #[command(flatten)]
        show: Show,
    },
    /// Keep what `lb reload --confirm` has applied
    Confirm(Show),
    /// Networks, verdicts and flow ids
    #[command(after_help = examples(&[
        "lb status",
        "lb status -o json | jq .config.stale",
    ]))]
    Status(Show),
    /// Whether everything serves, in one line: exit 0 if so, 1 if something does not, 3 if nothing is known
    #[command(after_help = examples(&[
        "lb health || logger -p daemon.err \"$(lb health)\"",
        "lb health --box",
    ]))]
    Health {
        /// Exit 1 also where the configuration is stale: the last reload was refused or taken back
        #[arg(long)]
        strict: bool,
        /// Whether this box of a pair is one to have the marker, for keepalived: exit 1 if it carries nothing, or less than the other box
        #[arg(long = "box", conflicts_with = "strict")]
        of_box: bool,
        #[command(flatten)]
        show: Show,
    },
    /// What the VIPs listen on, how many backends are up, and live flows
    #[command(after_help = examples(&[
        "lb services",
        "lb services -o json | jq -r '.services[] | select(.backends_up == 0).name'",
    ]))]
    Services(Show),
    /// Backends, their health and their next hops
    #[command(after_help = examples(&[
        "lb backends --pool kas-a",
        "lb backends --state dead",
    ]))]
    Backends {
        /// Of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// In this state
        #[arg(long, value_parser = ["up", "not ready", "dead", "service down", "unknown", "unchecked", "unreachable", "unresponsive", "drained", "disabled", "backup", "removed"])]
        state: Option<String>,
        /// Every column
        #[arg(long)]
        wide: bool,
        #[command(flatten)]
        show: Show,
    },
    /// Take a backend out, or put it back, whatever the file and its checks say
    #[command(after_help = examples(&[
        "lb backend drain kas-a/node-2",
        "lb backend weight kas-a/node-2 10",
        "lb backend enable kas-a/node-2",
    ]))]
    Backend {
        #[command(subcommand)]
        change: OperatorChange,
    },
    /// The machines that backends are on, over all pools, and the live flows to each
    #[command(after_help = examples(&[
        "lb nodes",
        "lb nodes -o json | jq '.nodes[] | select(.name == \"node-2\").flows'",
    ]))]
    Nodes(Show),
    /// Take all backends of a node out, in all pools and of both families, or put them back
    #[command(after_help = examples(&[
        "lb node drain node-2",
        "lb node disable 10.32.96.106",
        "lb node enable node-2",
    ]))]
    Node {
        #[command(subcommand)]
        change: NodeChange,
    },
    /// Live flows, all or some, and how to end them
    #[command(after_help = examples(&[
        "lb flows --service api-a --client 192.168.203.0/24",
        "lb flows --pool kas-a --state established",
        "lb flows --backend kas-a/node-2 --kill",
    ]))]
    Flows {
        #[command(flatten)]
        which: Which,
        /// In this state
        #[arg(long, conflicts_with = "kill", value_parser = ["new", "replied", "established", "half_closed"])]
        state: Option<String>,
        /// Every column
        #[arg(long)]
        wide: bool,
        /// End them: both ends get a TCP reset at once
        #[arg(long)]
        kill: bool,
        /// With --kill: every flow
        #[arg(long, requires = "kill")]
        all: bool,
        #[command(flatten)]
        show: Show,
    },
    /// The flow that has a SNAT port, or had it last
    #[command(after_help = examples(&[
        "lb who 10.32.96.50:31042",
        "lb who 10.32.96.50:31042 --at 2026-11-26T12:28:42+01:00",
    ]))]
    Who {
        /// SNAT address and port, as a backend sees them; an IPv6 address stands in brackets
        #[arg(value_name = "SNATIP:PORT")]
        snat: SocketAddr,
        /// That had it at this time, by the flow log: RFC 3339, or HH:MM:SS of today in UTC; a time without a fraction
        /// is a whole second
        #[arg(long, value_name = "WHEN", value_parser = NamedTime::read)]
        at: Option<NamedTime>,
        #[command(flatten)]
        show: Show,
    },
    /// The other box of a pair
    Ha {
        #[command(subcommand)]
        change: HaCommand,
    },
    /// What has happened: reloads, verdicts of checks, and what operators did
    #[command(after_help = examples(&[
        "lb events --follow",
    ]))]
    Events {
        /// Only events after the one with this number
        #[arg(long, value_name = "N", default_value_t = 0)]
        after: u64,
        /// Go on with new events as they come
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        show: Show,
    },
    /// Dropped and refused packets by reason, what is new since the last look, and the latest one of each
    #[command(after_help = examples(&[
        "lb drops",
        "lb drops --names",
    ]))]
    Drops {
        /// The names instead that shared VIPs have refused, with the latest client of each
        #[arg(long)]
        names: bool,
        #[command(flatten)]
        show: Show,
    },
    /// Everything at a glance, anew each second: what the page of `admin.http` shows
    #[command(after_help = examples(&["lb top", "lb top -o json"]))]
    Top {
        #[command(flatten)]
        show: Show,
    },
    /// Detach, and remove every flow, map and cell of the instance
    Down {
        #[command(flatten)]
        instance: Instance,
    },
    /// Version of the program and of its pinned state
    Version {
        #[command(flatten)]
        output: Output,
    },
    /// Print a script that completes commands and options in a shell
    #[command(after_help = examples(&[
        "lb completion bash > /usr/share/bash-completion/completions/lb",
        "lb completion zsh > /usr/share/zsh/site-functions/_lb",
    ]))]
    Completion {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum HaCommand {
    /// Which box serves, and whether the flows of each stand ready on the other: exit 0 if they do, 1 if not
    #[command(after_help = examples(&[
        "lb ha status",
        "lb ha status -o json | jq .receiving.session.complete",
    ]))]
    Status(Show),
    /// Silence this box unless it has the marker, also where its process does not answer: for keepalived's notify scripts
    Fence(Instance),
    /// Leave the service to the other box: waits until that lacks nothing, and until it is active
    #[command(after_help = examples(&[
        "lb ha move && systemctl reboot",
    ]))]
    Move {
        /// How long to wait, in whole seconds
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = confirm_time)]
        timeout: Duration,
        /// Move it whatever the other box lacks: flows that do not stand ready there end
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        instance: Instance,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum OperatorChange {
    /// No new flows; old ones have the pool's drain_timeout
    Drain(NamedBackend),
    /// No new flows, and old ones end at once: both ends get a TCP reset
    Disable(NamedBackend),
    /// As the file and the checks say
    Enable(NamedBackend),
    /// Another weight than the file's
    Weight {
        #[command(flatten)]
        named: NamedBackend,
        /// 1 to 256
        #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
        weight: u16,
    },
}

impl OperatorChange {
    /// Which backend, what it shall be, and how to say what came of it.
    pub(super) fn parts(self) -> (String, api::Override, Show) {
        let (named, change) = match self {
            Self::Drain(named) => (named, api::Override::Drain),
            Self::Disable(named) => (named, api::Override::Disable),
            Self::Enable(named) => (named, api::Override::Enable),
            Self::Weight { named, weight } => (named, api::Override::Weight { weight }),
        };
        (named.backend, change, named.show)
    }
}

#[derive(Debug, Args)]
pub(super) struct NamedBackend {
    /// POOL/BACKEND, or BACKEND where that is one only
    #[arg(value_name = "NAME")]
    backend: String,
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, Subcommand)]
pub(super) enum NodeChange {
    /// No new flows; old ones have the drain_timeout of their pools
    #[command(after_help = examples(&[
        "lb node drain node-2",
        "lb node drain fd00:32::106",
    ]))]
    Drain(NamedNode),
    /// No new flows, and old ones end at once: both ends get a TCP reset
    #[command(after_help = examples(&[
        "lb node disable node-2",
    ]))]
    Disable(NamedNode),
    /// As the file and the checks say
    #[command(after_help = examples(&[
        "lb node enable node-2",
    ]))]
    Enable(NamedNode),
}

impl NodeChange {
    /// Which node, what its backends shall be, and how to say what came of it.
    pub(super) fn parts(self) -> (String, api::Override, Show) {
        let (named, change) = match self {
            Self::Drain(named) => (named, api::Override::Drain),
            Self::Disable(named) => (named, api::Override::Disable),
            Self::Enable(named) => (named, api::Override::Enable),
        };
        (named.node, change, named.show)
    }
}

#[derive(Debug, Args)]
pub(super) struct NamedNode {
    /// The name of a node, or one of its addresses: `lb nodes` lists both
    #[arg(value_name = "NAME")]
    node: String,
    #[command(flatten)]
    show: Show,
}

/// Which flows; all that is given must hold.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Of clients in this network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// To a backend of this pool
    #[arg(long, value_name = "NAME", conflicts_with = "backend")]
    pool: Option<String>,
    /// To this backend: POOL/BACKEND, or BACKEND where that is one only
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Of clients with this address, or in this prefix
    #[arg(long, value_name = "PREFIX")]
    client: Option<String>,
    /// With this SNAT address and port, as a backend sees them
    #[arg(long, value_name = "SNATIP:PORT")]
    snat: Option<SocketAddr>,
}

impl Which {
    pub(super) fn filter(self, all: bool) -> api::Filter {
        let Self {
            network,
            service,
            pool,
            backend,
            client,
            snat,
        } = self;
        api::Filter {
            network,
            service,
            pool,
            backend,
            client,
            snat: snat.map(|snat| snat.to_string()),
            all,
        }
    }
}

/// Of which instance, and in which form.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    pub(super) instance: Instance,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Instance {
    /// Which load balancer of this host: letters a-z, digits and `-`, at most 12
    #[arg(long = "instance", value_name = "NAME", default_value = "main", value_parser = instance)]
    pub(super) name: String,
}

#[derive(Debug, Args)]
pub(super) struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
}

fn instance(text: &str) -> Result<String, String> {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() || text.len() > 12 || !text.bytes().all(valid) {
        return Err("an instance name has 1 to 12 of a-z, 0-9 and `-`".to_owned());
    }
    Ok(text.to_owned())
}

/// A time to confirm in, such as `90s` or `5m`, up to a day; a number alone is of seconds.
fn confirm_time(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = match is_number {
        true => format!("{text}s"),
        false => text.to_owned(),
    };
    let range = Duration::from_secs(1)..=Duration::from_secs(api::MAX_CONFIRM_SECONDS);
    let time = parse_time(&text, range)?;
    if time.subsec_nanos() != 0 {
        return Err(format!("found \"{text}\", expected whole seconds"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        let words = ["lb"].into_iter().chain(line.split_ascii_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_that_names_no_file_has_that_of_the_unit() {
        for line in ["run", "prepare", "check", "plan"] {
            let file = match parse(line) {
                Ok(Command::Run { config, .. } | Command::Prepare { config, .. }) => config,
                Ok(Command::Check { file, .. } | Command::Plan { file, .. }) => file,
                other => panic!("{line}: {other:?}"),
            };
            assert_eq!(file, PathBuf::from("/etc/lb/lb.yaml"), "{line}");
        }
    }

    #[test]
    fn an_instance_name_is_short_and_plain() {
        assert_eq!(instance("lab-1"), Ok("lab-1".to_owned()));
        for bad in ["", "Main", "a.b", "../x", "thirteen-char"] {
            assert!(instance(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_to_confirm_in_is_whole_seconds_up_to_a_day() {
        for (text, seconds) in [
            ("60s", 60),
            ("5", 5),
            ("5m", 300),
            ("1m30s", 90),
            ("2h", 7200),
            ("1d", 86_400),
            ("86400", 86_400),
        ] {
            let time = Duration::from_secs(seconds);
            assert_eq!(confirm_time(text), Ok(time), "{text}");
        }
        for (bad, words) in [
            ("", "\"\" is not a time; expected whole numbers with units"),
            (
                "-1",
                "\"-1\" is not a time; expected whole numbers with units",
            ),
            (
                "1.5m",
                "\"1.5m\" is not a time; expected whole numbers with units",
            ),
            ("0s", "found \"0s\", expected 1s to 1d"),
            ("500ms", "found \"500ms\", expected 1s to 1d"),
            ("1d1s", "found \"1d1s\", expected 1s to 1d"),
            ("86401", "found \"86401s\", expected 1s to 1d"),
            ("1s500ms", "found \"1s500ms\", expected whole seconds"),
            (
                "99999999999999999999",
                "\"99999999999999999999s\" is not a time",
            ),
        ] {
            let error = confirm_time(bad).unwrap_err();
            assert!(error.starts_with(words), "{bad}: {error}");
        }
        for line in ["run --confirm 25h", "reload --confirm 25h"] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains("expected 1s to 1d"), "{line}: {error}");
        }
    }

    #[test]
    fn a_backend_is_changed_in_one_of_four_ways() {
        use api::Override;
        for (line, change) in [
            ("backend drain p/a", Override::Drain),
            ("backend disable p/a", Override::Disable),
            ("backend enable p/a", Override::Enable),
            ("backend weight p/a 256", Override::Weight { weight: 256 }),
        ] {
            let Ok(Command::Backend { change: parsed }) = parse(line) else {
                panic!("{line}")
            };
            let (name, parsed, show) = parsed.parts();
            assert_eq!((name.as_str(), parsed), ("p/a", change), "{line}");
            assert_eq!(show.instance.name, "main");
        }
        for line in [
            "backend",
            "backend drain",
            "backend weight a",
            "backend weight a 0",
            "backend weight a 257",
            "backend stop a",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_node_is_changed_in_one_of_three_ways() {
        use api::Override;
        for (line, change) in [
            ("node drain fd00::1", Override::Drain),
            ("node disable fd00::1", Override::Disable),
            ("node enable fd00::1", Override::Enable),
        ] {
            let Ok(Command::Node { change: parsed }) = parse(line) else {
                panic!("{line}")
            };
            let (name, parsed, show) = parsed.parts();
            assert_eq!((name.as_str(), parsed), ("fd00::1", change), "{line}");
            assert_eq!(show.instance.name, "main");
        }
        for line in ["node", "node drain", "node weight a 1", "nodes a"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn flows_are_chosen_by_what_they_are() {
        let line = "flows --network n --service s --backend p/b --client 10.0.0.0/8 \
                    --snat 10.0.0.1:2000 --kill --instance lab -o json";
        let Ok(Command::Flows {
            which,
            kill: true,
            all: false,
            show,
            ..
        }) = parse(line)
        else {
            panic!("{line}")
        };
        assert_eq!(
            (show.instance.name.as_str(), show.output.format),
            ("lab", Format::Json)
        );
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            which.filter(false),
            api::Filter {
                network: text("n"),
                service: text("s"),
                pool: None,
                backend: text("p/b"),
                client: text("10.0.0.0/8"),
                snat: text("10.0.0.1:2000"),
                all: false,
            }
        );
        assert!(parse("flows --kill --all").is_ok());
        for line in ["flows --snat [fd00::1]:2000", "who [fd00::1]:2000"] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "flows --all",
            "flows --snat 10.0.0.1",
            "flows --snat fd00::1",
            "flows --kill n",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
