//! The loaded object without a NIC: given a configuration, when a frame comes, then verdict, frame
//! and counters.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    maps::{HashMap, Map, MapData, PerCpuArray, PerCpuValues},
    programs::Xdp,
};
use lb_common::{
    addr::Mac,
    answer::{Answers, BURST, Bucket},
    maps::{
        event::FlowEvent,
        fragment::{FragmentKey, Fragmented},
        snat::{FLOWS_PER_ADDRESS, base},
    },
    verdict::{DropReason, Hook, SLOTS, Verdict, refusal_slot},
};
use lb_user::{
    config::{self, Limits},
    control::{
        apply::Live,
        desired::{Desired, Place, desired},
        ids::{Ids, Kind},
        layers::Layers,
        plan::plan,
        snat::SnatSlot,
    },
    dataplane::{
        attach::Mode,
        events::FlowEvents,
        flows::{FlowTable, coarse_now},
        maps::Maps,
        object::{CELL, NIC, Object, PROGRAMS},
        pins::Pins,
        splices::SpliceTable,
    },
    network::{link::Link, neighbour::Resolved},
};
use nix::sched::{CloneFlags, unshare};
use tokio::runtime::Builder;

use crate::{
    cpu::{self, Nic},
    leftovers::Run,
    packet::Decoded,
};

/// MAC of the tenant NIC.
pub const TENANT_NIC: Mac = Mac::new([2, 0, 0, 0, 0xa, 1]);
/// MAC of the mgmt NIC.
pub const MGMT_NIC: Mac = Mac::new([2, 0, 0, 0, 0xb, 1]);
/// MAC of a client.
pub const CLIENT: Mac = Mac::new([2, 0, 0, 0, 0xc, 1]);

/// The MAC of a node: its last octet is that of its address.
pub const fn node_mac(address: Ipv4Addr) -> Mac {
    let [.., last] = address.octets();
    Mac::new([2, 0, 0, 0, 0xd, last])
}

/// The same of a node that has an IPv6 address.
pub const fn node_mac6(address: Ipv6Addr) -> Mac {
    let [.., last] = address.octets();
    Mac::new([2, 0, 0, 0, 0xe, last])
}

/// Where a frame comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// `lb_nic` on the tenant NIC.
    Tenant,
    /// `lb_nic` on the mgmt NIC.
    Mgmt,
    /// `lb_nic` on a second mgmt NIC, `eth2` of the configuration.
    SecondMgmt,
    /// `lb_cell` on the outer end of the cell of the network with this name.
    Cell(&'static str),
    /// `lb_nic` on an interface that belongs to no network.
    Foreign,
}

/// XDP actions (linux/bpf.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `XDP_DROP`.
    Drop,
    /// `XDP_PASS`.
    Pass,
    /// `XDP_TX`.
    Transmit,
    /// `XDP_REDIRECT`.
    Redirect,
}

impl Action {
    /// The action that a program returned, unless it is none or `XDP_ABORTED`.
    pub const fn of(returned: u32) -> Option<Self> {
        match returned {
            1 => Some(Self::Drop),
            2 => Some(Self::Pass),
            3 => Some(Self::Transmit),
            4 => Some(Self::Redirect),
            _ => None,
        }
    }
}

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's answer.
    pub action: Action,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// The one counter that went up: hook, network (`-` for none) and verdict.
    pub counted: (&'static str, String, &'static str),
}

/// The object with its maps filled from a configuration.
pub struct DataPlane {
    object: Object,
    /// The maps.
    pub maps: Maps,
    /// Ids by name.
    pub ids: Ids,
    /// The records that were asked for.
    pub desired: Desired,
    kept: Kept,
    ifindex: BTreeMap<&'static str, u32>,
    cells: BTreeMap<String, u32>,
}

/// What stands in for the outer ends of cells, in the order of the networks.
const CELLS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

/// Enough for most tests.
const LIMITS: Limits = Limits {
    snat_addresses: 4,
    services: 16,
    backends: 16,
    pools: 8,
};

