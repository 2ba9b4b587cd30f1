//! How a packet ends: exactly one counted verdict, and for a drop its one reason.

/// What happened to a frame. Each has one counter slot per hook and network; so has each answer to a
/// frame that was not served, see [`refusal_slot`]. It has one payload, so that it is one byte: BPF
/// has no registers with undefined bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handed to the host's stack untouched: not ours.
    Passed,
    /// Sent back out of the port it came from (`XDP_TX`).
    Transmitted,
    /// Redirected out of another NIC.
    Forwarded,
    /// Redirected into the network's cell.
    Delivered,
    /// Redirected out of the port it came from, which `lb status` counts among the transmitted ones.
    Returned,
    /// Ended here, and as it should: its bytes are kept, or it has none and says nothing new.
    Consumed,
    /// Dropped, for one reason.
    Dropped(DropReason),
}

/// Counter slots per hook and network.
pub const SLOTS: u32 = 128;
/// Not a verdict: new flows, by their clients' network, that took a SNAT port whose last connection to
/// the same backend may still rest there.
pub const UNRESTED: u32 = 4;
/// Not a verdict: flows, by their clients' network, whose begin or end could not be reported because
/// the buffer of flow events was full.
pub const UNREPORTED: u32 = 5;
/// Not a verdict: ICMP errors from this network, about what a backend had sent, whose MTU was raised to
/// `icmp::MTU_FLOOR`.
pub const MTU_RAISED: u32 = 6;
/// Not verdicts: hellos to shared VIPs whose names the data plane may know, by their clients' network. These have opened a
/// flow, and their backend has answered.
pub const HELLO_BOUND: u32 = 119;
/// They are not as nearly all are, or not whole, and went to the process.
pub const HELLO_UNREAD: u32 = 120;
/// The data plane does not know their names: likewise.
pub const HELLO_UNROUTED: u32 = 121;
/// They could not open a flow: there was no backend, no port, or no budget; likewise.
pub const HELLO_UNOPENED: u32 = 122;
/// No backend has answered: likewise.
pub const HELLO_UNANSWERED: u32 = 123;
/// Their backend has not agreed to what the client was promised: likewise.
pub const HELLO_DISAGREED: u32 = 124;
/// They were not kept, or there was no room for them in the backend's frame: their client sends them again.
pub const HELLO_REPEATED: u32 = 125;
/// What has become of such hellos: the slots, and their names.
pub const HELLO_ENDS: [(u32, &str); 7] = [
    (HELLO_BOUND, "bound"),
    (HELLO_UNREAD, "unread"),
    (HELLO_UNROUTED, "unrouted"),
    (HELLO_UNOPENED, "unopened"),
    (HELLO_UNANSWERED, "unanswered"),
    (HELLO_DISAGREED, "disagreed"),
    (HELLO_REPEATED, "repeated"),
];
const FIRST_DROP: u32 = 8;
const FIRST_REFUSAL: u32 = 64;
const CONSUMED: u32 = SLOTS - 1;
const _: () = assert!(DropReason::ALL.len() <= (HELLO_BOUND - FIRST_REFUSAL) as usize);

impl Verdict {
    /// The counter slot of this verdict, below [`SLOTS`].
    #[inline(always)]
    pub const fn slot(self) -> u32 {
        match self {
            Self::Passed => 0,
            Self::Transmitted => 1,
            Self::Forwarded => 2,
            Self::Delivered => 3,
            Self::Returned => 7,
            Self::Consumed => CONSUMED,
            Self::Dropped(reason) => FIRST_DROP + reason as u32,
        }
    }
}

/// The counter slot of a frame that was not served for the reason with this number: of a drop, or of
/// one whose sender got a reset or an ICMP error instead.
#[inline(always)]
pub const fn refusal_slot(reason: u32, answered: bool) -> u32 {
    let first = if answered { FIRST_REFUSAL } else { FIRST_DROP };
    first + reason
}

/// Where a program is attached; the counters are kept per hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `lb_nic`, on a network's interface.
    Nic = 0,
    /// `lb_cell`, on the outer end of a cell.
    Cell = 1,
}

