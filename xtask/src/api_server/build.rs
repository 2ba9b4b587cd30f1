//! Builds the API server from Debian's source with Debian's Go, in a folder of its own that is removed afterwards. It is
//! there whole or not at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{PACKAGED, PROGRAM, folder, openapi};
use crate::{
    apt::{Apt, Suites},
    cmd::{Cmd, text_of},
    pins,
    progress::Progress,
    workspace::Workspace,
};

/// The import path of Kubernetes.
const ROOT: &str = "k8s.io/kubernetes";
const GENERATOR: &str = "vendor/k8s.io/kube-openapi/cmd/openapi-gen";
/// The licence that the generator writes above its file.
const BOILERPLATE: &str = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt";
/// The packages that have the version: for what the program prints, and for what it serves.
const VERSIONED: [&str; 2] = ["component-base/version", "client-go/pkg/version"];

/// Builds it into the cache.
///
/// # Errors
/// When the mirror or one of its packages is not there, or the build fails.
pub(crate) fn build(workspace: &Workspace, progress: &mut Progress) -> Result<()> {
    let build = Build {
        workspace,
        folder: workspace.cache.join(format!("build-{PROGRAM}")),
    };
    // Of a build that was interrupted.
    remove(&build.folder)?;
    let built = build.run(progress).and_then(|made| {
        let place = folder(workspace);
        remove(&place)?;
        fs::rename(&made, &place).with_context(|| format!("keep {}", place.display()))
    });
    let removed = remove(&build.folder);
    built.and(removed)
}

struct Build<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
}

impl Build<'_> {
    /// Returns the folder of the programs.
    fn run(&self, progress: &mut Progress) -> Result<PathBuf> {
        for folder in [self.packages(), self.source(), self.scratch(), self.made()] {
            fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        }
        progress.now("downloading Kubernetes, Go, etcd and kubectl");
        self.download(progress)?;
        progress.now(format!("{PROGRAM}: generating the schema"));
        self.generate(progress)?;
        progress.now(format!("{PROGRAM}: compiling"));
        self.compile(progress)?;
        for program in PACKAGED {
            let (from, to) = (
                self.packages().join("usr/bin").join(program),
                self.made().join(program),
            );
            fs::rename(&from, &to).with_context(|| format!("keep {}", from.display()))?;
        }
        Ok(self.made())
    }

    /// Unpacks what Debian has: programs and Go as they are, and the source without Debian's patches, which are of kubectl.
    fn download(&self, progress: &mut Progress) -> Result<()> {
        let suites = Suites {
            of_binaries: &[pins::KUBERNETES_SUITE, pins::GO_OF_KUBERNETES_SUITE],
            of_sources: &[pins::KUBERNETES_SUITE],
        };
        let apt = Apt::open(self.workspace, &self.folder, &suites, |cmd| {
            cmd.run_beside(progress)
        })?;
        let get = || apt.command("apt-get").dir(&self.packages());
        let kubernetes = |package: &str| format!("{package}/{}", pins::KUBERNETES_SUITE);
        let go = |part: &str| format!("golang-{}-{part}", pins::GO_OF_KUBERNETES);
        let binaries = ["etcd-server", "kubernetes-client"].map(kubernetes);
        let download = get().arg("download").args(binaries);
        let download = download.args(["go", "src"].map(go));
        download.run_beside(progress)?;
        let source = get().args(["source", "--download-only", "--tar-only"]);
        source.arg(kubernetes("kubernetes")).run_beside(progress)?;

        let files = names_in(&self.packages())?;
        file_of(&files, "etcd-server", pins::ETCD)?;
        file_of(&files, "kubernetes-client", pins::KUBERNETES)?;
        let source = file_of(&files, "kubernetes", pins::KUBERNETES)?;
        let tar = self.workspace.command("tar").dir(&self.packages());
        let tar = tar.arg("-xf").arg(source).args(["--strip-components", "1"]);
        tar.arg("-C").arg(self.source()).run_beside(progress)?;
        apt.unpack(&self.packages(), |cmd| cmd.run_beside(progress))
    }

    /// Makes the one generated file that the source does not have.
    fn generate(&self, progress: &mut Progress) -> Result<()> {
        let marked = self.workspace.command("grep").dir(&self.source());
        let marked = marked.args(["-rl", "--include=*.go", openapi::MARK]);
        let marked = marked.args(openapi::FOLDERS).output()?;
        let inputs = openapi::packages(&text_of(&marked), ROOT).join(",");

        let generator = self.scratch().join("openapi-gen");
        let build = self.go().args(["build", "-o"]).arg(&generator);
        let build = build.arg(format!("{ROOT}/{GENERATOR}"));
        build.run_beside(progress).context("build openapi-gen")?;
        // Without a line of what runs: it would have a page of packages.
        let generate = self.with_go(&generator.to_string_lossy());
        let generate = generate.args(["--input-dirs", &inputs]).args([
            "--output-package",
            &format!("{ROOT}/pkg/generated/openapi"),
            "--output-file-base",
            "zz_generated.openapi",
            "--go-header-file",
            BOILERPLATE,
            "--report-filename",
        ]);
        let generated = generate.arg(self.scratch().join("violations")).output()?;
        ensure!(
            generated.status.success(),
            "generate the schema of {PROGRAM}: {}",
            text_of(&generated)
        );
        Ok(())
    }

    /// Compiles it with the version that it says it is, without symbols: they are a third of it.
    fn compile(&self, progress: &mut Progress) -> Result<()> {
        let program = self.made().join(PROGRAM);
        let build = self.go().args(["build", "-trimpath", "-ldflags"]);
        let build = build.arg(linker_flags(pins::KUBERNETES));
        let build = build.arg("-o").arg(&program);
        let build = build.arg(format!("{ROOT}/cmd/{PROGRAM}"));
        build.run_beside(progress)?;
        let start = self.workspace.command(&program.to_string_lossy());
        let version = start.arg("--version").probe().unwrap_or_default();
        ensure!(
            version.contains(pins::KUBERNETES),
            "the {PROGRAM} that was built does not start, or is of another version: {version}"
        );
        Ok(())
    }

    fn go(&self) -> Cmd {
        self.with_go(&self.go_root().join("bin/go").to_string_lossy())
    }

    /// A program of Go in the source, with the Go that was downloaded and none of the operator's settings.
    fn with_go(&self, program: &str) -> Cmd {
        let command = self.workspace.command(program).dir(&self.source());
        command
            .quiet_env("CGO_ENABLED", "0")
            .quiet_env("GO111MODULE", "off")
            .quiet_env("GOCACHE", self.folder.join("go-cache"))
            .quiet_env("GOENV", "off")
            .quiet_env("GOFLAGS", "")
            .quiet_env("GOPATH", self.go_path())
            .quiet_env("GOROOT", self.go_root())
            // /tmp may be memory.
            .quiet_env("GOTMPDIR", self.scratch())
    }

    fn packages(&self) -> PathBuf {
        self.folder.join("packages")
    }

    fn go_root(&self) -> PathBuf {
        let go = format!("usr/lib/go-{}", pins::GO_OF_KUBERNETES);
        self.packages().join(go)
    }

    fn go_path(&self) -> PathBuf {
        self.folder.join("go")
    }

    fn source(&self) -> PathBuf {
        self.go_path().join("src").join(ROOT)
    }

    fn scratch(&self) -> PathBuf {
        self.folder.join("scratch")
    }

    /// What becomes the folder in the cache.
    fn made(&self) -> PathBuf {
        self.folder.join("made")
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// The file of a package, which must be of the pinned version.
fn file_of<'a>(files: &'a [String], package: &str, version: &str) -> Result<&'a str> {
    let of_package = |file: &&String| {
        let rest = file.strip_prefix(package);
        rest.is_some_and(|rest| rest.starts_with('_'))
    };
    let file = files.iter().find(of_package);
    let file = file.with_context(|| format!("apt-get has not downloaded {package}"))?;
    ensure!(
        file.contains(version),
        "Debian's {package} is not {version}, which is pinned: {file}"
    );
    Ok(file)
}

