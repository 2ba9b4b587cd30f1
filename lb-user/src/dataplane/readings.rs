//! What the data plane counts, for a thread that only reads: beside one map, everything is in memory already, or held by
//! the process.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, PerCpuArray};
use lb_common::{
    maps::half_open,
    verdict::{Counters, Hook},
};

use super::{
    backend_answers::AnswerTable,
    counts::CountTable,
    flows::{FlowTable, UsageTable, monotonic_seconds},
    map_of_maps::HeldMaps,
    maps::sum,
};

/// See the module. It holds one descriptor, and mappings that all tables of the process share.
pub struct Readings {
    verdicts: PerCpuArray<MapData, Counters>,
    /// Flows in full use.
    pub usage: UsageTable,
    /// How backends answer; none of an older data plane.
    pub answers: Option<AnswerTable>,
    /// The flows.
    pub flows: FlowTable,
    /// What is counted; none of an older data plane.
    pub counts: Option<CountTable>,
    held: HeldMaps,
}

/// How a ring of flows is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingUse {
    /// Its places.
    pub places: u64,
    /// How many flows ever took one.
    pub taken: u64,
    /// Whether SYNs are answered by cookies because of the flows in it.
    pub is_flooded: bool,
}

impl Readings {
    /// Opens what is pinned in `folder`, beside maps in maps that are `held`.
    ///
    /// # Errors
    ///
    /// If a pin is missing, or the data plane is older.
    pub(super) fn open(folder: &Path, held: HeldMaps) -> Result<Self> {
        let verdicts = MapData::from_pin(folder.join("VERDICTS"));
        let verdicts = verdicts.context("open the pinned map VERDICTS")?;
        Ok(Self {
            verdicts: Map::PerCpuArray(verdicts).try_into()?,
            usage: UsageTable::open(folder)?,
            answers: AnswerTable::open(folder)?,
            flows: FlowTable::open(folder)?,
            counts: CountTable::open(folder)?,
            held,
        })
    }

    /// The counters of a hook and a network by slot, summed over the CPUs.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn counters(&self, hook: Hook, network: u16) -> Result<Counters> {
        sum(&self.verdicts, hook, network)
    }

    /// How the ring of a network's flows is used, if it has one that this process has made or may open.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a look-up.
    pub fn ring(&self, network: u16, udp: bool) -> Result<Option<RingUse>> {
        let Some(ring) = self.held.copy("RINGS", half_open::index(network, udp))? else {
            return Ok(None);
        };
        let ring: Array<MapData, u64> = Map::Array(MapData::from_fd(ring)?).try_into()?;
        Ok(Some(RingUse {
            places: ring.get(&half_open::SIZE, 0)?,
            taken: ring.get(&half_open::HEAD, 0)?,
            is_flooded: half_open::is_flooded(
                ring.get(&half_open::FLOODED, 0)?,
                monotonic_seconds(),
            ),
        }))
    }
}