impl Hook {
    /// Every hook.
    pub const ALL: [Self; 2] = [Self::Nic, Self::Cell];

    /// Short name for tables and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Cell => "cell",
        }
    }
}

/// The counters of a hook and a network, by slot.
pub type Counters = [u64; SLOTS as usize];

/// The counter of a slot below [`SLOTS`].
pub fn counter(counters: &Counters, slot: u32) -> u64 {
    counters.get(slot as usize).copied().unwrap_or_default()
}

/// The index of the counters of a hook and a network.
#[inline(always)]
pub const fn counters_index(hook: Hook, network: u16) -> u32 {
    (network as u32) * 2 + hook as u32
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $label:literal, $help:literal, $remedy:literal;)+) => {
        /// Why a packet was dropped. The numbers are never reused.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason { $(#[doc = $help] $name = $number,)+ }

        impl DropReason {
            /// Every reason, in order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The reason with this number.
            #[inline(always)]
            pub const fn from_number(number: u8) -> Option<Self> {
                if number as usize >= Self::ALL.len() {
                    return None;
                }
                // SAFETY: a byte like the enum, whose numbers have no gap (asserted below). A match
                // would cost the verifier a branch for each reason, and a table a bound that it may
                // not see.
                Some(unsafe { core::mem::transmute::<u8, Self>(number) })
            }

            /// Short name: metric label and JSON value.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// What it means to an operator, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help,)+ }
            }

            /// What an operator does about it, for the reference.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)+ }
            }
        }
    };
}

const _: () = {
    let mut number = 0;
    while number < DropReason::ALL.len() {
        assert!(DropReason::ALL[number] as usize == number, "a gap");
        number += 1;
    }
};

