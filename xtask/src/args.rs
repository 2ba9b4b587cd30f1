//! The command line of xtask: words to a `Request`, by hand, so that xtask needs no parser crate.

/// Printed without arguments, for `help`, and after a usage error.
pub(crate) const HELP: &str = "\
Usage: cargo xtask <command>

  setup [--yes]          look at this machine, then install what is missing
  build [--yes]          set up what a build needs, and build lb: target/release/lb; no root needed
  run [--once] [--yes]   set up, build, and run the lab: real traffic through network
                         namespaces; stays up until Ctrl-C, with --once exits after the proof
  run --clusters [--once] [--yes]
                         the lab of three clusters behind one address, by SNI and Host
  run --poc [--once] [--yes]
                         the lab of one tenant's three load balancers as one file
  run --config FILE [--confirm SECONDS] [--yes]
                         set up, build, and run lb with FILE on this host's real interfaces;
                         with --confirm the change is undone unless it is confirmed in time
  run ... -- ARGS        ARGS are passed on to the program that is run
  test [--long] [--show-output] [--yes]
                         set up, then every check and every test level; --long: the slow ones too,
                         and those with a kube-apiserver, which set-up builds for them or by itself;
                         --show-output prints also what passing namespace tests have printed
  test --netns [--long] [--show-output] [--yes] [NAMES]
                         only the namespace tests, or those with one of NAMES in their name
  test --kernels [--yes] set up, then boot other kernels under QEMU: lb, connections, tests; a table
  bench [--quick] [--yes] [WORDS]
                         set up, build, and measure lb beside what would be used instead of it;
                         WORDS are lb-bench's own, see `cargo xtask bench --help`
  book                   docs/ as a book of HTML pages, by mdBook: target/book/html; no root needed
  check                  format, floors, links, words, spelling, lints, docs, licences, dependencies; no
                         root needed
  floors [FOLDER]        how the modules of a crate (lb-user/src, or that of FOLDER) need one another
  reference              write the generated pages of docs/ and the comments of config/lb.yaml; no root
                         needed
  man                    write the manual pages, lb.1 and one for each command: target/man; no root needed
  help                   this text

--yes installs without asking. Without a terminal, or with CI set, nothing is asked either.
Builds run as you; only lb and its test binaries are run through sudo.";

/// The operator's request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// With lb-bench's own words.
    Bench {
        words: Vec<String>,
        yes: bool,
    },
    /// The pages of docs/ as HTML.
    Book,
    Build {
        yes: bool,
    },
    Check,
    /// Of lb-user, or of the crate whose root is in this folder.
    Floors(Option<String>),
    Help,
    /// The manual pages.
    Man,
    /// Write the reference page of the configuration, and the comments of the example.
    Reference,
    /// `test --kernels`.
    Kernels {
        yes: bool,
    },
    Run(RunRequest),
    Setup {
        yes: bool,
    },
    Test(TestRequest),
}

/// The words of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestRequest {
    pub(crate) long: bool,
    pub(crate) show_output: bool,
    pub(crate) yes: bool,
    /// Only the namespace tests.
    pub(crate) netns: bool,
    /// Parts of the names of namespace tests.
    pub(crate) names: Vec<String>,
}

/// The words of `cargo xtask run`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RunRequest {
    pub(crate) once: bool,
    pub(crate) lab: Lab,
    pub(crate) yes: bool,
    pub(crate) config: Option<String>,
    /// As `lb run` takes it: a number with the unit `s`.
    pub(crate) confirm: Option<String>,
    pub(crate) extra: Vec<String>,
}

/// Which lab it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lab {
    #[default]
    Tenants,
    Clusters,
    Poc,
}

impl Lab {
    /// The flag that selects it.
    pub(crate) const fn flag(self) -> Option<&'static str> {
        match self {
            Self::Tenants => None,
            Self::Clusters => Some("--clusters"),
            Self::Poc => Some("--poc"),
        }
    }
}

