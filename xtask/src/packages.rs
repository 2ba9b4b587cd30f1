//! The commands that the lab and the tests call, and the packages that bring them: the one table.

use std::{fs, path::Path};

use anyhow::{Result, bail};

use crate::{cmd::text_of, pins, workspace::Workspace};

/// A group of distributions with one package manager and one set of package names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Debian,
    Other,
    Rhel,
}

/// Something that a package brings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) what: &'static str,
    debian: &'static str,
    rhel: &'static str,
    /// The lab does without it.
    pub(crate) tests_only: bool,
    /// It is for booting other kernels, which come by apt.
    for_kernels: bool,
}

/// Every command of the lab and the tests.
pub(crate) const NEEDS: [Need; 28] = [
    Need {
        tests_only: true,
        ..need("chromium", "chromium", "chromium")
    },
    need("curl", "curl", "curl"),
    need("dig", "bind9-dnsutils", "bind-utils"),
    need("dnsmasq", "dnsmasq-base", "dnsmasq"),
    need("ethtool", "ethtool", "ethtool"),
    Need {
        tests_only: true,
        ..need("faketime", "faketime", "libfaketime")
    },
    Need {
        tests_only: true,
        ..need("go", "golang-go", "golang")
    },
    Need {
        tests_only: true,
        ..need("haproxy", "haproxy", "haproxy")
    },
    need("ip", "iproute2", "iproute"),
    Need {
        tests_only: true,
        ..need("jq", "jq", "jq")
    },
    Need {
        tests_only: true,
        ..need("keepalived", "keepalived", "keepalived")
    },
    need("nft", "nftables", "nftables"),
    need("nginx", "nginx", "nginx"),
    need(STREAM_MODULE, "libnginx-mod-stream", "nginx-mod-stream"),
    Need {
        tests_only: true,
        ..need("node", "nodejs", "nodejs")
    },
    Need {
        tests_only: true,
        ..need("npm", "npm", "nodejs-npm")
    },
    need("nsenter", "util-linux", "util-linux"),
    need("openssl", "openssl", "openssl"),
    Need {
        tests_only: true,
        ..need("promtool", "prometheus", "golang-github-prometheus")
    },
    Need {
        tests_only: true,
        ..need("python3", "python3", "python3")
    },
    Need {
        tests_only: true,
        ..need(JSON_SCHEMA, "python3-jsonschema", "python3-jsonschema")
    },
    Need {
        tests_only: true,
        ..need("strace", "strace", "strace")
    },
    Need {
        tests_only: true,
        ..need("systemd-analyze", "systemd", "systemd")
    },
    need("tcpdump", "tcpdump", "tcpdump"),
    for_kernels("busybox", "busybox-static"),
    for_kernels("cpio", "cpio"),
    for_kernels("qemu-system-x86_64", "qemu-system-x86"),
    for_kernels("xz", "xz-utils"),
];

const STREAM_MODULE: &str = "nginx's stream module";
/// Of the distribution's python3, which may not be the first on PATH.
const JSON_SCHEMA: &str = "python3's jsonschema";

/// What bpf-linker is built against: LLVM of the pinned toolchain's version, and what it links.
const LLVM_DEBIAN: [&str; 5] = [
    "llvm-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libxml2-dev",
];
const LLVM_RHEL: [&str; 5] = [
    "llvm-devel",
    "polly-devel",
    "zlib-devel",
    "libzstd-devel",
    "libxml2-devel",
];

/// Where distributions put LLVM; each has `bin/llvm-config`.
const LLVM_PREFIXES: [&str; 4] = [
    "/usr/lib/llvm-22",
    "/usr/lib64/llvm22",
    "/opt/llvm-22",
    "/usr",
];

const fn need(what: &'static str, debian: &'static str, rhel: &'static str) -> Need {
    Need {
        what,
        debian,
        rhel,
        tests_only: false,
        for_kernels: false,
    }
}

const fn for_kernels(what: &'static str, debian: &'static str) -> Need {
    Need {
        tests_only: true,
        for_kernels: true,
        ..need(what, debian, "")
    }
}

