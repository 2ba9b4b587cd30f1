//! Where things are: the checkout, its target directory, the cache of pinned tools, and the
//! environment that every child gets.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    cmd::{self, Cmd},
    pins,
    tools::CARGO_DENY,
};

/// What the outer `cargo xtask` sets for us and what must not reach the inner cargo: with
/// `RUSTUP_TOOLCHAIN` or `RUSTC` set, `cargo +VERSION` would still use the outer compiler.
const OUTER_CARGO: [&str; 9] = [
    "CARGO",
    "CARGO_BUILD_TARGET",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTDOC",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
];

/// Not on the PATH of an ordinary user everywhere, but `ip`, `nft` and `nginx` live there.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The checkout and what belongs to it.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// Holds `<tool>-<version>/bin`; outside `target`, so that a clean checkout rebuilds no tool.
    pub(crate) cache: PathBuf,
    /// The effective user id.
    pub(crate) uid: u32,
    linker_dir: Option<PathBuf>,
}

impl Workspace {
    /// Finds the checkout that this xtask was built from.
    ///
    /// # Errors
    /// When the working directory, the home directory or the user cannot be found out.
    pub(crate) fn locate() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest
            .parent()
            .map(Path::to_owned)
            .context("xtask has no parent folder")?;
        let here = env::current_dir().context("find the working directory")?;
        let target = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |dir| here.join(dir));
        let cache = cache_dir(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
            .context("find the cache of pinned tools: neither XDG_CACHE_HOME nor HOME is set")?;
        let uid = fs::metadata("/proc/self")
            .context("read /proc/self to tell the user")?
            .uid();
        Ok(Self {
            root,
            target,
            cache,
            uid,
            linker_dir: None,
        })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Where a pinned tool is installed; its binary is in `bin` below.
    pub(crate) fn tool_root(&self, tool: &str, version: &str) -> PathBuf {
        self.cache.join(format!("{tool}-{version}"))
    }

    /// Puts a bpf-linker of our cache first on the PATH of all children. One of the system stays
    /// where it is: its folder may hold another cargo too.
    pub(crate) fn use_linker(&mut self, linker: &Path) {
        let ours = linker.starts_with(&self.cache);
        self.linker_dir = linker.parent().filter(|_| ours).map(Path::to_owned);
    }

    /// The PATH of all children.
    pub(crate) fn path(&self) -> OsString {
        let deny = CARGO_DENY.path(self).parent().map(Path::to_owned);
        let inherited = env::var_os("PATH").unwrap_or_default();
        let dirs = self
            .linker_dir
            .clone()
            .into_iter()
            .chain(deny)
            .chain(env::split_paths(&inherited))
            .chain(SBIN.map(PathBuf::from));
        // Only a folder with a colon in its name cannot be joined; then nothing is prepended.
        env::join_paths(dirs).unwrap_or(inherited)
    }

    /// Where `name` is on the PATH of the children.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        cmd::find(name, &self.path())
    }

    /// A child in the checkout, free of what the outer cargo has set.
    pub(crate) fn command(&self, program: &str) -> Cmd {
        let clean = Cmd::new(program)
            .dir(&self.root)
            .quiet_env("PATH", self.path())
            .quiet_env("CARGO_TARGET_DIR", &self.target);
        OUTER_CARGO.into_iter().fold(clean, Cmd::env_remove)
    }

    /// The pinned cargo.
    pub(crate) fn cargo(&self) -> Cmd {
        self.command("cargo").arg(format!("+{}", pins::TOOLCHAIN))
    }

    /// A system command as root: directly, or through sudo.
    pub(crate) fn as_root(&self, program: &str) -> Cmd {
        if self.is_root() {
            self.command(program)
        } else {
            self.command("sudo").arg(program)
        }
    }
}

/// The folder of our cached tools, by the XDG base directory rules: a relative path is ignored.
fn cache_dir(xdg_cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let xdg = xdg_cache.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = xdg.or_else(|| home.map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("lb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_follows_xdg() {
        let cache = |xdg: Option<&str>, home: Option<&str>| {
            cache_dir(xdg.map(OsString::from), home.map(OsString::from))
        };
        assert_eq!(cache(Some("/c"), Some("/h")), Some(PathBuf::from("/c/lb")));
        assert_eq!(
            cache(Some("relative"), Some("/h")),
            Some(PathBuf::from("/h/.cache/lb"))
        );
        assert_eq!(cache(None, None), None);
    }
}
