//! One flow entry in the map: the only code that touches its memory.

use aya_ebpf::helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use lb_common::{
    addr::{Be16, Be32, Be128, Mac},
    conntrack::{Attempt, FlowState, Segment},
    maps::{
        backend::Backend,
        flow::{Flow, FlowKey, PackedKey, TIME_SHIFT},
    },
    traffic::Traffic,
    wire::{Frame, Ip, L4},
};
use network_types::ip::IpProto;

#[cfg(feature = "line-per-direction")]
use crate::maps::REPLY_LINES;
use crate::{flow::atomic, lookup, maps::FLOWS};

/// Whether what replies write has a line of its own.
const HAS_REPLY_LINE: bool = cfg!(feature = "line-per-direction");

/// A flow entry. Other CPUs read and write it at the same time; see the races in `Flow`.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) id: u32,
    flow: *mut Flow,
    #[cfg(feature = "line-per-direction")]
    replies: *mut Flow,
}

macro_rules! load {
    ($entry:expr, $($field:tt)+) => {{
        // SAFETY: `flow` points to a live value of an array map, which is never freed; the field
        // is aligned and any bits are valid for it.
        unsafe { (&raw const (*$entry.flow).$($field)+).read_volatile() }
    }};
}

macro_rules! store {
    ($entry:expr, $field:ident, $value:expr) => {{
        // SAFETY: as for `load!`; a racing store of another CPU costs one update (see `Flow`).
        unsafe { (&raw mut (*$entry.flow).$field).write_volatile($value) }
    }};
}

impl Entry {
    #[inline(always)]
    pub(crate) fn at(id: u32) -> Option<Self> {
        Some(Self {
            id,
            flow: FLOWS.get_ptr_mut(id)?,
            #[cfg(feature = "line-per-direction")]
            replies: REPLY_LINES.get_ptr_mut(id)?,
        })
    }

    /// With the line that replies write in the place of the one that all the rest is in.
    #[cfg(not(feature = "line-per-direction"))]
    #[inline(always)]
    const fn replies(&self) -> Self {
        *self
    }

    #[cfg(feature = "line-per-direction")]
    #[inline(always)]
    const fn replies(&self) -> Self {
        Self {
            flow: self.replies,
            ..*self
        }
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> FlowState {
        FlowState::from_raw(load!(self, word))
    }

    /// Changes the word if no other writer has changed it since it was read as `old`.
    #[inline(always)]
    pub(crate) fn swap(&self, old: FlowState, new: FlowState) -> bool {
        // SAFETY: the field is inside the map value that `flow` points to.
        let word = unsafe { &raw mut (*self.flow).word };
        // SAFETY: the word is the entry's first field, aligned to eight bytes.
        unsafe { atomic::compare_and_swap(word, old.raw(), new.raw()) }
    }

    /// The request tuple; its protocol is that of `word`.
    #[inline(always)]
    pub(crate) fn key(&self, word: FlowState) -> FlowKey {
        FlowKey {
            client: load!(self, client),
            vip: load!(self, vip),
            client_port: load!(self, client_port),
            vip_port: load!(self, vip_port),
            network: load!(self, network),
            protocol: protocol(word.is_udp()),
        }
    }

    /// The same in two numbers.
    #[inline(always)]
    pub(crate) fn packed_key(&self, udp: bool) -> PackedKey {
        let (client, vip) = (load!(self, client), load!(self, vip));
        PackedKey::new(
            client,
            vip,
            self.ports(),
            load!(self, network),
            protocol(udp),
        )
    }

    /// Both ports of the request tuple.
    #[inline(always)]
    fn ports(&self) -> u32 {
        // SAFETY: the field is inside the map value that `flow` points to.
        let ports = unsafe { &raw const (*self.flow).client_port };
        // SAFETY: as for `load!`; behind the field is that of the other port, and both together are aligned (`PackedKey`).
        unsafe { ports.cast::<u32>().read_volatile() }
    }

    /// Backend address and port.
    #[inline(always)]
    pub(crate) fn backend(&self) -> (Be32, Be16) {
        (load!(self, backend), load!(self, backend_port))
    }

    #[inline(always)]
    pub(crate) fn backend_id(&self) -> u32 {
        load!(self, backend_id).into()
    }

    /// The SNAT port of its id.
    #[inline(always)]
    pub(crate) fn snat_port(&self) -> Be16 {
        load!(self, snat_port)
    }

    #[inline(always)]
    pub(crate) fn client_mac(&self) -> Mac {
        load!(self, client_mac)
    }

    #[inline(always)]
    pub(crate) fn set_client_mac(&self, mac: Mac) {
        store!(self, client_mac, mac);
    }

    /// Last acknowledgment of client and backend, host order.
    #[inline(always)]
    pub(crate) fn acks(&self) -> (u32, u32) {
        (
            load!(self, ack_request).get(),
            load!(self.replies(), ack_reply).get(),
        )
    }

    #[inline(always)]
    pub(crate) fn set_ack_request(&self, ack: u32) {
        store!(self, ack_request, Be32::new(ack));
    }

    #[inline(always)]
    pub(crate) fn set_ack_reply(&self, ack: u32) {
        store!(self.replies(), ack_reply, Be32::new(ack));
    }

    /// The backends of a flow that none has answered yet.
    #[inline(always)]
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt::from_raw(load!(self, ack_request).get())
    }

