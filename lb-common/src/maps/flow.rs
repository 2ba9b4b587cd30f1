//! One entry for both directions, and the key of the request index.

use crate::{
    addr::{Be16, Be32, Mac},
    pod::pod_struct,
    traffic::{Amount, Traffic},
    wire::{Ipv4Frame, L4},
};

pod_struct! {
    /// The request's tuple: what the request index maps to a flow id. 16 bytes.
    pub struct FlowKey {
        /// Client address.
        pub client: Be32,
        /// VIP.
        pub vip: Be32,
        /// Client port.
        pub client_port: Be16,
        /// VIP port.
        pub vip_port: Be16,
        /// Id of the network that the client is in.
        pub network: u16,
        /// IP protocol number.
        pub protocol: u16,
    }
}

pod_struct! {
    /// One flow, at the index of its id, which has a SNAT port of its own. 64 bytes, one cache line.
    ///
    /// | field | written by | when |
    /// |---|---|---|
    /// | `word` | the winner of the compare-and-swap | every transition |
    /// | tuple, backend, service | the claimer | between CLAIMED and the first live state |
    /// | `snat_port` | userspace | when the SNAT address is opened |
    /// | `client_mac` | request path | creation, and when a frame of the flow carries another |
    /// | `last_seen`, `ack_*`, `traffic_*` | both directions, plain stores | every packet |
    ///
    /// Races: plain stores of two CPUs may lose one update; that spoils a counter or a time stamp
    /// by one packet and nothing else. A reader takes the word, the fields, then the word again;
    /// another generation is a miss.
    pub struct Flow {
        /// State, flags and generation: see `conntrack::FlowState`. The only truth about the entry.
        pub word: u32,
        /// Client address.
        pub client: Be32,
        /// VIP.
        pub vip: Be32,
        /// Client port.
        pub client_port: Be16,
        /// VIP port.
        pub vip_port: Be16,
        /// Backend address.
        pub backend: Be32,
        /// Backend port.
        pub backend_port: Be16,
        /// Id of the client's network.
        pub network: u16,
        /// Id of the backend: index of its next hop.
        pub backend_id: u16,
        /// SNAT port of every flow with this id.
        pub snat_port: Be16,
        /// Id of the service.
        pub service: u16,
        /// Next hop towards the client.
        pub client_mac: Mac,
        /// Coarse monotonic time of the last packet: nanoseconds shifted right by `TIME_SHIFT`.
        pub last_seen: u32,
        /// Last acknowledgment of the client; the next sequence number that it expects.
        pub ack_request: Be32,
        /// Last acknowledgment of the backend; until it answers, the one that is expected of it.
        pub ack_reply: Be32,
        /// Frames from the client: see `traffic::Traffic`.
        pub traffic_request: u64,
        /// Frames from the backend, likewise; none of a flow that a socket of a cell has.
        pub traffic_reply: u64,
    }
}

const _: () = assert!(size_of::<Flow>() == 64);

impl Flow {
    /// What has come from the client, without what was spilled.
    pub const fn request(&self) -> Amount {
        Traffic::from_raw(self.traffic_request).amount()
    }

    /// What has come from the backend, without what was spilled.
    pub const fn reply(&self) -> Amount {
        Traffic::from_raw(self.traffic_reply).amount()
    }

    /// The request tuple of the flow; `udp` is what its word has.
    pub const fn key(&self, udp: bool) -> FlowKey {
        FlowKey {
            client: self.client,
            vip: self.vip,
            client_port: self.client_port,
            vip_port: self.vip_port,
            network: self.network,
            protocol: if udp { 17 } else { 6 },
        }
    }
}

/// A [`FlowKey`] in two numbers: they stay in registers, and a subprogram takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedKey {
    /// The client below the VIP, as the packet has them.
    pub ends: u64,
    /// The ports as in [`Flow`], below protocol and network.
    pub rest: u64,
}

impl PackedKey {
    /// Of a flow between these; `ports` are the two fields of [`Flow`] as one number.
    #[inline(always)]
    pub const fn new(client: Be32, vip: Be32, ports: u32, network: u16, protocol: u16) -> Self {
        let kind = (network as u32) << 16 | protocol as u32;
        Self {
            ends: client.raw() as u64 | (vip.raw() as u64) << 32,
            rest: ports as u64 | (kind as u64) << 32,
        }
    }

    /// As four words.
    #[inline(always)]
    pub const fn words(self) -> [u32; 4] {
        let Self { ends, rest } = self;
        [
            (ends & LOW) as u32,
            (ends >> 32) as u32,
            (rest & LOW) as u32,
            (rest >> 32) as u32,
        ]
    }
}

/// The lower half of a number.
const LOW: u64 = 0xffff_ffff;

/// The ports of an entry are one aligned word, the client's in its lower half.
const _: () = {
    let client_port = core::mem::offset_of!(Flow, client_port);
    assert!(client_port % 4 == 0 && core::mem::offset_of!(Flow, vip_port) == client_port + 2);
    assert!(cfg!(target_endian = "little"));
};

impl FlowKey {
    /// The request tuple of a packet that came from the network `id` to a VIP.
    #[inline(always)]
    pub fn of_request(frame: &Ipv4Frame<'_>, id: u16) -> Self {
        Self::new(
            frame.ip.source.get(),
            frame.ip.destination.get(),
            frame.l4,
            id,
        )
    }

    /// The same in two numbers.
    #[inline(always)]
    pub const fn packed(&self) -> PackedKey {
        let ports = self.client_port.raw() as u32 | (self.vip_port.raw() as u32) << 16;
        PackedKey::new(self.client, self.vip, ports, self.network, self.protocol)
    }

    /// The request tuple of a packet between these addresses, or what stands for them.
    #[inline(always)]
    pub fn new(client: Be32, vip: Be32, l4: L4<'_>, network: u16) -> Self {
        let (client_port, vip_port) = l4.ports();
        Self {
            client,
            vip,
            client_port,
            vip_port,
            network,
            protocol: u16::from(l4.protocol()),
        }
    }
}

/// Nanoseconds to the unit of `Flow::last_seen`: 2^20 ns, about a millisecond; wraps in 52 days.
pub const TIME_SHIFT: u32 = 20;
