//! The first file system of a guest: busybox, lb and its tests, the commands that they call with their libraries,
//! and the kernel's modules. As links to where the files are; cpio copies what they lead to.

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{apt::Release, modules};
use crate::{cmd::text_of, run, test, workspace::Workspace};

/// What guest.sh, lb and the tests call, beside busybox; what is not on this machine is left out.
const COMMANDS: [&str; 24] = [
    "awk", "bash", "bridge", "curl", "dig", "dnsmasq", "ethtool", "ip", "mount", "nft", "nginx",
    "nsenter", "openssl", "prlimit", "ps", "setpriv", "setsid", "ss", "sysctl", "tc", "tcpdump",
    "timeout", "umount", "unshare",
];

/// What these read.
const FILES: [&str; 9] = [
    "/etc/group",
    "/etc/iproute2",
    "/etc/nginx/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/ssl/openssl.cnf",
    "/usr/lib/nginx/modules",
    "/usr/lib/ssl/openssl.cnf",
    "/usr/share/nginx/modules-available",
];

/// The tests of lb-tests, which may be requested of a guest by their names.
const TESTS: [&str; 3] = ["netns", "packet", "verifier"];

/// A first file system in a file, which is removed with this.
pub(super) struct Image {
    folder: PathBuf,
    pub(super) archive: PathBuf,
}

impl Image {
    /// Makes one in which guest.sh does these steps.
    ///
    /// # Errors
    /// When a test cannot be built, or a file be read.
    pub(super) fn make(workspace: &Workspace, release: &Release, steps: &[&str]) -> Result<Self> {
        let folder = workspace.target.join("kernels").join(&release.package);
        let _absent = fs::remove_dir_all(&folder);
        let image = Self {
            archive: folder.join("image.cpio"),
            folder,
        };
        let mut tree = Tree::new(workspace, image.folder.join("root"));
        for empty in ["dev", "proc", "sys", "mnt", "sbin"] {
            tree.folder(Path::new(empty))?;
        }
        let sources = workspace.root.join("tests/kernels");
        tree.link(&sources.join("init"), "init")?;
        tree.link(&sources.join("guest.sh"), "guest.sh")?;
        tree.file("steps", &steps.join(" "))?;
        tree.program(
            &workspace.find("busybox").context("find busybox")?,
            "bin/busybox",
        )?;
        tree.program(&run::lb(workspace), "usr/bin/lb")?;
        tree.program(&run::binary(workspace, "lb-lab"), "usr/bin/lb-lab")?;
        for (name, binary) in tests(workspace, steps)? {
            tree.program(&binary, &format!("usr/bin/{name}"))?;
        }
        for name in COMMANDS {
            if let Some(found) = workspace.find(name) {
                tree.program(&found, &format!("usr/bin/{name}"))?;
            }
        }
        for file in FILES
            .into_iter()
            .map(Path::new)
            .filter(|file| file.exists())
        {
            tree.all(file)?;
        }
        tree.folder(Path::new("modules"))?;
        let folder = tree.root.join("modules");
        for (file, modules) in [
            ("order", &modules::AT_START[..]),
            ("nics", &modules::OF_NICS),
        ] {
            let order = modules::gather(workspace, release, &folder, modules)?;
            tree.file(&format!("modules/{file}"), &order)?;
        }
        tree.pack(&image.archive)?;
        Ok(image)
    }

    /// A file beside it, which goes with it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// The test binaries that these steps run, built.
fn tests(workspace: &Workspace, steps: &[&str]) -> Result<Vec<(&'static str, PathBuf)>> {
    let wanted: Vec<_> = TESTS
        .into_iter()
        .filter(|test| steps.contains(test))
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let build = test::packages_of_tests(workspace).arg("--no-run");
    let build = wanted
        .iter()
        .fold(build, |build, test| build.args(["--test", test]));
    let built = build.announced_output()?;
    let text = text_of(&built);
    let binary = |name: &&'static str| {
        let path = executable(&text, name);
        let path = path.with_context(|| format!("build the {name} tests:\n{text}"))?;
        Ok((*name, workspace.root.join(path)))
    };
    wanted.iter().map(binary).collect()
}

