//! Every map with what it holds, and which side writes and reads it. `lb-ebpf/src/maps.rs` declares the maps
//! themselves: a test compares the two, and `docs/design/maps.md` is made of this list.

use self::MapSize::{Fixed, Limited};
use super::{
    MAX_ADDRESSES, MAX_BACKENDS, MAX_CLONES, MAX_LABELS, MAX_NAMES, MAX_NETWORKS, MAX_POOLS,
    MAX_RULES, MAX_SERVER_NAMES, MAX_SERVICES, MAX_SNAT_ADDRESSES,
    addr6::HashKey,
    backend::Backend,
    backend_answers::BackendAnswers,
    cell_peer::PeerKey,
    cell_socket::{CellSocket, MAX_CELL_SOCKETS},
    cookies::{COOKIE_KEYS, CookieKeys},
    counts,
    door::{DOOR_LINES, DoorLine},
    drop_sample::{self, Sample},
    event::{BUFFER_BYTES, FlowEvent},
    flow::{Flow, FlowKey},
    flow_line::{FlowLine, LineKey},
    fragment::{self, Datagram},
    hello::{HELLO_BUFFER_BYTES, HELLO_SLOTS, HelloHead, HelloSlot},
    network::{Address, AddressKey, Network, NetworkKey},
    pending::Pending,
    quota::{self, Quota},
    registry::RegistryKey,
    rule::{RuleKey, RuleKey6},
    server_name::NameKey,
    service::{Service, ServiceKey},
    snat::{PAGES_PER_ADDRESS, PortPage, SnatPage},
    splice::{Binding, Splice, SpliceName},
    usage,
};
use crate::{
    addr::Be128,
    affinity, contact,
    rate::Rates,
    reject::v4::Answers,
    station,
    traffic::{SPILL_PLACES, Spilled},
    verdict::Counters,
};

/// The type of a map, by the kernel's number (include/uapi/linux/bpf.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapType {
    /// By key.
    Hash = 1,
    /// By index.
    Array = 2,
    /// By index, a value for each CPU.
    PerCpuArray = 6,
    /// By the longest prefix that matches.
    LpmTrie = 11,
    /// By index, another map each.
    ArrayOfMaps = 12,
    /// By index, an interface, and a program for what is sent there.
    DevMap = 14,
    /// The same, by key.
    DevMapHash = 25,
    /// A buffer of records that userspace reads as they come.
    RingBuffer = 27,
}

/// How many entries a map has; of a ring buffer, how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapSize {
    /// Always as many.
    Fixed(u32),
    /// As `limits:` of the configuration say at the first start, by this formula.
    Limited(&'static str),
}

/// A map of the object.
#[derive(Clone, Copy, Debug)]
pub struct MapDeclaration {
    /// Its name in the object, which its pin has, too.
    pub name: &'static str,
    /// Its type.
    pub map_type: MapType,
    /// Whether userspace has it in its memory.
    pub is_mmapable: bool,
    /// Whether the kernel takes the memory of all entries with the map; otherwise that of each one with the entry
    /// (`BPF_F_NO_PREALLOC`).
    pub is_preallocated: bool,
    /// Bytes of a key; 0 where there is none.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How many entries it has.
    pub size: MapSize,
    /// What a key or an index is.
    pub key: &'static str,
    /// What a value is.
    pub value: &'static str,
    /// What writes it.
    pub written_by: &'static str,
    /// What goes by it.
    pub read_by: &'static str,
}

/// The programs in the kernel.
const XDP: &str = "XDP";
/// The process, and what looks at the pins.
const USER: &str = "user";
/// Both of them.
const BOTH: &str = "XDP, user";
/// One entry for each flow.
const FLOW_IDS: MapSize = Limited("1024 + 56,320 × `snat_addresses`");

