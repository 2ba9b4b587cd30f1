//! Datagrams in pieces, and the identification that holds the pieces together.
//!
//! The first fragment goes through the pipeline as a packet does, and leaves a record; the others have
//! no ports, and go where the flow of that record goes. Without a record none passes.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be16, Be32, Mac},
    fragment::{BLOCK, Extents, Piece},
    maps::{
        flow::FlowKey,
        fragment::{FROM_CLIENT, FragmentKey},
        network::Network,
    },
    nat,
    verdict::{DropReason, Verdict},
    wire::{
        Packet,
        header::{Ethernet, Ipv4},
    },
};

use crate::{
    emit,
    flow::{
        atomic,
        entry::{Entry, Hit},
        snat::snat_page,
        traffic,
    },
    frame::{ip_options, xdp::Xdp},
    ip::datagram::{self, First, Followed},
    maps::{BACKENDS, IP_ID_BLOCKS, IP_IDS, NETWORKS},
    subprogram::Outcome,
};

/// Gives a datagram of `flow` that is about to be translated an identification of ours, if it needs
/// one; and if it is a first fragment, the others will find their way. `network` is the one that it
/// came from.
#[inline(always)]
pub(crate) fn identify(ctx: &XdpContext, ip: &Ipv4, network: u16, flow: u32, direction: u16) {
    if !ip.is_atomic() {
        let _written = lb_identify(ctx.ctx, u32::from(network), flow, u32::from(direction));
    }
}

/// See [`identify`]. A subprogram; returns whether it was done.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_identify(
    ctx: *mut xdp_md,
    network: u32,
    flow: u32,
    direction: u32,
) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    let ip: Option<&Ipv4> = xdp.header(size_of::<Ethernet>());
    let (Some(ip), Some(identification)) = (ip, next_identification()) else {
        return 0;
    };
    if ip.is_fragment() {
        let total = u64::from(ip.total_length.get().get());
        let first = First {
            flow,
            direction: direction as u16,
            extents: Extents::first(total.saturating_sub(ip.header_bytes() as u64)),
            identification,
        };
        let _followed = datagram::begin(&FragmentKey::of(ip, network as u16), &first);
    }
    nat::renumber(ip, identification);
    1
}

/// An identification that no datagram of ours has had for long; see [`BLOCK`].
#[inline(always)]
pub(crate) fn next_identification() -> Option<Be16> {
    let next = IP_IDS.get_ptr_mut(0)?;
    // SAFETY: the pointer is this CPU's slot, which nothing else writes while the program runs.
    let next = unsafe { &mut *next };
    if next.is_multiple_of(BLOCK) {
        let blocks = IP_ID_BLOCKS.get_ptr_mut(0)?;
        // SAFETY: the value of an array map, aligned to eight bytes.
        *next = unsafe { atomic::add(blocks, BLOCK) };
    }
    let identification = Be16::new(*next as u16);
    *next = next.wrapping_add(1);
    Some(identification)
}

/// A fragment other than the first, to one of our addresses, from the network `id`. Returns the
/// number of its end, see [`Outcome`].
///
/// A subprogram: no other path meets this one again.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_fragment(ctx: *mut xdp_md, id: u32) -> u32 {
    let ctx = XdpContext::new(ctx);
    let end = NETWORKS
        .get(id)
        .ok_or(DropReason::RecordMissing)
        .and_then(|network| later(&ctx, id as u16, network));
    Outcome::of(end).raw()
}

#[inline(always)]
fn later(ctx: &XdpContext, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let piece = match Piece::read(&xdp, ip) {
        Ok(piece) => piece,
        Err(reason) => return network.undeclared(reason),
    };
    let key = FragmentKey::of(ip, id);
    let Some(datagram) = Followed::of(&key) else {
        return network.undeclared(DropReason::FragmentEarly);
    };
    let way = Direction::of(&key, &datagram).ok_or(DropReason::FragmentEarly)?;
    if ip.ttl.get() <= 1 {
        return Err(DropReason::TtlExpired);
    }
    let bytes = ip.total_length.get().get();
    if way.network.mtu != 0 && bytes > way.network.mtu {
        return Err(DropReason::TooBig);
    }
    datagram.add(&piece)?;
    if datagram.direction != FROM_CLIENT {
        ip_options::conceal(ctx, ip);
    }
    nat::renumber(ip, datagram.identification);
    let _addresses = nat::translate_header(ip, way.source, way.destination);
    let bytes = size_of::<Ethernet>() as u64 + u64::from(bytes);
    if datagram.direction == FROM_CLIENT {
        traffic::count_request(&way.entry, bytes);
    } else {
        traffic::count_reply(&way.entry, bytes);
    }
    ethernet.source.set(way.network.mac);
    ethernet.destination.set(way.next_hop);
    emit::out(ctx, way.network)
}

/// Where the fragments of a datagram go: where its flow goes now.
struct Direction {
    entry: Entry,
    source: Be32,
    destination: Be32,
    network: &'static Network,
    next_hop: Mac,
}

impl Direction {
    /// The way of a datagram, if its flow is still the one that the first fragment belonged to.
    #[inline(always)]
    fn of(key: &FragmentKey, datagram: &Followed) -> Option<Self> {
        let Followed {
            flow,
            generation,
            direction,
            ..
        } = *datagram;
        let entry = Entry::at(flow)?;
        let word = entry.word();
        if word.generation() != generation || !word.translates() {
            return None;
        }
        let hit = Hit::read(entry, word)?;
        let snat = snat_page(flow)?.address;
        let (ends, source, destination, network, next_hop) = if direction == FROM_CLIENT {
            let next = BACKENDS.get(hit.backend_id)?;
            let ends = (hit.key.client, hit.key.vip, hit.key.network);
            (ends, snat, hit.backend, next.network, next.next_hop)
        } else {
            let ends = (hit.backend, snat, key.network);
            let FlowKey {
                client,
                vip,
                network,
                ..
            } = hit.key;
            (ends, vip, client, network, hit.client_mac)
        };
        if ends != (key.source, key.destination, key.network)
            || u32::from(hit.key.protocol) != key.protocol
        {
            return None;
        }
        Some(Self {
            entry,
            source,
            destination,
            network: NETWORKS.get(u32::from(network))?,
            next_hop,
        })
    }
}