/// The path of a test target in what cargo prints of its build.
fn executable<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let said = format!("Executable {name}/main.rs (");
    let found = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&said));
    found.and_then(|path| path.strip_suffix(')'))
}

/// A folder of links that becomes a file system.
struct Tree<'a> {
    workspace: &'a Workspace,
    root: PathBuf,
    known: BTreeSet<PathBuf>,
}

impl<'a> Tree<'a> {
    const fn new(workspace: &'a Workspace, root: PathBuf) -> Self {
        let known = BTreeSet::new();
        Self {
            workspace,
            root,
            known,
        }
    }

    fn folder(&self, inside: &Path) -> Result<()> {
        let folder = self.root.join(inside);
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))
    }

    fn file(&self, inside: &str, text: &str) -> Result<()> {
        let file = self.root.join(inside);
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    }

    fn link(&mut self, from: &Path, inside: &str) -> Result<()> {
        let place = self.root.join(inside);
        if !self.known.insert(place.clone()) {
            return Ok(());
        }
        if let Some(folder) = Path::new(inside).parent() {
            self.folder(folder)?;
        }
        let from = fs::canonicalize(from).with_context(|| format!("find {}", from.display()))?;
        symlink(&from, &place).with_context(|| format!("link {}", place.display()))
    }

    /// A file, or a folder with all that is in it, where it is on this machine.
    fn all(&mut self, path: &Path) -> Result<()> {
        if path.is_dir() {
            for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
                self.all(&entry?.path())?;
            }
            return Ok(());
        }
        if path.extension().is_some_and(|end| end == "so") {
            self.libraries(path)?;
        }
        let inside = path
            .strip_prefix("/")
            .unwrap_or(path)
            .to_string_lossy()
            .into_owned();
        self.link(path, &inside)
    }

    /// A program and its libraries.
    fn program(&mut self, from: &Path, inside: &str) -> Result<()> {
        self.link(from, inside)?;
        self.libraries(from)
    }

    fn libraries(&mut self, file: &Path) -> Result<()> {
        let mut magic = [0; 4];
        let read = fs::File::open(file).and_then(|mut file| file.read_exact(&mut magic));
        read.with_context(|| format!("read {}", file.display()))?;
        if magic != *b"\x7fELF" {
            return Ok(());
        }
        let listed = self.workspace.command("ldd").arg(file).output()?;
        for library in libraries_in(&text_of(&listed)) {
            self.link(Path::new(&library), library.trim_start_matches('/'))?;
        }
        Ok(())
    }

    /// Packs what the links lead to.
    fn pack(&self, archive: &Path) -> Result<()> {
        let script = "find -L . | cpio --quiet -o -L -H newc -R 0:0 >\"$0\"";
        let pack = self.workspace.command("sh").dir(&self.root);
        pack.args(["-c", script]).arg(archive).run()
    }
}

/// The paths in what `ldd` prints.
fn libraries_in(text: &str) -> Vec<String> {
    let words = text.split_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(|word| word.trim_end_matches(':').to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_where_a_test_is() {
        let text = "    Finished `release` profile\n  Executable netns/main.rs (target/release/deps/netns-14)\n";
        assert_eq!(
            executable(text, "netns"),
            Some("target/release/deps/netns-14")
        );
        assert_eq!(executable(text, "packet"), None);
    }

    #[test]
    fn the_libraries_of_a_program_are_paths() {
        let text = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f0)\n\t/lib64/ld.so (0x7f1)\n";
        assert_eq!(libraries_in(text), ["/lib/libc.so.6", "/lib64/ld.so"]);
        assert_eq!(libraries_in("\tstatically linked\n"), [""; 0]);
    }
}
