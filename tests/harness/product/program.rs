//! The loaded object without a NIC: given a configuration, when a frame comes, then verdict, frame
//! and counters.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use anyhow::Result;
use aya::{
    maps::{Array, Map, MapData, PerCpuArray, PerCpuValues},
    programs::Xdp,
};
use lb_common::{
    addr::Mac,
    datagram::RecordState,
    maps::{
        event::FlowEvent,
        fragment::Datagram,
        snat::{FIRST_FLOW_PORT, FLOWS_PER_ADDRESS, base},
    },
    rate::{Bucket, QUESTIONS, REFUSALS, Rates},
    reject::v4::Answers,
    verdict::{DropReason, HELLO_ENDS, Hook, MTU_RAISED, SLOTS, Verdict, counter, refusal_slot},
};
use lb_user::{
    config::{self, Config, Limits},
    control::desired::Desired,
    dataplane::{
        attach::Mode,
        events::FlowEvents,
        flow_copy::FlowCopy,
        flows::{FlowTable, coarse_now},
        hellos::{HelloRecord, HelloRing},
        maps::Maps,
        object::{Build, CELL, NIC, Object, PROGRAMS},
        pins::Pins,
        splices::SpliceTable,
    },
    model::registry::{Ids, Kind},
};
use tokio::runtime::Builder;

use crate::{
    frames::packet::Decoded,
    oracle::raw_map::RawMap,
    product::{
        cpu::{self, Nic},
        fill::{self, Filled},
        loaded::{Kept, Lent, Loaded},
    },
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
    /// The maps.
    pub maps: Maps,
    /// Ids by name.
    pub ids: Ids,
    /// The records that were asked for.
    pub desired: Desired,
    /// The outer ends of the networks' cells.
    cells: BTreeMap<String, u32>,
    kept: Kept,
    loaded: Lent,
}

impl DataPlane {
    /// An object in a namespace that the calling thread is in from now on, with every next hop resolved. Others
    /// have had both, and have left nothing in the maps; what changes more than the maps needs [`Self::alone`].
    pub fn new(text: &str) -> Self {
        Self::shared(text, true, None)
    }

    /// As [`Self::new`], with no next hop resolved.
    pub fn unresolved(text: &str) -> Self {
        Self::shared(text, false, None)
    }

    /// As [`Self::new`], where checksums may be left to the interface, in this mode.
    pub fn with_partial_checksums(text: &str, mode: Mode) -> Self {
        Self::shared(text, true, Some(mode))
    }

    /// As [`Self::new`], with an object and a namespace that no other test has: for a test that changes pins or
    /// links, has threads that run beside each other, or goes by the order in which a full map forgets.
    pub fn alone(text: &str) -> Self {
        let config = fill::config(text).expect("a configuration");
        let lent = Lent::alone(Build::SHIPPED, &config.limits);
        let started = lent.and_then(|lent| Self::start(lent, &config, true, None));
        started.expect("the data plane starts")
    }

    /// As [`Self::alone`], with the room that a data plane gets with the configuration's own limits.
    ///
    /// # Errors
    ///
    /// Without privileges, when the kernel refuses, or for a configuration that is none.
    pub fn with_own_limits(text: &str) -> Result<Self> {
        Self::of_build(Build::SHIPPED, text)
    }

    /// As [`Self::with_own_limits`], with another build of the object.
    ///
    /// # Errors
    ///
    /// As for [`Self::with_own_limits`].
    pub fn of_build(build: Build, text: &str) -> Result<Self> {
        let config = config::parse("test.yaml", text)?;
        let room = config.limits.room();
        Self::start(Lent::alone(build, &room)?, &config, true, None)
    }

    /// Gives it back, and has the same one as another test with this configuration has it.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    #[must_use]
    pub fn again(self, text: &str) -> Self {
        let Self {
            maps, loaded, kept, ..
        } = self;
        // Before the folder: what is opened anew of the same maps would be found by the name that is another's now.
        drop(maps);
        drop(kept);
        let config = fill::config(text).expect("a configuration");
        let kept = loaded.enter();
        let started = kept.and_then(|kept| Self::start((loaded, kept), &config, true, None));
        started.expect("the data plane starts")
    }