impl Need {
    pub(crate) fn package(&self, family: Family) -> &'static str {
        match family {
            // An unknown distribution is most likely to use the upstream-like names.
            Family::Debian | Family::Other => self.debian,
            Family::Rhel => self.rhel,
        }
    }

    fn is_met(&self, workspace: &Workspace) -> bool {
        if self.what == STREAM_MODULE {
            return stream_module(workspace);
        }
        if self.what == JSON_SCHEMA {
            let import = ["-c", "import jsonschema"];
            return workspace
                .command("/usr/bin/python3")
                .args(import)
                .probe()
                .is_some();
        }
        workspace.find(self.what).is_some()
    }
}

/// The needs that this machine does not meet.
pub(crate) fn lacking(workspace: &Workspace) -> Vec<&'static Need> {
    let has_apt = Family::of_this_machine() == Family::Debian;
    NEEDS
        .iter()
        .filter(|need| has_apt || !need.for_kernels)
        .filter(|need| !need.is_met(workspace))
        .collect()
}

impl Family {
    pub(crate) fn of_this_machine() -> Self {
        Self::from_os_release(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// By `ID` and `ID_LIKE`, see os-release(5).
    fn from_os_release(text: &str) -> Self {
        let value = |key: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches(['"', '\''])
        };
        let mut ids = value("ID").split(' ').chain(value("ID_LIKE").split(' '));
        ids.find_map(|id| match id {
            "debian" | "ubuntu" => Some(Self::Debian),
            "centos" | "fedora" | "rhel" => Some(Self::Rhel),
            _ => None,
        })
        .unwrap_or(Self::Other)
    }

    fn is_installed(self, workspace: &Workspace, package: &str) -> bool {
        let query = match self {
            Self::Debian => workspace
                .command("dpkg-query")
                .args(["-W", "-f", "${db:Status-Status}", package])
                .probe(),
            Self::Rhel => workspace
                .command("rpm")
                .args(["-q", "--whatprovides", package])
                .probe(),
            Self::Other => None,
        };
        match self {
            Self::Debian => query.is_some_and(|status| status == "installed"),
            Self::Rhel | Self::Other => query.is_some(),
        }
    }

    /// The packages that bpf-linker is built against and that are not installed.
    pub(crate) fn absent_llvm(self, workspace: &Workspace) -> Vec<&'static str> {
        let wanted = match self {
            Self::Debian | Self::Other => LLVM_DEBIAN,
            Self::Rhel => LLVM_RHEL,
        };
        wanted
            .into_iter()
            .filter(|package| !self.is_installed(workspace, package))
            .collect()
    }
}

/// The prefix of an installed LLVM of the pinned major version.
pub(crate) fn llvm_prefix(workspace: &Workspace) -> Option<&'static str> {
    LLVM_PREFIXES.into_iter().find(|prefix| {
        let config = format!("{prefix}/bin/llvm-config");
        let version = workspace
            .command(&config)
            .arg("--version")
            .probe()
            .unwrap_or_default();
        version.split('.').next() == Some(pins::LLVM)
    })
}

/// nginx has the stream module built in, or a distribution's folder has it as a file.
fn stream_module(workspace: &Workspace) -> bool {
    let folders = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules"];
    if folders
        .iter()
        .any(|dir| Path::new(dir).join("ngx_stream_module.so").exists())
    {
        return true;
    }
    let version = workspace.command("nginx").arg("-V").output();
    version.is_ok_and(|output| {
        text_of(&output)
            .split_whitespace()
            .any(|option| option == "--with-stream")
    })
}

/// Installs `packages` with the distribution's package manager; only that runs as root.
///
/// # Errors
/// When a package is not known to the package manager, or its installation fails.
pub(crate) fn install(workspace: &Workspace, family: Family, packages: &[&str]) -> Result<()> {
    match family {
        Family::Debian => apt(workspace, packages),
        Family::Rhel => workspace
            .as_root("dnf")
            .args(["install", "-y"])
            .args(packages)
            .run(),
        Family::Other => bail!(
            "install these by hand, then run this again: {}",
            packages.join(" ")
        ),
    }
}

