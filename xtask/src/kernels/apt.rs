//! Debian's kernels, by apt: which there are, and the newest of a series.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::Kernel;
use crate::{
    apt::{Apt, Suites, archives},
    cmd::{Cmd, text_of},
    workspace::Workspace,
};

/// A package that holds an image is larger, in bytes: from 7.x on it only names the packages that do.
const LEAST_IMAGE: u64 = 1 << 20;

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
    let suites = Suites {
        of_binaries: kernel.suites,
        of_sources: &[],
    };
    let apt = Apt::open(workspace, &folder, &suites, Cmd::run)?;
    let package = newest(&known(&apt)?, kernel.series)
        .with_context(|| format!("the mirror has no {} for virtual machines", kernel.name()))?;
    let place = folder.join(&package);
    if !place.exists() {
        download(&apt, &package, &place)?;
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

/// The kernels for virtual machines that the lists know.
fn known(apt: &Apt<'_>) -> Result<Vec<String>> {
    let pattern = "^linux-image-[0-9].*-cloud-amd64$";
    let search = apt.command("apt-cache");
    let search = search.args(["search", "--names-only", pattern]).output()?;
    let text = text_of(&search);
    let names = text.lines().filter_map(|line| line.split(' ').next());
    Ok(names.map(str::to_owned).collect())
}

/// Downloads a kernel, and unpacks it whole or not at all.
fn download(apt: &Apt<'_>, package: &str, place: &Path) -> Result<()> {
    let partial = place.with_file_name(format!("partial-{package}"));
    let _absent = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
    let get = |packages: &[String]| {
        let get = apt.command("apt-get").dir(&partial);
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
    apt.unpack(&partial, Cmd::run)?;
    fs::rename(&partial, place).with_context(|| format!("keep {}", place.display()))
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
}
