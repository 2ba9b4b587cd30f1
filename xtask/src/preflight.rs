//! Judges the machine before anything is installed: all findings at once, each with what was found
//! and what to do. The judgement is a pure function of the facts.

use crate::{
    finding::Finding,
    host::{self, Host, Lockdown, Privilege, Veth},
    packages::Family,
    stock::{Item, Purpose, Stock},
};

/// Compare-and-swap in eBPF needs 5.12; the oldest kernel that lb is meant for is RHEL 9's.
const KERNEL_FLOOR: (u32, u32) = (5, 14);

/// A release build and a test build of the workspace fit in the first, barely in the second.
const DISK_WANTED_KIB: u64 = 4 << 20;
const DISK_FLOOR_KIB: u64 = 2 << 20;

/// Every finding for `purpose`. What is compiled but not run does not need the kernel.
pub(crate) fn judge(host: &Host, stock: &Stock, purpose: Purpose) -> Vec<Finding> {
    let mut findings = vec![system(host), architecture(host), rustup(stock)];
    if purpose.runs() {
        findings.extend([kernel(host), btf(host), veth(host), surroundings(host)]);
        findings.extend([lockdown(host), bpffs(host)]);
    }
    findings.push(privilege(host, purpose));
    findings.extend(host.disks.iter().map(disk));
    findings.extend(by_hand(stock, purpose));
    findings
}

fn system(host: &Host) -> Finding {
    match host.os.as_str() {
        "linux" => Finding::ok("system", "Linux"),
        other => Finding::stop("system", other, "lb is for Linux: use a Linux VM"),
    }
}

fn architecture(host: &Host) -> Finding {
    match host.arch.as_str() {
        "x86_64" => Finding::ok("architecture", "x86_64"),
        other => Finding::stop("architecture", other, "only x86_64 is supported for now"),
    }
}

fn rustup(stock: &Stock) -> Finding {
    if stock.rustup {
        Finding::ok("rustup", "found")
    } else {
        let advice = "install rustup (https://rustup.rs, or your distribution's package): it brings \
                      the pinned toolchain";
        Finding::stop("rustup", "not on PATH", advice)
    }
}

fn kernel(host: &Host) -> Finding {
    let release = host.kernel.as_str();
    let (major, minor) = KERNEL_FLOOR;
    match host::kernel_version(release) {
        Some(version) if version >= KERNEL_FLOOR => Finding::ok("kernel", release),
        Some(_) => {
            let advice = format!("lb needs {major}.{minor} or later (RHEL 9 has it)");
            Finding::stop("kernel", release, advice)
        }
        None => {
            let advice = "its version cannot be read; if it is older than 5.14, loading will fail";
            Finding::warn("kernel", format!("`{release}`"), advice)
        }
    }
}

fn btf(host: &Host) -> Finding {
    if host.btf {
        return Finding::ok("BTF", "/sys/kernel/btf/vmlinux");
    }
    let advice =
        "run a kernel built with CONFIG_DEBUG_INFO_BTF=y (every current distribution's is)";
    Finding::stop("BTF", "/sys/kernel/btf/vmlinux is absent", advice)
}

fn veth(host: &Host) -> Finding {
    match &host.veth {
        Veth::Works => Finding::ok("veth", "a pair can be made in a new network namespace"),
        Veth::NotTried => Finding::ok(
            "veth",
            "not tried (needs iproute2, and root without asking)",
        ),
        Veth::Failed(reason) => {
            let advice = "lb needs network namespaces and veth: load the module `veth`; a container \
                          must be privileged";
            Finding::stop("veth", reason.as_str(), advice)
        }
    }
}

/// Native XDP on veth is as old as 4.19, so the kernel's floor covers it; what takes it away is
/// the kernel configuration of WSL or the restrictions of a container.
fn surroundings(host: &Host) -> Finding {
    match &host.container {
        _ if host.wsl => {
            let advice = "its kernel may lack XDP and veth features; if loading fails, use a VM";
            Finding::warn("native XDP", "WSL", advice)
        }
        Some(hint) => {
            let advice = "needs CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN and a writable /sys/fs/bpf \
                          (docker/podman: --privileged)";
            Finding::warn("native XDP", format!("a container ({hint})"), advice)
        }
        None => Finding::ok("native XDP", "no container, no WSL"),
    }
}

