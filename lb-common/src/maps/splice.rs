//! What the segments of a connection become whose ends were opened to us and by us, and then
//! handed to the data plane.

use super::flow::Flow;
use crate::{addr::Be32, pod::pod_struct, syn_cookie::answer::PROMISED_SCALE};

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
    /// What is known of a flow whose ends were not opened by each other, at the index of its id. 16 bytes. Host order.
    ///
    /// Of one that userspace opens, or has opened: the data plane notes what stands in the backend's SYN-ACK; userspace writes
    /// `splice` before the flow's word says that there is one. Of one that the data plane has [bound](Binding::bound) by its
    /// hello: all that its splice would have.
    pub struct Binding {
        /// The number of its [`Splice`]; or [`BOUND`] and the flow's generation.
        pub splice: u32,
        /// Timestamp of the backend's SYN-ACK. Of a bound flow: of our SYN-ACK to the client, as far as the backend has not
        /// answered; then what [`Numbers::time`] is of the backend's segments.
        pub time: u32,
        /// Most bytes of data that the backend takes in a segment, by its SYN-ACK. Of a bound flow: bytes of the header of the
        /// PROXY protocol that its backend gets in front of the hello.
        pub backend_mss: u16,
        /// Of a bound flow: how far the backend's windows are shifted.
        pub scale: u8,
        /// Of a bound flow: the `BOUND_` flags.
        pub flags: u8,
        /// Of a bound flow: the number of our SYN-ACK to the client, as far as the backend has not answered; then what
        /// [`Numbers::sequence`] is of the backend's segments.
        pub sequence: u32,
    }
}

/// In [`Binding::splice`]: there is none, since the backend got the client's own numbers.
pub const BOUND: u32 = 1 << 31;
/// In [`Binding::flags`]: the ends have timestamps.
pub const BOUND_HAS_TIMES: u8 = 1;
/// The ends' windows are shifted.
pub const BOUND_HAS_SCALE: u8 = 2;
/// The second segment of the client's hello is sent when the backend has acknowledged the first one.
pub const BOUND_HAS_REST: u8 = 4;
/// The backend has answered, and is sent a header in front of the hello.
pub const BOUND_IS_GREETED: u8 = 8;
/// The flow was opened by a cookie alone, without a name: no process has to do with it.
pub const BOUND_IS_PLAIN: u8 = 16;

impl Binding {
    /// That of a flow of this generation, before its backend has answered.
    #[inline(always)]
    pub const fn bound(generation: u32, number: u32, time: Option<u32>, has_scale: bool) -> Self {
        let (has_times, time) = match time {
            Some(time) => (BOUND_HAS_TIMES, time),
            None => (0, 0),
        };
        Self {
            splice: BOUND | generation,
            time,
            backend_mss: 0,
            scale: 0,
            flags: has_times | if has_scale { BOUND_HAS_SCALE } else { 0 },
            sequence: number,
        }
    }

    /// The same of a flow of this generation.
    #[inline(always)]
    #[must_use]
    pub const fn of(self, generation: u32) -> Self {
        Self {
            splice: BOUND | generation,
            ..self
        }
    }

    /// Whether it is that of a bound flow of this generation.
    #[inline(always)]
    pub const fn is_bound(&self, generation: u32) -> bool {
        self.splice == BOUND | generation
    }

    /// The same of a flow that was opened by a cookie alone.
    #[inline(always)]
    #[must_use]
    pub const fn plain(self) -> Self {
        Self {
            flags: self.flags | BOUND_IS_PLAIN,
            ..self
        }
    }

