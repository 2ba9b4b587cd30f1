//! Hellos that userspace is given: what a client has sent behind a SYN that was answered by a cookie, and all that is
//! needed to make a socket of its connection.

use crate::{
    addr::Mac,
    client_hello::glance::{MAX_GLANCE, SeenExtensions},
    maps::{flow::FlowKey, server_name::NameKey},
    pod::pod_struct,
    proxy_header::ProxyHeader,
    syn_cookie::answer::MAX_WINDOW,
};

/// How long a hello waits for a process, in units of coarse time: 45 s. A supervisor has noticed by then that one hangs, and
/// started another one. Without any for longer, clients whose connections XDP does not open get a reset.
pub const MAX_HELLO_AGE: u32 = 42_915;
/// Bytes of the ring buffer `HELLOS`.
pub const HELLO_BUFFER_BYTES: u32 = 1 << 19;
/// Slots for hellos of which a segment has come, two for each hash of their tuples: a cache, since the client still has
/// what is in there.
pub const HELLO_SLOTS: u32 = 1024;
/// Most bytes of a hello in a slot.
pub const MAX_HELLO_BYTES: u32 = MAX_WINDOW as u32;
/// Most bytes of a segment in front of which, or behind which, there is another one.
pub const MAX_PIECE_BYTES: u32 = MAX_HELLO_BYTES / 2;

const _: () = assert!(MAX_HELLO_BYTES <= MAX_GLANCE);

pod_struct! {
    /// What is known of a hello, in front of its bytes. 64 bytes. Host order, but for the tuple.
    pub struct HelloHead {
        /// Between which ends it was sent.
        pub key: FlowKey,
        /// The number of the client's SYN.
        pub isn: u32,
        /// That of our SYN-ACK: a cookie.
        pub number: u32,
        /// The client's timestamp in its latest segment, with [`HELLO_HAS_TIMES`].
        pub time: u32,
        /// Our own timestamp at that moment, with [`HELLO_HAS_TIMES`].
        pub clock: u32,
        /// Coarse time of the latest segment.
        pub seen: u32,
        /// What the bytes of each segment sum up to, by its checksum (RFC 1071); with [`HELLO_HAS_SUMS`].
        pub sums: [u16; 2],
        /// Bytes of each segment; 0 of one that has not come.
        pub lengths: [u16; 2],
        /// The client's window, as in its latest segment.
        pub window: u16,
        /// Most bytes in a segment to the client.
        pub mss: u16,
        /// The same from the client, as our SYN-ACK had it.
        pub announced: u16,
        /// The station that sent it.
        pub mac: Mac,
        /// The `HELLO_` flags.
        pub flags: u32,
        /// Bytes of the header that its backend gets in front of it, once that is made, or 0; and what they sum up to.
        pub header: [u16; 2],
    }
}

/// A part of what a backend gets behind its SYN-ACK. Its number is that of `HelloSlot::copies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloPart {
    /// The first segment of the hello.
    First = 0,
    /// The second one.
    Second = 1,
    /// The header of the PROXY protocol in front of it.
    Header = 2,
}

impl HelloPart {
    /// That with this number.
    #[inline(always)]
    pub const fn of(number: u16) -> Self {
        match number {
            0 => Self::First,
            1 => Self::Second,
            _ => Self::Header,
        }
    }
}

/// A segment of a hello in its slot.
#[derive(Clone, Copy, Debug)]
pub struct StoredSegment {
    /// Where its bytes begin; those of a header are by themselves.
    pub at: u16,
    /// How many there are; 0 if it has not come.
    pub length: u16,
    /// What they sum up to.
    pub sum: u16,
}

impl StoredSegment {
    /// That has not come.
    pub const NONE: Self = Self {
        at: 0,
        length: 0,
        sum: 0,
    };
}

impl HelloHead {
    /// That of an ACK which has returned a cookie of a service without names, at this coarse time: a segment of no bytes, with the
    /// client's clock if it has one.
    #[inline(always)]
    pub const fn ack(key: FlowKey, isn: u32, number: u32, time: Option<u32>, seen: u32) -> Self {
        let (has_times, time) = match time {
            Some(time) => (HELLO_HAS_TIMES, time),
            None => (0, 0),
        };
        Self {
            key,
            isn,
            number,
            time,
            clock: 0,
            seen,
            sums: [0; 2],
            lengths: [0; 2],
            window: 0,
            mss: 0,
            announced: 0,
            mac: Mac::NONE,
            flags: has_times | HELLO_HAS_SUMS | HELLO_IS_PLAIN,
            header: [0; 2],
        }
    }