fn lockdown(host: &Host) -> Finding {
    match host.lockdown {
        Lockdown::Off => Finding::ok("lockdown", "off"),
        Lockdown::Integrity => Finding::ok("lockdown", "integrity (allows eBPF)"),
        Lockdown::Confidentiality => {
            let advice =
                "it forbids eBPF to read kernel memory: boot with lockdown=integrity or none";
            Finding::stop("lockdown", "confidentiality", advice)
        }
    }
}

fn bpffs(host: &Host) -> Finding {
    if host.bpffs {
        Finding::ok("bpffs", "mounted at /sys/fs/bpf")
    } else {
        Finding::ok("bpffs", "not mounted at /sys/fs/bpf: set-up mounts it")
    }
}

fn privilege(host: &Host, purpose: Purpose) -> Finding {
    const CHECKED: &str = "privileges";
    let missing = |found: &str, advice: &str| match purpose.runs() {
        true => Finding::stop(CHECKED, found, advice),
        false => Finding::ok(CHECKED, "none, and none are needed"),
    };
    match host.privilege {
        _ if host.sudo_in_users_checkout => {
            let advice = "run it as yourself, without sudo: only lb and the tests are elevated";
            Finding::stop(
                CHECKED,
                "root through sudo; the checkout is another user's",
                advice,
            )
        }
        Privilege::Root => Finding::ok(CHECKED, "root"),
        Privilege::SudoWithoutPassword => Finding::ok(CHECKED, "sudo, without a password"),
        Privilege::SudoAsks => Finding::ok(CHECKED, "sudo, which will ask for your password"),
        Privilege::SudoCannotAsk => missing(
            "sudo wants a password, and there is no terminal to ask on",
            "run it on a terminal, or as root, or allow this user sudo without a password",
        ),
        Privilege::NoSudo => missing(
            "neither root nor sudo",
            "lb and its tests need root: install sudo for this user, or run it as root",
        ),
    }
}

fn disk(disk: &host::Disk) -> Finding {
    let tenths = disk.free_kib * 10 / (1 << 20);
    let found = format!(
        "{}.{} GiB free for {}",
        tenths / 10,
        tenths % 10,
        disk.dir.display()
    );
    if disk.free_kib < DISK_FLOOR_KIB {
        Finding::stop(
            "disk",
            found,
            "free some: a build needs 2 GiB at the least, and 4 GiB safely",
        )
    } else if disk.free_kib < DISK_WANTED_KIB {
        Finding::warn("disk", found, "4 GiB are safe: a build may fill this up")
    } else {
        Finding::ok("disk", found)
    }
}

