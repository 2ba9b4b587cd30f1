//! The reference NAT: the least that a stateful NAT of addresses and ports on both sides does. Of a packet it looks its
//! flow up once, in one table that both directions are in, and writes what it finds. It has no states, no policy, no
//! expiry, and no care for fragments, options or ICMP.

use aya_ebpf::{
    btf_maps::{Array, LruHashMap, PerCpuArray},
    macros::btf_map,
    programs::XdpContext,
};

use crate::frame::{header, redirect};

/// Both ends of a packet, as on the wire.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
}

/// What a flow's packets in one direction are found by.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    ends: Ends,
    protocol: u32,
}

/// Where packets leave.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Exit {
    /// Destination and source address, in the order of the frame.
    macs: [u32; 3],
    /// Interface index of the NIC.
    port: u32,
}

/// What becomes of them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rewrite {
    ends: Ends,
    exit: Exit,
}

/// Both directions of every flow. Userspace says how many there are.
#[btf_map]
static NAT_FLOWS: LruHashMap<Key, Rewrite, 1> = LruHashMap::new();

/// Where new flows go. Addresses and ports that are counted from are in host order, all others as on the wire.
#[repr(C)]
pub struct Service {
    vip: u32,
    vip_port: u16,
    backend_port: u16,
    /// The first backend's address, and how many there are.
    backend: u32,
    backends: u32,
    /// The first SNAT address, and how many flows all of them have; each has [`PORTS`].
    snat: u32,
    room: u32,
    to_backend: Exit,
    to_client: Exit,
}

/// A place without a service has no room.
const SERVICES: u32 = 2;
#[btf_map]
static NAT_SERVICES: Array<Service, { SERVICES as usize }> = Array::new();

/// Flows that were made for each service.
#[btf_map]
static NAT_MADE: Array<u32, { SERVICES as usize }> = Array::new();

/// Packets of no flow and to no service.
#[btf_map]
static NAT_MISSED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Ports of a SNAT address, from the first one on.
const PORTS: u32 = 56_320;
const FIRST_PORT: u32 = 1024;

/// Ethernet and IPv4 without options, and ports.
#[repr(C, packed(2))]
struct Headers {
    macs: [u32; 3],
    ethertype: u16,
    /// Version, header length and type of service.
    version: u16,
    length: u16,
    id: u16,
    fragment: u16,
    ttl: u8,
    protocol: u8,
    check: u16,
    ends: Ends,
}

const IPV4: u16 = 0x0800u16.to_be();
/// A version of 4 and a header of five words, with the mask for it.
const PLAIN: u16 = 0x4500u16.to_be();
const PLAIN_MASK: u16 = 0xff00u16.to_be();
/// All but "don't fragment".
const FRAGMENT_MASK: u16 = 0xbfffu16.to_be();
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where the checksum of layer 4 is, from the start of the frame.
const TCP_CHECK: usize = 50;
const UDP_CHECK: usize = 40;