impl DataPlane {
    /// Loads the object in a namespace of the calling thread's own, with every next hop resolved.
    pub fn new(text: &str) -> Self {
        Self::start(text, true, None, LIMITS).expect("the data plane starts")
    }

    /// As [`Self::new`], with room for as much as the configuration's own limits say.
    ///
    /// # Errors
    ///
    /// Without privileges, when the kernel refuses, or for a configuration that is none.
    pub fn with_own_limits(text: &str) -> Result<Self> {
        let limits = config::parse("test.yaml", text)?.limits;
        Self::start(text, true, None, limits)
    }

    /// As [`Self::new`], with no next hop resolved.
    pub fn unresolved(text: &str) -> Self {
        Self::start(text, false, None, LIMITS).expect("the data plane starts")
    }

    /// As [`Self::new`], where checksums may be left to the interface, in this mode.
    pub fn with_partial_checksums(text: &str, mode: Mode) -> Self {
        Self::start(text, true, Some(mode), LIMITS).expect("the data plane starts")
    }

    fn start(text: &str, resolve: bool, partial: Option<Mode>, limits: Limits) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET).context("needs root: run by `cargo xtask test`")?;
        let mut ifindex = BTreeMap::new();
        for (index, name) in (101..).zip(["t0", "m0", "n0", "f0"].into_iter().chain(CELLS)) {
            let add = format!("link add {name} index {index} type veth peer name {name}p");
            let done = Command::new("ip").args(add.split(' ')).status()?;
            ensure!(done.success(), "ip {add}");
            ifindex.insert(name, index);
        }
        let run = Run::new()?;
        let kept = Kept {
            pins: Pins::new(run.name()),
            _run: run,
        };
        let pins = &kept.pins;
        pins.create()?;
        let object = Object::load(pins, &limits, 0)?;
        let config = config::parse("test.yaml", text)?;
        let config = config::Config { limits, ..config };
        let place = |nic: u32, cell_ifindex: u32, mac: Mac| Place {
            nic: Link {
                ifindex: nic,
                mac,
                mtu: 1500,
                up: true,
                running: true,
                carriers: 1,
                peer: None,
                xdp: None,
                bridge: None,
            },
            is_there: true,
            cell_ifindex,
            partial: partial.is_some(),
        };
        let mut places = BTreeMap::new();
        let mut cells = BTreeMap::new();
        for (network, outer) in config.networks.iter().zip(CELLS) {
            let (nic, mac) = match network.interface.as_str() {
                "eth0" => ("t0", TENANT_NIC),
                "eth2" => ("n0", MGMT_NIC),
                _ => ("m0", MGMT_NIC),
            };
            let cell = if network.host { 0 } else { ifindex[outer] };
            cells.insert(network.name.clone(), cell);
            places.insert(network.name.clone(), place(ifindex[nic], cell, mac));
        }
        let mut ids = Ids::default();
        let mut desired = desired(&config, &places, &Layers::default(), &mut ids)?;
        desired.run_in(partial.unwrap_or(Mode::Native));
        let mut live = Live::new(Maps::open(&pins.maps())?);
        live.save_ids(&ids)?;
        live.make_hash_key()?;
        live.follow(desired.next_hops.clone());
        let plan = plan(&live.current(&ids)?, &desired);
        let (report, mut resolved) = tokio::sync::mpsc::unbounded_channel();
        for (id, backend) in desired.backends.iter().filter(|_| resolve) {
            let address = desired.next_hops[id];
            report.send(Resolved {
                network: backend.network,
                address,
                mac: match address {
                    IpAddr::V4(address) => node_mac(address),
                    IpAddr::V6(address) => node_mac6(address),
                },
            })?;
        }
        drop(report);
        let runtime = Builder::new_current_thread().enable_time().build()?;
        runtime.block_on(live.apply(plan, (&ids, &object), &mut resolved))?;
        let mut maps = Maps::open(&pins.maps())?;
        for snat in &desired.snat {
            put_in_order(&mut maps, &object, snat)?;
        }
        Ok(Self {
            object,
            maps,
            ids,
            desired,
            kept,
            ifindex,
            cells,
        })
    }

    /// Runs the program of `port` on one frame, and makes sure that exactly one counter went up,
    /// by one.
    pub fn receive(&mut self, port: Port, frame: &[u8]) -> Outcome {
        let before = self.counters();
        let (action, out) = self.run(port, frame, 1).0;
        let after = self.counters();
        let changed: Vec<_> = after
            .iter()
            .filter_map(|(key, &count)| {
                let grown = count - before.get(key).copied().unwrap_or(0);
                (grown > 0).then_some((key.clone(), grown))
            })
            .collect();
        let [(counted, 1)] = changed.as_slice() else {
            panic!(
                "one verdict expected for {}, counted {changed:?}",
                Decoded(frame)
            );
        };
        Outcome {
            action,
            frame: out,
            counted: counted.clone(),
        }
    }

    /// Runs the program `repeat` times on the same memory: action, frame, and the kernel's mean
    /// duration in nanoseconds.
    pub fn run(&mut self, port: Port, frame: &[u8], repeat: u32) -> ((Action, Vec<u8>), u64) {
        let (program, ingress) = self.at(port).expect("a program of the object");
        cpu::run(program, ingress, frame, repeat)
    }

    /// The program of `port`, and the index of its interface.
    ///
    /// # Errors
    ///
    /// If the object has no such program.
    pub fn at(&mut self, port: Port) -> Result<(&Xdp, u32)> {
        let (program, ingress) = match port {
            Port::Tenant => (NIC, self.ifindex["t0"]),
            Port::Mgmt => (NIC, self.ifindex["m0"]),
            Port::SecondMgmt => (NIC, self.ifindex["n0"]),
            Port::Cell(network) => (CELL, self.cells[network]),
            Port::Foreign => (NIC, self.ifindex["f0"]),
        };
        Ok((self.object.program(program)?, ingress))
    }

    /// Lets every CPU give as many answers as it may give at most in one go.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn refill_answers(&self) -> Result<()> {
        let map = Map::PerCpuArray(MapData::from_pin(self.maps_folder().join("ANSWERS"))?);
        let mut answers: PerCpuArray<MapData, Answers> = map.try_into()?;
        let full = Bucket {
            tokens: BURST,
            seen: coarse_now()?,
        };
        for network in 0..answers.len() {
            let mut of_cpus = answers.get(&network, 0)?.to_vec();
            for kept in &mut of_cpus {
                (kept.refusals, kept.echoes) = (full, full);
            }
            answers.set(network, PerCpuValues::try_from(of_cpus)?, 0)?;
        }
        Ok(())
    }

    /// `lb_nic` for several CPUs at once, and the maps beside it.
    pub fn on_all_cpus(&mut self) -> (Nic<'_>, &Maps) {
        let program = self.object.program(NIC).expect("a program of the object");
        let ports = [self.ifindex["t0"], self.ifindex["m0"]];
        (Nic::new(program, ports), &self.maps)
    }

    /// The flow table, mapped as the control plane maps it.
    pub fn flow_table(&self) -> FlowTable {
        FlowTable::open(&self.kept.pins.maps()).expect("the flow table can be mapped")
    }

    /// The splices beside it.
    pub fn splices(&self) -> SpliceTable {
        SpliceTable::open(&self.maps_folder()).expect("the splices are pinned")
    }

    /// The folder of the pinned maps, for what opens them itself.
    pub fn maps_folder(&self) -> PathBuf {
        self.kept.pins.maps()
    }

    /// Every counter that is not zero, by hook, network and verdict.
    pub fn counters(&self) -> BTreeMap<(&'static str, String, &'static str), u64> {
        let mut counters = BTreeMap::new();
        for hook in Hook::ALL {
            for network in 0..8 {
                for slot in 0..SLOTS {
                    let count = self.maps.counter(hook, network, slot).expect("a counter");
                    if count > 0 {
                        let name = self
                            .ids
                            .name(Kind::Network, u32::from(network))
                            .unwrap_or("-");
                        counters.insert((hook.label(), name.to_owned(), verdict(slot)), count);
                    }
                }
            }
        }
        counters
    }

    /// The loaded object.
    pub const fn object(&self) -> &Object {
        &self.object
    }

    /// Takes every id out of the queue of the first SNAT address, in order.
    pub fn drain_free_ids(&self) -> Vec<u32> {
        let mut queue = self
            .maps
            .free_ids(0)
            .expect("a queue")
            .expect("the slot is open");
        std::iter::from_fn(|| queue.pop(0).ok()).collect()
    }

    /// Puts ids into the queue of the first SNAT address.
    pub fn give_free_ids(&self, ids: &[u32]) {
        let mut queue = self
            .maps
            .free_ids(0)
            .expect("a queue")
            .expect("the slot is open");
        for id in ids {
            queue.push(id, 0).expect("room in the queue");
        }
    }

    /// The fragmented datagrams that are followed.
    pub fn fragmented(&self) -> Vec<(FragmentKey, Fragmented)> {
        let records = self.fragment_records();
        records
            .iter()
            .map(|record| record.expect("a record"))
            .collect()
    }

    /// Writes the record of a fragmented datagram.
    pub fn set_fragmented(&self, key: &FragmentKey, record: &Fragmented) {
        let mut records = self.fragment_records();
        records.insert(key, record, 0).expect("room for a record");
    }

    fn fragment_records(&self) -> HashMap<MapData, FragmentKey, Fragmented> {
        let pin = self.kept.pins.maps().join("FRAGMENTS");
        let map = MapData::from_pin(pin).expect("the pinned map");
        Map::LruHashMap(map).try_into().expect("its layout")
    }

    /// The flow id of a SNAT port of the first address.
    pub fn flow_id(port: u16) -> u32 {
        base(0) + u32::from(port - lb_common::maps::snat::FIRST_FLOW_PORT)
    }

    /// Takes the flow events that are there.
    pub fn events(&self) -> Vec<FlowEvent> {
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let _entered = runtime.enter();
        let events = FlowEvents::open(&self.kept.pins.maps());
        let mut events = events.expect("the flow events");
        std::iter::from_fn(|| events.take()).collect()
    }

    /// How many instructions the verifier walked, by program.
    pub fn verified_instructions(&self) -> BTreeMap<&'static str, u32> {
        let mut counts = BTreeMap::new();
        for name in PROGRAMS {
            let info = self.object.info(name).expect("the program's facts");
            counts.insert(name, info.verified_instruction_count().unwrap_or(0));
        }
        counts
    }
}

