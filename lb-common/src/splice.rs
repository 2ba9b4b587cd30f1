//! A segment of one connection becomes one of another.
//!
//! Our sockets answered the client and opened a connection to the backend, each end with numbers of its own.
//! Once the ends are handed to the data plane, what differs between the two connections is these numbers
//! alone: each segment carries those of its sender, and repeats some of the other end.

use crate::{
    addr::{Be16, Be32},
    maps::splice::Numbers,
    wire::{
        N32, Packet,
        checksum::Delta,
        header::{ACK, Mss, SYN, SackBlock, Tcp, TcpOption, Timestamps},
        tcp_options::{OptionList, PLACES, SACK_BLOCKS as SACK, SIZE, TIMES},
    },
};

/// Most blocks that there is room for.
const MAX_BLOCKS: usize = 4;
/// No window is shifted further (RFC 7323 section 2.3); a mask of the shift, so that none overflows.
const SHIFT: u16 = 15;

/// How nearly every list begins: two bytes of padding, and the option of timestamps.
const PLAIN_TIMES: u32 = 0x0101_080a;
/// Where the timestamps are then, and what follows them.
const PLAIN_TIMES_AT: usize = 2;
const PLAIN_NEXT: usize = PLAIN_TIMES_AT + size_of::<Timestamps>();
/// What follows, if anything does: two bytes of padding, and that of acknowledgments, here without
/// blocks; and where these are.
const PLAIN_SACK: u32 = 0x0101_0502;
const PLAIN_BLOCKS_AT: usize = PLAIN_NEXT + 4;

/// Changes the numbers of a TCP segment in place: sequence, acknowledgment (with the ACK flag), window
/// (never on a SYN), the timestamps (RFC 7323: the echo with ACK only) and the edges of SACK blocks (RFC
/// 2018), and updates the checksum. One that `is_open` holds the sum of the pseudo-header alone, which
/// has none of them: it stays. The packet has been parsed.
///
/// `own` numbers are those of the segment's sender, `other` ones of the opposite direction.
///
/// `None` if the list of options is broken or the frame ends before it does: then nothing is written.
#[inline(always)]
pub fn translate<P: Packet>(
    packet: &P,
    own: &Numbers,
    other: &Numbers,
    is_open: bool,
) -> Option<()> {
    let option = |at| translate_option(packet, own, other, at);
    translate_by(option, packet, own, other, is_open)
}

/// The same, where `option` does what [`translate_option`] does for the option at a place, in a list that is not
/// like nearly every other: that can be a function of its own for the verifier.
#[inline(always)]
pub fn translate_by<P: Packet>(
    option: impl Fn(usize) -> Option<Delta>,
    packet: &P,
    own: &Numbers,
    other: &Numbers,
    is_open: bool,
) -> Option<()> {
    let list = OptionList::of(packet)?;
    let is_plain = list.is_plain(packet)?;
    if !is_plain {
        list.walk(packet, |_, option| Some(faults(option)))?;
    }
    list.is_inside(packet)?;
    let tcp: &Tcp = packet.header(list.tcp)?;
    let add = NumberDeltas::new(tcp.flags.get(), own, other);
    let mut delta = translate_header(tcp, &add, own);
    // Read again: then the verifier does not know how long the list was that it has just walked, and
    // walks it once more instead of once for each length.
    let list = OptionList::of(packet)?;
    if is_plain {
        delta = list.translate_plain(packet, &add, delta)?;
    } else {
        list.walk(packet, |at, _| {
            delta = delta.and(option(at)?);
            Some(0)
        })?;
    }
    if !is_open {
        let tcp: &Tcp = packet.header(list.tcp)?;
        tcp.checksum.set(delta.apply(tcp.checksum.get()));
    }
    Some(())
}

/// Changes the numbers in the option at the place `at` of a segment's list, counted from the end of its TCP header,
/// and gives what this changes in the checksum. The list is whole, and no number in front of it matters here.
///
/// `None` if the frame ends before the option does.
#[inline(always)]
pub fn translate_option<P: Packet>(
    packet: &P,
    own: &Numbers,
    other: &Numbers,
    at: usize,
) -> Option<Delta> {
    let (list, at) = (OptionList::of(packet)?, at & PLACES);
    let tcp: &Tcp = packet.header(list.tcp)?;
    let add = NumberDeltas::new(tcp.flags.get(), own, other);
    let option: &TcpOption = packet.header(list.tcp + size_of::<Tcp>() + at)?;
    list.translate_option(packet, at, option, &add, Delta::default())
}

