//! Debian's kernels, by apt: from the mirror that this machine's own sources name, with lists of our own, so that
//! the machine's stay as they are.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::Kernel;
use crate::{
    cmd::{Cmd, text_of},
    workspace::Workspace,
};

/// How long lists are taken for new.
const LISTS_LAST: Duration = Duration::from_secs(7 * 24 * 3600);
/// A package that holds an image is larger, in bytes: from 7.x on it only names the packages that do.
const LEAST_IMAGE: u64 = 1 << 20;
/// Debian's keys, with which the lists are signed.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// A kernel that is here.
pub(super) struct Release {
    /// As `linux-image-6.1.0-56-cloud-amd64`.
    pub(super) package: String,
    pub(super) image: PathBuf,
    /// The folder of its modules.
    pub(super) modules: PathBuf,
}

/// Which release of a series will do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// One that has been downloaded before.
    Any,
    Newest,
}

/// A kernel's release: one of before, or what the mirror has.
///
/// # Errors
/// Why there is none: no apt, no mirror, no network.
pub(super) fn release(workspace: &Workspace, kernel: &Kernel, age: Age) -> Result<Release> {
    for command in ["qemu-system-x86_64", "busybox", "cpio", "xz"] {
        ensure!(
            workspace.find(command).is_some(),
            "there is no {command}: `cargo xtask setup` installs it where there is apt"
        );
    }
    let folder = workspace.cache.join("kernels");
    let kept = newest(&packages_in(&folder), kernel.series);
    if let (Age::Any, Some(package)) = (age, &kept) {
        return in_folder(&folder.join(package), package);
    }
    let apt = Apt::open(workspace, &folder, kernel.suites)?;
    let known = apt.packages()?;
    let package = newest(&known, kernel.series)
        .with_context(|| format!("the mirror has no {} for virtual machines", kernel.name()))?;
    let place = folder.join(&package);
    if !place.exists() {
        apt.download(&package, &place)?;
    }
    in_folder(&place, &package)
}

/// Packages that are unpacked here.
fn packages_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("linux-image-"))
        .collect()
}

/// The newest package of a series, or of all.
fn newest(packages: &[String], series: Option<&str>) -> Option<String> {
    let is_of_series = |package: &&String| {
        let version = package.strip_prefix("linux-image-").unwrap_or_default();
        match series {
            Some(series) => version
                .strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(['.', '-', '+'])),
            None => true,
        }
    };
    let matching = packages.iter().filter(is_of_series);
    matching.max_by_key(|package| numbers(package)).cloned()
}

/// The numbers in a name, which order releases.
fn numbers(package: &str) -> Vec<u32> {
    package
        .trim_end_matches("-cloud-amd64")
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// What an unpacked package holds.
fn in_folder(folder: &Path, package: &str) -> Result<Release> {
    let found = |under: &str, name: &str| -> Option<PathBuf> {
        let entries = fs::read_dir(folder.join(under)).ok()?.flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| {
            let file = path.file_name().unwrap_or_default();
            file.to_string_lossy().starts_with(name)
        })
    };
    let image = found("boot", "vmlinuz");
    let modules = found("lib/modules", "").or_else(|| found("usr/lib/modules", ""));
    let image = image.or_else(|| Some(modules.as_ref()?.join("vmlinuz")).filter(|it| it.exists()));
    Ok(Release {
        package: package.to_owned(),
        image: image.with_context(|| format!("{package} holds no image"))?,
        modules: modules.with_context(|| format!("{package} holds no modules"))?,
    })
}

/// apt with some of Debian's suites.
struct Apt<'a> {
    workspace: &'a Workspace,
    config: PathBuf,
}

impl<'a> Apt<'a> {
    /// Brings the lists of these suites up to date.
    fn open(workspace: &'a Workspace, folder: &Path, suites: &[&str]) -> Result<Self> {
        ensure!(
            workspace.find("apt-get").is_some(),
            "there is no apt on this machine, which Debian's kernels are downloaded with"
        );
        let keyring = KEYRINGS.into_iter().find(|file| Path::new(file).exists());
        let keyring =
            keyring.context("Debian's keys are not here: package debian-archive-keyring")?;
        let mirrors = mirrors(workspace)?;
        let folder = folder.join(format!("apt-{}", suites.join("-")));
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("make {}", part.display()))?;
        }
        let sources = suites.iter().map(|suite| {
            let mirror = mirrors.of(suite);
            format!("deb [signed-by={keyring}] {mirror} {suite} main\n")
        });
        let list = folder.join("sources.list");
        write(&list, &sources.collect::<String>())?;
        let apt = Self {
            workspace,
            config: folder.join("apt.conf"),
        };
        write(&apt.config, &config(&folder, &list))?;
        let stamp = folder.join("updated");
        if !is_new(&stamp) {
            apt.command("apt-get").arg("update").run()?;
            write(&stamp, "")?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Cmd {
        let command = self.workspace.command(program);
        command.quiet_env("APT_CONFIG", &self.config)
    }

    /// The kernels for virtual machines that the lists know.
    fn packages(&self) -> Result<Vec<String>> {
        let pattern = "^linux-image-[0-9].*-cloud-amd64$";
        let search = self.command("apt-cache");
        let search = search.args(["search", "--names-only", pattern]).output()?;
        let text = text_of(&search);
        let names = text.lines().filter_map(|line| line.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads a kernel, and unpacks it whole or not at all.
    fn download(&self, package: &str, place: &Path) -> Result<()> {
        let partial = place.with_file_name(format!("partial-{package}"));
        let _absent = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
        let get = |packages: &[String]| {
            let get = self.command("apt-get").dir(&partial);
            get.arg("download").args(packages).run()
        };
        get(&[package.to_owned()])?;
        let version = package.trim_start_matches("linux-image-");
        if archives(&partial)?
            .iter()
            .all(|(_, bytes)| *bytes < LEAST_IMAGE)
        {
            get(&["binary", "modules"].map(|part| format!("linux-{part}-{version}")))?;
        }
        for (archive, _) in archives(&partial)? {
            let unpack = self.workspace.command("dpkg-deb").arg("-x");
            unpack.arg(&archive).arg(&partial).run()?;
            fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))?;
        }
        fs::rename(&partial, place).with_context(|| format!("keep {}", place.display()))
    }
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
fn archives(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
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
    fn the_newest_of_a_series_is_by_number() {
        let packages = [
            "linux-image-6.1-cloud-amd64",
            "linux-image-6.1.0-0.deb11.52-cloud-amd64",
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.12.90+deb13.1-cloud-amd64",
            "linux-image-6.12.117+deb13-cloud-amd64",
            "linux-image-7.3-cloud-amd64",
        ]
        .map(str::to_owned);
        let newest = |series| newest(&packages, series);
        let expected = |package: &str| Some(format!("linux-image-{package}-cloud-amd64"));
        assert_eq!(newest(Some("6.1")), expected("6.1.0-56"));
        assert_eq!(newest(Some("6.12")), expected("6.12.117+deb13"));
        assert_eq!(newest(None), expected("7.3"));
        assert_eq!(newest(Some("5.10")), None);
    }

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
}
