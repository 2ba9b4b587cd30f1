//! The contestants, which do the work between the two NICs: each in a path of its own, all at once, so that they can take turns.

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
    process::Command,
};

use anyhow::{Context as _, Error, Result};
use aya::maps::MapData;
use lb_tests::{
    netns::Netns,
    oracle::observe,
    process,
    product::{cpu, lb::Lb},
    topology::path::{NICS, Path},
};
use lb_user::dataplane::pins::Pins;

use super::{
    configurations::{self, BACKENDS},
    load::Kind,
    queues,
    reference_nat::ReferenceNat,
    router::{as_router, as_router6},
    wire::{Ports, Wire},
};
use crate::report::{Missing, Shown};

/// lb's maps for clients of IPv6, and for connections of shared VIPs.
const OPTIONAL: [&str; 7] = [
    "ADDRESSES6",
    "BINDINGS",
    "CLIENTS6",
    "LABELS",
    "RULES6",
    "SPLICES",
    "SPLICE_NAMES",
];

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// MAC rewrite and redirect on both NICs: the limit of the path.
    Bare,
    /// One look-up for a packet and no more: the least that a NAT does.
    ReferenceNat,
    Lb,
    /// The kernel forwards, without NAT.
    Route,
    /// The kernel's NAT.
    Nft,
    /// The same with a flowtable.
    Flowtable,
    /// The kernel's load balancer, with NAT.
    Ipvs,
}

impl Who {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::ReferenceNat => "reference NAT",
            Self::Lb => "lb",
            Self::Route => "route",
            Self::Nft => "nftables",
            Self::Flowtable => "nftables with a flowtable",
            Self::Ipvs => "IPVS",
        }
    }

    /// Whether flows are to a VIP, and a state of the contestant.
    pub(crate) const fn translates(self) -> bool {
        !matches!(self, Self::Bare | Self::Route)
    }

    /// Whether it is set up for packets of this kind.
    pub(crate) const fn takes(self, kind: Kind) -> bool {
        !matches!((self, kind), (Self::ReferenceNat | Self::Ipvs, Kind::Tcp6))
    }

    /// Why it cannot take part here, if it cannot.
    pub(crate) fn missing(self) -> Option<Missing> {
        let why = match self {
            Self::Bare | Self::ReferenceNat | Self::Lb | Self::Route => None,
            Self::Nft => absent("nft").or_else(|| {
                let takes = nft_takes(&configurations::nft(false));
                (!takes).then(|| "this kernel takes no rules of NAT (NFT_NAT, NFT_MASQ)".to_owned())
            }),
            Self::Flowtable => absent("nft").or_else(|| {
                let made = nft_takes(configurations::FLOWTABLE_PROBE);
                (!made).then(|| "this kernel has no flowtables (NF_FLOW_TABLE)".to_owned())
            }),
            Self::Ipvs => {
                let _loaded = process::finish(Command::new("modprobe").args(["-q", "ip_vs_mh"]));
                let is_there = fs::exists("/proc/net/ip_vs").unwrap_or(false);
                let kernel = (!is_there).then(|| "this kernel has no IPVS (IP_VS)".to_owned());
                kernel.or_else(|| absent("ipvsadm"))
            }
        };
        why.map(|why| Missing {
            name: self.name(),
            why,
        })
    }

    /// How it is set up, to be read.
    pub(crate) fn shown(self) -> Result<Shown> {
        let (version, configuration) = match self {
            Self::Bare => (
                String::new(),
                "an XDP program on both NICs: other MAC addresses, then bpf_redirect".to_owned(),
            ),
            Self::ReferenceNat => (
                String::new(),
                "an XDP program on all NICs: one look-up in an LRU hash of both directions of 1,150,000 flows, then other \
                 addresses, ports, checksums and MAC addresses, and bpf_redirect; no states, policy or expiry"
                    .to_owned(),
            ),
            Self::Lb => (lb_version()?, configurations::lb().to_string()),
            Self::Route => (kernel()?, "net.ipv4.ip_forward = 1".to_owned()),
            Self::Nft => (version("nft", &["--version"])?, configurations::nft(false)),
            Self::Flowtable => (version("nft", &["--version"])?, configurations::nft(true)),
            Self::Ipvs => (version("ipvsadm", &["--version"])?, configurations::ipvs()),
        };
        Ok(Shown {
            name: self.name(),
            version,
            configuration,
        })
    }
}

/// A contestant at work in a path.
#[derive(Debug)]
pub(crate) struct Stand<'p> {
    pub(crate) who: Who,
    pub(crate) path: &'p Path,
    pub(crate) wire: Wire,
    pub(crate) lb: Option<Lb<'p>>,
    _nat: Option<ReferenceNat>,
}

