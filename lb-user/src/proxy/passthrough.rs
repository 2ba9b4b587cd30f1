//! A connection of a service with one pool, whose backends get the client's address, until it has a backend.
//! Nothing of the client is waited for: which end sends first is theirs to decide.

use std::{rc::Rc, sync::Arc};

use tokio::net::TcpStream;

use super::{
    context::Context,
    dial::{
        candidates::ChosenBy,
        select::{Candidates, ConnectionAddresses, NoBackend},
    },
    relay::{Connected, go_on},
    snapshot::ProxyService,
    sockets::reset_at_close,
    splice::{negotiated::Offer, prelude::Prelude},
};

/// The label of a client that is evicted for a newer one.
const RECYCLED: &str = "recycled";

/// Serves a client that has just connected.
pub(super) async fn serve(
    client: TcpStream,
    addresses: ConnectionAddresses,
    service: Arc<ProxyService>,
    pool: &str,
    shared: Rc<Context>,
) {
    let counts = &shared.work.counts;
    counts.of(&service.name, |counted| counted.accepted += 1);
    let ticket = shared.work.pending.admit(*addresses.client.ip());
    let connected = tokio::select! {
        biased;
        // `biased`: a client that has a backend is not evicted any more.
        connected = connect(&client, addresses, &service, pool, &shared) => {
            connected.map_err(NoBackend::label)
        }
        () = ticket.goes() => Err(RECYCLED),
    };
    drop(ticket);
    match connected {
        Ok(connected) => {
            counts.of(&service.name, |counted| counted.routed += 1);
            go_on(client, connected, None, &shared).await;
        }
        Err(label) => {
            counts.of(&service.name, |counted| counted.refuse(label));
            // As the data plane refuses a client that has no backend.
            reset_at_close(&client);
        }
    }
}

async fn connect(
    client: &TcpStream,
    addresses: ConnectionAddresses,
    service: &Arc<ProxyService>,
    pool: &str,
    shared: &Context,
) -> Result<Connected, NoBackend> {
    let key = addresses.key(service);
    let by = ChosenBy::flow(&key, (*addresses.client.ip()).into());
    let candidates = Candidates::of(pool, by, shared)?;
    let reached = candidates.connect(&key, service, None, Offer::of(client, None), shared);
    let reached = reached.await?;
    let said = Prelude {
        preface: reached.preface(addresses.endpoints(), None, None)?,
        ..Prelude::default()
    };
    Ok(Connected {
        service: Arc::clone(service),
        reached,
        said,
    })
}