/// What set-up cannot install on a distribution whose package manager it does not know.
fn by_hand(stock: &Stock, purpose: Purpose) -> Vec<Finding> {
    if stock.family != Family::Other {
        return Vec::new();
    }
    let finding = |item| match item {
        Item::Packages(_) => {
            let lacking = stock.lacking(purpose);
            let names: Vec<&str> = lacking.iter().map(|need| need.what).collect();
            let advice = "neither apt-get nor dnf is used here: install these by hand";
            Some(Finding::stop(
                "commands",
                format!("missing: {}", names.join(", ")),
                advice,
            ))
        }
        Item::Linker {
            prebuilt: false, ..
        } if stock.llvm.is_none() => {
            let advice = "put a released one on PATH (https://github.com/aya-rs/bpf-linker/releases), \
                          or install LLVM 22 with its headers, and it will be built";
            Some(Finding::stop(
                "bpf-linker",
                "none, and no LLVM 22 to build it with",
                advice,
            ))
        }
        _ => None,
    };
    // Mounting bpffs needs no package: whether it is mounted makes no difference here.
    stock
        .missing(purpose, true)
        .into_iter()
        .filter_map(finding)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        finding::{self, Level},
        host::Disk,
        stock::tests::complete,
    };

    fn good_host() -> Host {
        Host {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            kernel: "6.12.0-55.el10.x86_64".to_owned(),
            wsl: false,
            container: None,
            btf: true,
            lockdown: Lockdown::Off,
            bpffs: true,
            veth: Veth::Works,
            privilege: Privilege::SudoAsks,
            disks: vec![Disk {
                dir: PathBuf::from("target"),
                free_kib: 9 << 20,
            }],
            sudo_in_users_checkout: false,
        }
    }

    /// What is not ok about `host`, as (level, checked).
    fn complaints(host: &Host, purpose: Purpose) -> Vec<(Level, &'static str)> {
        let findings = judge(host, &complete(), purpose);
        let bad = findings.iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.level, finding.checked))
            .collect()
    }

    #[test]
    fn a_good_host_passes() {
        assert_eq!(complaints(&good_host(), Purpose::Test), []);
        assert!(finding::report(&judge(&good_host(), &complete(), Purpose::Test)).is_ok());
    }

    #[test]
    fn all_findings_come_at_once() {
        let host = Host {
            os: "macos".to_owned(),
            arch: "aarch64".to_owned(),
            kernel: "5.10.0-30-amd64".to_owned(),
            btf: false,
            lockdown: Lockdown::Confidentiality,
            veth: Veth::Failed("Operation not permitted".to_owned()),
            privilege: Privilege::NoSudo,
            ..good_host()
        };
        let expected = [
            "system",
            "architecture",
            "kernel",
            "BTF",
            "veth",
            "lockdown",
            "privileges",
        ];
        assert_eq!(
            complaints(&host, Purpose::Run),
            expected.map(|what| (Level::Stop, what))
        );
        assert!(finding::report(&judge(&host, &complete(), Purpose::Run)).is_err());
    }

    #[test]
    fn the_kernel_floor_is_inclusive() {
        let host = Host {
            kernel: "5.14.0-570.el9.x86_64".to_owned(),
            ..good_host()
        };
        assert_eq!(complaints(&host, Purpose::Run), []);
        let host = Host {
            kernel: "5.13.19".to_owned(),
            ..good_host()
        };
        assert_eq!(complaints(&host, Purpose::Run), [(Level::Stop, "kernel")]);
    }

    #[test]
    fn containers_and_wsl_only_warn() {
        let container = Host {
            container: Some("hint".to_owned()),
            ..good_host()
        };
        assert_eq!(
            complaints(&container, Purpose::Run),
            [(Level::Warn, "native XDP")]
        );
        let wsl = Host {
            wsl: true,
            ..good_host()
        };
        assert_eq!(
            complaints(&wsl, Purpose::Run),
            [(Level::Warn, "native XDP")]
        );
    }

    #[test]
    fn checks_need_no_privileges_and_no_kernel() {
        let host = Host {
            privilege: Privilege::NoSudo,
            btf: false,
            ..good_host()
        };
        assert_eq!(complaints(&host, Purpose::Check), []);
    }

    #[test]
    fn little_disk_warns_and_less_stops() {
        let with = |free_kib| {
            let disks = vec![Disk {
                dir: PathBuf::from("target"),
                free_kib,
            }];
            complaints(
                &Host {
                    disks,
                    ..good_host()
                },
                Purpose::Setup,
            )
        };
        assert_eq!(with(4 << 20), []);
        assert_eq!(with(3 << 20), [(Level::Warn, "disk")]);
        assert_eq!(with(1 << 20), [(Level::Stop, "disk")]);
    }

    #[test]
    fn sudo_around_xtask_in_a_users_checkout_is_refused() {
        let privilege = Privilege::Root;
        let host = Host {
            privilege,
            sudo_in_users_checkout: true,
            ..good_host()
        };
        assert_eq!(
            complaints(&host, Purpose::Test),
            [(Level::Stop, "privileges")]
        );
    }

    #[test]
    fn an_unknown_distribution_is_told_what_to_install() {
        let stock = Stock {
            family: Family::Other,
            lacking: crate::packages::NEEDS
                .iter()
                .filter(|need| !need.tests_only)
                .take(2)
                .collect(),
            ..complete()
        };
        let found = judge(&good_host(), &stock, Purpose::Run);
        assert!(
            found
                .iter()
                .any(|finding| finding.found == "missing: curl, dig")
        );
    }
}