impl<'p> Stand<'p> {
    /// Sets it up; frames go through when this returns.
    ///
    /// # Errors
    ///
    /// When something does not start.
    pub(crate) fn build(who: Who, path: &'p Path, ports: Ports) -> Result<Self> {
        path.add_backends(BACKENDS)?;
        path.add_ipv6(BACKENDS)?;
        queues::steer(path)?;
        let nat = (who == Who::ReferenceNat).then(|| ReferenceNat::at(path));
        let mut stand = Self {
            who,
            path,
            wire: Wire::plug(path, ports)?,
            lb: None,
            _nat: nat.transpose()?,
        };
        match who {
            Who::Bare => stand.wire.make_bare(path)?,
            Who::ReferenceNat => {}
            Who::Lb => {
                // The path's own CPU is the second one.
                let [first, _] = cpu::two()?;
                let first = ["taskset", "-c", &first.to_string()];
                stand.lb = Some(Lb::start_through(path, &configurations::lb(), &first)?);
            }
            Who::Route => {
                as_router(path)?;
                as_router6(path)?;
            }
            Who::Nft | Who::Flowtable => {
                as_router(path)?;
                as_router6(path)?;
                let file = path.write("nat.nft", &configurations::nft(who == Who::Flowtable))?;
                path.lb.run(&format!("nft -f {}", file.display()))?;
            }
            Who::Ipvs => {
                as_router(path)?;
                path.lb.set_sysctl("ipv4/vs/conntrack", "1")?;
                let file = path.write("nat.ipvs", &configurations::ipvs())?;
                path.lb.run(&format!("sh {}", file.display()))?;
            }
        }
        Ok(stand)
    }

    /// What is known of an error in its path.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let losses = self.losses().unwrap_or_else(|error| format!("{error:#}"));
        error.context(format!("through {} ({losses})", self.who.name()))
    }

    /// Where packets were lost, as far as lb and the wire's ports count them: for the message of a run that lost some.
    fn losses(&self) -> Result<String> {
        let mut losses = Vec::new();
        if let Some(lb) = &self.lb {
            for drop in lb.drops()? {
                losses.push(format!(
                    "lb has dropped {} and refused {}: {}",
                    drop.dropped, drop.refused, drop.reason
                ));
            }
        }
        for (netns, port) in ends_of_links(self.path) {
            let full = observe::ring_drops(netns, port)?;
            if full > 0 {
                losses.push(format!("the ring behind {port} was full for {full}"));
            }
        }
        Ok(losses.join("; "))
    }

    /// Bytes of the kernel's memory that lb's maps take, without those of IPv6 and of hand-overs, which only these need.
    ///
    /// # Errors
    ///
    /// When a pin cannot be opened.
    pub(crate) fn map_memory(&self) -> Result<f64> {
        let folder = Pins::new(self.path.run()).maps();
        let mut bytes = 0.0;
        for pin in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let pin = pin?;
            if OPTIONAL.iter().any(|name| pin.file_name() == *name) {
                continue;
            }
            let map = MapData::from_pin(pin.path()).context("open a map of lb")?;
            let info = format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd());
            let text = fs::read_to_string(info).context("read what the kernel says of it")?;
            let memory = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            bytes += memory.context("its memory")?.trim().parse::<f64>()?;
        }
        Ok(bytes)
    }
}

/// Both ends of the links between the wire and the load balancer.
fn ends_of_links(path: &Path) -> impl Iterator<Item = (&Netns, &'static str)> {
    NICS.into_iter()
        .flat_map(|(nic, port)| [(&path.lb, nic), (&path.wire, port)])
}

/// Whether a rule set would be taken.
pub(crate) fn nft_takes(rules: &str) -> bool {
    let line = ["--net", "nft", rules];
    let done = process::finish(Command::new("unshare").args(line));
    done.is_ok_and(|output| output.status.success())
}

/// Why a contestant without its program is missing.
pub(crate) fn absent(program: &'static str) -> Option<String> {
    let missing = process::missing(&[program]);
    (!missing.is_empty()).then(|| format!("{program} is not installed"))
}

/// The first line of what a program says of itself.
pub(crate) fn version(program: &str, words: &[&str]) -> Result<String> {
    let output = process::finish(Command::new(program).args(words))?;
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let said = out.lines().chain(err.lines()).next();
    said.map(str::to_owned)
        .with_context(|| format!("{program} says no version"))
}

/// The version of the lb that is measured.
pub(crate) fn lb_version() -> Result<String> {
    let lb = lb_tests::product::lb::binary("LB_BIN", "lb")?;
    let said = process::succeed(Command::new(lb).arg("version"))?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

fn kernel() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    Ok(format!(
        "Linux {}",
        release.context("the kernel's version")?.trim()
    ))
}
