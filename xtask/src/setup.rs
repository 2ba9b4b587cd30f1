//! Preflight, then one list of what is missing, then its installation. A second run installs
//! nothing, because each round starts from what is there.

use std::{
    env,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    api_server::{self, State},
    cmd::Cmd,
    finding,
    host::Host,
    linker::Linker,
    packages, pins, preflight,
    progress::Progress,
    stock::{Item, Purpose, Stock},
    table,
    workspace::Workspace,
};

/// A linker that looked right before the toolchain was there may prove wrong after: then a second
/// round builds one.
const ROUNDS: usize = 2;

/// Makes this machine ready for `purpose`.
///
/// # Errors
/// When preflight finds a stop, the operator declines, or an installation fails.
pub(crate) fn ensure(purpose: Purpose, yes: bool) -> Result<Workspace> {
    let mut workspace = Workspace::locate()?;
    let mut host = Host::gather(&workspace);
    let mut stock = Stock::gather(&workspace);
    finding::report(&preflight::judge(&host, &stock, purpose))?;

    if stock.missing(purpose, host.bpffs).is_empty() {
        eprintln!("set-up: everything is there, nothing to install");
    }
    if let (true, State::Impossible(reason)) = (purpose.wants_api_server(), &stock.api_server) {
        eprintln!("set-up: {} is left out: {reason}", api_server::name());
    }
    for round in 0..ROUNDS {
        let items = stock.missing(purpose, host.bpffs);
        if items.is_empty() {
            break;
        }
        announce(&items, &stock);
        if round == 0 && !(yes || agreed()?) {
            bail!("set-up: declined; nothing was installed");
        }
        let failed = install_all(&workspace, &stock, &items)?;
        (host, stock) = (Host::gather(&workspace), Stock::gather(&workspace));
        if let Some(reason) = failed {
            stock.api_server = State::Impossible(reason);
        }
        eprintln!("set-up: installed");
    }

    let missing = stock.missing(purpose, host.bpffs);
    if !missing.is_empty() {
        announce(&missing, &stock);
        bail!("set-up: the list above is still missing after its installation");
    }
    if let Linker::Good(linker) = &stock.linker {
        workspace.use_linker(linker);
    }
    Ok(workspace)
}

/// Prints what will be installed, with its size and time, and why a linker was passed over.
fn announce(items: &[Item], stock: &Stock) {
    eprintln!("set-up will install");
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    for line in table::lines(&rows) {
        eprintln!("  {line}");
    }
    if let Linker::None { rejected } = &stock.linker {
        for reason in rejected {
            eprintln!("  not used: {reason}");
        }
    }
}

/// What, with which means, how large, how long. Sizes are on disk, from a Debian 12 with 2 cores.
fn row(item: &Item) -> Vec<String> {
    let cells = match item {
        Item::ApiServer => [
            api_server::name(),
            format!(
                "built by Go {} of Debian's source, with its etcd and kubectl, into the cache",
                pins::GO_OF_KUBERNETES
            ),
            "180 MB, 3 GB until it is built".to_owned(),
            "5 min".to_owned(),
        ],
        Item::Bpffs => [
            "bpffs".to_owned(),
            "mounted at /sys/fs/bpf, as root".to_owned(),
            String::new(),
            "at once".to_owned(),
        ],
        Item::Linker { prebuilt, packages } => linker_row(*prebuilt, packages),
        Item::Packages(names) => [
            "commands of the lab and the tests".to_owned(),
            format!("packages, as root: {}", names.join(" ")),
            "up to 20 MB".to_owned(),
            "1 min".to_owned(),
        ],
        Item::Tool(tool) => [
            format!("{} {}", tool.package, tool.version),
            "cargo install, into the cache".to_owned(),
            tool.size.to_owned(),
            tool.time.to_owned(),
        ],
        Item::Toolchain { components } => [
            format!("Rust {}", pins::TOOLCHAIN),
            format!("rustup, minimal profile with {}", components.join(", ")),
            "700 MB".to_owned(),
            "1 min".to_owned(),
        ],
    };
    cells.into()
}

fn linker_row(prebuilt: bool, packages: &[&str]) -> [String; 4] {
    let release = if prebuilt {
        "a release through cargo binstall, else "
    } else {
        ""
    };
    let (with, size) = match packages {
        [] => (String::new(), "5 MB"),
        names => (
            format!(", with packages, as root: {}", names.join(" ")),
            "700 MB",
        ),
    };
    [
        format!("bpf-linker {}", pins::BPF_LINKER),
        format!("{release}cargo install, into the cache{with}"),
        size.to_owned(),
        "3 min".to_owned(),
    ]
}

/// Asks the operator on a terminal; without one, and in CI, the answer is yes.
fn agreed() -> Result<bool> {
    let unattended = env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    if unattended || !io::stdin().is_terminal() {
        return Ok(true);
    }
    eprint!("Install these now? [Y/n] ");
    io::stderr()
        .flush()
        .context("ask before the installation")?;
    let mut answer = String::new();
    let read = io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("read the answer")?;
    Ok(read > 0 && matches!(answer.trim(), "" | "y" | "Y" | "yes" | "Yes"))
}

/// Installs all. An API server that cannot be built stops nothing, because tests are left out without it: returns why.
fn install_all(workspace: &Workspace, stock: &Stock, items: &[Item]) -> Result<Option<String>> {
    let mut failed = None;
    let mut progress = Progress::new("set-up", items.len());
    for item in items {
        let name = row(item).swap_remove(0);
        let installed = progress.step(&name, |progress| install(workspace, stock, item, progress));
        match installed {
            Err(error) if *item == Item::ApiServer => {
                let reason = format!("{error:#}");
                progress.line(&format!("set-up: {name} is left out: {reason}"));
                failed = Some(reason);
            }
            installed => installed?,
        }
    }
    Ok(failed)
}

