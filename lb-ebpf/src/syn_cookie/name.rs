//! Where the client of a hello goes, by the name in it.
//!
//! Each step is a subprogram, which the verifier walks once, and which finds the hello in its slot.

use core::mem::offset_of;

use lb_common::{
    client_hello::glance::{self, HelloBytes, MAX_GLANCE, NamePlace, SeenExtensions},
    maps::{
        hello::{HELLO_HAS_HEADER, HelloSlot},
        server_name::{
            ANY_CASE, AS_SENT, BY_CLASS, BY_CLIENT, BY_PROTOCOL, MAX_NAME_BYTES, NameKey,
            OTHER_CLIENTS, PROTOCOL, PoolRoute, UNDER, WITH_HEADER, first_label,
        },
        service::Service,
        splice::SpliceName,
    },
    verdict::{HELLO_UNREAD, HELLO_UNROUTED},
};

use super::slot;
use crate::{
    lookup,
    maps::{HELLO_SLOTS, SERVER_NAMES, SPLICE_NAMES},
};

/// The bytes in a slot that this CPU has.
struct SlotBytes(*const HelloSlot);

impl HelloBytes for SlotBytes {
    #[inline(always)]
    fn byte(&self, at: u32) -> u8 {
        // SAFETY: a live value of an array map, whose claim the caller of the subprogram has.
        let bytes = unsafe { &raw const (*self.0).bytes }.cast::<u8>();
        let byte = bytes.wrapping_add((at & (MAX_GLANCE - 1)) as usize);
        // SAFETY: inside of it: the slot has as many bytes as a glance takes (its type says so).
        unsafe { byte.read_volatile() }
    }
}

/// How many labels a name may have in front of the one that it is under.
const MAX_LABELS: u32 = 8;

/// The route of the hello in the slot with this index, to this service; or what its client is counted as, that goes to
/// userspace.
#[inline(always)]
pub(super) fn route(index: u32, service: &Service) -> Result<PoolRoute, u32> {
    let route = lb_route(index, service.id.into(), service.client_classes());
    let route = PoolRoute::from_raw(route);
    match route.pool {
        0 => Err(route.flags.into()),
        _ => Ok(route),
    }
}

/// [`find`], as [`PoolRoute::raw`]; what the client is counted as stands where the flags would, of no pool.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_route(index: u32, service: u32, classes: u32) -> u64 {
    match find(index, service, classes) {
        Ok(route) => {
            note_header(index, route.flags & WITH_HEADER != 0);
            route.raw()
        }
        Err(note) => {
            let flags = note as u16;
            let none = PoolRoute {
                flags,
                ..PoolRoute::default()
            };
            none.raw()
        }
    }
}

/// Notes whether the backends of the hello in the slot with this index get a header.
#[inline(always)]
fn note_header(index: u32, has_header: bool) {
    if let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) {
        // SAFETY: a live value of an array map, whose claim the caller has.
        let flags = unsafe { &raw mut (*slot).head.flags };
        // SAFETY: as above.
        let others = unsafe { flags.read_volatile() } & !HELLO_HAS_HEADER;
        let flag = if has_header { HELLO_HAS_HEADER } else { 0 };
        // SAFETY: as above.
        unsafe { flags.write_volatile(others | flag) };
    }
}

/// Writes the name in the hello of the slot with this index into its key: the length, or 0 of none.
#[inline(always)]
pub(super) fn set_whole_name(index: u32) -> u32 {
    let Some(NamePlace {
        name_at,
        name_length,
    }) = seen(lb_glance(index))
    else {
        return 0;
    };
    lb_set_name(index, name_at.into(), name_length.into(), ANY_CASE);
    name_length.into()
}