/// All of them, in the order of `lb-ebpf/src/maps.rs`.
pub const MAPS: [MapDeclaration; 53] = [
    hash::<NetworkKey, u32>("NETWORK_IDS", Fixed(2 * MAX_NETWORKS))
        .holds("interface, VLAN", "network id")
        .used(USER, XDP),
    array::<Network>("NETWORKS", Fixed(MAX_NETWORKS))
        .holds(
            "network id",
            "NIC, cell, MAC, VLAN, role, rule sets, budget, MTU, MSS, SNAT slots",
        )
        .used(USER, XDP),
    hash::<AddressKey, Address>("ADDRESSES", Fixed(MAX_ADDRESSES))
        .holds(
            "network, address",
            "VIP, SNAT with its id range, or both; a cell's link-local address",
        )
        .used(USER, XDP),
    array::<DoorLine>("DOORS", Fixed(DOOR_LINES))
        .mapped()
        .holds(
            "line of an interface, VLAN and IPv4 destination",
            "two of these, with network id and address: what both maps before say, in one look-up",
        )
        .used(USER, XDP),
    hash::<PeerKey, u32>("LOCAL_PEERS", Fixed(2 * MAX_BACKENDS))
        .as_used()
        .holds(
            "network, address, port",
            "1: the backend that a check probes or a shared VIP dials",
        )
        .used(USER, XDP),
    hash::<ServiceKey, Service>("SERVICES", Fixed(MAX_SERVICES))
        .as_used()
        .holds(
            "network, VIP, port, protocol",
            "pool, service id, rule set, flags, budget",
        )
        .used(USER, XDP),
    trie::<RuleKey, u32>("RULES", Fixed(MAX_RULES))
        .holds("rule set, IPv4 prefix", "allow, deny, or of the link")
        .used(USER, XDP),
    trie::<RuleKey6, u32>("RULES6", Fixed(MAX_RULES))
        .holds(
            "rule set, IPv6 prefix",
            "allow, deny, or of the link; a set has both families",
        )
        .used(USER, XDP),
    hash::<Be128, u32>("LABELS", Fixed(MAX_LABELS))
        .as_used()
        .holds("IPv6 address", "index of its label")
        .used(USER, BOTH),
    array::<Be128>("ADDRESSES6", Fixed(1 + MAX_LABELS))
        .holds("index of a label", "its IPv6 address")
        .used(USER, BOTH),
    array::<Be128>("CLIENTS6", FLOW_IDS)
        .mapped()
        .holds("flow id", "its client, if it is one of IPv6")
        .used(XDP, BOTH),
    array::<HashKey>("HASH_KEY", Fixed(1))
        .holds("0", "key of the hash of IPv6 clients; random, made at the first start")
        .used(USER, BOTH),
    array_of_maps("MAGLEV", Fixed(1 + 2 * MAX_POOLS))
        .holds(
            "pool id, or that and 4096",
            "array of its size, that many backend ids, turns, that many shares, the pool id, and how many backends and \
             which have a share",
        )
        .used("user; the turns, XDP", XDP),
    array::<Backend>("BACKENDS", Fixed(1 + MAX_BACKENDS))
        .holds("backend id", "address, port, network, next hop")
        .used(USER, XDP),
    array::<BackendAnswers>("BACKEND_ANSWERS", Fixed(1 + MAX_BACKENDS))
        .mapped()
        .holds(
            "backend id",
            "SYNs that it did not answer, or refused; connections that went to another one",
        )
        .used(XDP, USER),
    array::<SnatPage>(
        "SNAT_PAGES",
        Fixed(1 + MAX_SNAT_ADDRESSES * PAGES_PER_ADDRESS),
    )
    .holds("flow id / 1024", "SNAT address")
    .used(USER, XDP),
    array::<PortPage>("SNAT_PORTS", Limited("1 + 55 × `snat_addresses`"))
        .mapped()
        .holds("1024 SNAT ports", "offsets of their flow ids from the first of the address; random, made when it is opened")
        .used(USER, BOTH),
    array_of_maps("FREE_IDS", Fixed(MAX_SNAT_ADDRESSES))
        .holds(
            "SNAT slot",
            "queue of free flow ids, oldest freed first, and at first in a row",
        )
        .used(
            "XDP; filled, and at a start completed, by user",
            "XDP; for sockets, user",
        ),
    array::<FlowLine>("FLOW_LINES", Limited("21 for 128 of `FLOWS`, and up to 4096 in front"))
        .mapped()
        .holds("line of a request tuple, of three", "16 flow ids with tags of their tuples")
        .used(
            "XDP; user, of what is handed over, and to forget a closed flow",
            BOTH,
        ),
    array::<LineKey>("LINE_KEY", Fixed(1))
        .holds("0", "key of the hash of request tuples; random, made at the first start")
        .used(USER, BOTH),
    array::<Flow>("FLOWS", FLOW_IDS)
        .mapped()
        .holds("flow id", "entry")
        .used("XDP; user, the word, and what a socket leases", BOTH),
    array::<Pending>("PENDING", FLOW_IDS)
        .holds(
            "flow id",
            "numbers behind a SYN or FIN that wait for an acknowledgment",
        )
        .used(XDP, XDP),
    array::<Binding>("BINDINGS", FLOW_IDS)
        .mapped()
        .holds("flow id", "number of its splice, and what its backend's SYN-ACK had; or all numbers of a flow that XDP has bound")
        .used("the first by user, the others by XDP", BOTH),
    array::<Splice>("SPLICES", Limited("1 + `handed_over`"))
        .mapped()
        .holds("number", "what the numbers of a connection become that was handed over")
        .used("user; one field by XDP", BOTH),
    hash::<u32, SpliceName>("SPLICE_NAMES", Limited("`handed_over`, and 1024 under way"))
        .as_used()
        .holds("flow id", "name that the client of a connection that was handed over, or bound, has requested")
        .used(BOTH, USER),
    array::<u32>("USAGE", Fixed(usage::entries(MAX_SERVICES)))
        .mapped()
        .holds("network or service", "flows in full use")
        .used(BOTH, BOTH),
    array::<u32>("BACKEND_FLOWS", Fixed(1 + MAX_BACKENDS))
        .mapped()
        .holds("backend id", "flows in full use")
        .used(BOTH, BOTH),
    array_of_maps("COUNTS", Fixed(counts::BLOCKS))
        .holds(
            "block of 64 records",
            "array of them, once for the process and once for each CPU: what is counted of networks, backends and services",
        )
        .used("XDP; made by user, and the first of each by user", USER),
    array::<Spilled>("SPILLED", Fixed(SPILL_PLACES))
        .mapped()
        .holds("flow id, modulo", "flow, and its bytes and packets that the entry has no room for")
        .used(XDP, USER),
    array::<u64>("AFFINITIES", Fixed(affinity::ENTRIES))
        .mapped()
        .holds(
            "network, 1024 sets of 4",
            "the backend that a client of a pool with `source_timeout` has had last, and when",
        )
        .used(BOTH, BOTH),
    array::<Quota>("QUOTAS", Fixed(quota::ENTRIES))
        .mapped()
        .holds(
            "network and bank",
            "the most flows, and those in full use",
        )
        .used("the first by user, the second by both", BOTH),
    array::<u32>("BANKS", Fixed(MAX_SNAT_ADDRESSES))
        .mapped()
        .holds("SNAT slot", "bank")
        .used(USER, BOTH),
    array_of_maps("RINGS", Fixed(2 * MAX_NETWORKS))
        .holds(
            "network, TCP or UDP",
            "array of its size, a count, and its latest half-open TCP or UDP flows",
        )
        .used("XDP; made by user", BOTH),
    ring_buffer::<FlowEvent>("FLOW_EVENTS", BUFFER_BYTES)
        .holds(
            "-",
            "flows that began or ended, for the flow log (88 bytes from an older data plane)",
        )
        .used(XDP, USER),
    array::<CookieKeys>("COOKIES", Fixed(1 + COOKIE_KEYS))
        .mapped()
        .holds("0", "epoch and keys of SYN cookies, and where their clocks begin; when a process has said last that it takes hellos, and what time it was")
        .used(USER, XDP),
    array::<u64>("VIP_OFFERS", Limited("1 + `services`"))
        .mapped()
        .holds("service id", "what a SYN-ACK by a cookie offers at most: bytes in a segment from a client (0: what the network carries), and the options that backends lack")
        .used(BOTH, XDP),
    array::<HelloSlot>("HELLO_SLOTS", Fixed(HELLO_SLOTS))
        .holds("hash of a tuple", "the first segment of a hello, until it is whole or its backend has answered")
        .used(XDP, XDP),
    ring_buffer::<HelloHead>("HELLOS", HELLO_BUFFER_BYTES)
        .holds("-", "hellos to shared VIPs, with their bytes")
        .used(XDP, USER),
    MapDeclaration::new("CLONES", MapType::DevMap, [WORD, 2 * WORD], Fixed(1 + MAX_CLONES))
        .holds(
            "one NIC of backends after the other, each twice, and behind them one once more",
            "interface, and the program that makes a segment of a copy of a frame",
        )
        .used(USER, XDP),
    MapDeclaration::new("EGRESS", MapType::DevMapHash, [WORD, 2 * WORD], Fixed(MAX_NETWORKS))
        .holds(
            "interface",
            "the same, and the program that all frames pass that leave there, if copies do",
        )
        .used(USER, XDP),
    hash::<NameKey, u64>("SERVER_NAMES", Fixed(MAX_SERVER_NAMES))
        .as_used()
        .holds(
            "service and name, or what names are under, and kind of clients; or service and protocol",
            "pool that XDP sends them to, and how a backend is chosen; or the protocol's number",
        )
        .used(USER, XDP),
    hash::<FlowKey, CellSocket>("CELL_SOCKETS", Fixed(MAX_CELL_SOCKETS))
        .as_used()
        .holds("tuple of a client of a shared VIP", "a socket of the cell has its connection: number of its SYN, last packet, whether another one begins")
        .used("user; the time and the state, both", XDP),
    array::<Sample>("DROP_SAMPLES", Fixed(drop_sample::ENTRIES))
        .holds(
            "network and drop reason",
            "the latest packet, one in 16 ms",
        )
        .used(XDP, USER),
    per_cpu::<Answers>("ANSWERS", Fixed(MAX_NETWORKS))
        .holds("network", "answers that this CPU may still give there")
        .used(XDP, XDP),
    per_cpu::<Rates>("RATES", Fixed(MAX_NETWORKS))
        .holds(
            "network",
            "requests for MACs that this CPU may still answer there, and what it may let into the cell",
        )
        .used(XDP, XDP),
    array::<u32>("CONTACTS", Fixed(contact::PLACES))
        .holds(
            "hash of a tuple",
            "when a socket of a cell has sent to that end last",
        )
        .used("XDP (cell)", XDP),
    array::<u32>("STATIONS", Fixed(station::PLACES))
        .holds(
            "hash of a network and an IPv4 address",
            "when that station of the link was counted last",
        )
        .used(XDP, XDP),
    array::<u32>("ADDED", Fixed(MAX_NETWORKS))
        .holds(
            "network",
            "stations that it has added in this second, and which second",
        )
        .used(XDP, XDP),
    array::<Datagram>("DATAGRAMS", Fixed(fragment::DATAGRAMS))
        .holds(
            "8192 sets of 8",
            "a datagram in pieces: its flow, identification, and what has passed",
        )
        .used(XDP, XDP),
    per_cpu::<u32>("IP_IDS", Fixed(1))
        .holds("0", "the next identification of this CPU")
        .used(XDP, XDP),
    array::<u32>("IP_ID_BLOCKS", Fixed(1))
        .holds("0", "the first identification that no CPU has taken")
        .used(XDP, XDP),
    per_cpu::<Counters>("VERDICTS", Fixed(2 * MAX_NETWORKS))
        .holds("hook, network", "packets by verdict")
        .used(XDP, USER),
    hash::<RegistryKey, u32>("REGISTRY", Fixed(MAX_NAMES))
    .as_used()
    .holds("kind, name", "id")
    .used(USER, USER),
];