    /// Whether a segment of this tuple, which acknowledges this number and stands behind `isn`, is a later one of the same connection.
    #[inline(always)]
    pub fn is_ahead_of(&self, key: &FlowKey, number: u32, isn: u32) -> bool {
        let behind = isn.wrapping_sub(self.isn).wrapping_sub(1);
        behind < MAX_HELLO_BYTES && self.number == number && self.key == *key
    }

    /// A part of it.
    #[inline(always)]
    pub const fn segment(&self, part: HelloPart) -> StoredSegment {
        let ([first, second], [first_sum, second_sum]) = (self.lengths, self.sums);
        let (at, length, sum) = match part {
            HelloPart::First => (0, first, first_sum),
            HelloPart::Second => (first, second, second_sum),
            HelloPart::Header => {
                let [length, sum] = self.header;
                (0, length, sum)
            }
        };
        StoredSegment { at, length, sum }
    }

    /// The number of a part's first byte, for the backend.
    #[inline(always)]
    pub const fn number_of(&self, part: HelloPart) -> u32 {
        let begin = self.isn.wrapping_add(1);
        let [header, _] = self.header;
        match part {
            HelloPart::Header => begin.wrapping_sub(header as u32),
            _ => begin.wrapping_add(self.segment(part).at as u32),
        }
    }

    /// Whether it came in two segments.
    #[inline(always)]
    pub const fn is_in_two(&self) -> bool {
        let [_, second] = self.lengths;
        second != 0
    }

    /// Bytes of all segments.
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        let [first, second] = self.lengths;
        first as u32 + second as u32
    }
}

/// The client has timestamps.
pub const HELLO_HAS_TIMES: u32 = 1;
/// The segments' checksums are theirs, and not to be computed yet.
pub const HELLO_HAS_SUMS: u32 = 2;
/// Another segment is awaited, and userspace has none of it.
pub const HELLO_IN_PART: u32 = 4;
/// The backends of its name get a header in front of it.
pub const HELLO_HAS_HEADER: u32 = 8;
/// Its service has no names: it is any data, or the ACK behind a cookie, of no bytes.
pub const HELLO_IS_PLAIN: u32 = 16;

/// A slot of `HELLO_SLOTS`; the data plane alone has it.
#[repr(C)]
pub struct HelloSlot {
    /// Odd while a CPU has it.
    pub word: u32,
    /// What is in there.
    pub head: HelloHead,
    /// The bytes, [`MAX_HELLO_BYTES`] at most; a glance may look at all places.
    pub bytes: [u8; MAX_GLANCE as usize],
    /// Our timestamp that the client's first segment has repeated.
    pub echo: u32,
    /// Which [`HelloPart`] the next copy of a frame becomes, and before which one there is none.
    pub copies: [u16; 2],
    /// What has been seen of its extensions.
    pub seen: SeenExtensions,
    /// Where the key of its name is made.
    pub name: NameKey,
    /// The header in front of it.
    pub header: ProxyHeader,
}

/// The first byte of a TLS record with a handshake, and bytes of the header of a record (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;
const RECORD_HEADER: u32 = 5;

/// Fewer bytes than this in a segment have not been cut off by the size of segments, so its sender waits for something:
/// every end takes as many (RFC 9293 section 3.7.1).
const MIN_CUT_BYTES: u32 = 536;

/// Whether a second segment is to be awaited behind a first one of so many bytes, of which these are the first five:
/// its TLS record goes on, and was cut off there. What is no record goes to userspace as it is.
#[inline(always)]
pub const fn goes_on(first: [u8; RECORD_HEADER as usize], bytes: u32) -> bool {
    let [kind, _, _, high, low] = first;
    let record = RECORD_HEADER + ((high as u32) << 8 | low as u32);
    MIN_CUT_BYTES <= bytes && bytes <= MAX_PIECE_BYTES && kind == HANDSHAKE && bytes < record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_whole_record_goes_on() {
        let hello = |length: u16| {
            let [high, low] = length.to_be_bytes();
            [22, 3, 1, high, low]
        };
        assert!(!goes_on(hello(1700), 1705) && !goes_on(hello(600), 610));
        assert!(goes_on(hello(1700), 1448) && goes_on(hello(532), 536));
        assert!(!goes_on(hello(1700), 535) && !goes_on([22, 0, 0, 0, 0], 1));
        assert!(
            !goes_on([0x0d, 0x0a, 0x0d, 0x0a, 0], 600),
            "a header of PROXY"
        );
        assert!(!goes_on(*b"GET /", 600) && !goes_on([0; 5], 600));
        assert!(
            !goes_on(hello(4000), 2000),
            "no second one has room behind it"
        );
    }
}