drop_reasons! {
    Malformed = 0, "malformed", "The headers contradict each other or the length of the frame.",
        "Look at the packet in `lb drops`, and at the host that sent it.";
    NotDeclared = 1, "not_declared", "On a tenant network, to an address that is neither a VIP nor a SNAT address.",
        "Correct the client's address, or declare a service there. Attempts to reach the hub end here, too.";
    NoService = 2, "no_service", "To a VIP, but no service listens on that port and protocol.",
        "Compare the port with `lb services`, and add it to `listen`. With `reject: true` of the network the client gets an answer.";
    UnsupportedProtocol = 3, "unsupported_protocol", "To an address of `lb`, but neither TCP nor UDP; with IPv6 extension headers that are not carried; or to a shared VIP with IP options or in fragments.",
        "Nothing about scanners. A client of a shared VIP that sends fragments needs a smaller MTU.";
    Fragment = 4, "fragment", "A fragment of a packet that is neither TCP nor UDP, to an address of `lb`.",
        "Nothing: no service has such a protocol.";
    NoFlow = 5, "no_flow", "A TCP segment that belongs to no known flow and does not open one.",
        "A few are usual after an idle timeout, a drain or a removed backend: the client connects again. If they go on, compare `idle_timeout` with the silence of the application, or set `keepalive`.";
    NoBackend = 6, "no_backend", "The service's pool has no backend.",
        "`lb backends` shows why none is up; a pool may be empty, too.";
    NoNextHop = 7, "no_next_hop", "The MAC address of the selected backend's next hop is not known.",
        "`lb backends` shows the next hop: does the node, or its gateway, answer ARP or neighbour discovery on that VLAN?";
    SnatExhausted = 8, "snat_exhausted", "No free SNAT port is left for a new flow to that network.",
        "`lb status` shows how many ports are used: add SNAT addresses, or shorten idle times.";
    FlowTableFull = 9, "flow_table_full", "The request index has no room for a new flow.",
        "Both lines of the tuple are full, as of one flow in 10^8: nothing about one. Of many: report it.";
    FlowRace = 10, "flow_race", "Another CPU took the flow entry at the same moment; the peer repeats the packet, but for an ACK.",
        "Nothing.";
    TtlExpired = 11, "ttl_expired", "The time to live was used up.",
        "Nothing about a traceroute. Else there is a routing loop in front of `lb`: find it by the packet in `lb drops`.";
    ReplyMismatch = 12, "reply_mismatch", "To a SNAT port, but not from the backend of the flow, or the target of the check, that owns it.",
        "A host of the backends' network scans, or a backend answers from another address than the one of its pool.";
    ReplyUnexpected = 13, "reply_unexpected", "A late reply of an earlier flow on a flow id that has been taken again.",
        "Nothing, if there are few.";
    GroupAddress = 14, "group_address", "IP broadcast or multicast on a tenant network.",
        "Nothing.";
    ArpNotOurs = 15, "arp_not_ours", "ARP or a neighbour solicitation on a tenant network for an address that `lb` does not have.",
        "Nothing: hosts of the network resolve one another. For an address that should be a VIP, see that a service listens on it.";
    CellForbidden = 16, "cell_forbidden", "A cell has sent a packet that is not of its checks or shared VIPs.",
        "`ip netns exec lb.INSTANCE.NETWORK ss -a` shows what else uses the namespace.";
    RecordMissing = 17, "record_missing", "An entry of the maps that the packet needs is missing: a defect of `lb`, or a change that is on its way.",
        "If the count grows while no reload runs, report it with `lb status -o json`.";
    StackedTag = 18, "stacked_tag", "A second VLAN tag behind VLAN id 0 or behind the tag of a tenant network.",
        "Have the switch take one of the tags off.";
    Spoofed = 19, "spoofed", "A new flow whose source may not come from its network, or is an address of `lb`.",
        "If the client is one, add its prefix to `sources` of its network, or a route; else find the host that sends it.";
    Bogon = 20, "bogon", "A new flow whose source no host can have: loopback, link-local, multicast, reserved.",
        "Find the host that sends it.";
    Denied = 21, "denied", "A new flow whose source the rules of the service do not let in.",
        "Compare the client in `lb drops` with `allow` and `deny` in `lb check --expand`.";
    ToTenant = 22, "to_tenant", "To the address of a tenant from another network, and not a reply to any flow.",
        "Nothing: no host of another network opens a flow to a tenant.";
    NoHeadroom = 23, "no_headroom", "The driver leaves no room in front of the frame for a VLAN tag.",
        "Use a NIC with another driver, or generic mode.";
    BudgetSpent = 24, "budget_spent", "The network or the service has as many flows as it may have at a time.",
        "`lb status` shows which budget: raise `max_flows`, or add SNAT addresses.";
    TooBig = 25, "too_big", "Larger than the MTU of the network that it has to go to; the sender gets an ICMP error if it forbids fragments, and over IPv6 always.",
        "A few are path MTU discovery at work. If many, set `mss` of the network.";
    FragmentEarly = 26, "fragment_early", "A fragment that came before the first one of its datagram, or too long after it.",
        "A few come out of order over several paths. Many are a flood: find the host by the packet in `lb drops`.";
    FragmentOverlap = 27, "fragment_overlap", "A fragment that covers bytes of an earlier one of its datagram.",
        "Find the host that sends it: an attack, or a broken stack.";
    FragmentTiny = 28, "fragment_tiny", "A first fragment without the whole layer-4 header, or another one that is not cut at 8 bytes.",
        "Find the host that sends it: an attack, or a broken stack.";
    SourceRoute = 29, "source_route", "An IP option, or an IPv6 routing header, that prescribes the route of the packet.",
        "Nothing: no client needs such options.";
    IcmpUnrelated = 30, "icmp_unrelated", "An ICMP error that quotes no packet of a flow.",
        "Nothing, if there are few: they are about flows that are over. Many are blind attempts against flows.";
    PartialChecksum = 31, "partial_checksum", "A frame of a local stack that has left its checksum to the NIC, and is too long for `lb` to compute it.",
        "`ethtool -K PEER tx off` where a local stack sends into the other end of a veth.";
    RateLimited = 32, "rate_limited", "A ping, or an ARP request or neighbour solicitation for an address of `lb`, beyond the rate at which these are answered.",
        "A flood of pings or ARP: find the host by the packet in `lb drops`.";
    Stopped = 33, "stopped", "The control plane was stopped, and `on_stop: drop` ends all service until the next start.",
        "Start the control plane: `lb run`, or `systemctl start lb`.";
    Held = 34, "held", "The client's connection is being handed over to XDP; TCP retransmits this segment.",
        "Nothing.";
    LateSyn = 35, "late_syn", "A SYN with a lower number than a connection from that port had, which ended less than half a second before; to open another one, the client sends it again.",
        "Nothing.";
    GroupSource = 36, "group_source", "A frame whose source MAC no interface can have: a group address, or zeros.",
        "Find the port of the switch that it comes from: a forged frame, or a loop.";
    CellRate = 37, "cell_rate", "For the network's cell, beyond the rate of frames that answer nothing of the cell's; or first bytes behind SYN cookies, beyond theirs, or while numbers are guessed.",
        "A flood to a VIP, or to the ports of checks: `lb drops` has a packet of it.";
    NeighbourForged = 38, "neighbour_forged", "ARP or neighbour discovery whose sender cannot be on the network, or that has two different MAC addresses for it.",
        "A host claims the address of another: find it by the MAC in `lb drops`.";
    MtuImplausible = 39, "mtu_implausible", "An ICMP error \"too big\" about a packet that fits the MTU in it, or 1280 bytes.",
        "A broken router, or an attack: find the source in `lb drops`.";
    RefusedByBackend = 40, "refused_by_backend", "A backend's RST to a client's SYN, which goes to another backend when the client repeats it.",
        "`lb backends --wide` shows which backend refuses connections: is its port open, and does a firewall of the node reject it?";
    BackendsFull = 41, "backends_full", "All backends of the pool that were looked at have `max_connections`.",
        "More backends, or a higher `max_connections` of the pool. Clients that keep idle connections open have a share in it: `lb flows --pool POOL`.";
    HelloUnordered = 42, "hello_unordered", "A later segment behind a SYN cookie, whose first one has not come or was not kept; TCP retransmits both.",
        "Nothing, if there are few.";
    HellosFull = 43, "hellos_full", "First bytes behind a SYN cookie that the process could not be given, because it is behind, or whose place another CPU had; TCP retransmits them.",
        "If there are many, more CPUs, or fewer clients: the process is overloaded.";
    NoProcess = 44, "no_process", "A ClientHello to a shared VIP while no process takes any.",
        "Start the control plane: `lb run`, or `systemctl start lb`.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_its_own_slot() {
        let mut slots: Vec<u32> = DropReason::ALL
            .iter()
            .flat_map(|&reason| {
                let dropped = Verdict::Dropped(reason).slot();
                assert_eq!(refusal_slot(reason as u32, false), dropped);
                [dropped, refusal_slot(reason as u32, true)]
            })
            .chain(
                [
                    Verdict::Passed,
                    Verdict::Transmitted,
                    Verdict::Forwarded,
                    Verdict::Delivered,
                    Verdict::Returned,
                    Verdict::Consumed,
                ]
                .map(Verdict::slot),
            )
            .collect();
        let count = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), count);
        assert!(slots.iter().all(|&slot| slot < SLOTS));
    }

    #[test]
    fn reasons_stand_at_the_index_of_their_number() {
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert_eq!(DropReason::from_number(reason as u8), Some(reason));
        }
        for number in DropReason::ALL.len()..256 {
            let number = u8::try_from(number).unwrap();
            assert_eq!(DropReason::from_number(number), None);
        }
    }

    #[test]
    fn counters_of_hooks_and_networks_do_not_overlap() {
        assert_eq!(counters_index(Hook::Nic, 0), 0);
        assert_eq!(counters_index(Hook::Cell, 0), 1);
        assert_eq!(counters_index(Hook::Nic, 1), 2);
        assert_eq!(counters_index(Hook::Cell, 1), 3);
    }
}