/// The names of all maps.
pub const NAMES: [&str; MAPS.len()] = {
    let mut names = [""; MAPS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = MAPS[at].name;
        at += 1;
    }
    names
};

/// Bytes of an index, and of what a map of maps has for an inner one.
const WORD: usize = size_of::<u32>();

const fn hash<K, V>(name: &'static str, size: MapSize) -> MapDeclaration {
    MapDeclaration::new(name, MapType::Hash, [size_of::<K>(), size_of::<V>()], size)
}

/// In front of its key the kernel has the length of the prefix.
const fn trie<K, V>(name: &'static str, size: MapSize) -> MapDeclaration {
    let bytes = [WORD + size_of::<K>(), size_of::<V>()];
    MapDeclaration::new(name, MapType::LpmTrie, bytes, size)
}

const fn array<V>(name: &'static str, size: MapSize) -> MapDeclaration {
    MapDeclaration::new(name, MapType::Array, [WORD, size_of::<V>()], size)
}

const fn per_cpu<V>(name: &'static str, size: MapSize) -> MapDeclaration {
    MapDeclaration::new(name, MapType::PerCpuArray, [WORD, size_of::<V>()], size)
}

const fn array_of_maps(name: &'static str, size: MapSize) -> MapDeclaration {
    MapDeclaration::new(name, MapType::ArrayOfMaps, [WORD, WORD], size)
}