    /// Whether it is that of a flow that was opened by a cookie alone.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.splice & BOUND != 0 && self.flags & BOUND_IS_PLAIN != 0
    }

    /// The same behind a SYN-ACK of the backend with this number, clock and shift.
    #[inline(always)]
    #[must_use]
    pub const fn answered(self, number: u32, time: u32, scale: u8) -> Self {
        Self {
            time: self.time.wrapping_sub(time),
            scale,
            sequence: self.sequence.wrapping_sub(number),
            ..self
        }
    }

    /// The same behind a SYN-ACK of the backend, which is sent its header.
    #[inline(always)]
    #[must_use]
    pub const fn greeted(self) -> Self {
        Self {
            flags: self.flags | BOUND_IS_GREETED,
            ..self
        }
    }

    /// Whether the backend of a bound flow has answered, and is sent its header.
    #[inline(always)]
    pub const fn is_greeted(&self) -> bool {
        self.flags & BOUND_IS_GREETED != 0
    }

    /// The same of a bound flow whose backend gets a header of so many bytes: its SYN has the number of the client's, less as
    /// many, so that what the client sends keeps its own numbers.
    #[inline(always)]
    #[must_use]
    pub const fn with_header(self, bytes: u16) -> Self {
        Self {
            backend_mss: bytes,
            ..self
        }
    }

    /// Bytes of the header that the backend of a bound flow gets; or 0.
    #[inline(always)]
    pub const fn header(&self) -> u16 {
        self.backend_mss
    }

    /// The same, whose backend is to be sent the rest of the hello.
    #[inline(always)]
    #[must_use]
    pub const fn with_rest(self) -> Self {
        Self {
            flags: self.flags | BOUND_HAS_REST,
            ..self
        }
    }

    /// The same, whose backend has all of the hello, or gets it from the client.
    #[inline(always)]
    #[must_use]
    pub const fn without_rest(self) -> Self {
        Self {
            flags: self.flags & !BOUND_HAS_REST,
            ..self
        }
    }

    /// Whether it is that of a bound flow whose backend is to be sent the rest of the hello.
    #[inline(always)]
    pub const fn has_rest(&self) -> bool {
        self.splice & BOUND != 0 && self.flags & BOUND_HAS_REST != 0
    }

    /// What the numbers of the backend's segments become; those of the client's stay.
    #[inline(always)]
    pub const fn to_client(&self) -> Numbers {
        let has_scale = self.flags & BOUND_HAS_SCALE != 0;
        Numbers {
            sequence: self.sequence,
            time: self.time,
            scale: self.scale as u16,
            promised: if has_scale { PROMISED_SCALE as u16 } else { 0 },
        }
    }

    /// The splice of a bound flow, as userspace would have written it.
    pub const fn as_splice(&self, id: u32, generation: u32) -> Splice {
        Splice {
            owner: owner(id, generation),
            to_backend: Numbers::NONE,
            to_client: self.to_client(),
            sent_end: 0,
            received: 0,
            state: DRAINED,
            _reserved: [0; 5],
        }
    }
}

impl Numbers {
    /// Those of an end whose segments stay as they are.
    pub const NONE: Self = Self {
        sequence: 0,
        time: 0,
        scale: 0,
        promised: 0,
    };
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
    /// The name that the client of a flow that was handed over, or bound, has requested, by the flow's id. 128 bytes.
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
    fn a_bound_flow_has_the_numbers_of_both_syn_acks() {
        let bound = Binding::bound(7, 1000, Some(50), true);
        assert!(bound.is_bound(7) && !bound.is_bound(8));
        assert!(!Binding::default().is_bound(0) && !Binding { splice: 7, ..bound }.is_bound(7));
        let answered = bound.answered(1200, 60, 9);
        let expected = Numbers {
            sequence: 200_u32.wrapping_neg(),
            time: 10_u32.wrapping_neg(),
            scale: 9,
            promised: 7,
        };
        assert_eq!(answered.to_client(), expected);
        assert!(answered.is_bound(7));
        let splice = answered.as_splice(3, 7);
        assert_eq!(
            (splice.to_client, splice.to_backend),
            (expected, Numbers::NONE)
        );
        let plain = Binding::bound(7, 1000, None, false).answered(1200, 0, 0);
        assert_eq!((plain.flags, plain.to_client().promised), (0, 0));
    }

    #[test]
    fn an_owner_is_one_flow() {
        assert_eq!(flow(owner(77, 0x3f_ffff)), (77, 0x3f_ffff));
        assert_ne!(owner(77, 1), owner(77, 2));
    }
}
