//! The keys of a file, of which some are for the main file alone.

use lb_common::maps::{MAX_BACKENDS, MAX_POOLS, MAX_SERVICES, MAX_SNAT_ADDRESSES};

use super::{
    admin::RawAdmin,
    cluster::Cluster,
    declare::{Declared as _, section},
    ha::RawHa,
    kinds::{Entries, File, Files, Filled, Flag, KeptPreset, Number, Preset, Whole, kinds},
    kubernetes::RawKubernetes,
    log::RawLog,
    mapping::{Mapping, Scope},
    network::RawNetwork,
    pool::{RawGroup, RawPool},
    service::RawService,
    timeouts::RawTimeouts,
    values::{checked, within, word},
};
use crate::config::{
    model::OnStop,
    place::{At, Location, MAIN},
    problem::Findings,
    yaml::Node,
};

section! {
    /// The sections of a file. A file that is included has none of the keys that are for the main file alone.
    struct RawFile = "file" {
        /// Version of this format: 1.
        required version: Number,
        /// Other files with the same sections, except those that only the main file has: one path or a list of them,
        /// relative to the folder of this file. The last part of a path may have a `*`, which may find nothing; a path
        /// without one must exist. Files are read in the order of their names, and each name in them is defined once.
        /// All are validated and applied as one.
        optional[only(main)] include: Files,
        /// What entries have that do not say otherwise, for each key except lists of members, VIPs and base domains. Of
        /// `health` and of the parts of a cluster (`api`, `oauth` and so on) each key counts on its own; `health`
        /// without a check is for entries that have one. `keepalive` and `never` are not for services at IPv6 or for
        /// UDP alone, and prefixes of `deny` not for services of another family.
        optional[only(main)] defaults: Filled<Defaults>,
        /// The layer-2 networks that the load balancer is attached to; at least one in all files. Names have a-z, 0-9
        /// and -, at most 63 characters, as those of nodes, pools and services have.
        optional networks: Entries<RawNetwork> => "required without `include`",
        /// Groups of nodes, for pools and clusters to refer to.
        optional nodes: Entries<RawGroup>,
        /// Backends that serve the same thing. A pool that no service uses is allowed.
        optional pools: Entries<RawPool>,
        /// What the clients of a network can reach.
        optional services: Entries<RawService>,
        /// Hosted control planes, each of which becomes pools and services named CLUSTER-api, CLUSTER-apps-https and so
        /// on; names have at most 48 characters.
        optional clusters: Entries<Cluster>,
        /// Clusters of Kubernetes whose APIs say where services are, for the `backends` of pools to refer to; names as of
        /// networks.
        optional[only(main)] kubernetes: Entries<RawKubernetes>,
        /// What the maps can hold.
        optional[only(main)] limits: Filled<RawLimits> => "each key its own",
        /// How long flows may be idle that are not established, or not any more: 100ms to 30d each.
        optional[only(main)] timeouts: Filled<RawTimeouts> => "each key its own",
        /// Where flows are written when they begin and end, and requests, and where events are sent to.
        optional[only(main)] log: Filled<RawLog> => "no log",
        /// How operators and monitoring reach the control plane.
        optional[only(main)] admin: Filled<RawAdmin> => "root and the own user alone",
        /// Two boxes with one service, an active one and a standby.
        optional[only(main)] ha: Whole<RawHa> => "one box alone",
        /// What the choice of backends goes by beside addresses, ports and names: 1 to 64 characters. With the same one,
        /// balancers with the same file choose alike (but for clients of IPv6); with one that clients do not know, they
        /// cannot foresee their backends. Another one changes the choice for new flows of all pools, and ends none.
        optional[only(main)] seed: Seed => "none",
        /// A file with the secret that the SYN cookies of a group of balancers are made with: at least 16 random bytes. Balancers
        /// with the same one, and with clocks that agree within a second, take each other's cookies (but for the second in each 64
        /// in which one has the next key and the other has not), so a client that is connecting goes on where another one takes its
        /// VIP over. It is read at a start.
        optional[only(main)] syn_cookie_key: File => "one of its own, which its first start makes in the state folder",
        /// Whether a changed file is applied without `lb reload`, once it has been left alone for a second.
        optional[only(main)] watch: Flag = "false",
        /// What a stop of `lb run` (SIGTERM, SIGINT) leaves: `forward` (the data plane goes on alone) or `drop`
        /// (packets to VIPs and SNAT addresses, those of established flows included, are dropped until the next start,
        /// and ARP for them is not answered, so that a standby may take the addresses). A take-over and a crash stop
        /// nothing.
        optional[only(main)] on_stop: AtStop = "forward",
    }
    also(_keys) {
        /// Those of the files that are included.
        other_versions: Vec<At<u64>> = Vec::new(),
    }
}

