//! IP options: carried as they are, but for those that determine which way a packet must go, and those that
//! would show a client which way it came.

use super::{
    N8, Packet,
    checksum::Delta,
    header::{Ethernet, Ipv4},
};
use crate::{addr::Be16, verdict::DropReason};

/// Most bytes of options that an IPv4 header has room for.
pub const MAX_BYTES: usize = 40;

/// End of the list.
const END: u8 = 0;
/// Padding of one byte.
const NO_OPERATION: u8 = 1;
/// Loose source and record route (RFC 791 section 3.1).
const LOOSE_ROUTE: u8 = 131;
/// Strict source and record route.
const STRICT_ROUTE: u8 = 137;

/// Record route (RFC 791 section 3.1).
const RECORD_ROUTE: u8 = 7;
/// Internet time stamp, which may come with addresses.
const TIME_STAMP: u8 = 68;

/// No offset is larger than this, which is what the verifier wants to see.
const OFFSET_MASK: usize = 63;

/// Judges the options of the IPv4 packet in a frame without a tag; `bytes` is their length.
///
/// # Errors
///
/// `SourceRoute` for both kinds of it: such a packet goes where its sender wants, past what our
/// addresses mean (RFC 7126 section 4.3). `Malformed` if the list breaks off.
#[inline(always)]
pub fn check<P: Packet>(packet: &P, bytes: usize) -> Result<(), DropReason> {
    let byte = |at: usize| {
        let found: Option<&N8> = packet.header(size_of::<Ethernet>() + size_of::<Ipv4>() + at);
        found.map(|byte| byte.get()).ok_or(DropReason::Malformed)
    };
    let mut at = 0;
    for _ in 0..MAX_BYTES {
        if at >= bytes {
            break;
        }
        let step = match byte(at)? {
            END => break,
            NO_OPERATION => 1,
            LOOSE_ROUTE | STRICT_ROUTE => return Err(DropReason::SourceRoute),
            _ => {
                let length = usize::from(byte(at + 1)?);
                if length < 2 || at + length > bytes {
                    return Err(DropReason::Malformed);
                }
                length
            }
        };
        at = (at + step) & OFFSET_MASK;
    }
    Ok(())
}

