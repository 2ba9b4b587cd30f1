//! The embedded eBPF object: loading it, with its maps created or adopted.

use std::{
    path::Path,
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData},
    programs::{Program, ProgramError, ProgramFd, ProgramInfo, Xdp},
};
use aya_log::EbpfLogger;
use lb_common::maps::{
    MAX_ADDRESSES, MAX_NETWORKS, MAX_SNAT_ADDRESSES, declarations, flow_line,
    snat::{PAGE, flow_entries},
    usage,
};
use log::{Log, Metadata, Record};

use super::pins::Pins;
use crate::{config::Limits, system::heap};

/// The object, as it was built with this crate.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-ebpf"));

/// An object, and which maps it has beside [`MAPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The ELF file, aligned.
    pub object: &'static [u8],
    /// Arrays by flow id; they are not pinned.
    pub by_flow: &'static [&'static str],
}

impl Build {
    /// What is shipped.
    pub const SHIPPED: Self = Self {
        object: OBJECT,
        by_flow: &[],
    };
}

/// Every map of the object; all of them are pinned under their own name.
pub const MAPS: [&str; declarations::NAMES.len()] = declarations::NAMES;

/// The maps whose size is that of flows, and the key by which flows come to their lines.
const FLOW_MAPS: [&str; 9] = [
    "FLOWS",
    "PENDING",
    "BINDINGS",
    "SPLICES",
    "SPLICE_NAMES",
    "CLIENTS6",
    "FLOW_LINES",
    "SNAT_PORTS",
    "LINE_KEY",
];

/// The program of a network's interface.
pub const NIC: &str = "lb_nic";
/// The program of a cell's outer end.
pub const CELL: &str = "lb_cell";

/// The program of copies of frames; see [`super::egress`].
pub(super) const EMIT: &str = "lb_emit";

/// The program that fills queues of free ids; see [`super::ids`].
pub(super) const FILL: &str = "lb_fill";
/// The program that turns them around.
pub(super) const TURN: &str = "lb_turn";

/// Every program of the object.
pub const PROGRAMS: [&str; 5] = [NIC, CELL, EMIT, FILL, TURN];

/// The loaded object. Its programs are verified; nothing is attached yet.
#[derive(Debug)]
pub struct Object {
    ebpf: Ebpf,
    verified_in: Duration,
}

impl Object {
    /// Loads the object with its maps pinned under `pins`, with [room](Limits::room) for `limits`; what is pinned there
    /// already is adopted with its content and its sizes.
    ///
    /// `log_level` switches aya-log in the programs: 0 off, 1 error to 5 trace.
    ///
    /// # Errors
    ///
    /// With the kernel's message: no privileges, a helper that is missing, a pinned map that does not fit.
    pub fn load(pins: &Pins, limits: &Limits, log_level: u8) -> Result<Self> {
        Self::load_in(&pins.maps(), limits, log_level)
    }

    /// As [`Self::load`], with the maps pinned in `folder`.
    ///
    /// # Errors
    ///
    /// As for [`Self::load`].
    pub fn load_in(folder: &Path, limits: &Limits, log_level: u8) -> Result<Self> {
        Self::load_build_in(Build::SHIPPED, folder, &limits.room(), log_level)
    }

    /// As [`Self::load`], of another build of the programs, with no more than this room.
    ///
    /// # Errors
    ///
    /// As for [`Self::load`].
    pub fn load_build(build: Build, pins: &Pins, room: &Limits, log_level: u8) -> Result<Self> {
        Self::load_build_in(build, &pins.maps(), room, log_level)
    }

    fn load_build_in(build: Build, folder: &Path, room: &Limits, log_level: u8) -> Result<Self> {
        let flows = flow_entries(room.snat_addresses);
        let flows = adopted(folder, "FLOWS", flows);
        let of_names = names_sizes(room).map(|(name, size)| {
            let as_large = match name {
                "BACKEND_ANSWERS" => "BACKENDS",
                name => name,
            };
            // Smaller in earlier versions. A name without room there is refused when it comes.
            (name, pinned_size(folder, as_large).unwrap_or(size))
        });
        let of_flows = flows_sizes(room).map(|(name, size)| match name {
            // One for each flow, also where the flows were there first.
            "FLOWS" | "CLIENTS6" | "PENDING" => (name, flows),
            _ => (name, adopted(folder, name, size)),
        });
        let sizes: Vec<(&str, u32)> = of_names.into_iter().chain(of_flows).collect();
        let paths: Vec<_> = MAPS.iter().map(|&name| (name, folder.join(name))).collect();
        let mut loader = EbpfLoader::new();
        for &(name, size) in &sizes {
            loader.map_max_entries(name, size);
        }
        for name in build.by_flow {
            loader.map_max_entries(name, flows);
        }
        for (name, path) in &paths {
            loader.map_pin_path(name, path.as_path());
        }
        loader.override_global("AYA_LOG_LEVEL", &log_level, false);
        let mut ebpf = loader.load(build.object).context("load the eBPF object")?;
        let begun = Instant::now();
        for name in PROGRAMS {
            let program = ebpf.program_mut(name);
            match program.with_context(|| format!("the eBPF object has no program {name}"))? {
                Program::Xdp(program) => program.load(),
                Program::SchedClassifier(program) => program.load(),
                other => bail!("program {name} is of an unknown kind: {other:?}"),
            }
            .map_err(|error| refused(name, error))?;
        }
        let verified_in = begun.elapsed();
        tracing::debug!(
            "the kernel verified the programs in {} ms",
            verified_in.as_millis()
        );
        // The programs have them, and nothing else needs a descriptor.
        let _constants = ebpf.take_map(".rodata");
        if log_level == 0 {
            let _log = ebpf.take_map("AYA_LOGS");
        }
        heap::trim();
        Ok(Self { ebpf, verified_in })
    }