section! {
    /// What entries have that do not say otherwise. Of a component of a cluster and of `health` each key counts on
    /// its own.
    struct Defaults = "defaults" {
        /// For each entry of `networks`.
        optional network: Preset<RawNetwork>,
        /// For each entry of `pools`; not for the pools of clusters.
        optional pool: Preset<RawPool>,
        /// For each entry of `services`; not for the services of clusters.
        optional service: Preset<RawService>,
        /// For each entry of `clusters`.
        optional cluster: KeptPreset<Cluster>,
    }
}

section! {
    /// How much there may be. `snat_addresses` and `handed_over` are sizes of maps, and become larger with `lb run --migrate`; the others
    /// may change with a reload.
    struct RawLimits = "limits" {
        /// SNAT addresses of all networks and boxes, 1 to 128; 7 MB each.
        optional snat_addresses: SnatCount = "8",
        /// `listen` entries of all services, 1 to 65535.
        optional services: EntryCount = "16384",
        /// Backends of all pools, 1 to 65535.
        optional backends: EntryCount = "32768",
        /// Pools, 1 to 4096.
        optional pools: PoolCount = "2048",
        /// Connections of shared VIPs that the data plane carries at a time, 1 to 1000000; those beyond are copied by the
        /// process. 0.3 MB for a thousand, two thirds of it as they come.
        optional handed_over: HandedOverCount = "65536",
    }
}

/// The most characters of a `seed`.
const MAX_SEED: usize = 64;

/// The largest `limits.snat_addresses`.
const MAX_SNAT: u16 = 128;

const _: () = assert!(MAX_SNAT as u32 == MAX_SNAT_ADDRESSES);
const _: () = assert!(MAX_SERVICES == 65_535 && MAX_BACKENDS == 65_535 && MAX_POOLS == 4096);

kinds! {
    AtStop("word"): Option<At<OnStop>> = word(&[OnStop::Forward, OnStop::Drop]);
    SnatCount("number"): Option<At<u16>> = within(1..=MAX_SNAT);
    EntryCount("number"): Option<At<u32>> = within(1..=65_535);
    PoolCount("number"): Option<At<u32>> = within(1..=4096);
    HandedOverCount("number"): Option<At<u32>> = within(1..=1_000_000);
    Seed("text"): Option<At<String>> = checked(check_seed);
}

fn check_seed(text: &str, place: &Location, findings: &mut Findings) {
    let count = text.chars().count();
    if !(1..=MAX_SEED).contains(&count) {
        let words = format!("found {count} characters, expected 1 to {MAX_SEED}");
        findings.add(place, words);
    }
}

/// The form of a file that includes others.
const MAIN_FILE: &str = "main";

/// The typed values of the main file; nothing if it is not a mapping.
pub(in crate::config) fn read(tree: &Node, findings: &mut Findings) -> Option<RawFile> {
    let place = Location::root(MAIN);
    let file = Mapping::open(tree, place, RawFile::SECTION, Scope::All, findings)?;
    let defaults = file.inside("defaults", Defaults::SECTION, &mut Findings::new(""));
    let file = file.with_presets(defaults.as_ref());
    let raw = RawFile::read(&file, findings);
    // Of these only the problems matter here: each entry reads them again.
    let Defaults {
        network: (),
        pool: (),
        service: (),
        cluster: _,
    } = raw.defaults;
    if file.is_absent("include") {
        let place = file.place_of_key("networks");
        if file.is_absent("networks") {
            findings.add(&place, "missing; this key is required");
        } else if raw.networks.whole && raw.networks.elements.is_empty() {
            findings.add(&place, "found no network, expected at least one");
        }
    }
    Some(raw)
}

/// The typed values of an included file, with the defaults of the `main` one.
pub(in crate::config) fn read_included(
    tree: &Node,
    file: usize,
    main: &Node,
    findings: &mut Findings,
) -> Option<RawFile> {
    let of_main = Location::root(MAIN);
    let ignored = &mut Findings::new("");
    let main = Mapping::open(main, of_main, RawFile::SECTION, Scope::All, ignored);
    let defaults = main.and_then(|main| main.inside("defaults", Defaults::SECTION, ignored));
    let place = Location::root(file);
    let keys = Mapping::open(tree, place, RawFile::SECTION, Scope::All, findings)?;
    for key in RawFile::SECTION.keys() {
        if key.only.contains(&MAIN_FILE) && keys.has(key.name) {
            let words = "only the main file can have this section";
            findings.add(&keys.place_of_key(key.name), words);
        }
    }
    let keys = keys.with_presets(defaults.as_ref()).included();
    Some(RawFile::read(&keys, findings))
}