/// Overwrites by padding the options into which hosts and routers write their addresses, and updates the
/// header's checksum: no client sees what is behind its VIP. `bytes` is the length of a list that
/// [`check`] has let pass; `None` if it breaks off.
#[inline(always)]
pub fn conceal<P: Packet>(packet: &P, bytes: usize) -> Option<()> {
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    let byte = |at: usize| packet.header::<N8>(size_of::<Ethernet>() + size_of::<Ipv4>() + at);
    let mut delta = Delta::default();
    // Bytes of the option in hand that are still to be overwritten, or left alone.
    let (mut hidden, mut kept) = (0, 0);
    for at in 0..MAX_BYTES {
        if at >= bytes {
            break;
        }
        let cell = byte(at)?;
        let old = cell.get();
        if hidden == 0 && kept == 0 {
            let length = match old {
                END => break,
                NO_OPERATION => 1,
                _ => byte(at + 1)?.get(),
            };
            match old {
                RECORD_ROUTE | TIME_STAMP => hidden = length,
                _ => kept = length,
            }
        }
        if hidden > 0 {
            hidden -= 1;
            cell.set(NO_OPERATION);
            // The list begins at an even offset.
            let word = |byte: u8| Be16::new(u16::from(byte) << (8 * (1 - at % 2)));
            delta = delta.change16(word(old), word(NO_OPERATION));
        } else {
            kept = kept.checked_sub(1)?;
        }
    }
    ip.checksum.set(delta.apply(ip.checksum.get()));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Slice, checksum::full},
        *,
    };

    /// The judgement of these options, with `behind` after the IP header.
    fn judge(options: &[u8], behind: &[u8]) -> Result<(), DropReason> {
        let mut bytes = [&[0; 34], options, behind].concat();
        check(&Slice::new(&mut bytes), options.len())
    }

    /// What is left of these options; the header's checksum is right before and must be afterwards.
    fn concealed(options: &[u8]) -> Vec<u8> {
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        let mut bytes = [&[0; 14][..], &[0x40 + words], &[0x55; 19], options, &[7; 8]].concat();
        bytes[24..26].fill(0);
        let end = 34 + options.len();
        let sum = full(&bytes[14..end], 0).get().to_be_bytes();
        bytes[24..26].copy_from_slice(&sum);
        conceal(&Slice::new(&mut bytes), options.len()).unwrap();
        assert_eq!(full(&bytes[14..end], 0).raw(), 0, "checksum: {options:?}");
        assert_eq!(bytes[end..], [7; 8], "behind the header");
        bytes[34..end].to_vec()
    }

    #[test]
    fn a_client_sees_nothing_of_the_way() {
        let route = [7, 7, 8, 10, 32, 96, 105, 0];
        assert_eq!(concealed(&route), [1, 1, 1, 1, 1, 1, 1, 0]);
        let odd = [1, 7, 7, 8, 10, 32, 96, 105];
        assert_eq!(concealed(&odd), [1; 8]);
        let stamps = [148, 4, 0, 0, 68, 12, 13, 1, 10, 32, 96, 105, 0, 1, 2, 3];
        assert_eq!(concealed(&stamps)[..4], [148, 4, 0, 0]);
        assert_eq!(concealed(&stamps)[4..], [1; 12]);
        let two = [7, 3, 4, 68, 4, 5, 0, 148, 4, 7, 68, 0];
        assert_eq!(concealed(&two), [1, 1, 1, 1, 1, 1, 1, 148, 4, 7, 68, 0]);
        for kept in [[148, 4, 7, 68], [0, 7, 7, 4], [1, 1, 1, 1]] {
            assert_eq!(concealed(&kept), kept);
        }
    }

    #[test]
    fn options_without_a_route_are_carried() {
        for options in [
            &[1, 1, 1, 1][..],
            &[0, 0, 0, 0],
            &[7, 7, 4, 0, 0, 0, 0, 0],                 // record route
            &[68, 8, 5, 0, 0, 0, 0, 0],                // time stamp
            &[148, 4, 0, 0],                           // router alert
            &[1, 148, 4, 0, 0, 1, 7, 3, 131, 0, 0, 0], // 131 is data
            &[1; 40],
            &[200, 40]
                .iter()
                .copied()
                .chain([131; 38])
                .collect::<Vec<_>>(),
        ] {
            assert_eq!(judge(options, &[131; 20]), Ok(()), "{options:?}");
        }
    }

    #[test]
    fn a_route_is_found_wherever_it_stands() {
        for kind in [131, 137] {
            for at in 0..40 {
                let mut options = [1; 40];
                options[at] = kind;
                assert_eq!(judge(&options, &[]), Err(DropReason::SourceRoute), "{at}");
            }
            let behind_another = [148, 4, 0, 0, kind, 7, 4, 10, 32, 96, 105, 0];
            assert_eq!(judge(&behind_another, &[]), Err(DropReason::SourceRoute));
            // What is behind the end of the list is not read.
            assert_eq!(judge(&[0, kind, 3, 4], &[]), Ok(()));
        }
    }

    #[test]
    fn a_list_that_breaks_off_is_malformed() {
        for options in [
            &[7, 0, 0, 0][..],
            &[7, 1, 0, 0],
            &[7, 5, 4, 0],
            &[7, 255, 4, 0],
            &[1, 1, 1, 7],
            &[148, 4, 0, 0, 1, 1, 7, 3],
            &[1; 39].into_iter().chain([7]).collect::<Vec<_>>(),
        ] {
            assert_eq!(
                judge(options, &[2; 20]),
                Err(DropReason::Malformed),
                "{options:?}"
            );
            assert_eq!(
                judge(options, &[]),
                Err(DropReason::Malformed),
                "{options:?}"
            );
        }
        let mut short = [0; 34];
        assert_eq!(
            check(&Slice::new(&mut short), 4),
            Err(DropReason::Malformed)
        );
    }
}