/// What the SYN-ACK of an end has that its peer's socket does not report. Host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Its timestamp: where its sender's clock begins.
    pub time: Option<u32>,
    /// Most bytes of data that its sender takes in a segment.
    pub mss: u16,
}

/// What an end takes whose SYN has no MSS option (RFC 9293 section 3.7.1).
pub const DEFAULT_MSS: u16 = 536;

/// What a SYN-ACK has that has been parsed. `None` if its list of options is broken.
#[inline(always)]
pub fn opening<P: Packet>(packet: &P) -> Option<Opening> {
    let list = OptionList::of(packet)?;
    // No `Option`: the compiler would move its number without having any, which Linux before 6.3 refuses.
    let (mut has_time, mut time, mut mss) = (false, 0, DEFAULT_MSS);
    list.walk(packet, |at, option| {
        let place = list.tcp + size_of::<Tcp>() + at;
        let mut faulty = faults(option);
        match option.kind.get() {
            TIMES => {
                let times: &Timestamps = packet.header(place)?;
                (has_time, time) = (true, times.value.get().get());
            }
            SIZE => {
                let size: &Mss = packet.header(place)?;
                mss = size.value.get().get();
                faulty |= usize::from(option.length.get()) ^ size_of::<Mss>();
            }
            _ => {}
        }
        Some(faulty)
    })?;
    list.is_inside(packet)?;
    let time = has_time.then_some(time);
    Some(Opening { time, mss })
}

/// The timestamps of a segment. Host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentTimes {
    /// Its sender's clock.
    pub value: u32,
    /// The clock of the other end, as it was seen last.
    pub echo: u32,
}

/// The timestamps of a segment that has been parsed, if it has some; none if its list of options is broken.
#[inline(always)]
pub fn times<P: Packet>(packet: &P) -> Option<SegmentTimes> {
    let list = OptionList::of(packet)?;
    let (mut has_times, mut value, mut echo) = (false, 0, 0);
    list.walk(packet, |at, option| {
        if option.kind.get() == TIMES {
            let times: &Timestamps = packet.header(list.tcp + size_of::<Tcp>() + at)?;
            (has_times, value, echo) = (true, times.value.get().get(), times.echo.get().get());
        }
        Some(faults(option))
    })?;
    list.is_inside(packet)?;
    has_times.then_some(SegmentTimes { value, echo })
}

/// What is added to the numbers of a segment; all of it wraps. What stays gets a zero, and not a branch,
/// of which the verifier would walk both ends.
struct NumberDeltas {
    sequence: u32,
    acknowledgment: u32,
    edge: u32,
    time: u32,
    echo: u32,
}

impl NumberDeltas {
    #[inline(always)]
    fn new(flags: u8, own: &Numbers, other: &Numbers) -> Self {
        let edge = other.sequence.wrapping_neg();
        let (acknowledgment, echo) = if flags & ACK == 0 {
            (0, 0)
        } else {
            (edge, other.time.wrapping_neg())
        };
        Self {
            sequence: own.sequence,
            acknowledgment,
            edge,
            time: own.time,
            echo,
        }
    }
}

/// Changes what stands in front of the options.
#[inline(always)]
fn translate_header(tcp: &Tcp, add: &NumberDeltas, own: &Numbers) -> Delta {
    let delta = change(&tcp.sequence, add.sequence, 0, Delta::default());
    let delta = change(&tcp.acknowledgment, add.acknowledgment, 0, delta);
    if tcp.flags.get() & SYN != 0 {
        return delta;
    }
    let old = tcp.window.get();
    let new = Be16::new(window(old.get(), own));
    tcp.window.set(new);
    delta.change16(old, new)
}