/// The pins of one object; removed on drop, also when the rest of it could not be made. What a killed
/// test leaves goes with the first run of the next one.
struct Kept {
    pins: Pins,
    _run: Run,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove() {
            eprintln!("pins of {} stay: {error}", self.pins.instance());
        }
    }
}

/// Gives a SNAT address its ids anew, in order: a test knows which port comes next.
fn put_in_order(maps: &mut Maps, object: &Object, snat: &SnatSlot) -> Result<()> {
    let ids: Vec<u32> = snat.flow_ids().collect();
    maps.set_free_ids(snat.slot.into(), u32::try_from(ids.len())?)?;
    object.fill(snat.slot, &ids)
}

/// Ids per SNAT address.
pub const IDS: usize = FLOWS_PER_ADDRESS as usize;

fn verdict(slot: u32) -> &'static str {
    let plain = [
        (Verdict::Passed, "passed"),
        (Verdict::Transmitted, "transmitted"),
        (Verdict::Forwarded, "forwarded"),
        (Verdict::Delivered, "delivered"),
    ];
    let found = plain
        .into_iter()
        .find(|(verdict, _)| verdict.slot() == slot)
        .map(|(_, label)| label);
    let mut drops = DropReason::ALL.iter();
    let dropped = drops
        .find(|&&reason| Verdict::Dropped(reason).slot() == slot)
        .map(|reason| reason.label());
    let mut refused = DropReason::ALL.iter();
    let refused = refused
        .find(|&&reason| refusal_slot(reason as u32, true) == slot)
        .map(|reason| &*format!("refused: {}", reason.label()).leak());
    found.or(dropped).or(refused).unwrap_or("unknown")
}