#[inline(always)]
fn find(index: u32, service: u32, classes: u32) -> Result<PoolRoute, u32> {
    let Some(NamePlace {
        name_at,
        name_length,
    }) = seen(lb_glance(index))
    else {
        return Err(HELLO_UNREAD);
    };
    let (at, length) = (name_at.into(), name_length.into());
    if length > MAX_NAME_BYTES {
        return Err(HELLO_UNROUTED);
    }
    let named = Named { at, length };
    lb_set_name(index, at, length, ANY_CASE);
    let exact = lb_name(index, service, 0);
    let route = match exact {
        0 => under(index, service, classes, named),
        _ => of_client(
            index,
            service,
            classes,
            named,
            0,
            PoolRoute::from_raw(exact),
        ),
    };
    match route.pool {
        0 | BY_CLIENT => Err(HELLO_UNROUTED),
        _ => Ok(route),
    }
}

/// A name in a hello.
#[derive(Clone, Copy)]
struct Named {
    /// Where it begins.
    at: u32,
    length: u32,
}

/// The route of the longest name that this one is under; that of none, if there is none within so many labels.
#[inline(always)]
fn under(index: u32, service: u32, classes: u32, name: Named) -> PoolRoute {
    let Named { mut at, mut length } = name;
    let mut found = 0;
    for _ in 0..MAX_LABELS {
        let label = lb_label(index, at, length);
        if label == 0 {
            break;
        }
        at += label + 1;
        length -= label + 1;
        lb_set_name(index, at, length, ANY_CASE);
        found = lb_name(index, service, UNDER);
        if found != 0 {
            break;
        }
    }
    of_client(
        index,
        service,
        classes,
        Named { at, length },
        UNDER,
        PoolRoute::from_raw(found),
    )
}

/// The route of a name, by its kind of client where it is [`BY_CLIENT`].
#[inline(always)]
fn of_client(
    index: u32,
    service: u32,
    classes: u32,
    name: Named,
    kind: u32,
    route: PoolRoute,
) -> PoolRoute {
    if route.pool != BY_CLIENT {
        return route;
    }
    let mut class = OTHER_CLIENTS;
    if route.flags & BY_CLASS != 0 {
        if classes == 0 {
            return PoolRoute::default();
        }
        class = lb_class(index, classes);
    }
    let mut offers = 0;
    if route.flags & BY_PROTOCOL != 0 {
        offers = lb_offers(index, service);
        lb_set_name(index, name.at, name.length, ANY_CASE);
    }
    PoolRoute::from_raw(lb_name(index, service, class | offers | kind))
}

/// The numbers of all protocols of this service's routes that the client of the hello in the slot with this index offers.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_offers(index: u32, service: u32) -> u32 {
    let Some(slot) = HELLO_SLOTS.get_ptr(index) else {
        return 0;
    };
    // SAFETY: a live value of an array map, whose claim the caller has; what is called here writes its key alone.
    let seen: &SeenExtensions = unsafe { &(*slot).seen };
    let mut offers = 0;
    seen.each_protocol(&SlotBytes(slot), |at, length| {
        lb_set_name(index, at, length, AS_SENT);
        offers |= PoolRoute::from_raw(lb_name(index, service, PROTOCOL)).pool;
    });
    offers
}

/// The class of the client of the hello in the slot with this index, by this rule set.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_class(index: u32, classes: u32) -> u32 {
    let Some(slot) = HELLO_SLOTS.get_ptr(index) else {
        return 0;
    };
    // SAFETY: a live value of an array map, whose claim the caller has.
    let client = unsafe { (*slot).head.key.client };
    match lookup::rule(classes, client) {
        0 => OTHER_CLIENTS,
        class => class,
    }
}

/// What [`lb_glance`] has returned.
#[inline(always)]
const fn seen(number: u32) -> Option<NamePlace> {
    let seen = NamePlace {
        name_at: (number >> 16) as u16,
        name_length: number as u16,
    };
    if seen.name_length == 0 {
        None
    } else {
        Some(seen)
    }
}

