//! One look-up for the network of a packet of IPv4 and for what its destination is there: `lb_common::maps::door`.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::{
        door::{self, DoorKey, DoorPlace, LINE_WORDS},
        network::Address,
    },
    wire::{
        Packet,
        header::{Ethernet, Ipv4, Vlan},
    },
};

use crate::{frame::xdp::Xdp, maps::DOORS, subprogram::FoundDoor};

/// The door of a frame of this VLAN, as [`FoundDoor`]; `is_tagged` is 1 or 0. A subprogram, so that the way in does not have
/// it on its stack.
///
/// Of another protocol's bytes it would be that of an interface and VLAN that are right, and an address that no step
/// looks at.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_door(ctx: *mut xdp_md, is_tagged: u32, vlan: u32) -> u64 {
    let ctx = XdpContext::new(ctx);
    let xdp = Xdp::new(&ctx);
    let ip: Option<&Ipv4> = match is_tagged {
        0 => xdp.header(size_of::<Ethernet>()),
        _ => xdp.header(size_of::<Ethernet>() + size_of::<Vlan>()),
    };
    let Some(ip) = ip else {
        return FoundDoor::NONE.raw();
    };
    let key = DoorKey {
        ifindex: ctx.ingress_ifindex() as u32,
        vlan: vlan as u16,
        destination: ip.destination.get(),
    };
    let line = key.line();
    let found = DOORS.get_ptr(line).and_then(|words| {
        let found = door::find(|place| load(words.cast(), place), &key)?;
        Some(FoundDoor::new(line, found))
    });
    found.unwrap_or(FoundDoor::NONE).raw()
}

/// What the destination is that this door was found for; none if there is no door, or that changes just now.
#[inline(always)]
pub(crate) fn address(found: FoundDoor) -> Option<Address> {
    let (line, place): (u32, DoorPlace) = found.place()?;
    let words = DOORS.get_ptr(line)?.cast();
    door::address(|place| load(words, place), &place)
}

#[inline(always)]
fn load(words: *const u32, place: u32) -> u32 {
    let word = words.wrapping_add((place & (LINE_WORDS - 1)) as usize);
    // SAFETY: a word of a live value of an array map, which is never freed; userspace writes such words by single
    // stores.
    unsafe { word.read_volatile() }
}
