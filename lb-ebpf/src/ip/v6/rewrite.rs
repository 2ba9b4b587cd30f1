//! A frame of IPv6 of a flow becomes what its next end expects: addresses and ports, segment size, checksums.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be128,
    csum_partial::{self, OPEN, TOO_LONG},
    maps::{
        fragment::FROM_BACKEND,
        network::{NETWORK_GENERIC, NETWORK_PARTIAL, Network},
    },
    mss,
    nat::{self, Translation},
    verdict::DropReason,
    wire::{Chain, Ipv6Frame},
};

use crate::{
    flow::{entry::Hit, snat::snat_page},
    frame::xdp::Xdp,
    ip::v6::fragment,
    lookup::{self, NetworkRef},
    subprogram::Pair,
};

/// Bytes that an IPv6 header is longer than one of IPv4.
const LONGER: u16 = 20;
/// No layer-4 header begins beyond: see [`Chain`].
const OFFSETS: usize = 511;

/// Translates a frame of the flow of `hit` that came `from` one network and goes on to another; `direction` is one of
/// `maps::fragment`'s.
#[inline(always)]
pub(crate) fn rewrite(
    ctx: &XdpContext,
    frame: &Ipv6Frame<'_>,
    chain: Chain,
    hit: &Hit,
    path: Path,
) -> Result<(), DropReason> {
    let Path {
        from,
        to,
        direction,
    } = path;
    let open = if chain.fragment_at().is_some() {
        let network = Pair::new(from.id, direction).raw();
        let _written = fragment::lb_identify6(ctx.ctx, network, hit.entry.id, chain.raw());
        // What is cut was whole before: see `csum_partial`.
        false
    } else {
        complete(ctx, frame, &from)?
    };
    nat::translate6(frame, &translation(hit, direction)?);
    if mss::is_asked(frame) {
        let most = if from.mss < to.mss { from.mss } else { to.mss };
        let most = u32::from(most.saturating_sub(LONGER));
        lb_clamp6(ctx.ctx, frame.at as u32, most);
    }
    if open {
        csum_partial::reopen6(frame);
    }
    Ok(())
}

/// From which network a packet goes to which, and its direction in its flow.
pub(crate) struct Path {
    pub(crate) from: NetworkRef,
    pub(crate) to: &'static Network,
    /// One of `maps::fragment`'s.
    pub(crate) direction: u16,
}

/// Makes the checksum of a frame that came `from` a network whole, as `rewrite::complete`.
#[inline(always)]
pub(crate) fn complete(
    ctx: &XdpContext,
    frame: &Ipv6Frame<'_>,
    from: &Network,
) -> Result<bool, DropReason> {
    if from.flags & NETWORK_PARTIAL == 0 {
        return Ok(false);
    }
    let keep = u32::from(from.flags & NETWORK_GENERIC != 0);
    let protocol = u32::from(frame.l4.protocol());
    match lb_complete6(ctx.ctx, protocol, frame.at as u32, keep) {
        TOO_LONG => Err(DropReason::PartialChecksum),
        state => Ok(state == OPEN),
    }
}

/// [`csum_partial::complete6`]; the header of `protocol` begins at `first`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_complete6(
    ctx: *mut xdp_md,
    protocol: u32,
    first: u32,
    keep: u32,
) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    csum_partial::complete6(&xdp, protocol as u8, first as usize & OFFSETS, keep != 0)
}

/// [`mss::clamp_at`]. Returns whether it wrote.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_clamp6(ctx: *mut xdp_md, first: u32, most: u32) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    u32::from(mss::clamp_at(&xdp, first as usize & OFFSETS, most as u16).is_some())
}

/// What the packet's tuple becomes.
#[inline(always)]
fn translation(hit: &Hit, direction: u16) -> Result<Translation<Be128>, DropReason> {
    let address = |label| lookup::unlabel(label).ok_or(DropReason::RecordMissing);
    if direction == FROM_BACKEND {
        return Ok(Translation {
            source: address(hit.key.vip)?,
            destination: hit.client6().ok_or(DropReason::FlowRace)?,
            source_port: hit.key.vip_port,
            destination_port: hit.key.client_port,
        });
    }
    let page = snat_page(hit.entry.id).ok_or(DropReason::RecordMissing)?;
    Ok(Translation {
        source: address(page.address)?,
        destination: address(hit.backend)?,
        source_port: hit.entry.snat_port(),
        destination_port: hit.backend_port,
    })
}
