//! Debian's packages, by apt: from the mirror that this machine's own sources name, with lists of our own, so that
//! the machine's stay as they are. They are unpacked into folders: nothing is installed, and nothing needs root.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    cmd::{Cmd, text_of},
    workspace::Workspace,
};

/// How long lists are taken for new.
const LISTS_LAST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Debian's keys, with which the lists are signed.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// Suites of Debian, such as `bookworm`.
pub(crate) struct Suites<'a> {
    pub(crate) of_binaries: &'a [&'a str],
    pub(crate) of_sources: &'a [&'a str],
}

/// apt with some of Debian's suites.
pub(crate) struct Apt<'a> {
    workspace: &'a Workspace,
    config: PathBuf,
}

impl<'a> Apt<'a> {
    /// Brings the lists of these suites up to date; `run` runs what prints.
    ///
    /// # Errors
    /// When this machine has no apt, no keys or no mirror of Debian, or the lists cannot be downloaded.
    pub(crate) fn open(
        workspace: &'a Workspace,
        folder: &Path,
        suites: &Suites<'_>,
        run: impl FnOnce(Cmd) -> Result<()>,
    ) -> Result<Self> {
        let Means { keyring, mirrors } = means(workspace)?;
        let folder = folder.join(format!("apt-{}", suites.of_binaries.join("-")));
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("make {}", part.display()))?;
        }
        let list = folder.join("sources.list");
        write(&list, &mirrors.list(keyring, suites))?;
        let apt = Self {
            workspace,
            config: folder.join("apt.conf"),
        };
        write(&apt.config, &config(&folder, &list))?;
        let stamp = folder.join("updated");
        if !is_new(&stamp) {
            run(apt.command("apt-get").arg("update"))?;
            write(&stamp, "")?;
        }
        Ok(apt)
    }

    pub(crate) fn command(&self, program: &str) -> Cmd {
        let command = self.workspace.command(program);
        command.quiet_env("APT_CONFIG", &self.config)
    }

    /// Unpacks the packages in a folder there, and removes them.
    ///
    /// # Errors
    /// When one cannot be unpacked.
    pub(crate) fn unpack(
        &self,
        folder: &Path,
        mut run: impl FnMut(Cmd) -> Result<()>,
    ) -> Result<()> {
        for (archive, _) in archives(folder)? {
            let unpack = self.workspace.command("dpkg-deb").arg("-x");
            run(unpack.arg(&archive).arg(folder))?;
            fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))?;
        }
        Ok(())
    }
}

/// What apt needs for packages of Debian.
struct Means {
    keyring: &'static str,
    mirrors: Mirrors,
}

/// Whether apt has on this machine what it needs for packages of Debian; not whether a mirror answers.
///
/// # Errors
/// What is missing.
pub(crate) fn is_usable(workspace: &Workspace) -> Result<()> {
    means(workspace).map(|_means| ())
}

fn means(workspace: &Workspace) -> Result<Means> {
    ensure!(
        workspace.find("apt-get").is_some(),
        "there is no apt on this machine, which Debian's packages are downloaded with"
    );
    let keyring = KEYRINGS.into_iter().find(|file| Path::new(file).exists());
    Ok(Means {
        keyring: keyring.context("Debian's keys are not here: package debian-archive-keyring")?,
        mirrors: mirrors(workspace)?,
    })
}

/// The mirrors of Debian that this machine's sources name.
struct Mirrors {
    main: String,
    security: String,
}

impl Mirrors {
    fn of(&self, suite: &str) -> &str {
        if suite.ends_with("-security") {
            &self.security
        } else {
            &self.main
        }
    }

    /// The lines of a list of sources.
    fn list(&self, keyring: &str, suites: &Suites<'_>) -> String {
        let binaries = suites.of_binaries.iter().map(|suite| ("deb", suite));
        let sources = suites.of_sources.iter().map(|suite| ("deb-src", suite));
        let line = |(kind, suite): (&str, &&str)| {
            let mirror = self.of(suite);
            format!("{kind} [signed-by={keyring}] {mirror} {suite} main\n")
        };
        binaries.chain(sources).map(line).collect()
    }
}

fn mirrors(workspace: &Workspace) -> Result<Mirrors> {
    let words = [
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ];
    let known = workspace.command("apt-get").args(words).output()?;
    let text = text_of(&known);
    mirrors_in(&text).context("this machine's apt sources name no mirror of Debian")
}

fn mirrors_in(text: &str) -> Option<Mirrors> {
    let named = |end: &str| {
        let mut lines = text.lines().map(|line| line.trim_end_matches('/'));
        lines.find(|line| line.ends_with(end)).map(str::to_owned)
    };
    let main = named("/debian")?;
    let security = named("/debian-security").unwrap_or_else(|| format!("{main}-security"));
    Some(Mirrors { main, security })
}

fn config(folder: &Path, list: &Path) -> String {
    let (folder, list) = (folder.display(), list.display());
    format!(
        "Dir::Etc::sourcelist \"{list}\";\nDir::Etc::sourceparts \"-\";\n\
         Dir::State::lists \"{folder}/lists\";\nDir::Cache \"{folder}/cache\";\n\
         APT::Sandbox::User \"\";\nAPT::Update::Error-Mode \"any\";\nAcquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n"
    )
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

fn is_new(stamp: &Path) -> bool {
    let modified = fs::metadata(stamp).and_then(|meta| meta.modified()).ok();
    let age = modified.and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age < LISTS_LAST)
}

/// The packages in a folder, with their bytes.
///
/// # Errors
/// When there are none.
pub(crate) fn archives(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|end| end == "deb") {
            found.push((entry.path(), entry.metadata()?.len()));
        }
    }
    if found.is_empty() {
        bail!("apt-get has downloaded nothing to {}", folder.display());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_of_debian_itself() {
        let text = "https://a.example/ubuntu/\nhttps://m.example/debian/\n";
        let mirrors = mirrors_in(text).unwrap();
        assert_eq!(mirrors.of("sid"), "https://m.example/debian");
        assert_eq!(
            mirrors.of("bookworm-security"),
            "https://m.example/debian-security"
        );
        assert!(mirrors_in("https://a.example/ubuntu/\n").is_none());
    }

    #[test]
    fn a_suite_is_listed_with_its_binaries_or_its_sources() {
        let mirrors = mirrors_in("https://m.example/debian/\n").unwrap();
        let suites = Suites {
            of_binaries: &["bookworm", "bookworm-security"],
            of_sources: &["bookworm"],
        };
        let expected = "deb [signed-by=/k] https://m.example/debian bookworm main\n\
                        deb [signed-by=/k] https://m.example/debian-security bookworm-security main\n\
                        deb-src [signed-by=/k] https://m.example/debian bookworm main\n";
        assert_eq!(mirrors.list("/k", &suites), expected);
    }
}
