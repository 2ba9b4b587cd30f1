//! SYNs that are answered by cookies: nothing is kept of a client before it has returned one. To a service without names it opens a flow
//! then (`plain`); to a shared VIP its first bytes do, by the name in there, or userspace makes a socket of the cell of them. See
//! `lb_common::syn_cookie` and `lb_common::late_binding`.

mod backend_syn;
mod bind;
mod client_reset;
mod clone;
mod cookie;
mod hello;
mod hello_segment;
mod meet;
mod name;
mod next_backend;
mod plain;
mod proxy_header;
mod refusal;
mod rest;
mod slot;
mod socket;
mod syn;
mod vip_offer;

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::flow::FlowKey,
    rate::GUESSES,
    syn_cookie::CookieStanding,
    verdict::{DropReason, Verdict},
    wire::{
        Ipv4Frame, L4,
        header::{ACK, FIN, RST, Tcp},
        parse_ipv4,
    },
};

use self::socket::Socket;
use crate::{
    cell::{
        enter::{self, Addresses},
        sockets,
    },
    flow::index,
    frame::xdp::Xdp,
    lookup::NetworkRef,
    subprogram::{CookieService, Outcome, whole},
};

pub(crate) use self::{
    bind::lb_bind,
    clone::emit,
    meet::lb_meet,
    next_backend::lb_go_on,
    plain::{lb_bind_plain, lb_give_way, lb_plain},
    rest::lb_rest,
};

/// A packet of no flow, which policy has admitted, from the network `id` to this [`CookieService`], a shared VIP: how that ended, as
/// [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_shared(ctx: *mut xdp_md, id: u32, vip: u32) -> u32 {
    let vip = CookieService::from_raw(vip);
    Outcome::of_step(receive(&XdpContext::new(ctx), id as u16, vip)).raw()
}

#[inline(always)]
fn receive(ctx: &XdpContext, id: u16, vip: CookieService) -> Result<Outcome, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    if !frame.is_plain_tcp() {
        return Err(DropReason::UnsupportedProtocol);
    }
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let socket = Socket::of(key);
    if frame.asks() {
        index::remove_closed(key);
        if let Some(socket) = socket {
            socket.note_syn();
        }
        let answered = syn::lb_answer(ctx.ctx, id.into(), vip.service());
        return Ok(Outcome::from_raw(answered));
    }
    match socket {
        Some(socket) if !socket.is_over(tcp, key) => {
            socket.touch();
            sockets::deliver(ctx, &network).map(ended)
        }
        socket => begin(ctx, &network, vip, &frame, tcp, (key, socket.is_some())),
    }
}

#[inline(always)]
const fn ended(verdict: Verdict) -> Outcome {
    Outcome::of(Ok(verdict))
}

/// A segment that no socket has: the first one behind a cookie, one that comes before that, or the rest of something. With its
/// tuple, and whether an earlier connection of that has a socket.
#[inline(always)]
fn begin(
    ctx: &XdpContext,
    network: &NetworkRef,
    vip: CookieService,
    frame: &Ipv4Frame<'_>,
    tcp: &Tcp,
    (key, has_socket): (&FlowKey, bool),
) -> Result<Outcome, DropReason> {
    let flags = tcp.flags.get();
    let standing = match flags & (ACK | RST) {
        ACK => cookie::judge(tcp, key),
        _ => CookieStanding::Wrong,
    };
    let id = network.id;
    match (standing, frame.payload) {
        (CookieStanding::Wrong, bytes) => {
            if flags & RST != 0 && client_reset::is_awaited(key) {
                let left = client_reset::lb_client_reset(ctx.ctx, id.into());
                return Ok(Outcome::from_raw(left));
            }
            let is_guess = bytes != 0 && flags & (ACK | RST) == ACK;
            earlier(ctx, network, frame, key, is_guess).map(ended)
        }
        (CookieStanding::Right { .. }, 0) if flags & FIN == 0 => Ok(ended(Verdict::Consumed)),
        (CookieStanding::Right { .. }, 0) => Err(DropReason::NoFlow),
        (CookieStanding::Right { clock }, _) => {
            let kept = hello::lb_hello(ctx.ctx, id.into(), vip.raw(), clock);
            let kept = Outcome::from_raw(kept);
            if kept == Outcome::LATER {
                return Ok(later(ctx, id, vip));
            }
            // Looked up anew: meanwhile the record may have become another connection's.
            if has_socket
                && kept.is_kept()
                && let Some(socket) = Socket::of(key)
            {
                socket.replace();
            }
            Ok(kept)
        }
        (CookieStanding::Later, 0) => Err(DropReason::HelloUnordered),
        (CookieStanding::Later, _) => Ok(later(ctx, id, vip)),
    }
}

#[inline(always)]
fn later(ctx: &XdpContext, id: u16, vip: CookieService) -> Outcome {
    Outcome::from_raw(hello::lb_later_piece(ctx.ctx, id.into(), vip.raw()))
}

/// A segment that no cookie has to do with: of a connection that the cell's kernel has accepted itself, before cookies were
/// configured, or of none, for which it has a reset. `is_guess`: a right number would have opened one.
#[inline(always)]
fn earlier(
    ctx: &XdpContext,
    network: &NetworkRef,
    frame: &Ipv4Frame<'_>,
    key: &FlowKey,
    is_guess: bool,
) -> Result<Verdict, DropReason> {
    let ends = Addresses {
        us: key.vip,
        peer: key.client,
    };
    let admitted = enter::check(frame, ends, network.id);
    if is_guess && !matches!(admitted, Ok(true)) {
        enter::take(network.id, |rates, now| rates.guesses.take(now, GUESSES));
    }
    admitted?;
    sockets::deliver(ctx, network)
}
