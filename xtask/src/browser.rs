//! What drives the browser of the page's tests: playwright-core, by npm, as `tests/page/package-lock.json` has it.

use std::fs;

use anyhow::{Context as _, Result};

use crate::workspace::Workspace;

/// The tests that need it.
pub(crate) const TESTS: &str = "metrics::browser::";
/// The lock file of what is installed, beside it.
const INSTALLED: &str = "installed.json";

/// Installs it into `target/page-driver`, unless it is there.
///
/// # Errors
/// When npm fails, for instance because there is no registry.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    let from = workspace.root.join("tests/page");
    let folder = workspace.target.join("page-driver");
    let lock = from.join("package-lock.json");
    let wanted = fs::read(&lock).with_context(|| format!("read {}", lock.display()))?;
    if fs::read(folder.join(INSTALLED)).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for name in ["package.json", "package-lock.json"] {
        fs::copy(from.join(name), folder.join(name))
            .with_context(|| format!("copy {name} to {}", folder.display()))?;
    }
    workspace
        .command("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .dir(&folder)
        .run()
        .context("install what drives the browser of the page's tests")?;
    let installed = folder.join(INSTALLED);
    fs::write(&installed, wanted).with_context(|| format!("write {}", installed.display()))
}
