//! What becomes of a client that has a backend, to its last byte.

pub(crate) mod pipe;

use std::{cell::Cell, net::SocketAddr, sync::Arc};

use lb_common::maps::{
    event::{EXPIRED, FINISHED, RESET_BY_BACKEND, RESET_BY_CLIENT},
    vip_offer::{LEAST_OFFERED_MSS, VipOffer},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{
    client_sockets::{ClientSocket, replaced},
    connections::{CopyDirection, Guard, Leg},
    context::Context,
    dial::select::BackendConnection,
    relay::pipe::{Failed, pump},
    snapshot::ProxyService,
    sockets::{idle, is_closed, prepare, reset_at_close},
    splice::{
        handoff::{NotSpliced, SplicedEnds, hand_over},
        port_lease::PortLease,
        prelude::Prelude,
    },
};
use crate::system::tcp_info::Info;

/// A client with its backend, which has not had a byte yet.
pub(super) struct Connected {
    pub(super) service: Arc<ProxyService>,
    pub(super) reached: BackendConnection,
    pub(super) said: Prelude,
}

/// Gives a connection to the data plane; or carries it, if that cannot take it. `socket` is what the data plane knows of
/// one that was opened by a cookie.
pub(super) async fn go_on(
    client: TcpStream,
    connected: Connected,
    socket: Option<ClientSocket>,
    shared: &Context,
) {
    let Connected {
        service,
        reached:
            BackendConnection {
                backend,
                guard,
                lease,
                syn,
                ..
            },
        mut said,
    } = connected;
    let mut lease = lease;
    let spliced = match (&mut lease, syn) {
        (_, Err(why)) => Err(why),
        (None, Ok(_)) => Err(NotSpliced::NoPort),
        (Some(lease), Ok(syn)) => {
            let mut ends = SplicedEnds {
                client: &client,
                backend: &backend,
                said: &mut said,
            };
            let spliced = ends.splice(lease, &guard.leg, syn);
            if spliced == Err(NotSpliced::BackendTakesLess) {
                limit_mss(lease, &guard.leg, &service, shared);
            }
            spliced
        }
    };
    match (spliced, lease) {
        (Ok(()), Some(lease)) => {
            let counts = &shared.work.counts;
            counts.of(&service.name, |counted| counted.handed_over += 1);
            // It is a flow from here on.
            guard.hand_over(lease.id, lease.word(), said.sent_on());
            let handed = hand_over(client, backend, said, lease);
            if let Some(socket) = socket {
                socket.hand_over();
            }
            handed.finish().await;
        }
        (spliced, lease) => {
            let why = spliced.err().unwrap_or(NotSpliced::NoPort);
            let counts = &shared.work.counts;
            counts.of(&service.name, |counted| counted.copy(why.label()));
            note_agreed(&backend, shared);
            let copied = CopiedConnection {
                client,
                backend,
                service,
                guard,
                said,
                socket,
            };
            carry(copied, lease, shared).await;
        }
    }
}

/// The next clients of a VIP get an MSS that this backend takes.
fn limit_mss(lease: &PortLease, leg: &Leg, service: &ProxyService, shared: &Context) {
    let mss = lease.backend_syn_ack().mss;
    if mss < LEAST_OFFERED_MSS {
        return;
    }
    let place = (shared.work.network.clone(), leg.vip());
    shared.work.listeners.tell_mss(&place, mss);
    if let Some(cookies) = &shared.work.cookies {
        let offer = VipOffer { mss, lacks: 0 };
        cookies.offers.lower(service.id, offer, LEAST_OFFERED_MSS);
    }
}

/// The next clients that differ from what this backend agrees on are copied without a try.
fn note_agreed(backend: &TcpStream, shared: &Context) {
    if let (Ok(SocketAddr::V4(address)), Ok(info)) = (backend.peer_addr(), Info::of(backend)) {
        shared.work.agreed.note(address, info.options());
    }
}

/// A connection whose bytes are copied here, with its backend.
struct CopiedConnection {
    client: TcpStream,
    backend: TcpStream,
    service: Arc<ProxyService>,
    guard: Guard,
    said: Prelude,
    socket: Option<ClientSocket>,
}

/// Carries bytes both ways until one of the ends, the time or a cut ends it. All but an end in peace is a
/// reset for both.
async fn carry(connection: CopiedConnection, mut lease: Option<PortLease>, shared: &Context) {
    let CopiedConnection {
        client,
        mut backend,
        service,
        guard,
        said,
        socket,
    } = connection;
    guard.carried();
    let leg = Arc::clone(&guard.leg);
    for end in [&client, &backend] {
        prepare(end, &service);
    }
    let kind = tokio::select! {
        kind = exchange(&client, &mut backend, said, &leg, lease.as_mut(), shared) => kind,
        () = idle(&leg) => EXPIRED,
        why = leg.is_cut() => why.event(),
        () = replaced(socket.as_ref()) => RESET_BY_CLIENT,
    };
    if kind != FINISHED {
        for end in [&client, &backend] {
            reset_at_close(end);
        }
    }
    // Both ends are closed or reset before the leg is over for others.
    drop((client, backend));
    guard.end(kind);
}

/// Moves all bytes until both ends have closed; how it ended, as an event's kind.
async fn exchange(
    client: &TcpStream,
    backend: &mut TcpStream,
    said: Prelude,
    leg: &Leg,
    lease: Option<&mut PortLease>,
    shared: &Context,
) -> u32 {
    let sent_on = said.into_sent_on();
    if backend.write_all(&sent_on).await.is_err() {
        return RESET_BY_BACKEND;
    }
    leg.note(CopyDirection::ToBackend, sent_on.len());
    drop(sent_on);
    let backend = &*backend;
    let first = Cell::new(None);
    let one_way =
        async |from, to, way| {
            let result = pump(from, to, &shared.pipes, |bytes| leg.note(way, bytes)).await;
            first.set(first.get().or(Some(way)));
            leg.note_half_closed();
            result.map_err(|failed| match (failed, way) {
                (Failed::From, CopyDirection::ToBackend)
                | (Failed::To, CopyDirection::ToClient) => RESET_BY_CLIENT,
                (Failed::To, CopyDirection::ToBackend)
                | (Failed::From, CopyDirection::ToClient) => RESET_BY_BACKEND,
            })
        };
    let there = one_way(client, backend, CopyDirection::ToBackend);
    let back = one_way(backend, client, CopyDirection::ToClient);
    if let Err(kind) = tokio::try_join!(there, back) {
        return kind;
    }
    if let Some(lease) = lease {
        // Its port is put back soon.
        is_closed(backend).await;
        if first.get() == Some(CopyDirection::ToClient) {
            lease.backend_rests();
        }
    }
    FINISHED
}
