//! The header of the PROXY protocol in front of a client's hello, as it is made in the hello's slot.
//!
//! It goes to the backend behind its SYN-ACK, and the hello when the backend has acknowledged it: [`meet`](super::meet). If it is lost, the
//! client repeats its hello, which becomes the SYN again; what the backend answers to that says whether it has the header.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use lb_common::{maps::server_name::MAX_NAME_BYTES, proxy_header::octets};

use super::{backend_syn::snat_end, cookie, name, slot::anew};
use crate::{flow::entry::Entry, maps::HELLO_SLOTS};

const NS_IN_MS: u64 = 1_000_000;

/// Makes the header of the flow with this id in the slot with this index, which has its hello: the length, or 0 if it cannot be
/// made. A subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_make_header(flow_id: u32, index: u32) -> u32 {
    make(flow_id, index).map_or(0, u32::from)
}

#[inline(always)]
fn make(flow_id: u32, index: u32) -> Option<u16> {
    let length = name::set_whole_name(index);
    if length == 0 || length > MAX_NAME_BYTES {
        return None;
    }
    // Or the compiler leaves out masks that only it knows to be needless.
    let length = anew(length) as u32;
    let entry = Entry::at(flow_id)?;
    let (address, port) = snat_end(&entry).ok()?;
    let slot = HELLO_SLOTS.get_ptr_mut(index)?;
    // SAFETY: a live value of an array map, whose claim the caller of the subprogram has.
    let key = unsafe { (*slot).head.key };
    // SAFETY: as above, and it is not written meanwhile.
    let name = unsafe { &(*slot).name.name };
    // SAFETY: as above; the name is beside it.
    let header = unsafe { &mut (*slot).header };
    let (client, vip) = ((key.client, key.client_port), (key.vip, key.vip_port));
    let id_at = header.begin(client, vip, name, length);
    let [a, b, c, d] = octets(address);
    let mut at = id_at;
    for (number, behind) in [(a, b'.'), (b, b'.'), (c, b'.'), (d, b':')] {
        at = lb_put_number(index, at, number.into(), behind.into());
    }
    at = lb_put_number(index, at, port.get().into(), b'-'.into());
    at = lb_put_number(index, at, unix_time(), 0);
    // SAFETY: as above.
    let sum = unsafe { &mut (*slot).header }.end(id_at, at);
    // SAFETY: as above.
    let noted = unsafe { &raw mut (*slot).head.header };
    // SAFETY: as above.
    unsafe { noted.write_volatile([at as u16, sum]) };
    Some(at as u16)
}

/// Writes a number in digits at a place of the header in the slot with this index, and a byte behind it, if that is not 0; the
/// place behind both. A subprogram, which the verifier walks once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_put_number(index: u32, at: u32, number: u64, behind: u32) -> u32 {
    let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: as in `make`, which holds no reference to it meanwhile.
    let header = unsafe { &mut (*slot).header };
    let at = header.put_number(at, number);
    match behind {
        0 => at,
        byte => header.put(at, byte as u8),
    }
}

/// In milliseconds.
#[inline(always)]
fn unix_time() -> u64 {
    let zero = cookie::keys().map_or(0, |keys| keys.zero_time);
    // SAFETY: the helper has no arguments and no preconditions.
    zero + unsafe { bpf_ktime_get_ns() } / NS_IN_MS
}