    #[inline(always)]
    pub(crate) fn set_attempt(&self, attempt: Attempt) {
        store!(self, ack_request, Be32::new(attempt.raw()));
    }

    /// The SYN goes to the same backend again.
    #[inline(always)]
    pub(crate) fn repeat(&self, attempt: Attempt) {
        self.set_attempt(attempt);
        self.touch();
    }

    /// Writes what another backend changes of a claimed entry.
    #[inline(always)]
    pub(crate) fn redispatch(&self, backend_id: u32, backend: &Backend) {
        let attempt = self.attempt().redispatched(self.backend_id());
        store!(self, backend, backend.address);
        store!(self, backend_port, backend.port);
        store!(self, backend_id, backend_id as u16);
        self.set_traffic_request(Traffic::NONE);
        self.set_traffic_reply(Traffic::unanswered_since(monotonic_us()));
        self.repeat(attempt);
    }

    /// Address of the client, or its hash.
    #[inline(always)]
    pub(crate) fn client(&self) -> Be32 {
        load!(self, client)
    }

    /// Network of the client, and service.
    #[inline(always)]
    pub(crate) fn owners(&self) -> (u16, u16) {
        (load!(self, network), load!(self, service))
    }

    /// Coarse time of the last packet.
    #[inline(always)]
    pub(crate) fn last_seen(&self) -> u32 {
        let request = load!(self, last_seen);
        if !HAS_REPLY_LINE {
            return request;
        }
        let reply = load!(self.replies(), last_seen);
        let is_later = reply.wrapping_sub(request).cast_signed() > 0;
        if is_later { reply } else { request }
    }

    /// Address of the VIP.
    #[inline(always)]
    pub(crate) fn vip(&self) -> Be32 {
        load!(self, vip)
    }

    /// Copies the whole entry, with `word` as its word. Eight bytes at a time: all fields at once would be a
    /// third of the stack.
    ///
    /// # Safety
    ///
    /// A flow may be written to `to`.
    #[inline(always)]
    pub(crate) unsafe fn copy(&self, word: FlowState, to: *mut Flow) {
        const EIGHTS: usize = size_of::<Flow>() / size_of::<u64>();
        for index in 0..EIGHTS {
            let from = self.flow.cast::<u64>().wrapping_add(index);
            // SAFETY: as for `load!`; the entry is so many times eight bytes, and aligned to them.
            let eight = unsafe { from.read_volatile() };
            // SAFETY: as above, and any bits are valid for a flow.
            unsafe { to.cast::<u64>().wrapping_add(index).write(eight) };
        }
        // SAFETY: the caller vouches for `to`; the word is the first field.
        unsafe { to.cast::<u32>().write(word.raw()) };
        if HAS_REPLY_LINE {
            let replies = self.replies();
            let (seen, ack, traffic) = (
                self.last_seen(),
                load!(replies, ack_reply),
                load!(replies, traffic_reply),
            );
            let copy = Self { flow: to, ..*self };
            store!(copy, last_seen, seen);
            store!(copy, ack_reply, ack);
            store!(copy, traffic_reply, traffic);
        }
    }

    /// What has come from the client.
    #[inline(always)]
    pub(crate) fn traffic_request(&self) -> Traffic {
        Traffic::from_raw(load!(self, traffic_request))
    }

    #[inline(always)]
    pub(crate) fn set_traffic_request(&self, traffic: Traffic) {
        store!(self, traffic_request, traffic.raw());
    }

    /// What has come from the backend.
    #[inline(always)]
    pub(crate) fn traffic_reply(&self) -> Traffic {
        Traffic::from_raw(load!(self.replies(), traffic_reply))
    }

    #[inline(always)]
    pub(crate) fn set_traffic_reply(&self, traffic: Traffic) {
        store!(self.replies(), traffic_reply, traffic.raw());
    }

