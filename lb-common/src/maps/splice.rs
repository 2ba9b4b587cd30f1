//! What the segments of a connection become whose ends were opened to us and by us, and then
//! handed to the data plane.

use super::flow::Flow;
use crate::{addr::Be32, pod::pod_struct};

/// Bytes of a name that are kept, in rows.
pub const NAME_BYTES: usize = ROWS * ROW;
const ROWS: usize = 5;
const ROW: usize = 16;

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
    /// A splice, at the index of its flow's id. 128 bytes. All numbers are in host order.
    ///
    /// Written by userspace before the flow's word says that there is one, and not after; but for
    /// `backend_time` and `backend_mss`, which the data plane notes of a SYN-ACK, and `state`, which
    /// it sets.
    pub struct Splice {
        /// Generation of the flow's word: a splice of an earlier flow is none.
        pub generation: u32,
        /// 0, or [`DRAINED`].
        pub state: u32,
        /// The sequence number behind what our socket sends the backend. Until the backend has
        /// acknowledged it, that socket repeats it.
        pub sent_end: u32,
        /// What that socket has received of the backend, and goes on to acknowledge.
        pub received: u32,
        /// Timestamp of the backend's SYN-ACK.
        pub backend_time: u32,
        /// Of the client's segments.
        pub to_backend: Numbers,
        /// Of the backend's segments.
        pub to_client: Numbers,
        /// Most bytes of data that the backend takes in a segment, by its SYN-ACK.
        pub backend_mss: u16,
        /// Bytes of `name`.
        pub name_length: u16,
        /// The name that the client requested, or its beginning.
        pub name: [[u8; ROW]; ROWS],
    }
}

const _: () = assert!(size_of::<Splice>() == 128);

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

    /// The same with a name; of a longer one the beginning is kept.
    pub fn with_name(mut self, name: &[u8]) -> Self {
        let places = self.name.as_flattened_mut().iter_mut();
        self.name_length = 0;
        for (place, byte) in places.zip(name) {
            *place = *byte;
            self.name_length += 1;
        }
        self
    }

    /// The name, or its beginning; empty if there is none.
    pub fn name(&self) -> &[u8] {
        let name = self.name.as_flattened();
        name.get(..usize::from(self.name_length)).unwrap_or(name)
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
            assert_eq!(
                Splice::default().with_name(&long[..length]).name(),
                &long[..length]
            );
        }
        assert_eq!(
            Splice::default().with_name(&long).name(),
            &long[..NAME_BYTES]
        );
        let another = Splice::default().with_name(&long).with_name(b"a");
        assert_eq!(another.name(), b"a");
    }
}
