//! What is installed already, and from that and the purpose: what is missing. `setup` installs it.

use crate::{
    api_server::{self, State},
    linker::{self, Linker},
    packages::{self, Family, Need},
    pins,
    tools::{self, Tool},
    workspace::Workspace,
};

/// What the tools are wanted for; `Setup` and `LongTest` want everything, `Test` all but what takes long to build and a
/// test can be left out for, and `Bench` not the checks, either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Bench,
    Book,
    /// Of `lb` alone.
    Build,
    Check,
    LongTest,
    Man,
    Run,
    Setup,
    Test,
}

impl Purpose {
    /// Whether lb or its tests are run on this kernel, and nothing is only compiled or written.
    pub(crate) const fn runs(self) -> bool {
        match self {
            Self::Bench | Self::LongTest | Self::Run | Self::Setup | Self::Test => true,
            Self::Book | Self::Build | Self::Check | Self::Man => false,
        }
    }

    /// Whether the API server of Kubernetes is built for it.
    pub(crate) const fn wants_api_server(self) -> bool {
        matches!(self, Self::LongTest | Self::Setup)
    }
}

/// What is installed.
#[derive(Clone, Debug)]
pub(crate) struct Stock {
    pub(crate) api_server: State,
    pub(crate) family: Family,
    pub(crate) rustup: bool,
    pub(crate) toolchain: bool,
    pub(crate) missing_components: Vec<&'static str>,
    pub(crate) linker: Linker,
    pub(crate) binstall: bool,
    /// The prefix of the LLVM to build bpf-linker against.
    pub(crate) llvm: Option<&'static str>,
    pub(crate) absent_llvm_packages: Vec<&'static str>,
    pub(crate) absent_tools: Vec<&'static Tool>,
    pub(crate) lacking: Vec<&'static Need>,
}

/// Something that set-up does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    ApiServer,
    Bpffs,
    /// With `prebuilt`, a release is tried first; `packages` are for building it here.
    Linker {
        prebuilt: bool,
        packages: Vec<&'static str>,
    },
    Packages(Vec<&'static str>),
    Tool(&'static Tool),
    Toolchain {
        components: Vec<&'static str>,
    },
}

/// The components that the builds and checks need beyond rustup's minimal profile.
const COMPONENTS: [&str; 3] = ["clippy", "rust-src", "rustfmt"];

impl Stock {
    pub(crate) fn gather(workspace: &Workspace) -> Self {
        let family = Family::of_this_machine();
        let components = components(workspace);
        let missing = |installed: &str| {
            let absent = |name: &&str| !installed.lines().any(|line| line.starts_with(*name));
            COMPONENTS.into_iter().filter(absent).collect()
        };
        let linker = linker::find(workspace, components.is_some());
        let (llvm, absent_llvm_packages) = match linker {
            Linker::Good(_) => (None, Vec::new()),
            Linker::None { .. } => (
                packages::llvm_prefix(workspace),
                family.absent_llvm(workspace),
            ),
        };
        Self {
            api_server: api_server::state(workspace),
            family,
            rustup: workspace.find("rustup").is_some(),
            toolchain: components.is_some(),
            missing_components: missing(&components.unwrap_or_default()),
            linker,
            binstall: workspace.find("cargo-binstall").is_some(),
            llvm,
            absent_llvm_packages,
            absent_tools: tools::absent(workspace),
            lacking: packages::lacking(workspace),
        }
    }

    pub(crate) fn has_linker(&self) -> bool {
        matches!(self.linker, Linker::Good(_))
    }

    /// Whether LLVM comes from packages that set-up can install: an unknown distribution's cannot
    /// be asked for, but an LLVM that is there can be used.
    pub(crate) fn llvm_is_packaged(&self) -> bool {
        self.family != Family::Other || self.llvm.is_none()
    }

    /// The commands that `purpose` needs and that are not there.
    pub(crate) fn lacking(&self, purpose: Purpose) -> Vec<&'static Need> {
        let is_needed =
            |need: &&Need| purpose.runs() && (purpose != Purpose::Run || !need.tests_only);
        self.lacking.iter().copied().filter(is_needed).collect()
    }

    /// What `purpose` needs and is missing, in the order of installation: what asks for a password
    /// or may be refused comes first.
    pub(crate) fn missing(&self, purpose: Purpose, bpffs: bool) -> Vec<Item> {
        let builds = purpose.runs() || purpose == Purpose::Build;
        let mut items = Vec::new();
        let lacking = self.lacking(purpose);
        if !lacking.is_empty() {
            let names = lacking.iter().map(|need| need.package(self.family));
            items.push(Item::Packages(names.collect()));
        }
        if purpose.runs() && !bpffs {
            items.push(Item::Bpffs);
        }
        if !self.missing_components.is_empty() || !self.toolchain {
            items.push(Item::Toolchain {
                components: self.missing_components.clone(),
            });
        }
        if builds && !self.has_linker() {
            let packages = self.absent_llvm_packages.clone();
            items.push(Item::Linker {
                prebuilt: self.binstall,
                packages,
            });
        }
        let tools = self.absent_tools.iter().copied();
        items.extend(tools.filter(|tool| tool.is_for(purpose)).map(Item::Tool));
        if purpose.wants_api_server() && self.api_server == State::Absent {
            items.push(Item::ApiServer);
        }
        items
    }
}