/// The request that `words` (without the program's name) spell.
///
/// # Errors
/// One sentence that names the word that does not fit.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, String> {
    let mut words = words.into_iter();
    let Some(command) = words.next() else {
        return Ok(Request::Help);
    };
    match command.as_str() {
        "help" | "-h" | "--help" => Ok(Request::Help),
        "bench" => Ok(bench(words)),
        "book" => flags("book", words, []).map(|[]| Request::Book),
        "build" => flags("build", words, ["--yes"]).map(|[yes]| Request::Build { yes }),
        "check" => flags("check", words, []).map(|[]| Request::Check),
        "man" => flags("man", words, []).map(|[]| Request::Man),
        "reference" => flags("reference", words, []).map(|[]| Request::Reference),
        "floors" => match (words.next(), words.next()) {
            (folder, None) => Ok(Request::Floors(folder)),
            (_, Some(word)) => Err(format!("`floors` does not take `{word}`")),
        },
        "setup" => flags("setup", words, ["--yes"]).map(|[yes]| Request::Setup { yes }),
        "test" => test(words),
        "run" => run(words).map(Request::Run),
        _ => Err(format!("unknown command `{command}`")),
    }
}

/// Every word but ours is for lb-bench to understand.
fn bench(words: impl Iterator<Item = String>) -> Request {
    let (ours, words): (Vec<_>, Vec<_>) = words.partition(|word| word == "--yes");
    Request::Bench {
        words,
        yes: !ours.is_empty(),
    }
}

/// Which of the flags `known` are among `words`.
fn flags<const N: usize>(
    command: &str,
    words: impl Iterator<Item = String>,
    known: [&str; N],
) -> Result<[bool; N], String> {
    let mut given = [false; N];
    for word in words {
        let known_at = known.iter().position(|flag| *flag == word);
        let slot = known_at.and_then(|index| given.get_mut(index));
        *slot.ok_or_else(|| format!("`{command}` does not take `{word}`"))? = true;
    }
    Ok(given)
}

/// The levels, the namespace tests alone, or other kernels.
fn test(words: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut request = TestRequest::default();
    let mut kernels = false;
    for word in words {
        match word.as_str() {
            "--kernels" => kernels = true,
            "--long" => request.long = true,
            "--netns" => request.netns = true,
            "--show-output" => request.show_output = true,
            "--yes" => request.yes = true,
            flag if flag.starts_with('-') => return Err(format!("`test` does not take `{flag}`")),
            _ => request.names.push(word),
        }
    }
    let yes = request.yes;
    let only_yes = TestRequest {
        yes,
        ..TestRequest::default()
    };
    match request.names.first() {
        _ if kernels && request == only_yes => Ok(Request::Kernels { yes }),
        _ if kernels => Err("`--kernels` takes nothing but `--yes`".to_owned()),
        Some(name) if !request.netns => Err(format!("`test {name}` needs `--netns`")),
        _ => Ok(Request::Test(request)),
    }
}

fn run(mut words: impl Iterator<Item = String>) -> Result<RunRequest, String> {
    let mut request = RunRequest::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--once" => request.once = true,
            "--clusters" => request.lab = other_lab(request.lab, Lab::Clusters)?,
            "--poc" => request.lab = other_lab(request.lab, Lab::Poc)?,
            "--yes" => request.yes = true,
            "--config" => {
                request.config = Some(words.next().ok_or("`--config` needs a file")?);
            }
            "--confirm" => {
                let time = words
                    .next()
                    .ok_or("`--confirm` needs a number of seconds")?;
                request.confirm = Some(seconds(&time)?);
            }
            "--" => request.extra.extend(words.by_ref()),
            _ => return Err(format!("`run` does not take `{word}` (before `--`)")),
        }
    }
    match (&request.config, &request.confirm, request.once) {
        (None, Some(_), _) => Err("`--confirm` needs `--config`".to_owned()),
        (Some(_), _, true) => Err("`--once` is for the lab, not for `--config`".to_owned()),
        (Some(_), ..) => match request.lab.flag() {
            Some(flag) => Err(format!("`{flag}` is a lab, and not for `--config`")),
            None => Ok(request),
        },
        _ => Ok(request),
    }
}