    /// Has larger maps of flows from now on, as a start makes them: copied in two passes, with `between` in between. How many
    /// entries each of them copied. The data plane is [`Self::alone`]'s.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn grow(&mut self, limits: &Limits, between: impl FnOnce(&mut Self)) -> Result<[usize; 2]> {
        let pins = &self.kept.pins;
        let [maps, larger, smaller] = [pins.maps(), pins.larger(), pins.smaller()];
        fs::create_dir(&larger)?;
        Object::share_all_but_flows(&maps, &larger)?;
        let object = Object::load_in(&larger, limits, 0)?;
        let mut copy = FlowCopy::open(&maps, &larger)?;
        let first = copy.pass()?;
        between(self);
        let second = copy.pass()?;
        fs::rename(&maps, &smaller)?;
        fs::rename(&larger, &maps)?;
        self.loaded.object = object;
        self.maps = Maps::open(&maps)?;
        Ok([first, second])
    }

    fn shared(text: &str, resolve: bool, partial: Option<Mode>) -> Self {
        let config = fill::config(text).expect("a configuration");
        let lent = Lent::shared(&config.limits);
        let started = lent.and_then(|lent| Self::start(lent, &config, resolve, partial));
        started.expect("the data plane starts")
    }

    fn start(
        (loaded, kept): (Lent, Kept),
        config: &Config,
        resolve: bool,
        partial: Option<Mode>,
    ) -> Result<Self> {
        let Filled {
            ids,
            desired,
            cells,
        } = fill::fill(&loaded, &kept.pins, config, resolve, partial)?;
        Ok(Self {
            maps: Maps::open(&kept.pins.maps())?,
            ids,
            desired,
            cells,
            kept,
            loaded,
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
        let Loaded {
            object, ifindex, ..
        } = &mut *self.loaded;
        let (program, ingress) = match port {
            Port::Tenant => (NIC, ifindex["t0"]),
            Port::Mgmt => (NIC, ifindex["m0"]),
            Port::SecondMgmt => (NIC, ifindex["n0"]),
            Port::Cell(network) => (CELL, self.cells[network]),
            Port::Foreign => (NIC, ifindex["f0"]),
        };
        Ok((object.program(program)?, ingress))
    }

    /// Lets every CPU give as many answers as it may give at most in one go.
    ///
    /// # Errors
    ///
    /// When a map cannot be written.
    pub fn refill_answers(&self) -> Result<()> {
        let seen = coarse_now()?;
        let full = |tokens| Bucket { tokens, seen };
        self.on_every_cpu("ANSWERS", |kept: &mut Answers| {
            (kept.refusals, kept.echoes) = (full(REFUSALS.burst), full(REFUSALS.burst));
        })?;
        self.on_every_cpu("RATES", |kept: &mut Rates| {
            kept.questions = full(QUESTIONS.burst);
        })
    }

    /// Changes what each CPU keeps of each network in the map `name`.
    fn on_every_cpu<T: aya::Pod>(&self, name: &str, change: impl Fn(&mut T)) -> Result<()> {
        let map = Map::PerCpuArray(MapData::from_pin(self.maps_folder().join(name))?);
        let mut values: PerCpuArray<MapData, T> = map.try_into()?;
        for network in 0..values.len() {
            let mut of_cpus = values.get(&network, 0)?.to_vec();
            of_cpus.iter_mut().for_each(&change);
            values.set(network, PerCpuValues::try_from(of_cpus)?, 0)?;
        }
        Ok(())
    }

    /// `lb_nic` for several CPUs at once, and the maps beside it.
    pub fn on_all_cpus(&self) -> (Nic<'_>, &Maps) {
        let Loaded {
            object, ifindex, ..
        } = &*self.loaded;
        let program = object.loaded(NIC).expect("a program of the object");
        let ports = [ifindex["t0"], ifindex["m0"]];
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

    /// Its pins.
    pub const fn pins(&self) -> &Pins {
        &self.kept.pins
    }

    /// The folder of the pinned maps, for what opens them itself.
    pub fn maps_folder(&self) -> PathBuf {
        self.kept.pins.maps()
    }

    /// Every counter that is not zero, by hook, network and verdict.
    pub fn counters(&self) -> BTreeMap<(&'static str, String, &'static str), u64> {
        let mut counters = BTreeMap::new();
        for hook in Hook::ALL {
            for network in 0..NETWORKS {
                let of_slots = self.maps.counters(hook, network).expect("counters");
                for slot in 0..SLOTS {
                    let count = counter(&of_slots, slot);
                    if count > 0 {
                        let name = self.ids.name(Kind::Network, u32::from(network));
                        let name = name.unwrap_or("-").to_owned();
                        counters.insert((hook.label(), name, verdict(slot)), count);
                    }
                }
            }
        }
        counters
    }

    /// The loaded object.
    pub fn object(&self) -> &Object {
        &self.loaded.object
    }

    /// Every map of it, by name.
    pub fn raw_maps(&self) -> &BTreeMap<&'static str, RawMap> {
        &self.loaded.maps
    }

    /// Takes every id out of the queue of the first SNAT address, in order.
    pub fn drain_free_ids(&self) -> Vec<u32> {
        let mut queue = self
            .maps
            .free_ids(0)
            .expect("a queue")
            .expect("the slot is open");
        std::iter::from_fn(|| queue.pop().ok()).collect()
    }

    /// Puts ids into the queue of the first SNAT address.
    pub fn give_free_ids(&self, ids: &[u32]) {
        let mut queue = self
            .maps
            .free_ids(0)
            .expect("a queue")
            .expect("the slot is open");
        for id in ids {
            queue.push(*id).expect("room in the queue");
        }
    }

    /// The fragmented datagrams that are followed, with their places.
    pub fn fragmented(&self) -> Vec<(u32, Datagram)> {
        let records = self.datagrams();
        (0..records.len())
            .map(|place| (place, records.get(&place, 0).expect("a record")))
            .filter(|(_, record)| RecordState::from_raw(record.word).extents().is_some())
            .collect()
    }

    /// Writes the record of a fragmented datagram.
    pub fn set_fragmented(&self, place: u32, record: &Datagram) {
        let mut records = self.datagrams();
        records.set(place, record, 0).expect("a place");
    }

    fn datagrams(&self) -> Array<MapData, Datagram> {
        let pin = self.kept.pins.maps().join("DATAGRAMS");
        let map = MapData::from_pin(pin).expect("the pinned map");
        Map::Array(map).try_into().expect("its layout")
    }

    /// Gives the ids of every SNAT address out in a row, and draws their ports by lot, as `lb` does; before there are flows.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn draw_ports(&mut self) -> Result<()> {
        let Self {
            maps,
            desired,
            loaded,
            ..
        } = self;
        let mut all = desired.snat.iter();
        all.try_for_each(|snat| fill::draw(maps, &loaded.object, snat))
    }

    /// The flow id of a SNAT port of the first address.
    pub fn flow_id(port: u16) -> u32 {
        Self::flow_id_of(0, port)
    }

    /// The flow id of a SNAT port of the address in this slot, which has all ports.
    pub fn flow_id_of(slot: u16, port: u16) -> u32 {
        base(slot) + u32::from(fill::lot(port - FIRST_FLOW_PORT, FLOWS_PER_ADDRESS))
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

    /// Takes the hellos that are there.
    pub fn hellos(&self) -> Vec<HelloRecord> {
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let _entered = runtime.enter();
        let hellos = HelloRing::open(&self.kept.pins.maps());
        let mut hellos = hellos.expect("the hellos");
        std::iter::from_fn(|| hellos.take()).collect()
    }

    /// How many instructions the verifier walked, by program.
    pub fn verified_instructions(&self) -> BTreeMap<&'static str, u32> {
        let mut counts = BTreeMap::new();
        for name in PROGRAMS {
            let info = self.object().info(name).expect("the program's facts");
            counts.insert(name, info.verified_instruction_count().unwrap_or(0));
        }
        counts
    }
}

/// More network ids than a configuration of a test has.
const NETWORKS: u16 = 8;

/// Ids per SNAT address.
pub const IDS: usize = FLOWS_PER_ADDRESS as usize;

fn verdict(slot: u32) -> &'static str {
    let plain = [
        (Verdict::Passed, "passed"),
        (Verdict::Transmitted, "transmitted"),
        (Verdict::Forwarded, "forwarded"),
        (Verdict::Delivered, "delivered"),
        (Verdict::Returned, "returned"),
        (Verdict::Consumed, "consumed"),
    ];
    let found = plain
        .into_iter()
        .map(|(verdict, label)| (verdict.slot(), label))
        .chain([(MTU_RAISED, "icmp_floor")])
        .chain(HELLO_ENDS)
        .find(|(known, _)| *known == slot)
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