/// What the linker of Go is given: no symbols, and the version, which the source itself does not know.
fn linker_flags(version: &str) -> String {
    let mut numbers = version.split('.').map(str::to_owned);
    let values = [
        ("gitVersion", Some(format!("v{version}"))),
        ("gitMajor", numbers.next()),
        ("gitMinor", numbers.next()),
    ];
    let mut flags = "-s -w".to_owned();
    for package in VERSIONED {
        for (name, value) in &values {
            let value = value.as_deref().unwrap_or_default();
            flags += &format!(" -X {ROOT}/vendor/k8s.io/{package}.{name}={value}");
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_another_version_is_refused() {
        let files = [
            "kubernetes-client_1.20.5+really1.20.2-1.1_amd64.deb",
            "kubernetes_1.20.5+really1.20.2.orig.tar.gz",
            "etcd-server_3.5.16-4_amd64.deb",
        ]
        .map(str::to_owned);
        let source = file_of(&files, "kubernetes", "1.20.2").unwrap();
        assert_eq!(source, "kubernetes_1.20.5+really1.20.2.orig.tar.gz");
        let other = file_of(&files, "etcd-server", "3.4.23").unwrap_err();
        assert!(other.to_string().contains("3.5.16"), "{other}");
        assert!(file_of(&files, "golang", "1.15").is_err());
    }

    #[test]
    fn the_version_is_given_to_the_linker() {
        let flags = linker_flags("1.20.2");
        for end in ["gitVersion=v1.20.2", "gitMajor=1", "gitMinor=20"] {
            assert_eq!(flags.matches(end).count(), 2, "{flags}");
        }
        assert!(flags.starts_with("-s -w "), "{flags}");
    }
}
