//! The list of options of a TCP segment (RFC 9293 section 3.1).

use super::{
    N16, Packet,
    header::{Ethernet, Ipv4, Tcp, TcpOption},
};

/// The end of the list.
pub(crate) const END: u8 = 0;
/// One byte of padding.
pub(crate) const PADDING: u8 = 1;
/// The largest segment that the sender takes.
pub(crate) const SIZE: u8 = 2;
/// How far the sender's windows are shifted (RFC 7323 section 2).
pub(crate) const SCALE: u8 = 3;
/// The sender understands selective acknowledgments (RFC 2018).
pub(crate) const SACK_PERMITTED: u8 = 4;
/// Selective acknowledgments.
pub(crate) const SACK_BLOCKS: u8 = 5;
/// Timestamps (RFC 7323 section 3).
pub(crate) const TIMES: u8 = 8;
/// Most bytes of options: fifteen words less the header's five.
const MAX_OPTIONS: usize = 40;
/// A mask of the places of options.
pub(crate) const PLACES: usize = 63;

/// The list of a segment's options.
pub(crate) struct OptionList {
    /// Where the TCP header begins, in the frame.
    pub(crate) tcp: usize,
    /// Where it ends with the list. The list's own length is never computed: the verifier would take
    /// that for a number that can be negative.
    pub(crate) end: usize,
}

impl OptionList {
    #[inline(always)]
    pub(crate) fn of<P: Packet>(packet: &P) -> Option<Self> {
        let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
        let tcp = size_of::<Ethernet>() + ip.header_bytes();
        let header: &Tcp = packet.header(tcp)?;
        let end = usize::from(header.data_offset.get() >> 4) * 4;
        (end >= size_of::<Tcp>()).then_some(Self { tcp, end })
    }

    /// Whether the frame has all of the list. To be checked after all else: the compiler would take it for
    /// the checks that the verifier wants to see.
    #[inline(always)]
    pub(crate) fn is_inside<P: Packet>(&self, packet: &P) -> Option<()> {
        (self.tcp + self.end <= packet.len()).then_some(())
    }

    /// Hands each option with a length on, and where it stands; `then` returns whether it is faulty: not
    /// zero. `None` if one is, or the list is broken; options behind a length that lies may be handed on
    /// before.
    ///
    /// From one option to the next, and not from place to place as in [`crate::mss::clamp`]: with several
    /// options to write, the verifier would walk each place once for each way that leads to it. Of `at` it
    /// knows the mask alone. For this faults are gathered, and what they are is not compared before the end.
    #[inline(always)]
    pub(crate) fn walk<P: Packet>(
        &self,
        packet: &P,
        mut then: impl FnMut(usize, &TcpOption) -> Option<usize>,
    ) -> Option<()> {
        let (mut at, mut faulty) = (0, 0);
        for _ in 0..MAX_OPTIONS {
            if size_of::<Tcp>() + at >= self.end {
                break;
            }
            // With the byte before it, because the verifier learns nothing from the check of a single
            // one.
            let pair: &N16 = packet.header(self.tcp + size_of::<Tcp>() - 1 + at)?;
            let [_, kind] = pair.get().raw().to_ne_bytes();
            let length = match kind {
                END => return (faulty == 0).then_some(()),
                PADDING => 1,
                _ => {
                    let option: &TcpOption = packet.header(self.tcp + size_of::<Tcp>() + at)?;
                    faulty |= then(at, option)?;
                    // Read again: what has been compared with it is not known of it then.
                    let length = usize::from(option.length.get());
                    if length < size_of::<TcpOption>() {
                        return None;
                    }
                    length
                }
            };
            faulty |= (at + length) & !PLACES;
            at = (at + length) & PLACES;
        }
        (size_of::<Tcp>() + at == self.end && faulty == 0).then_some(())
    }
}