/// The installed components of the pinned toolchain, one a line; `None` without the toolchain.
/// The list is read first, because some versions of rustup install what they are queried for.
fn components(workspace: &Workspace) -> Option<String> {
    let rustup = |words: &[&str]| workspace.command("rustup").args(words).probe();
    let toolchains = rustup(&["toolchain", "list"])?;
    let prefix = format!("{}-", pins::TOOLCHAIN);
    if !toolchains.lines().any(|line| line.starts_with(&prefix)) {
        return None;
    }
    rustup(&[
        "component",
        "list",
        "--installed",
        "--toolchain",
        pins::TOOLCHAIN,
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tools::{CARGO_DENY, MDBOOK, TYPOS};

    /// A machine on which nothing is missing.
    pub(crate) fn complete() -> Stock {
        Stock {
            api_server: State::Here,
            family: Family::Debian,
            rustup: true,
            toolchain: true,
            missing_components: Vec::new(),
            linker: Linker::Good(PathBuf::from("/usr/bin/bpf-linker")),
            binstall: false,
            llvm: None,
            absent_llvm_packages: Vec::new(),
            absent_tools: Vec::new(),
            lacking: Vec::new(),
        }
    }

    fn bare() -> Stock {
        Stock {
            api_server: State::Absent,
            toolchain: false,
            missing_components: COMPONENTS.into(),
            linker: Linker::None {
                rejected: Vec::new(),
            },
            absent_llvm_packages: vec!["llvm-22-dev"],
            absent_tools: tools::all(),
            lacking: packages::NEEDS
                .iter()
                .filter(|need| need.what == "dig")
                .collect(),
            ..complete()
        }
    }

    #[test]
    fn a_complete_machine_needs_nothing() {
        for purpose in [Purpose::Check, Purpose::Run, Purpose::Setup, Purpose::Test] {
            assert_eq!(complete().missing(purpose, true), []);
        }
    }

    #[test]
    fn a_bare_machine_needs_everything_in_order() {
        let items = [
            Item::Packages(vec!["bind9-dnsutils"]),
            Item::Bpffs,
            Item::Toolchain {
                components: COMPONENTS.into(),
            },
            Item::Linker {
                prebuilt: false,
                packages: vec!["llvm-22-dev"],
            },
            Item::Tool(&CARGO_DENY),
            Item::Tool(&TYPOS),
            Item::ApiServer,
        ];
        for purpose in [Purpose::LongTest, Purpose::Setup] {
            assert_eq!(bare().missing(purpose, false), items);
        }
    }

    #[test]
    fn the_api_server_is_built_by_set_up_and_for_the_long_tier_alone() {
        let with = |api_server: State, purpose| {
            let stock = Stock {
                api_server,
                ..complete()
            };
            stock.missing(purpose, true)
        };
        for purpose in [Purpose::LongTest, Purpose::Setup] {
            assert_eq!(with(State::Absent, purpose), [Item::ApiServer]);
            assert_eq!(with(State::Impossible("no apt".to_owned()), purpose), []);
        }
        for purpose in [Purpose::Bench, Purpose::Check, Purpose::Run, Purpose::Test] {
            assert_eq!(with(State::Absent, purpose), []);
        }
    }

    #[test]
    fn checks_need_neither_root_nor_a_linker() {
        let items = [
            Item::Toolchain {
                components: COMPONENTS.into(),
            },
            Item::Tool(&CARGO_DENY),
            Item::Tool(&TYPOS),
        ];
        assert_eq!(bare().missing(Purpose::Check, false), items);
    }

    #[test]
    fn a_build_needs_the_toolchain_and_the_linker_alone() {
        let items = [
            Item::Toolchain {
                components: COMPONENTS.into(),
            },
            Item::Linker {
                prebuilt: false,
                packages: vec!["llvm-22-dev"],
            },
        ];
        assert_eq!(bare().missing(Purpose::Build, false), items);
    }

    #[test]
    fn running_needs_no_cargo_deny() {
        assert!(
            !bare()
                .missing(Purpose::Run, true)
                .contains(&Item::Tool(&CARGO_DENY))
        );
    }

    #[test]
    fn the_manual_pages_need_the_toolchain_alone() {
        let items = [Item::Toolchain {
            components: COMPONENTS.into(),
        }];
        assert_eq!(bare().missing(Purpose::Man, false), items);
    }

    #[test]
    fn only_the_book_needs_mdbook() {
        let items = [
            Item::Toolchain {
                components: COMPONENTS.into(),
            },
            Item::Tool(&MDBOOK),
        ];
        assert_eq!(bare().missing(Purpose::Book, false), items);
        assert!(
            !bare()
                .missing(Purpose::Setup, true)
                .contains(&Item::Tool(&MDBOOK))
        );
    }

    #[test]
    fn only_the_tests_need_go() {
        let go = || packages::NEEDS.iter().filter(|need| need.what == "go");
        let stock = Stock {
            lacking: go().collect(),
            ..complete()
        };
        let items = [Item::Packages(vec!["golang-go"])];
        for purpose in [Purpose::Setup, Purpose::Test] {
            assert_eq!(stock.missing(purpose, true), items);
        }
        for purpose in [Purpose::Run, Purpose::Check] {
            assert_eq!(stock.missing(purpose, true), []);
        }
    }

    #[test]
    fn a_prebuilt_linker_is_tried_before_a_build() {
        let stock = Stock {
            binstall: true,
            ..bare()
        };
        let linker = Item::Linker {
            prebuilt: true,
            packages: vec!["llvm-22-dev"],
        };
        assert!(stock.missing(Purpose::Run, true).contains(&linker));
    }
}
