//! What the segments of a connection become whose ends were opened to us and by us, and then
//! handed to the data plane.

use super::flow::Flow;
use crate::{addr::Be32, pod::pod_struct};

pod_struct! {
    /// What one end's numbers become for the other. 12 bytes. Host order; all arithmetic wraps.
    pub struct Numbers {
        /// Added to the sequence number; taken off the other end's acknowledgments and SACK edges.
        pub sequence: u32,
        /// Added to the timestamp; taken off the other end's echoes of it.
        pub time: u32,
        /// How far a window is shifted to the left, as its sender means it.
        pub scale: u16,
        /// How far it is shifted to the right after that, as its reader was promised.
        pub promised: u16,
    }
}

pod_struct! {
    /// What is known of a flow that userspace opens, or has opened, at the index of its id. 16 bytes. Host order.
    ///
    /// The data plane notes what stands in the backend's SYN-ACK; userspace writes `splice` before the flow's word says that
    /// there is one.
    pub struct Binding {
        /// The number of its [`Splice`].
        pub splice: u32,
        /// Timestamp of the backend's SYN-ACK.
        pub backend_time: u32,
        /// Most bytes of data that the backend takes in a segment, by its SYN-ACK.
        pub backend_mss: u16,
        /// Zero.
        pub _reserved: [u16; 3],
    }
}

const _: () = assert!(size_of::<Binding>() == 16);

pod_struct! {
    /// A splice, at its number, which the flow's [`Binding`] has; 0 is none's. 64 bytes. Host order.
    ///
    /// Written by userspace before the flow's word says that there is one, and not after; but for `state`, which the data
    /// plane sets. It is the next one's when its flow is over.
    pub struct Splice {
        /// Its flow: see [`owner`].
        pub owner: u64,
        /// Of the client's segments.
        pub to_backend: Numbers,
        /// Of the backend's segments.
        pub to_client: Numbers,
        /// The sequence number behind what our socket sends the backend. Until the backend has
        /// acknowledged it, that socket repeats it.
        pub sent_end: u32,
        /// What that socket has received of the backend, and goes on to acknowledge.
        pub received: u32,
        /// 0, or [`DRAINED`].
        pub state: u32,
        /// Zero.
        pub _reserved: [u32; 5],
    }
}

const _: () = assert!(size_of::<Splice>() == 64);

/// The flow with this id and the generation of its word: a splice of an earlier flow is none.
#[inline(always)]
pub const fn owner(id: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | id as u64
}

/// The flow's id, and its generation.
pub const fn flow(owner: u64) -> (u32, u32) {
    ((owner & 0xffff_ffff) as u32, (owner >> 32) as u32)
}

/// Bytes of a name that are kept, in rows.
pub const NAME_BYTES: usize = ROWS * ROW;
const ROWS: usize = 15;
const ROW: usize = 8;

pod_struct! {
    /// The name that the client of a flow that was handed over has requested, by the flow's id. 128 bytes. Of userspace alone.
    pub struct SpliceName {
        /// Generation of the flow's word.
        pub generation: u32,
        /// Bytes of `name`.
        pub length: u32,
        /// The name, or its beginning.
        pub name: [[u8; ROW]; ROWS],
    }
}

const _: () = assert!(size_of::<SpliceName>() == 128);

/// The backend has all that our socket sent it: no packet of the flow is the kernel's any more.
pub const DRAINED: u32 = 1;

impl Splice {
    /// The flow with the numbers that its client knows; the entry has the backend's.
    pub const fn as_client(&self, flow: &Flow) -> Flow {
        let ack_request = flow.ack_request.get().wrapping_add(self.to_client.sequence);
        let ack_reply = flow.ack_reply.get().wrapping_sub(self.to_backend.sequence);
        Flow {
            ack_request: Be32::new(ack_request),
            ack_reply: Be32::new(ack_reply),
            ..*flow
        }
    }
}

impl SpliceName {
    /// Of a longer name the beginning is kept.
    pub fn new(generation: u32, name: &[u8]) -> Self {
        let mut kept = Self {
            generation,
            ..Self::default()
        };
        for (place, byte) in kept.name.as_flattened_mut().iter_mut().zip(name) {
            *place = *byte;
            kept.length += 1;
        }
        kept
    }

    /// The name, or its beginning; empty if there is none.
    pub fn name(&self) -> &[u8] {
        let name = self.name.as_flattened();
        name.get(..self.length as usize).unwrap_or(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_numbers_of_its_own() {
        let numbers = |sequence| Numbers {
            sequence,
            ..Numbers::default()
        };
        let splice = Splice {
            to_backend: numbers(1000),
            to_client: numbers(0xffff_fff0),
            ..Splice::default()
        };
        let flow = Flow {
            ack_request: Be32::new(20),
            ack_reply: Be32::new(999),
            client: Be32::new(7),
            ..Flow::default()
        };
        let seen = splice.as_client(&flow);
        assert_eq!(
            (seen.ack_request.get(), seen.ack_reply.get()),
            (4, u32::MAX)
        );
        assert_eq!(seen.client, flow.client);
    }

    #[test]
    fn a_name_is_kept_as_far_as_there_is_room() {
        let long = [b'x'; NAME_BYTES + 1];
        for length in [0, 1, 16, NAME_BYTES] {
            assert_eq!(SpliceName::new(7, &long[..length]).name(), &long[..length]);
        }
        assert_eq!(SpliceName::new(7, &long).name(), &long[..NAME_BYTES]);
        let broken = SpliceName {
            length: u32::MAX,
            ..SpliceName::new(7, b"a")
        };
        assert_eq!(broken.name().len(), NAME_BYTES);
    }

    #[test]
    fn an_owner_is_one_flow() {
        assert_eq!(flow(owner(77, 0x3f_ffff)), (77, 0x3f_ffff));
        assert_ne!(owner(77, 1), owner(77, 2));
    }
}