/// The lab `wanted`, unless another one is wanted already.
fn other_lab(lab: Lab, wanted: Lab) -> Result<Lab, String> {
    match (lab.flag(), wanted.flag()) {
        (Some(one), Some(other)) if one != other => {
            Err(format!("`{one}` and `{other}` are different labs"))
        }
        _ => Ok(wanted),
    }
}

/// `60` and `60s` are both sixty seconds.
fn seconds(text: &str) -> Result<String, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    match number.parse::<u32>() {
        Ok(seconds) if seconds > 0 => Ok(format!("{seconds}s")),
        _ => Err(format!(
            "`--confirm {text}`: not a number of seconds above 0"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn no_word_is_help() {
        assert_eq!(parsed(""), Ok(Request::Help));
        assert_eq!(parsed("--help"), Ok(Request::Help));
    }

    #[test]
    fn flags_come_in_any_order() {
        let both = Ok(Request::Test(TestRequest {
            long: true,
            yes: true,
            ..TestRequest::default()
        }));
        assert_eq!(parsed("test --yes --long"), both);
        assert_eq!(parsed("test --long --yes"), both);
        assert_eq!(
            parsed("test --kernels"),
            Ok(Request::Kernels { yes: false })
        );
        assert_eq!(
            parsed("test --kernels --long").unwrap_err(),
            "`--kernels` takes nothing but `--yes`"
        );
        assert_eq!(parsed("setup"), Ok(Request::Setup { yes: false }));
        assert_eq!(parsed("build --yes"), Ok(Request::Build { yes: true }));
    }

    #[test]
    fn names_are_of_namespace_tests() {
        let expected = Request::Test(TestRequest {
            netns: true,
            names: ["reload::", "killed"].map(str::to_owned).into(),
            ..TestRequest::default()
        });
        assert_eq!(parsed("test reload:: --netns killed"), Ok(expected));
        assert_eq!(
            parsed("test reload::").unwrap_err(),
            "`test reload::` needs `--netns`"
        );
        assert_eq!(
            parsed("test --fast").unwrap_err(),
            "`test` does not take `--fast`"
        );
    }

    #[test]
    fn words_of_a_bench_are_passed_on() {
        let words = ["--quick", "--rounds", "3"].map(str::to_owned);
        let expected = Request::Bench {
            words: words.into(),
            yes: true,
        };
        assert_eq!(parsed("bench --quick --yes --rounds 3"), Ok(expected));
    }

    #[test]
    fn unknown_words_are_named() {
        assert_eq!(
            parsed("setup --now").unwrap_err(),
            "`setup` does not take `--now`"
        );
        assert_eq!(parsed("fly").unwrap_err(), "unknown command `fly`");
        assert_eq!(
            parsed("check --yes").unwrap_err(),
            "`check` does not take `--yes`"
        );
    }

    #[test]
    fn run_takes_a_config_a_confirmation_time_and_extra_words() {
        let expected = RunRequest {
            config: Some("lb.yaml".to_owned()),
            confirm: Some("60s".to_owned()),
            extra: vec!["--once".to_owned(), "-v".to_owned()],
            ..RunRequest::default()
        };
        let parsed = parsed("run --config lb.yaml --confirm 60 -- --once -v");
        assert_eq!(parsed, Ok(Request::Run(expected)));
    }

    #[test]
    fn run_refuses_what_does_not_go_together() {
        assert!(parsed("run --confirm 60s").is_err());
        assert!(parsed("run --once --config lb.yaml").is_err());
        assert!(parsed("run --clusters --config lb.yaml").is_err());
        assert!(parsed("run --poc --config lb.yaml").is_err());
        assert_eq!(
            parsed("run --clusters --poc").unwrap_err(),
            "`--clusters` and `--poc` are different labs"
        );
        assert!(parsed("run --clusters --once").is_ok());
        assert!(parsed("run --poc --once").is_ok());
        assert!(parsed("run --config").is_err());
        assert!(parsed("run --config lb.yaml --confirm soon").is_err());
        assert!(parsed("run --config lb.yaml --confirm 0").is_err());
    }
}
