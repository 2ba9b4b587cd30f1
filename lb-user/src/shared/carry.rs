//! Carry: what becomes of a client that has a backend, to its last byte.

use std::sync::Arc;

use lb_common::maps::event::{EXPIRED, FINISHED, RESET_BY_BACKEND, RESET_BY_CLIENT};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{
    front::Shared,
    handoff::{Ends, Stays, hand_over},
    leases::Lease,
    legs::{Guard, Leg, Way},
    pump::{Failed, pump},
    reach::Reached,
    said::Said,
    setup::Service,
    sockets::{idle, prepare, reset_at_close},
    syn::Syn,
};

/// A client with its backend, which has not had a byte yet.
pub(super) struct Connected {
    pub(super) service: Arc<Service>,
    pub(super) reached: Reached,
    /// The client's first segment, if that was kept.
    pub(super) syn: Option<Syn>,
    pub(super) said: Said,
}

/// Gives a connection to the data plane; or carries it, if that cannot take it.
pub(super) async fn go_on(client: TcpStream, connected: Connected, shared: &Shared) {
    let Connected {
        service,
        reached:
            Reached {
                backend,
                guard,
                lease,
                ..
            },
        syn,
        mut said,
    } = connected;
    let mut lease = lease;
    let spliced = match &mut lease {
        Some(lease) => {
            let mut ends = Ends {
                client: &client,
                backend: &backend,
                said: &mut said,
            };
            let spliced = ends.splice(lease, &guard.leg, syn);
            if spliced == Err(Stays::BackendTakesLess) {
                tell_mss(lease, &guard.leg, shared);
            }
            spliced
        }
        None => Err(Stays::NoPort),
    };
    match (spliced, lease) {
        (Ok(()), Some(lease)) => {
            let counts = &shared.counts;
            counts.of(&service.name, |counted| counted.handed_over += 1);
            let handed = hand_over(client, backend, said, lease);
            // It is a flow from here on.
            drop(guard);
            handed.finish().await;
        }
        (spliced, lease) => {
            let why = spliced.err().unwrap_or(Stays::NoPort);
            let counts = &shared.counts;
            counts.of(&service.name, |counted| counted.copy(why.label()));
            carry(client, (service, backend, guard, said), shared).await;
            drop(lease);
        }
    }
}

/// The next clients of a VIP are told to send what this backend takes.
fn tell_mss(lease: &Lease, leg: &Leg, shared: &Shared) {
    let (_, mss) = lease.opening();
    let place = (shared.network.clone(), leg.vip());
    shared.listeners.tell_mss(&place, mss);
}

/// Carries bytes both ways until one of the ends, the time or somebody ends it. All but an end in peace
/// is a reset for both.
async fn carry(
    client: TcpStream,
    (service, mut backend, guard, said): (Arc<Service>, TcpStream, Guard, Said),
    shared: &Shared,
) {
    let leg = Arc::clone(&guard.leg);
    for end in [&client, &backend] {
        prepare(end, &service);
    }
    let kind = tokio::select! {
        kind = exchange(&client, &mut backend, said, &leg, shared) => kind,
        () = idle(&leg) => EXPIRED,
        why = leg.is_cut() => why.event(),
    };
    if kind != FINISHED {
        for end in [&client, &backend] {
            reset_at_close(end);
        }
    }
    // Both have been told before anybody hears that it is over.
    drop((client, backend));
    guard.end(kind);
}

/// Moves all bytes until both ends have closed; how it ended, as an event's kind.
async fn exchange(
    client: &TcpStream,
    backend: &mut TcpStream,
    said: Said,
    leg: &Leg,
    shared: &Shared,
) -> u32 {
    let sent_on = said.into_sent_on();
    if backend.write_all(&sent_on).await.is_err() {
        return RESET_BY_BACKEND;
    }
    leg.note(Way::ToBackend, sent_on.len());
    drop(sent_on);
    let backend = &*backend;
    let one_way = async |from, to, way| {
        let result = pump(from, to, &shared.pipes, |bytes| leg.note(way, bytes)).await;
        leg.note_half_closed();
        result.map_err(|failed| match (failed, way) {
            (Failed::From, Way::ToBackend) | (Failed::To, Way::ToClient) => RESET_BY_CLIENT,
            (Failed::To, Way::ToBackend) | (Failed::From, Way::ToClient) => RESET_BY_BACKEND,
        })
    };
    let there = one_way(client, backend, Way::ToBackend);
    let back = one_way(backend, client, Way::ToClient);
    match tokio::try_join!(there, back) {
        Ok(((), ())) => FINISHED,
        Err(kind) => kind,
    }
}