    /// Pins those of the maps in `from` in `to` as well that have no flows: what is loaded there shares them.
    ///
    /// # Errors
    ///
    /// If one is missing, or bpffs refuses.
    pub fn share_all_but_flows(from: &Path, to: &Path) -> Result<()> {
        let of_flows = |name: &&str| {
            let mut sized = FLOW_MAPS.iter();
            sized.any(|map| map == name)
        };
        for name in MAPS.iter().filter(|name| !of_flows(name)) {
            let map = MapData::from_pin(from.join(name));
            let map = map.with_context(|| format!("open the pinned map {name}"))?;
            map.pin(to.join(name))
                .with_context(|| format!("pin the map {name} at {}", to.display()))?;
        }
        Ok(())
    }

    /// How long the kernel took to verify and compile the programs.
    pub const fn verified_in(&self) -> Duration {
        self.verified_in
    }

    /// Whether its maps are those that are pinned under `pins`.
    pub fn is_of(&self, pins: &Pins) -> bool {
        let known = self.ebpf.map("NETWORKS").and_then(|map| match map {
            Map::Array(map) => map.info().ok(),
            _ => None,
        });
        let pinned = MapData::from_pin(pins.maps().join("NETWORKS"));
        let pinned = pinned.and_then(|map| map.info()).ok();
        known.is_some() && known.map(|info| info.id()) == pinned.map(|info| info.id())
    }

    /// Pins the maps again whose pins are gone, and gives their names.
    ///
    /// # Errors
    ///
    /// If bpffs refuses.
    pub fn pin_again(&self, pins: &Pins) -> Result<Vec<&'static str>> {
        let mut pinned = Vec::new();
        for name in MAPS {
            let pin = pins.maps().join(name);
            if pin.exists() {
                continue;
            }
            let map = self.ebpf.map(name);
            let map = map.with_context(|| format!("the eBPF object has no map {name}"))?;
            map.pin(&pin)
                .with_context(|| format!("pin the map {name} at {}", pin.display()))?;
            pinned.push(name);
        }
        Ok(pinned)
    }

    /// A program of the object.
    ///
    /// # Errors
    ///
    /// If the object has no such program.
    pub fn program(&mut self, name: &str) -> Result<&mut Xdp> {
        program(&mut self.ebpf, name)
    }

    /// The descriptor of a program.
    ///
    /// # Errors
    ///
    /// If the object has no such program.
    pub(super) fn descriptor(&self, name: &str) -> Result<&ProgramFd> {
        let program = self.ebpf.program(name);
        let program = program.with_context(|| format!("the eBPF object has no program {name}"))?;
        Ok(program.fd()?)
    }

    /// What the kernel knows of a program.
    ///
    /// # Errors
    ///
    /// If the object has no such program, or the kernel refuses.
    pub fn info(&self, name: &str) -> Result<ProgramInfo> {
        let program = self.ebpf.program(name);
        let program = program.with_context(|| format!("the eBPF object has no program {name}"))?;
        Ok(program.info()?)
    }

    /// A program of the object, for userspace to run it.
    ///
    /// # Errors
    ///
    /// If the object has no such program of this kind.
    pub fn loaded<'o, P>(&'o self, name: &str) -> Result<&'o P>
    where
        &'o P: TryFrom<&'o Program, Error = ProgramError>,
    {
        let program = self.ebpf.program(name);
        let program = program.with_context(|| format!("the eBPF object has no program {name}"))?;
        Ok(program.try_into()?)
    }

    /// The programs' log, once: each call takes the records that have come since the one before.
    ///
    /// # Errors
    ///
    /// If the programs have none, or it was taken already.
    pub fn log(&mut self) -> Result<impl FnMut() -> Vec<String> + use<>> {
        let (sender, records) = mpsc::channel();
        let log = EbpfLogger::init_with_logger(&mut self.ebpf, ToChannel(sender));
        let mut log = log.context("read the programs' log")?;
        Ok(move || {
            log.flush();
            records.try_iter().collect()
        })
    }
}

/// Hands on what the programs log.
struct ToChannel(mpsc::Sender<String>);