/// The window as its reader has been promised to read it, in whole units of that.
///
/// Less than one unit becomes none, and its reader probes until there is more (RFC 9293 section
/// 3.8.6.1). To round up would promise room that there is not.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "not larger than 16 bits allow"
)]
fn window(window: u16, own: &Numbers) -> u16 {
    let bytes = u32::from(window) << (own.scale & SHIFT);
    let units = bytes >> (own.promised & SHIFT);
    if units > u32::from(u16::MAX) {
        u16::MAX
    } else {
        units as u16
    }
}

/// Adds to a number at the place `at`, and gives what this changes in the checksum as well.
#[inline(always)]
fn change(field: &N32, number: u32, at: usize, delta: Delta) -> Delta {
    let old = field.get();
    let new = Be32::new(old.get().wrapping_add(number));
    field.set(new);
    // A field at an odd place counts in the sum with its bytes swapped (RFC 1071 section 2 (B)).
    let turn = if at & 1 == 0 { 0 } else { 8 };
    let turned = |value: Be32| Be32::from_raw(value.raw().rotate_left(turn));
    delta.change32(turned(old), turned(new))
}

/// Not zero if an option is not as long as its kind is, where that is one with numbers.
///
/// Computed, not compared: then the verifier does not know how long it is, and where the next one begins.
#[inline(always)]
fn faults(option: &TcpOption) -> usize {
    let length = usize::from(option.length.get());
    match option.kind.get() {
        TIMES => length ^ size_of::<Timestamps>(),
        // 10, 18, 26 or 34.
        SACK => length.wrapping_sub(10) & !24,
        _ => 0,
    }
}

impl OptionList {
    /// Whether there are no options, or only those of nearly every segment, where these always stand.
    #[inline(always)]
    fn is_plain<P: Packet>(&self, packet: &P) -> Option<bool> {
        let word = |at: usize| {
            let word: &N32 = packet.header(self.tcp + size_of::<Tcp>() + at)?;
            Some(word.get().get())
        };
        let blocks = match self.end {
            20 => return Some(true),
            32 => return Some(word(0)? == PLAIN_TIMES),
            44 => 1,
            52 => 2,
            60 => 3,
            _ => return Some(false),
        };
        let is_times = word(0)? == PLAIN_TIMES;
        Some(is_times && word(PLAIN_NEXT)? == PLAIN_SACK + blocks * 8)
    }

    /// Changes the numbers in a list that is plain.
    #[inline(always)]
    fn translate_plain<P: Packet>(
        &self,
        packet: &P,
        add: &NumberDeltas,
        mut delta: Delta,
    ) -> Option<Delta> {
        if self.end < size_of::<Tcp>() + PLAIN_NEXT {
            return Some(delta);
        }
        delta = self.translate_times(packet, PLAIN_TIMES_AT, add, delta)?;
        for index in 0..MAX_BLOCKS - 1 {
            let at = PLAIN_BLOCKS_AT + index * size_of::<SackBlock>();
            if size_of::<Tcp>() + at + size_of::<SackBlock>() > self.end {
                break;
            }
            delta = self.translate_block(packet, at, add, delta)?;
        }
        Some(delta)
    }

    /// Changes the numbers in the option at the place `at`, which is whole.
    #[inline(always)]
    fn translate_option<P: Packet>(
        &self,
        packet: &P,
        at: usize,
        option: &TcpOption,
        add: &NumberDeltas,
        mut delta: Delta,
    ) -> Option<Delta> {
        match option.kind.get() {
            TIMES => return self.translate_times(packet, at, add, delta),
            SACK => {}
            _ => return Some(delta),
        }
        let length = usize::from(option.length.get());
        for index in 0..MAX_BLOCKS {
            let block = size_of::<TcpOption>() + index * size_of::<SackBlock>();
            if block + size_of::<SackBlock>() > length {
                break;
            }
            delta = self.translate_block(packet, at + block, add, delta)?;
        }
        Some(delta)
    }

    #[inline(always)]
    fn translate_times<P: Packet>(
        &self,
        packet: &P,
        at: usize,
        add: &NumberDeltas,
        delta: Delta,
    ) -> Option<Delta> {
        let times: &Timestamps = packet.header(self.tcp + size_of::<Tcp>() + at)?;
        let delta = change(&times.value, add.time, at, delta);
        Some(change(&times.echo, add.echo, at, delta))
    }