/// [`glance::glance`] at the hello in the slot with this index: the place of the name above its length, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_glance(index: u32) -> u32 {
    let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) else {
        return 0;
    };
    let bytes = SlotBytes(slot);
    // SAFETY: a live value of an array map, whose claim the caller has.
    let length = unsafe { (*slot).head.bytes() };
    // SAFETY: as above.
    let seen = unsafe { &raw mut (*slot).seen };
    // SAFETY: as above.
    unsafe { seen.write(SeenExtensions::default()) };
    let next = |at, end| Some(lb_extension(index, at, end)).filter(|&next| next != 0);
    if !glance::walk(&bytes, length, next) {
        return 0;
    }
    // SAFETY: as above.
    let seen = unsafe { seen.read_volatile() };
    match seen.glance(&bytes) {
        Some(seen) => u32::from(seen.name_at) << 16 | u32::from(seen.name_length),
        None => 0,
    }
}

/// [`glance::extension`] at a place of the hello in the slot with this index; or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_extension(index: u32, at: u32, end: u32) -> u32 {
    let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: as in `lb_glance`, which has no reference to it meanwhile.
    let seen: &mut SeenExtensions = unsafe { &mut (*slot).seen };
    glance::extension(&SlotBytes(slot), at, end, seen).unwrap_or(0)
}

/// [`first_label`] of a name; or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_label(index: u32, at: u32, length: u32) -> u32 {
    let slot = HELLO_SLOTS.get_ptr(index);
    slot.and_then(|slot| first_label(&SlotBytes(slot), at, length))
        .unwrap_or(0)
}

/// The route of the name in the key of the slot with this index, or of what is under it, of this service, as
/// [`PoolRoute::raw`]; 0 if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_name(index: u32, service: u32, kind: u32) -> u64 {
    let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a live value of an array map, whose claim the caller has, and none of whose references is held.
    let key: &mut NameKey = unsafe { &mut (*slot).name };
    key.service = service as u16;
    key.kind = kind;
    // Before the look-up, so that no word of the name has to wait in the stack.
    let mark = slot::anew(key.mark().into()) as u16;
    let Some(route) = SERVER_NAMES.get_ptr(&*key) else {
        return 0;
    };
    // SAFETY: a value of a map that this program has looked up; aligned.
    let route = unsafe { route.read_volatile() };
    // The memory of a removed name is the next one's that is written.
    if PoolRoute::from_raw(route).mark == mark {
        route
    } else {
        0
    }
}

/// [`NameKey::set_name`] of the key in the slot with this index, by a place of its hello. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_set_name(index: u32, at: u32, length: u32, letters: u64) -> u32 {
    if let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) {
        // SAFETY: a live value of an array map, whose claim the caller has; the bytes are read by other pointers, and are not
        // in there.
        let key: &mut NameKey = unsafe { &mut (*slot).name };
        key.set_name(&SlotBytes(slot.cast_const()), at, length, letters);
    }
    0
}

/// Keeps the name of the hello in the slot with this index, whose route was found, for the flow with this id and generation.
/// Returns 0. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_keep_name(flow_id: u32, generation: u32, index: u32) -> u32 {
    let Some(slot) = HELLO_SLOTS.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a live value of an array map, whose claim the caller has.
    let seen = unsafe { &raw const (*slot).seen };
    // SAFETY: as above, and any bits are valid.
    let seen = unsafe { seen.read_volatile() };
    // The key may be that of what it is under.
    lb_set_name(index, seen.name_at, seen.name_length, ANY_CASE);
    // SAFETY: as above.
    let name = unsafe { &raw mut (*slot).name };
    // SAFETY: as above. Behind two words both have a name of the same form, as is asserted below.
    let name: &mut SpliceName = unsafe { &mut *name.cast() };
    name.generation = generation;
    name.length = seen.name_length;
    // A flow goes on without its name.
    let _full = SPLICE_NAMES.insert(&flow_id, &*name, 0);
    0
}

const _: () = assert!(
    size_of::<NameKey>() == size_of::<SpliceName>()
        && offset_of!(NameKey, name) == offset_of!(SpliceName, name)
);