impl Log for ToChannel {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // The other end is as old as this one.
        let _gone = self.0.send(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Why the kernel does not take a program; its verifier's whole log, which may be long, goes to ours.
fn refused(name: &str, error: ProgramError) -> Error {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            tracing::debug!(program = name, %log, "the verifier's log");
            anyhow!(
                "load program {name}: the kernel refused it: {io_error}: {}; kernels that lb is tried on are in \
                 README.md, and LB_LOG=debug shows the verifier's log",
                last_word(&log)
            )
        }
        error => Error::new(error).context(format!("load program {name}")),
    }
}

/// What a verifier's log ends with: the reason, but for lines of figures.
fn last_word(log: &str) -> &str {
    const FIGURES: [&str; 3] = ["verification time", "stack depth", "processed"];
    let is_reason = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !FIGURES.iter().any(|figure| line.starts_with(figure))
    };
    let reason = log.lines().rev().find(is_reason);
    reason.map_or("it gave no reason", str::trim)
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("the eBPF object has no program {name}"))?;
    program
        .try_into()
        .with_context(|| format!("program {name} is not an XDP program"))
}

/// The sizes that are configured, by map. A map that is not named keeps its own.
pub fn sizes(limits: &Limits) -> Vec<(&'static str, u32)> {
    let names = names_sizes(limits).into_iter();
    names.chain(flows_sizes(limits)).collect()
}

/// Those of maps that have names of the configuration.
fn names_sizes(limits: &Limits) -> [(&'static str, u32); 11] {
    [
        ("REGISTRY", names(limits)),
        ("SERVICES", limits.services),
        // A backend is dialled at its port, and may be checked at another one.
        ("LOCAL_PEERS", limits.backends.saturating_mul(2)),
        ("USAGE", usage::entries(limits.services)),
        // Id 0 is none.
        ("VIP_OFFERS", limits.services.saturating_add(1)),
        ("BACKENDS", limits.backends.saturating_add(1)),
        ("BACKEND_ANSWERS", limits.backends.saturating_add(1)),
        ("BACKEND_FLOWS", limits.backends.saturating_add(1)),
        // Two of each pool.
        ("MAGLEV", limits.pools.saturating_mul(2).saturating_add(1)),
        // A VIP, SNAT address or backend has one at most, and so has each cell.
        ("LABELS", labels(limits)),
        ("ADDRESSES6", labels(limits).saturating_add(1)),
    ]
}

/// Those of maps that have flows.
fn flows_sizes(limits: &Limits) -> [(&'static str, u32); 8] {
    let flows = flow_entries(limits.snat_addresses);
    [
        ("FLOWS", flows),
        ("PENDING", flows),
        ("BINDINGS", flows),
        // Number 0 is none's.
        ("SPLICES", limits.handed_over.saturating_add(1)),
        ("SPLICE_NAMES", limits.handed_over.saturating_add(1024)),
        ("CLIENTS6", flows),
        ("FLOW_LINES", flow_line::lines(flows)),
        ("SNAT_PORTS", flows / PAGE),
    ]
}

/// How many IPv6 addresses may have a label.
fn labels(limits: &Limits) -> u32 {
    limits.backends.saturating_add(MAX_ADDRESSES + MAX_NETWORKS)
}

/// How many names the registry has room for.
pub(super) fn names(limits: &Limits) -> u32 {
    let ids = [
        limits.services,
        limits.backends,
        limits.pools,
        MAX_SNAT_ADDRESSES,
    ];
    ids.into_iter().fold(MAX_NETWORKS, u32::saturating_add)
}

/// The size of a map, if it is pinned already.
fn pinned_size(folder: &Path, name: &str) -> Option<u32> {
    let pinned = MapData::from_pin(folder.join(name)).ok()?;
    Some(pinned.info().ok()?.max_entries())
}

/// The size of a map that is pinned already, else `wanted`: a pinned map cannot grow.
fn adopted(folder: &Path, name: &str, wanted: u32) -> u32 {
    let size = pinned_size(folder, name).unwrap_or(wanted);
    if size != wanted {
        let way = match size < wanted {
            true => "`lb run --migrate`, without --takeover, makes it larger and keeps its flows",
            false => "`lb down` and a new start would change it",
        };
        tracing::warn!(
            map = name,
            size,
            wanted,
            "the running data plane keeps its size; {way}"
        );
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend is dialled at its port, and checked at another one.
    #[test]
    fn each_backend_has_room_for_two_peers() {
        let limits = Limits {
            backends: 300,
            ..Limits::default()
        };
        let sizes = sizes(&limits);
        assert!(sizes.contains(&("LOCAL_PEERS", 600)), "{sizes:?}");
    }

    #[test]
    fn a_verifiers_last_word_is_its_reason() {
        let log = "func#0 @0\n12: (79) r1 = *(u64 *)(r10 -200)\ninvalid read from stack R10 off=-200 size=8\n\
                   verification time 237586 usec\nstack depth 0+160\nprocessed 18885 insns (limit 1000000)\n\n";
        assert_eq!(
            last_word(log),
            "invalid read from stack R10 off=-200 size=8"
        );
        assert_eq!(last_word("\n"), "it gave no reason");
    }
}