/// Translates a packet; nothing of one that is no plain TCP or UDP.
#[inline(always)]
pub(crate) fn translate(ctx: &XdpContext) -> Option<u32> {
    let headers = header::<Headers>(ctx)?;
    // SAFETY: `header` checked the bounds, and all fields have an alignment of two, as frames have.
    let headers = unsafe { &mut *headers };
    let check = match headers.protocol {
        TCP => TCP_CHECK,
        UDP => UDP_CHECK,
        _ => return None,
    };
    if headers.ethertype != IPV4
        || headers.version & PLAIN_MASK != PLAIN
        || headers.fragment & FRAGMENT_MASK != 0
    {
        return None;
    }
    let key = Key {
        ends: headers.ends,
        protocol: headers.protocol as u32,
    };
    // SAFETY: an entry that is evicted meanwhile may have become another's: then one packet goes astray.
    let rewrite = match unsafe { NAT_FLOWS.get(&key) } {
        Some(rewrite) => *rewrite,
        None => begin(&key)?,
    };
    let addresses = difference(key.ends.source, rewrite.ends.source)
        + difference(key.ends.destination, rewrite.ends.destination);
    let ports = half_difference(key.ends.source_port, rewrite.ends.source_port)
        + half_difference(key.ends.destination_port, rewrite.ends.destination_port);
    headers.macs = rewrite.exit.macs;
    headers.check = updated(headers.check, addresses);
    headers.ends = rewrite.ends;
    let start = ctx.data() + check;
    if start + size_of::<u16>() > ctx.data_end() {
        return None;
    }
    let field = start as *mut u16;
    // SAFETY: the bounds were checked, and the field has the alignment of frames, two.
    let before = unsafe { field.read() };
    // A datagram without a checksum stays so, and none becomes so.
    if key.protocol == TCP as u32 || before != 0 {
        let after = match updated(before, addresses + ports) {
            0 if key.protocol == UDP as u32 => 0xffff,
            after => after,
        };
        // SAFETY: as for the read.
        unsafe { field.write(after) };
    }
    Some(redirect(rewrite.exit.port))
}

/// What a checksum that a word is under changes by: in ones' complement, so the order of bytes does not matter.
#[inline(always)]
const fn difference(old: u32, new: u32) -> u64 {
    !old as u64 + new as u64
}

#[inline(always)]
const fn half_difference(old: u16, new: u16) -> u64 {
    !old as u64 + new as u64
}

/// A checksum after that change (RFC 1624).
#[inline(always)]
const fn updated(check: u16, difference: u64) -> u16 {
    let sum = !check as u64 + difference;
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Makes both entries of the flow that a packet is the first of: the next backend, and the next port, whatever was there.
#[inline(never)]
fn begin(key: &Key) -> Option<Rewrite> {
    for place in 0..SERVICES {
        let service = NAT_SERVICES.get(place)?;
        if service.room > 0
            && key.ends.destination == service.vip
            && key.ends.destination_port == service.vip_port
        {
            return begin_at(key, service, NAT_MADE.get_ptr_mut(place)?);
        }
    }
    if let Some(missed) = NAT_MISSED.get_ptr_mut(0) {
        // SAFETY: this CPU's own value of an array map.
        let missed = unsafe { &mut *missed };
        *missed += 1;
    }
    None
}

#[inline(always)]
fn begin_at(key: &Key, service: &Service, made: *mut u32) -> Option<Rewrite> {
    let number = next(made).checked_rem(service.room)?;
    let backend = service.backend + number.checked_rem(service.backends)?;
    let request = Rewrite {
        ends: Ends {
            source: (service.snat + number / PORTS).to_be(),
            destination: backend.to_be(),
            source_port: ((FIRST_PORT + number % PORTS) as u16).to_be(),
            destination_port: service.backend_port,
        },
        exit: service.to_backend,
    };
    let reply = Rewrite {
        ends: turned(key.ends),
        exit: service.to_client,
    };
    let answered = Key {
        ends: turned(request.ends),
        ..*key
    };
    NAT_FLOWS.insert(key, &request, 0).ok()?;
    NAT_FLOWS.insert(&answered, &reply, 0).ok()?;
    Some(request)
}

/// Counts up, on several CPUs at once; what the count was.
#[inline(always)]
fn next(made: *mut u32) -> u32 {
    let mut before = 1_u64;
    // SAFETY: the pointer is to the value of an array map, and the instruction touches nothing else.
    unsafe {
        core::arch::asm!(
            "w2 = atomic_fetch_add((u32 *)(r1 + 0), w2)",
            in("r1") made,
            inlateout("r2") before,
        );
    }
    before as u32
}

#[inline(always)]
const fn turned(ends: Ends) -> Ends {
    Ends {
        source: ends.destination,
        destination: ends.source,
        source_port: ends.destination_port,
        destination_port: ends.source_port,
    }
}
