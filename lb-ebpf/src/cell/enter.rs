//! What goes into a cell: what its sockets talk to, and the rest at a rate.

use lb_common::{
    addr::{Be16, Be32},
    contact::{Contact, Ends},
    maps::network::Network,
    rate::{Rates, STRANGERS, SYNS},
    verdict::{DropReason, Verdict},
    wire::{Frame, L4, header::RST},
};

use crate::{
    cell::station,
    emit,
    flow::entry::now,
    maps::{CONTACTS, HASH_KEY, RATES},
    subprogram::Pair,
};

/// Takes of the buckets that this CPU has for the network `id`; none is left where there are none.
#[inline(always)]
pub(crate) fn take(id: u16, of: impl FnOnce(&mut Rates, u32) -> bool) -> bool {
    let Some(rates) = RATES.get_ptr_mut(u32::from(id)) else {
        return false;
    };
    // SAFETY: the pointer is this CPU's slot, which nothing else writes while the program runs, and no caller
    // holds another reference to it.
    of(unsafe { &mut *rates }, now())
}

/// Hands the frame to the cell of the network `id`, if there is a token for it.
#[inline(always)]
pub(crate) fn at_rate(
    id: u16,
    network: &Network,
    of: impl FnOnce(&mut Rates, u32) -> bool,
) -> Result<Verdict, DropReason> {
    if !take(id, of) {
        return Err(DropReason::CellRate);
    }
    emit::to_cell(network)
}

/// The ends of a segment, as addresses or their labels.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) us: Be32,
    pub(crate) peer: Be32,
}

/// Whether a segment that came from the peer may enter the cell of the network `id`: its
/// sockets have spoken to that end lately, which is true then, or there is a token, and room for one more station of the
/// link.
#[inline(always)]
pub(crate) fn check<I>(frame: &Frame<'_, I>, ends: Addresses, id: u16) -> Result<bool, DropReason> {
    let Addresses { us, peer } = ends;
    let (peer_port, port) = frame.l4.ports();
    let ports = Pair::new(port.raw(), peer_port.raw());
    let asks = u32::from(frame.asks());
    match lb_admits(u32::from(id), us.raw(), peer.raw(), ports.raw(), asks) {
        0 => Err(DropReason::CellRate),
        admitted => Ok(admitted == KNOWN),
    }
}

/// What [`lb_admits`] returns of a segment from an end that the sockets of the cell have spoken to.
const KNOWN: u32 = 2;

/// [`check`] of these ends of a segment; `ports` is a [`Pair`] of our port and the peer's; `asks` is 1 for the SYN
/// that opens a connection. Returns 1 if the segment may enter, or [`KNOWN`]. A subprogram, which the verifier walks once, and so
/// that it takes no stack of its callers.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_admits(id: u32, us: u32, peer: u32, ports: u32, asks: u32) -> u32 {
    let network = id as u16;
    let has_token = if asks != 0 {
        take(network, |rates, now| rates.syns.take(now, SYNS))
    } else {
        let ports = Pair::from_raw(ports);
        let ends = Ends {
            us: Be32::from_raw(us),
            peer: Be32::from_raw(peer),
            port: Be16::from_raw(ports.high()),
            peer_port: Be16::from_raw(ports.low()),
            network,
        };
        if is_known(ends) {
            return KNOWN;
        }
        take(network, |rates, now| rates.strangers.take(now, STRANGERS))
    };
    if has_token {
        station::lb_station(id, peer)
    } else {
        0
    }
}

/// Whether the sockets of the cell have spoken to this end lately.
#[inline(always)]
fn is_known(ends: Ends) -> bool {
    contact(ends).is_some_and(|contact| {
        CONTACTS
            .get(contact.place())
            .is_some_and(|&note| contact.is_known(note, now()))
    })
}

/// Notes that a socket of the cell of the network `id` sends to the peer.
/// What any station can make the kernel send is no sign of a socket: a RST, and the SYN-ACK.
#[inline(always)]
pub(crate) fn note<I>(frame: &Frame<'_, I>, ends: Addresses, id: u16) {
    let L4::Tcp(tcp) = frame.l4 else {
        return;
    };
    if tcp.flags.get() & RST != 0 || frame.answers() {
        return;
    }
    let Addresses { us, peer } = ends;
    let (port, peer_port) = frame.l4.ports();
    let contact = contact(Ends {
        us,
        peer,
        port,
        peer_port,
        network: id,
    });
    let Some(contact) = contact else {
        return;
    };
    if let Some(place) = CONTACTS.get_ptr_mut(contact.place()) {
        let note = contact.note(now());
        // SAFETY: a live value of an array map, one word.
        let noted = unsafe { place.read_volatile() };
        if noted != note {
            // SAFETY: as above; of two CPUs that write at the same moment one is right, and the other one's end
            // is a stranger until its next segment.
            unsafe { place.write_volatile(note) };
        }
    }
}

#[inline(always)]
fn contact(ends: Ends) -> Option<Contact> {
    Some(Contact::of(HASH_KEY.get(0)?, ends))
}