const fn ring_buffer<V>(name: &'static str, bytes: u32) -> MapDeclaration {
    MapDeclaration::new(name, MapType::RingBuffer, [0, size_of::<V>()], Fixed(bytes))
}

impl MapDeclaration {
    const fn new(
        name: &'static str,
        map_type: MapType,
        [key_bytes, value_bytes]: [usize; 2],
        size: MapSize,
    ) -> Self {
        Self {
            name,
            map_type,
            is_mmapable: false,
            is_preallocated: !matches!(map_type, MapType::LpmTrie),
            key_bytes,
            value_bytes,
            size,
            key: "",
            value: "",
            written_by: "",
            read_by: "",
        }
    }

    const fn mapped(mut self) -> Self {
        self.is_mmapable = true;
        self
    }

    const fn as_used(mut self) -> Self {
        self.is_preallocated = false;
        self
    }

    const fn holds(mut self, key: &'static str, value: &'static str) -> Self {
        self.key = key;
        self.value = value;
        self
    }

    const fn used(mut self, written_by: &'static str, read_by: &'static str) -> Self {
        self.written_by = written_by;
        self.read_by = read_by;
        self
    }
}

impl MapType {
    /// In words.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Array => "array",
            Self::PerCpuArray => "per-CPU array",
            Self::LpmTrie => "LPM trie",
            Self::ArrayOfMaps => "array of maps",
            Self::DevMap => "map of devices",
            Self::DevMapHash => "hash of devices",
            Self::RingBuffer => "ring buffer",
        }
    }
}