    /// Notes that a packet has come now.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        store!(self, last_seen, now());
    }

    /// The same of one of the backend.
    #[inline(always)]
    pub(crate) fn touch_reply(&self) {
        store!(self.replies(), last_seen, now());
    }

    /// Writes a claimed entry's fields; the word stays as it is.
    #[inline(always)]
    pub(crate) fn fill(&self, key: &FlowKey, flow: &NewFlow) {
        let NewFlow {
            backend,
            backend_port,
            backend_id,
            service,
            client_mac,
            isn,
            bytes,
            is_shown: _,
        } = *flow;
        store!(self, client, key.client);
        store!(self, vip, key.vip);
        store!(self, client_port, key.client_port);
        store!(self, vip_port, key.vip_port);
        store!(self, network, key.network);
        store!(self, backend, backend);
        store!(self, backend_port, backend_port);
        store!(self, backend_id, backend_id as u16);
        store!(self, service, service);
        store!(self, client_mac, client_mac);
        self.touch();
        if HAS_REPLY_LINE {
            self.touch_reply();
        }
        store!(self, ack_request, Be32::new(0));
        // What the backend's SYN-ACK must acknowledge.
        store!(self.replies(), ack_reply, Be32::new(isn.wrapping_add(1)));
        self.set_traffic_request(Traffic::one(bytes));
        // Nothing says that a datagram asks for an answer.
        self.set_traffic_reply(match key.protocol == IpProto::Tcp as u16 {
            true => Traffic::unanswered_since(monotonic_us()),
            false => Traffic::NONE,
        });
    }
}

/// The fields of a new flow beside its key. `isn` in host order, 0 for UDP.
#[derive(Clone, Copy)]
pub(crate) struct NewFlow {
    pub(crate) backend: Be32,
    pub(crate) backend_port: Be16,
    pub(crate) backend_id: u32,
    pub(crate) service: u16,
    pub(crate) client_mac: Mac,
    pub(crate) isn: u32,
    pub(crate) bytes: u64,
    /// Whether its client has returned a cookie.
    pub(crate) is_shown: bool,
}

/// Coarse monotonic time in units of 2^`TIME_SHIFT` ns.
#[inline(always)]
pub(crate) fn now() -> u32 {
    // SAFETY: the helper has no arguments and no preconditions (Linux 5.11).
    let ns = unsafe { bpf_ktime_get_coarse_ns() };
    (ns >> TIME_SHIFT) as u32
}

/// Monotonic time in microseconds.
#[inline(always)]
pub(crate) fn monotonic_us() -> u64 {
    // SAFETY: the helper has no arguments and no preconditions.
    let ns = unsafe { bpf_ktime_get_ns() };
    ns / 1000
}

/// Coarse monotonic time in seconds.
#[inline(always)]
pub(crate) fn now_seconds() -> u32 {
    // SAFETY: the helper has no arguments and no preconditions (Linux 5.11).
    let ns = unsafe { bpf_ktime_get_coarse_ns() };
    (ns / 1_000_000_000) as u32
}

/// A flow as it was when its packet came.
#[derive(Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) entry: Entry,
    pub(crate) key: FlowKey,
    pub(crate) backend: Be32,
    pub(crate) backend_port: Be16,
    pub(crate) backend_id: u32,
    pub(crate) client_mac: Mac,
    /// The entry's word.
    pub(crate) word: FlowState,
}

impl Hit {
    /// Whether no other flow has claimed the entry since it was read.
    #[inline(always)]
    pub(crate) fn still(&self) -> bool {
        self.entry.word().generation() == self.word.generation()
    }

    /// The client of a flow of IPv6.
    #[inline(always)]
    pub(crate) fn client6(&self) -> Option<Be128> {
        lookup::client6(self.entry.id).filter(|_| self.still())
    }

    /// The entry's fields, if no other flow claims it while they are read.
    #[inline(always)]
    pub(crate) fn read(entry: Entry, word: FlowState) -> Option<Self> {
        let key = entry.key(word);
        let (backend, backend_port) = entry.backend();
        let (backend_id, client_mac) = (entry.backend_id(), entry.client_mac());
        let same = entry.word().generation() == word.generation();
        same.then_some(Self {
            entry,
            key,
            backend,
            backend_port,
            backend_id,
            client_mac,
            word,
        })
    }
}

/// The frame's length on the wire, without padding.
#[inline(always)]
pub(crate) fn frame_bytes<I: Ip>(frame: &Frame<'_, I>) -> u64 {
    14 + u64::from(frame.ip.bytes())
}

/// The TCP segment of a frame; for UDP one of zeros. Not `None`: the compiler moves its fields before it
/// checks whether they are there, and Linux before 6.3 refuses that ("invalid read from stack").
#[inline(always)]
pub(crate) fn segment<I>(frame: &Frame<'_, I>) -> Segment {
    match frame.l4 {
        L4::Tcp(tcp) => Segment {
            flags: tcp.flags.get(),
            sequence: tcp.sequence.get().get(),
            acknowledgment: tcp.acknowledgment.get().get(),
            payload: frame.payload,
        },
        L4::Udp(_) => Segment::default(),
    }
}

#[inline(always)]
const fn protocol(udp: bool) -> u16 {
    (if udp { IpProto::Udp } else { IpProto::Tcp }) as u16
}