/// What runs as root has the terminal for itself: sudo may ask for a password.
fn install(
    workspace: &Workspace,
    stock: &Stock,
    item: &Item,
    progress: &mut Progress,
) -> Result<()> {
    match item {
        Item::ApiServer => api_server::build(workspace, progress),
        Item::Bpffs => progress.without_bar(|| mount_bpffs(workspace)),
        Item::Linker { prebuilt, packages } => {
            if *prebuilt && prebuilt_linker(workspace, progress) {
                return Ok(());
            }
            build_linker(workspace, stock, packages, progress)
        }
        Item::Packages(names) => progress
            .without_bar(|| packages::install(workspace, stock.family, names))
            .context("install the commands of the lab and the tests"),
        Item::Tool(tool) => {
            let extra = |cargo: Cmd| cargo.args(tool.arguments);
            cargo_install(workspace, tool.package, tool.version, progress, extra)
        }
        Item::Toolchain { components } => toolchain(workspace, components, progress),
    }
}

fn mount_bpffs(workspace: &Workspace) -> Result<()> {
    workspace
        .as_root("mount")
        .args(["-t", "bpf", "bpf", "/sys/fs/bpf"])
        .run()
        .context(
            "mount bpffs, which holds what must outlive lb (in a container: it must be privileged)",
        )
}

fn toolchain(workspace: &Workspace, components: &[&str], progress: &mut Progress) -> Result<()> {
    let install = [
        "toolchain",
        "install",
        pins::TOOLCHAIN,
        "--profile",
        "minimal",
        "--no-self-update",
    ];
    let components = components.iter().flat_map(|component| ["-c", *component]);
    workspace
        .command("rustup")
        .args(install)
        .args(components)
        .run_beside(progress)
        .with_context(|| format!("install Rust {} (is the network there?)", pins::TOOLCHAIN))
}

/// A failure is no error: then the linker is built here.
fn prebuilt_linker(workspace: &Workspace, progress: &mut Progress) -> bool {
    let result = workspace
        .command("cargo-binstall")
        .args(["--no-confirm", "--disable-strategies", "compile", "--root"])
        .arg(workspace.tool_root("bpf-linker", pins::BPF_LINKER))
        .arg(format!("bpf-linker@{}", pins::BPF_LINKER))
        .run_beside(progress);
    match result {
        Ok(()) => Stock::gather(workspace).has_linker(),
        Err(error) => {
            progress.line(&format!(
                "set-up: no release of bpf-linker, so it is built here: {error:#}"
            ));
            false
        }
    }
}

/// Builds bpf-linker against the system's LLVM, which must not be older than rustc's.
fn build_linker(
    workspace: &Workspace,
    stock: &Stock,
    absent: &[&str],
    progress: &mut Progress,
) -> Result<()> {
    if !absent.is_empty() && stock.llvm_is_packaged() {
        progress
            .without_bar(|| packages::install(workspace, stock.family, absent))
            .context("install LLVM, which bpf-linker is built against")?;
    }
    let Some(prefix) = packages::llvm_prefix(workspace) else {
        bail!(
            "build bpf-linker {}: LLVM {} is needed, and no `llvm-config` of that version was \
             found; put a released bpf-linker on PATH instead \
             (https://github.com/aya-rs/bpf-linker/releases)",
            pins::BPF_LINKER,
            pins::LLVM
        );
    };
    let mut path = std::ffi::OsString::from(format!("{prefix}/bin:"));
    path.push(workspace.path());
    let extra = |cargo: Cmd| {
        cargo
            .args(["--no-default-features", "--features"])
            .arg(format!("llvm-{}", pins::LLVM))
            .env("LLVM_PREFIX", prefix)
            .env(&format!("LLVM_SYS_{}1_PREFIX", pins::LLVM), prefix)
            .quiet_env("PATH", path)
    };
    cargo_install(workspace, "bpf-linker", pins::BPF_LINKER, progress, extra)
}

/// Builds a tool into the cache. Its build folder is in the cache too, because /tmp may be memory,
/// and is removed afterwards. `--force` because a tool that is there but does not start is replaced.
fn cargo_install(
    workspace: &Workspace,
    tool: &str,
    version: &str,
    progress: &mut Progress,
    extra: impl FnOnce(Cmd) -> Cmd,
) -> Result<()> {
    let build = workspace.cache.join(format!("build-{tool}"));
    let cargo = workspace
        .cargo()
        .args([
            "install",
            tool,
            "--version",
            version,
            "--locked",
            "--force",
            "--root",
        ])
        .arg(workspace.tool_root(tool, version))
        .arg("--target-dir")
        .arg(&build);
    let installed = extra(cargo)
        .run_beside(progress)
        .with_context(|| format!("build {tool} {version}"));
    if build.exists() {
        std::fs::remove_dir_all(&build).with_context(|| format!("remove {}", build.display()))?;
    }
    installed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_says_what_is_done_as_root() {
        let packages = row(&Item::Packages(vec!["nginx"])).join("|");
        assert!(packages.contains("as root: nginx"), "{packages}");
        let build = row(&Item::Linker {
            prebuilt: false,
            packages: vec!["llvm-22-dev"],
        })
        .join("|");
        assert!(build.contains("as root: llvm-22-dev"), "{build}");
        let rebuild = row(&Item::Linker {
            prebuilt: true,
            packages: Vec::new(),
        })
        .join("|");
        assert!(!rebuild.contains("root"), "{rebuild}");
    }
}