    #[inline(always)]
    fn translate_block<P: Packet>(
        &self,
        packet: &P,
        at: usize,
        add: &NumberDeltas,
        delta: Delta,
    ) -> Option<Delta> {
        let block: &SackBlock = packet.header(self.tcp + size_of::<Tcp>() + at)?;
        let delta = change(&block.left, add.edge, at, delta);
        Some(change(&block.right, add.edge, at, delta))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp_options::{END, PADDING};
    use crate::wire::{
        Slice,
        checksum::{fold, full, pseudo_header},
        header::{FIN, RST},
    };

    const OWN: Numbers = Numbers {
        sequence: 0x1020_3041,
        time: 0x0907_0503,
        scale: 0,
        promised: 0,
    };
    const OTHER: Numbers = Numbers {
        sequence: 0xf0e1_d2c3,
        time: 0x8000_7fff,
        scale: 3,
        promised: 9,
    };
    /// Numbers of the segments before: sequence, acknowledgment, timestamps, edges.
    const SEQUENCE: u32 = 0x0102_0304;
    const ACKNOWLEDGMENT: u32 = 0xfffe_fdfc;
    const VALUE: u32 = 0xff7f_3f1f;
    const ECHO: u32 = 0x1122_3344;
    const EDGES: [u32; 8] = [
        0,
        1,
        0xffff_ffff,
        0x8000_0000,
        0xf0e1_d2c3,
        0xf0e1_d2c4,
        0x7fff_ffff,
        0x0123_4567,
    ];

    /// A TCP frame with IP options (bytes), flags, window and options, right checksum, three bytes of
    /// data.
    fn frame(ip_options: usize, flags: u8, window: u16, options: &[u8]) -> Vec<u8> {
        assert_eq!((ip_options % 4, options.len() % 4), (0, 0));
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        let total = u16::try_from(43 + ip_options + options.len()).unwrap();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        bytes.extend([0x45 + u8::try_from(ip_options / 4).unwrap(), 0]);
        bytes.extend(total.to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.extend(vec![1; ip_options]);
        bytes.extend([0x9c, 0x40, 0x19, 0x2b]);
        bytes.extend(SEQUENCE.to_be_bytes());
        bytes.extend(ACKNOWLEDGMENT.to_be_bytes());
        bytes.extend([words << 4, flags]);
        bytes.extend(window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        bytes.extend([0xab, 0xcd, 0xef]);
        seal(&mut bytes);
        bytes
    }

    fn tcp(bytes: &[u8]) -> usize {
        14 + usize::from(bytes[14] & 15) * 4
    }

    fn pseudo(bytes: &[u8]) -> u64 {
        let address =
            |at: usize| Be32::new(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()));
        let length = u16::try_from(bytes.len() - tcp(bytes)).unwrap();
        pseudo_header(address(26), address(30), 6, length)
    }

    /// Writes the checksum anew.
    fn seal(bytes: &mut [u8]) {
        let tcp = tcp(bytes);
        bytes[tcp + 16..tcp + 18].fill(0);
        let sum = full(&bytes[tcp..], pseudo(bytes)).get();
        bytes[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    }

    /// The frame as it is to be: another sequence, acknowledgment, window and options.
    fn with(before: &[u8], acknowledgment: u32, window: u16, options: &[u8]) -> Vec<u8> {
        let (mut bytes, tcp) = (before.to_vec(), tcp(before));
        let sequence = SEQUENCE.wrapping_add(OWN.sequence);
        bytes[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        bytes[tcp + 8..tcp + 12].copy_from_slice(&acknowledgment.to_be_bytes());
        bytes[tcp + 14..tcp + 16].copy_from_slice(&window.to_be_bytes());
        bytes[tcp + 20..tcp + 20 + options.len()].copy_from_slice(options);
        seal(&mut bytes);
        bytes
    }

    fn times(value: u32, echo: u32) -> Vec<u8> {
        [&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
    }

    fn sack(edges: &[u32]) -> Vec<u8> {
        let length = u8::try_from(2 + edges.len() * 4).unwrap();
        let edges = edges.iter().flat_map(|edge| edge.to_be_bytes());
        [5, length].into_iter().chain(edges).collect()
    }

    /// The options before and after: of a segment that acknowledges, or does not.
    fn both_times(acknowledges: bool) -> [Vec<u8>; 2] {
        let echo = if acknowledges {
            ECHO.wrapping_sub(OTHER.time)
        } else {
            ECHO
        };
        [
            times(VALUE, ECHO),
            times(VALUE.wrapping_add(OWN.time), echo),
        ]
    }

    fn both_sacks(blocks: usize) -> [Vec<u8>; 2] {
        let edges = &EDGES[..blocks * 2];
        let after: Vec<u32> = edges
            .iter()
            .map(|edge| edge.wrapping_sub(OTHER.sequence))
            .collect();
        [sack(edges), sack(&after)]
    }

    /// Asserts that a segment with some options becomes one with others, whatever else it has.
    fn becomes(before: &[u8], after: impl Fn(bool) -> Vec<u8>) {
        for ip_options in [0, 4, 40] {
            for flags in [ACK, ACK | FIN, RST, RST | ACK, SYN, SYN | ACK, 0] {
                let first = frame(ip_options, flags, 502, before);
                let acknowledges = flags & ACK != 0;
                let acknowledgment = if acknowledges {
                    ACKNOWLEDGMENT.wrapping_sub(OTHER.sequence)
                } else {
                    ACKNOWLEDGMENT
                };
                let wanted = with(&first, acknowledgment, 502, &after(acknowledges));
                let mut bytes = first.clone();
                let said = translate(&Slice::new(&mut bytes), &OWN, &OTHER, false);
                assert_eq!((said, &bytes), (Some(()), &wanted), "{before:?}");
                // Open: the same but for the checksum, which stays, whatever it is.
                let at = tcp(&first) + 16;
                let open = fold(pseudo(&first)).to_ne_bytes();
                let mut bytes = first;
                bytes[at..at + 2].copy_from_slice(&open);
                let said = translate(&Slice::new(&mut bytes), &OWN, &OTHER, true);
                assert_eq!((said, &bytes[at..at + 2]), (Some(()), &open[..]));
                seal(&mut bytes);
                assert_eq!(bytes, wanted, "{before:?}");
            }
        }
    }

    /// Options at every place of a list with padding before and behind them.
    fn becomes_everywhere(before: &[u8], after: impl Fn(bool) -> Vec<u8>) {
        for bytes in (4..=40).step_by(4).filter(|&bytes| bytes >= before.len()) {
            for first in 0..=bytes - before.len() {
                let last = bytes - before.len() - first;
                for padding in [PADDING, END] {
                    let list = |options: &[u8]| {
                        [&vec![1; first][..], options, &vec![padding; last]].concat()
                    };
                    becomes(&list(before), |acknowledges| list(&after(acknowledges)));
                }
            }
        }
    }

    #[test]
    fn a_segment_without_options_changes_its_numbers() {
        becomes(&[], |_| Vec::new());
    }

    #[test]
    fn the_plain_lists_are_translated() {
        let plain = |index: usize, acknowledges: bool, blocks: usize| {
            let mut list = [vec![1, 1], both_times(acknowledges)[index].clone()].concat();
            if blocks > 0 {
                list.extend([1, 1]);
                list.extend(&both_sacks(blocks)[index]);
            }
            list
        };
        for blocks in 0..=3 {
            becomes(&plain(0, true, blocks), |acknowledges| {
                plain(1, acknowledges, blocks)
            });
        }
    }

    #[test]
    fn what_looks_plain_at_first_is_walked() {
        let [before, _] = both_times(true);
        let after = |acknowledges: bool| both_times(acknowledges)[1].clone();
        let list = |times: &[u8], rest: &[u8]| [&[1, 1], times, rest].concat();
        for rest in [
            &[1, 1, 254, 10, 9, 9, 9, 9, 9, 9, 9, 9][..],
            &[0, 1, 5, 18, 9, 9, 9, 9, 9, 9, 9, 9],
            &[0; 20],
            &[1; 28],
            &[3, 3, 7, 0],
        ] {
            becomes(&list(&before, rest), |acknowledges| {
                list(&after(acknowledges), rest)
            });
        }
    }

    #[test]
    fn options_are_found_wherever_they_stand() {
        let after = |acknowledges: bool| both_times(acknowledges)[1].clone();
        becomes_everywhere(&both_times(true)[0], after);
        for blocks in 1..=4 {
            let [before, after] = both_sacks(blocks);
            becomes_everywhere(&before, |_| after.clone());
        }
        for blocks in 1..=3 {
            let [sack, translated] = both_sacks(blocks);
            let [times, _] = both_times(true);
            becomes_everywhere(&[&times[..], &sack].concat(), |acknowledges| {
                [after(acknowledges), translated.clone()].concat()
            });
            becomes_everywhere(&[&sack[..], &times].concat(), |acknowledges| {
                [translated.clone(), after(acknowledges)].concat()
            });
            // Behind a window scale, which makes the place odd.
            let scale = [3, 3, 7];
            becomes_everywhere(&[&scale[..], &sack].concat(), |_| {
                [&scale[..], &translated].concat()
            });
        }
    }

    #[test]
    fn an_option_that_is_repeated_is_translated_each_time() {
        let [before, _] = both_times(true);
        becomes(&[&before[..], &before].concat(), |acknowledges| {
            both_times(acknowledges)[1].repeat(2)
        });
    }

    #[test]
    fn other_options_stay() {
        for options in [
            &[2, 4, 5, 0xb4][..],
            &[2, 4, 5, 0xb4, 4, 2, 3, 3],
            &[254, 4, 8, 10],
            &[0, 8, 10, 1],
            &[1, 1, 1, 0],
            &[254, 3, 8, 1],
            &[254, 3, 8, 0],
        ] {
            let whole = !matches!(options, [.., 3, 3]);
            if whole {
                becomes(options, |_| options.to_vec());
            } else {
                stays(options);
            }
        }
        let longest = [vec![254, 40], vec![8; 38]].concat();
        becomes(&longest, |_| longest.clone());
    }

    /// Asserts that nothing is written into a segment with these options.
    fn stays(options: &[u8]) {
        for is_open in [false, true] {
            let before = frame(4, ACK, 502, options);
            let mut bytes = before.clone();
            let said = translate(&Slice::new(&mut bytes), &OWN, &OTHER, is_open);
            assert_eq!((said, &bytes), (None, &before), "{options:?}");
            assert_eq!(opening(&Slice::new(&mut bytes)), None, "{options:?}");
        }
    }

    #[test]
    fn nothing_is_written_where_the_list_is_broken() {
        let [times, _] = both_times(true);
        let [sack, _] = both_sacks(1);
        for tail in [
            &[1, 254][..],
            &[1, 8],
            &[254, 0],
            &[254, 1],
            &[254, 3],
            &[254, 255],
            // More than the mask of places, which would lead to a place again.
            &[254, 54],
            &[254, 62],
            &[254, 64],
            &[254, 66],
            &[254, 128],
            &[8, 10],
            &[8, 2],
            &[5, 2],
        ] {
            stays(&[&times[..], tail].concat());
            stays(&[&sack[..], tail].concat());
            stays(&[&[1, 1], &times[..], &[1, 1], &sack, &[1, 1], tail].concat());
        }
        for length in (0..=255).filter(|length| *length != 10) {
            let mut list = [&times[..], &[1; 26]].concat();
            list[1] = length;
            stays(&list);
            if !matches!(length, 18 | 26 | 34) {
                list[0] = SACK;
                stays(&list);
            }
        }
        for plain in [12, 24, 32, 40] {
            let mut list = [&[1, 1], &times[..], &[1, 1, 5, 4], &[9; 24]].concat();
            list.truncate(plain);
            list[3] = 11;
            stays(&list);
            list[3] = 10;
            if plain > 12 {
                stays(&list);
            }
        }
        // Half of it in the header, half in the data.
        stays(&[1, 1, 8, 10]);
        stays(&[1, 1, 1, 8]);
    }

    #[test]
    fn nothing_is_written_where_the_frame_ends() {
        let [times, _] = both_times(true);
        let [sack, _] = both_sacks(3);
        for list in [
            [&[1, 1], &times[..], &[1, 1], &sack].concat(),
            [&times[..], &[1], &sack, &[1, 1, 0]].concat(),
        ] {
            for ip_options in [0, 4] {
                let whole = frame(ip_options, ACK, 502, &list);
                for length in 0..whole.len() - 3 {
                    let mut bytes = whole[..length].to_vec();
                    let said = translate(&Slice::new(&mut bytes), &OWN, &OTHER, false);
                    assert_eq!((said, &bytes[..]), (None, &whole[..length]));
                    assert_eq!(opening(&Slice::new(&mut bytes)), None);
                }
            }
        }
    }

    #[test]
    fn a_window_is_what_its_reader_was_promised_to_read() {
        for (before, scale, promised, after) in [
            (502, 7, 7, 502),
            (502, 0, 0, 502),
            (65535, 14, 14, 65535),
            (65535, 14, 0, 65535),
            (502, 7, 0, 64256),
            (512, 7, 0, 65535),
            (511, 7, 0, 65408),
            (64256, 0, 7, 502),
            (64383, 0, 7, 502),
            (127, 0, 7, 0),
            (128, 0, 7, 1),
            (1, 0, 14, 0),
            (0, 14, 0, 0),
            (1000, 3, 5, 250),
            (1000, 5, 3, 4000),
            // What no host can promise shifts as far as the mask lets it.
            (1, 15, 15, 1),
            (65535, 31, 16, 65535),
            (65535, 0xffff, 0xffff, 65535),
        ] {
            let own = Numbers {
                scale,
                promised,
                ..OWN
            };
            for (flags, wanted) in [
                (ACK, after),
                (RST, after),
                (SYN, before),
                (SYN | ACK, before),
            ] {
                let mut bytes = frame(0, flags, before, &[]);
                let translated = translate(&Slice::new(&mut bytes), &own, &OTHER, false);
                assert_eq!(translated, Some(()));
                let found = u16::from_be_bytes(bytes[48..50].try_into().unwrap());
                assert_eq!(found, wanted, "{before} {scale} {promised} {flags:#x}");
                let sealed = bytes.clone();
                seal(&mut bytes);
                assert_eq!(bytes, sealed);
            }
        }
    }

    #[test]
    fn numbers_of_nothing_change_nothing() {
        let list = [vec![1, 1], times(VALUE, ECHO)].concat();
        let before = frame(0, ACK, 502, &list);
        let mut bytes = before.clone();
        let nothing = Numbers::default();
        let said = translate(&Slice::new(&mut bytes), &nothing, &nothing, false);
        assert_eq!((said, bytes), (Some(()), before));
    }

    #[test]
    fn a_syn_ack_says_when_it_was_sent_and_what_is_taken() {
        let said = |options: &[u8]| {
            let before = frame(4, SYN | ACK, 502, options);
            let mut bytes = before.clone();
            let said = opening(&Slice::new(&mut bytes));
            assert_eq!(bytes, before);
            said.map(|Opening { time, mss }| (time, mss))
        };
        let times = times(VALUE, ECHO);
        // As Linux answers, with and without.
        let answer = [&[2, 4, 5, 0xb4, 4, 2], &times[..], &[1, 3, 3, 7]].concat();
        assert_eq!(said(&answer), Some((Some(VALUE), 1460)));
        let answer = [2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7];
        assert_eq!(said(&answer), Some((None, 1460)));
        assert_eq!(said(&[]), Some((None, 536)));
        for first in 0..=30 {
            let list = [&vec![1; first][..], &times, &vec![1; 30 - first]].concat();
            assert_eq!(said(&list), Some((Some(VALUE), 536)), "{first}");
        }
        for first in 0..=36 {
            let list = [&vec![1; first][..], &[2, 4, 1, 2], &vec![1; 36 - first]].concat();
            assert_eq!(said(&list), Some((None, 258)), "{first}");
        }
        assert_eq!(said(&[&[0, 1], &times[..]].concat()), Some((None, 536)));
        for broken in [
            &[2, 3, 5, 1][..],
            &[2, 5, 5, 0xb4, 1, 1, 1, 1],
            &[1, 1, 2, 4],
        ] {
            assert_eq!(said(broken), None, "{broken:?}");
        }
    }
}