fn apt(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    let unknown = || -> Vec<&str> {
        let known = |name: &str| workspace.command("apt-cache").args(["show", name]).probe();
        packages
            .iter()
            .copied()
            .filter(|name| known(name).is_none_or(|it| it.is_empty()))
            .collect()
    };
    let update = || workspace.as_root("apt-get").arg("update").run();
    let mut updated = false;
    if !unknown().is_empty() {
        update()?;
        updated = true;
    }
    let unknown = unknown();
    if !unknown.is_empty() {
        bail!("{}", unknown_packages(&unknown));
    }
    match apt_install(workspace, packages) {
        // Old lists name package versions that the mirror has replaced since.
        Err(_) if !updated => {
            update()?;
            apt_install(workspace, packages)
        }
        result => result,
    }
}

fn apt_install(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    let words = ["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y"];
    let mut services = packages.to_vec();
    services.retain(|package| SERVICES.contains(package));
    let install = if services.is_empty() {
        workspace.as_root("env")
    } else {
        let services = services.join(" ");
        let guarded = ["-c", WITHOUT_SERVICES, "lb-setup", &services, "env"];
        workspace.as_root("sh").args(guarded)
    };
    install
        .args(words)
        .arg("--no-install-recommends")
        .args(packages)
        .run()
}

/// What would run as a service once it is installed.
const SERVICES: [&str; 3] = ["haproxy", "keepalived", "nginx"];

/// Runs the words after the first one while a policy of ours forbids that the services in the first one
/// are started, because Debian starts what it installs and only the programs are needed. The policy
/// names the process that it serves, so one that a power cut leaves behind forbids nothing; an
/// administrator's own policy is left in place. Disabled and stopped, for one that it let through and
/// for the next boot.
const WITHOUT_SERVICES: &str = r#"services=$1
shift
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  trap 'exit 130' HUP INT TERM
  printf '#!/bin/sh\nfor service in %s; do\n  case "$1" in "$service"*) [ -d /proc/%s ] && exit 101 ;; esac\ndone\nexit 0\n' "$services" $$ >"$policy"
  chmod 755 "$policy"
fi
"$@" || exit
for service in $services; do
  if command -v systemctl >/dev/null; then systemctl --quiet disable "$service.service"; fi
  if [ -d /run/systemd/system ]; then systemctl stop "$service.service"; fi
done"#;

fn unknown_packages(names: &[&str]) -> String {
    let names_llvm = names.iter().any(|name| LLVM_DEBIAN.contains(name));
    let way_out = if names_llvm {
        "put a released bpf-linker on PATH (https://github.com/aya-rs/bpf-linker/releases), or add \
         the distribution of https://apt.llvm.org that has LLVM 22"
    } else {
        "enable the distribution's main and universe components"
    };
    format!(
        "apt-get does not know {}: {way_out}; then run this again",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_is_found_through_id_like() {
        let family = Family::from_os_release;
        assert_eq!(family("ID=debian\nVERSION_ID=\"12\"\n"), Family::Debian);
        assert_eq!(
            family("NAME=x\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"),
            Family::Debian
        );
        assert_eq!(
            family("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            Family::Rhel
        );
        assert_eq!(family("ID=arch\n"), Family::Other);
        assert_eq!(family(""), Family::Other);
    }

    #[test]
    fn the_names_of_the_llvm_packages_carry_the_pinned_version() {
        assert!(
            LLVM_DEBIAN
                .iter()
                .any(|name| name.contains(&format!("llvm-{}-", pins::LLVM)))
        );
        assert!(
            LLVM_PREFIXES
                .iter()
                .any(|prefix| prefix.ends_with(pins::LLVM))
        );
    }

    #[test]
    fn unknown_llvm_packages_come_with_a_way_out() {
        assert!(unknown_packages(&["llvm-22-dev"]).contains("apt.llvm.org"));
        assert!(!unknown_packages(&["nginx"]).contains("llvm"));
    }
}
