//! Datagrams of IPv6 in pieces: as those of IPv4, in the same table.
//!
//! An identification has 32 bits here: the upper half keeps the datagrams of two flows apart, and the lower
//! half counts as for IPv4.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be16, Be32, Be128, Mac},
    fragment::{Extents, Piece},
    maps::{
        addr6::HashKey,
        fragment::{FROM_CLIENT, FragmentKey},
        network::Network,
    },
    nat,
    verdict::{DropReason, Verdict},
    wire::{
        Chain, Packet,
        header::{Ethernet, FragmentHeader, Ipv6},
    },
};

use crate::{
    emit,
    flow::{
        entry::{Entry, Hit},
        snat::snat_page,
        traffic,
    },
    frame::xdp::Xdp,
    ip::{
        datagram::{self, First, Followed},
        v4::fragment::next_identification,
    },
    lookup,
    maps::{BACKENDS, HASH_KEY, NETWORKS},
    subprogram::{Ends6, Outcome, Pair},
};

/// If the datagram of `flow` that is about to be translated is in pieces, gives it an identification of ours, and
/// lets the others find their way. `network_direction` is a [`Pair`], `chain` [`Chain::raw`]. A subprogram; returns
/// whether it was done.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_identify6(
    ctx: *mut xdp_md,
    network_direction: u32,
    flow: u32,
    chain: u32,
) -> u32 {
    let ends = Ends6::from_raw(lb_ends6(ctx));
    let xdp = Xdp::new(&XdpContext::new(ctx));
    let pair = Pair::from_raw(network_direction);
    let noted = begin(&xdp, Chain::from_raw(chain), ends, pair, flow);
    u32::from(noted.is_some())
}

/// Notes a first fragment, or one that is the whole datagram, which leaves no record.
#[inline(always)]
fn begin(xdp: &Xdp, chain: Chain, ends: Ends6, network_direction: Pair, flow: u32) -> Option<()> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    let header = chain.fragment(xdp)?;
    let (network, direction) = (network_direction.high(), network_direction.low());
    let identification = next_identification()?;
    let key = key(ends, header, network);
    let first = First {
        flow,
        direction,
        extents: Extents::first(behind(ip, chain)?),
        identification,
    };
    header.identification.set(of(flow, identification)?);
    if header.more() {
        datagram::begin(&key, &first)?;
    }
    Some(())
}

/// [`Ends6`] of a packet. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_ends6(ctx: *mut xdp_md) -> u64 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    ends(&xdp).unwrap_or_default().raw()
}

#[inline(always)]
fn ends(xdp: &Xdp) -> Option<Ends6> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    let source = lookup::client_hash(ip.source.get())?;
    let destination = lookup::label(ip.destination.get())?;
    Some(Ends6::new(source, destination))
}

/// What the pieces of a datagram between these ends have in common (RFC 8200 section 4.5), in the fields of
/// IPv4.
#[inline(always)]
fn key(ends: Ends6, header: &FragmentHeader, network: u16) -> FragmentKey {
    let identification = header.identification.get().get();
    FragmentKey {
        source: ends.source(),
        destination: ends.destination(),
        network,
        identification: Be16::new(identification as u16),
        protocol: identification >> 16,
    }
}

/// Bytes behind the fragment header.
#[inline(always)]
fn behind(ip: &Ipv6, chain: Chain) -> Option<u64> {
    let before = chain.fragment_at()? + size_of::<FragmentHeader>();
    let end =
        size_of::<Ethernet>() + size_of::<Ipv6>() + usize::from(ip.payload_length.get().get());
    Some(end.checked_sub(before)? as u64)
}

/// The identification of a datagram of this flow. An odd factor keeps the flows of a SNAT address apart,
/// and their ports to ourselves.
#[inline(always)]
fn of(flow: u32, identification: Be16) -> Option<Be32> {
    let HashKey([key, ..]) = HASH_KEY.get(0)?;
    let flow = flow.wrapping_mul(*key as u32 | 1);
    Some(Be32::new(flow << 16 | u32::from(identification.get())))
}

/// A fragment other than the first, to one of our addresses, from the network `id`. Returns the number of its end,
/// see [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_fragment6(ctx: *mut xdp_md, id: u32, chain: u32) -> u32 {
    let ctx = XdpContext::new(ctx);
    Outcome::of(later(&ctx, id as u16, Chain::from_raw(chain))).raw()
}

#[inline(always)]
fn later(ctx: &XdpContext, id: u16, chain: Chain) -> Result<Verdict, DropReason> {
    let ends = Ends6::from_raw(lb_ends6(ctx.ctx));
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let header = chain.fragment(&xdp).ok_or(DropReason::Malformed)?;
    let piece = Piece::read6(&xdp, ip, chain, header)?;
    let key = key(ends, header, id);
    let datagram = Followed::of(&key).ok_or(DropReason::FragmentEarly)?;
    let way = Direction::of(ip, &key, &datagram).ok_or(DropReason::FragmentEarly)?;
    nat::check_hops(ip)?;
    nat::check_size(ip, way.network.mtu)?;
    datagram.add(&piece)?;
    let bytes = size_of::<Ethernet>() as u64 + size_of::<Ipv6>() as u64;
    let bytes = bytes + u64::from(ip.payload_length.get().get());
    let Followed {
        flow,
        identification,
        direction,
        ..
    } = datagram;
    let identification = of(flow, identification).ok_or(DropReason::RecordMissing)?;
    header.identification.set(identification);
    let _addresses = nat::translate_header6(ip, way.source, way.destination);
    if direction == FROM_CLIENT {
        traffic::count_request(&way.entry, bytes);
    } else {
        traffic::count_reply(&way.entry, bytes);
    }
    nat::address_frame(ethernet, way.network.mac, way.next_hop);
    emit::out(ctx, way.network)
}

/// Where the fragments of a datagram go: where its flow goes now.
struct Direction {
    entry: Entry,
    source: Be128,
    destination: Be128,
    network: &'static Network,
    next_hop: Mac,
}

impl Direction {
    /// The way of a datagram, if its flow is still the one that the first fragment belonged to.
    #[inline(always)]
    fn of(ip: &Ipv6, key: &FragmentKey, datagram: &Followed) -> Option<Self> {
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
        let (backend, client) = (lookup::unlabel(hit.backend)?, lookup::client6(flow)?);
        let (ends, source, destination, network, next_hop) = if direction == FROM_CLIENT {
            let next = BACKENDS.get(hit.backend_id)?;
            let ends = (client, hit.key.vip, hit.key.network);
            let source = lookup::unlabel(snat)?;
            (ends, source, backend, next.network, next.next_hop)
        } else {
            let ends = (backend, snat, key.network);
            let source = lookup::unlabel(hit.key.vip)?;
            (ends, source, client, hit.key.network, hit.client_mac)
        };
        if ends != (ip.source.get(), key.destination, key.network) || !hit.still() {
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
