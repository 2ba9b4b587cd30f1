//! Every map. Layouts and sizes are in `lb_common::maps`, and what each one is for in its `declarations`; userspace
//! sets the real sizes.

use aya_ebpf::{
    bindings::{BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{
        Array, ArrayOfMaps, DevMap, DevMapHash, HashMap, LpmTrie, PerCpuArray, Queue, RingBuf,
    },
    macros::btf_map,
};
use lb_common::{
    addr::Be128,
    affinity, contact,
    maps::{
        DEFAULT_HANDED_OVER, MAX_ADDRESSES, MAX_BACKENDS, MAX_CLONES, MAX_LABELS, MAX_NAMES,
        MAX_NETWORKS, MAX_POOLS, MAX_RULES, MAX_SERVER_NAMES, MAX_SERVICES, MAX_SNAT_ADDRESSES,
        addr6::HashKey,
        backend::Backend,
        backend_answers::BackendAnswers,
        cell_peer::PeerKey,
        cell_socket::{CellSocket, MAX_CELL_SOCKETS},
        cookies::CookieKeys,
        counts::{self, Record},
        door::{DOOR_LINES, DoorLine},
        drop_sample::{self, Sample},
        event::{BUFFER_BYTES, FlowEvent},
        flow::{Flow, FlowKey},
        flow_line::{self, FlowLine, LineKey},
        fragment::{self, Datagram},
        hello::{HELLO_BUFFER_BYTES, HELLO_SLOTS as HELLO_SLOT_COUNT, HelloHead, HelloSlot},
        network::{Address, AddressKey, Network, NetworkKey},
        pending::Pending,
        quota::{self, Quota},
        registry::RegistryKey,
        rule::{RuleKey, RuleKey6},
        server_name::NameKey,
        service::{Service, ServiceKey},
        snat::{FLOWS_PER_ADDRESS, PAGES_PER_ADDRESS, PortPage, SnatPage, flow_entries},
        splice::{Binding, Splice, SpliceName},
        usage,
    },
    rate::Rates,
    reject::v4::Answers,
    station,
    traffic::{SPILL_PLACES, Spilled},
    verdict::Counters,
};

const ONE_ADDRESS: usize = flow_entries(1) as usize;

#[btf_map]
pub(crate) static NETWORK_IDS: HashMap<NetworkKey, u32, { 2 * MAX_NETWORKS as usize }> =
    HashMap::new();
#[btf_map]
pub(crate) static NETWORKS: Array<Network, { MAX_NETWORKS as usize }> = Array::new();
#[btf_map]
pub(crate) static ADDRESSES: HashMap<AddressKey, Address, { MAX_ADDRESSES as usize }> =
    HashMap::new();
#[btf_map]
pub(crate) static DOORS: Array<DoorLine, { DOOR_LINES as usize }, { BPF_F_MMAPABLE as usize }> =
    Array::new();
#[btf_map]
pub(crate) static LOCAL_PEERS: HashMap<
    PeerKey,
    u32,
    { 2 * MAX_BACKENDS as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
#[btf_map]
pub(crate) static SERVICES: HashMap<
    ServiceKey,
    Service,
    { MAX_SERVICES as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
#[btf_map]
pub(crate) static RULES: LpmTrie<RuleKey, u32, { MAX_RULES as usize }> = LpmTrie::new();
#[btf_map]
pub(crate) static RULES6: LpmTrie<RuleKey6, u32, { MAX_RULES as usize }> = LpmTrie::new();
/// Labels by IPv6 address; userspace gives them out, and this is its list of them.
#[btf_map]
pub(crate) static LABELS: HashMap<
    Be128,
    u32,
    { MAX_LABELS as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
/// IPv6 addresses by the index of their label.
#[btf_map]
pub(crate) static ADDRESSES6: Array<Be128, { 1 + MAX_LABELS as usize }> = Array::new();
/// Clients of IPv6 by flow id.
#[btf_map]
pub(crate) static CLIENTS6: Array<Be128, ONE_ADDRESS, { BPF_F_MMAPABLE as usize }> = Array::new();
#[btf_map]
pub(crate) static HASH_KEY: Array<HashKey, 1> = Array::new();
#[btf_map]
pub(crate) static MAGLEV: ArrayOfMaps<
    Array<u32, 1, { (BPF_F_INNER_MAP | BPF_F_MMAPABLE) as usize }>,
    { 1 + 2 * MAX_POOLS as usize },
> = ArrayOfMaps::new();
#[btf_map]
pub(crate) static BACKENDS: Array<Backend, { 1 + MAX_BACKENDS as usize }> = Array::new();
#[btf_map]
pub(crate) static BACKEND_ANSWERS: Array<
    BackendAnswers,
    { 1 + MAX_BACKENDS as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
#[btf_map]
pub(crate) static SNAT_PAGES: Array<
    SnatPage,
    { (1 + MAX_SNAT_ADDRESSES * PAGES_PER_ADDRESS) as usize },
> = Array::new();
/// Flow ids by their ports.
#[btf_map]
pub(crate) static SNAT_PORTS: Array<
    PortPage,
    { (1 + PAGES_PER_ADDRESS) as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
#[btf_map]
pub(crate) static FREE_IDS: ArrayOfMaps<
    Queue<u16, { FLOWS_PER_ADDRESS as usize }>,
    { MAX_SNAT_ADDRESSES as usize },
> = ArrayOfMaps::new();
/// Flow ids by the lines of their keys.
#[btf_map]
pub(crate) static FLOW_LINES: Array<
    FlowLine,
    { flow_line::lines(ONE_ADDRESS as u32) as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
/// How keys come to their lines.
#[btf_map]
pub(crate) static LINE_KEY: Array<LineKey, 1> = Array::new();
#[btf_map]
pub(crate) static FLOWS: Array<Flow, ONE_ADDRESS, { BPF_F_MMAPABLE as usize }> = Array::new();
/// By flow id what replies write, and nothing else.
#[cfg(feature = "line-per-direction")]
#[btf_map]
pub(crate) static REPLY_LINES: Array<Flow, ONE_ADDRESS, { BPF_F_MMAPABLE as usize }> = Array::new();
/// What the ends of a flow have pending, by its id.
#[btf_map]
pub(crate) static PENDING: Array<Pending, ONE_ADDRESS> = Array::new();
#[btf_map]
pub(crate) static BINDINGS: Array<Binding, ONE_ADDRESS, { BPF_F_MMAPABLE as usize }> = Array::new();
#[btf_map]
pub(crate) static SPLICES: Array<
    Splice,
    { DEFAULT_HANDED_OVER as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
#[btf_map]
pub(crate) static SPLICE_NAMES: HashMap<
    u32,
    SpliceName,
    { DEFAULT_HANDED_OVER as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
#[btf_map]
pub(crate) static USAGE: Array<
    u32,
    { usage::entries(MAX_SERVICES) as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
/// Live flows by backend id.
#[btf_map]
pub(crate) static BACKEND_FLOWS: Array<
    u32,
    { 1 + MAX_BACKENDS as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
/// What is counted of networks, backends and services, by `counts::block`.
#[btf_map]
pub(crate) static COUNTS: ArrayOfMaps<
    Array<Record, 1, { (BPF_F_INNER_MAP | BPF_F_MMAPABLE) as usize }>,
    { counts::BLOCKS as usize },
> = ArrayOfMaps::new();
/// What the entries of flows have no room for, by `traffic::spill_place`.
#[btf_map]
pub(crate) static SPILLED: Array<Spilled, { SPILL_PLACES as usize }, { BPF_F_MMAPABLE as usize }> =
    Array::new();
/// Backends that clients have had, by `affinity::Place`.
#[btf_map]
pub(crate) static AFFINITIES: Array<
    u64,
    { affinity::ENTRIES as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
/// What the clients of each network have of each bank, by `quota::index`.
#[btf_map]
pub(crate) static QUOTAS: Array<Quota, { quota::ENTRIES as usize }, { BPF_F_MMAPABLE as usize }> =
    Array::new();
/// Banks by the slot of a SNAT address.
#[btf_map]
pub(crate) static BANKS: Array<u32, { MAX_SNAT_ADDRESSES as usize }, { BPF_F_MMAPABLE as usize }> =
    Array::new();
#[btf_map]
pub(crate) static RINGS: ArrayOfMaps<
    Array<u64, 1, { BPF_F_INNER_MAP as usize }>,
    { 2 * MAX_NETWORKS as usize },
> = ArrayOfMaps::new();
#[btf_map]
pub(crate) static FLOW_EVENTS: RingBuf<FlowEvent, { BUFFER_BYTES as usize }> = RingBuf::new();
/// The keys of SYN cookies, at `cookies::COOKIE_KEYS`.
#[btf_map]
pub(crate) static COOKIES: Array<CookieKeys, 1, { BPF_F_MMAPABLE as usize }> = Array::new();
/// What SYN-ACKs to clients of shared VIPs offer, by service id: words of a `VipOffer`.
#[btf_map]
pub(crate) static VIP_OFFERS: Array<
    u64,
    { 1 + MAX_SERVICES as usize },
    { BPF_F_MMAPABLE as usize },
> = Array::new();
/// First segments of hellos, by a hash of their tuples.
#[btf_map]
pub(crate) static HELLO_SLOTS: Array<HelloSlot, { HELLO_SLOT_COUNT as usize }> = Array::new();
/// A record is a `HelloHead`, and the bytes of the hello.
#[btf_map]
pub(crate) static HELLOS: RingBuf<HelloHead, { HELLO_BUFFER_BYTES as usize }> = RingBuf::new();
/// The NICs of backends, one after the other, and one of them at the end: see `syn_cookie::clone`.
#[btf_map]
pub(crate) static CLONES: DevMap<{ 1 + MAX_CLONES as usize }> = DevMap::new();
/// The NICs, by their own numbers: see `emit`.
#[btf_map]
pub(crate) static EGRESS: DevMapHash<{ MAX_NETWORKS as usize }> = DevMapHash::new();
/// Where clients of shared VIPs go that request a name, as `server_name::PoolRoute` is one number.
#[btf_map]
pub(crate) static SERVER_NAMES: HashMap<
    NameKey,
    u64,
    { MAX_SERVER_NAMES as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
#[btf_map]
pub(crate) static CELL_SOCKETS: HashMap<
    FlowKey,
    CellSocket,
    { MAX_CELL_SOCKETS as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
/// The latest dropped packets, by `sample::index`. One for all CPUs: for each it would be 1.1 MB more.
#[btf_map]
pub(crate) static DROP_SAMPLES: Array<Sample, { drop_sample::ENTRIES as usize }> = Array::new();
/// What a CPU keeps for its answers in each network: so that no network's clients use up those of
/// another.
#[btf_map]
pub(crate) static ANSWERS: PerCpuArray<Answers, { MAX_NETWORKS as usize }> = PerCpuArray::new();
/// What a CPU keeps of each network for what it answers or lets into a cell at a rate; likewise.
#[btf_map]
pub(crate) static RATES: PerCpuArray<Rates, { MAX_NETWORKS as usize }> = PerCpuArray::new();
/// The ends that sockets of cells have spoken to: `contact::Contact`.
#[btf_map]
pub(crate) static CONTACTS: Array<u32, { contact::PLACES as usize }> = Array::new();
/// The stations that cells may have looked for lately: `station::Station`.
#[btf_map]
pub(crate) static STATIONS: Array<u32, { station::PLACES as usize }> = Array::new();
/// How many of them each network has added: `station::Added`.
#[btf_map]
pub(crate) static ADDED: Array<u32, { MAX_NETWORKS as usize }> = Array::new();
#[btf_map]
pub(crate) static DATAGRAMS: Array<Datagram, { fragment::DATAGRAMS as usize }> = Array::new();
/// The next IP identification of this CPU; a multiple of `fragment::BLOCK` if it needs new ones.
#[btf_map]
pub(crate) static IP_IDS: PerCpuArray<u32, 1> = PerCpuArray::new();
/// The first IP identification that no CPU has taken.
#[btf_map]
pub(crate) static IP_ID_BLOCKS: Array<u32, 1> = Array::new();
/// All of a hook and a network are one value: the kernel allocates each value for each CPU.
#[btf_map]
pub(crate) static VERDICTS: PerCpuArray<Counters, { 2 * MAX_NETWORKS as usize }> =
    PerCpuArray::new();

/// Userspace only: ids by name, pinned with the rest so that they share its fate.
#[btf_map]
pub(crate) static REGISTRY: HashMap<
    RegistryKey,
    u32,
    { MAX_NAMES as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();
