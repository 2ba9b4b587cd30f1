//! A connection of a service that is routed by SNI, until it has a backend.

use std::{io, rc::Rc, sync::Arc};

use lb_common::client_hello::{self, Hello, HelloRefusal, Reached, Reading};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use super::{
    admission::Permit,
    client_sockets::{ClientSocket, replaced},
    context::Context,
    dial::{
        candidates::ChosenBy,
        select::{Candidates, ConnectionAddresses, NoBackend},
    },
    refused_names,
    relay::{Connected, go_on},
    route,
    snapshot::{ProxyService, Routing, SniRouting},
    sockets::{CLOSE_TIMEOUT, hear_out},
    splice::{negotiated::Offer, prelude::Prelude},
};
use crate::{
    config::Ech,
    proxy_protocol::decode::{self, Announced},
};

/// Bytes that are read of a hello in one go: most hellos are shorter.
const CHUNK: usize = 2048;

/// Why a client gets no backend.
#[derive(Debug)]
enum SniRefusal {
    /// It has closed, or reset.
    Gone,
    /// It is a proxy, and does not announce its client in a way that can be read.
    Header,
    /// It announces one, and is no proxy that may.
    NoProxy,
    /// It took too long.
    Timeout,
    /// A newer one has its place.
    Recycled,
    /// Its bytes are no hello that may be routed; with the name in it, as it can be shown.
    Hello(HelloRefusal, Option<String>),
    /// Its name, or its lack of one, goes nowhere.
    Nothing(Option<String>),
    /// The same, and the connection is closed without an alert.
    Close(Option<String>),
    /// Its name is not for it.
    Denied(Option<String>),
    /// Its real name is encrypted; the one outside is this.
    Ech(Option<String>),
    /// There is no backend to be had.
    Unreached(NoBackend),
}

impl From<NoBackend> for SniRefusal {
    fn from(unreached: NoBackend) -> Self {
        Self::Unreached(unreached)
    }
}

impl SniRefusal {
    /// The value of a metric's label. It stays the same from one version to the next.
    fn label(&self) -> &'static str {
        match self {
            Self::Gone => "client_gone",
            Self::Header => "proxy_header",
            Self::NoProxy => "no_proxy",
            Self::Timeout => "timeout",
            Self::Recycled => "recycled",
            Self::Hello(refusal, _) => refusal.label(),
            Self::Nothing(Some(_)) | Self::Close(Some(_)) => "no_match",
            Self::Nothing(None) | Self::Close(None) => "no_name",
            Self::Denied(_) => "deny_tenant_name",
            Self::Ech(_) => "ech",
            Self::Unreached(unreached) => unreached.label(),
        }
    }

    /// The TLS alert that the client gets; none where silence is configured, or the client is gone.
    const fn alert(&self) -> Option<u8> {
        match self {
            Self::Gone
            | Self::Header
            | Self::NoProxy
            | Self::Timeout
            | Self::Recycled
            | Self::Close(_) => None,
            Self::Hello(refusal, _) => Some(refusal.alert()),
            Self::Nothing(_) | Self::Denied(_) => Some(client_hello::UNRECOGNIZED_NAME),
            Self::Ech(_) => Some(ILLEGAL_PARAMETER),
            Self::Unreached(_) => Some(INTERNAL_ERROR),
        }
    }

    /// The name that goes nowhere.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Nothing(name) | Self::Close(name) | Self::Denied(name) => name.as_deref(),
            Self::Gone
            | Self::Header
            | Self::NoProxy
            | Self::Timeout
            | Self::Recycled
            | Self::Hello(..)
            | Self::Ech(_)
            | Self::Unreached(_) => None,
        }
    }

    /// What the client has requested, if it is refused for that; none in it: no name, or none that can be found.
    fn refused_name(&self) -> Option<Option<&str>> {
        match self {
            Self::Hello(_, name)
            | Self::Nothing(name)
            | Self::Close(name)
            | Self::Denied(name)
            | Self::Ech(name) => Some(name.as_deref()),
            Self::Gone
            | Self::Header
            | Self::NoProxy
            | Self::Timeout
            | Self::Recycled
            | Self::Unreached(_) => None,
        }
    }
}

// RFC 8446 section 6.
const ILLEGAL_PARAMETER: u8 = 47;
const INTERNAL_ERROR: u8 = 80;

/// Serves a client that has just connected; or, where it was `rebuilt`, has sent its first bytes.
pub(super) async fn serve(
    mut client: TcpStream,
    addresses: ConnectionAddresses,
    rebuilt: Option<ClientSocket>,
    service: Arc<ProxyService>,
    sni: Arc<SniRouting>,
    shared: Rc<Context>,
) {
    let counts = &shared.work.counts;
    counts.of(&service.name, |counted| counted.accepted += 1);
    // Of a proxy too: the address that it announces for its client is not verified.
    let ticket = shared.work.pending.admit(*addresses.client.ip());
    let connected = tokio::select! {
        biased;
        // `biased`: a client that has a backend is not evicted any more.
        connected = connect(&mut client, addresses, rebuilt.as_ref(), &sni, &shared, &ticket) => connected,
        () = ticket.goes() => Err(SniRefusal::Recycled),
        () = replaced(rebuilt.as_ref()) => Err(SniRefusal::Gone),
    };
    drop(ticket);
    match connected {
        Ok(connected) => {
            counts.of(&service.name, |counted| counted.routed += 1);
            Box::pin(go_on(client, connected, rebuilt, &shared)).await;
        }
        Err(refused) => {
            counts.of(&service.name, |counted| {
                counted.refuse(refused.label());
                if let Some(name) = refused.name() {
                    counted.unrouted(name);
                }
            });
            if let Some(name) = refused.refused_name() {
                let of = [shared.work.network.as_str(), service.name.as_str()];
                let client = *addresses.client.ip();
                counts.names.note(of, name, refused.label(), client);
            }
            if let Some(alert) = refused.alert() {
                Box::pin(tell(client, alert)).await;
            }
        }
    }
}

async fn connect(
    client: &mut TcpStream,
    addresses: ConnectionAddresses,
    rebuilt: Option<&ClientSocket>,
    sni: &SniRouting,
    shared: &Context,
    ticket: &Permit,
) -> Result<Connected, SniRefusal> {
    let is_proxy = sni.is_proxy(*addresses.client.ip());
    let heard = timeout(sni.timeout, read(client, is_proxy, sni.max_bytes, ticket));
    let ClientBytes {
        announced,
        length,
        bytes,
    } = heard.await.unwrap_or(Err(SniRefusal::Timeout))?;
    let sent = bytes.get(announced.length..).unwrap_or_default();
    let sent = sent.get(..length).unwrap_or_default();
    let hello = Hello::read(sent).map_err(|refusal| {
        let name = client_hello::name_as_sent(sent).map(refused_names::shown);
        SniRefusal::Hello(refusal, name)
    })?;
    // The service as it is now: it may have changed since the client has connected.
    let service = &shared.service(addresses.vip).ok_or(SniRefusal::Gone)?;
    let Routing::Sni(sni) = &service.routing else {
        return Err(SniRefusal::Gone);
    };
    if sni.is_proxy(*addresses.client.ip()) != is_proxy {
        return Err(SniRefusal::Gone);
    }
    if hello.ech {
        let counts = &shared.work.counts;
        match sni.ech {
            Ech::Route => {}
            Ech::Count => counts.of(&service.name, |counted| counted.ech += 1),
            Ech::Deny => return Err(SniRefusal::Ech(hello.name.map(|name| name.to_string()))),
        }
    }
    let pool = route(&hello, &announced, addresses, sni)?;
    let key = addresses.key(service);
    let announced_client = announced.endpoints.map(|ends| ends.source.ip());
    let from = announced_client.unwrap_or_else(|| (*addresses.client.ip()).into());
    let by = ChosenBy::flow(&key, from);
    let candidates = Candidates::of(pool, by, shared)?;
    let name = hello.name.map(|name| name.to_string());
    let reached = candidates.connect(
        &key,
        service,
        name,
        Offer::of(client, rebuilt.map(ClientSocket::syn)),
        shared,
    );
    // A client whose hello is awaited has no memory for what comes behind it.
    let reached = Box::pin(reached).await?;
    let name = reached.guard.leg.name.as_deref();
    let endpoints = announced.endpoints.unwrap_or_else(|| addresses.endpoints());
    let preface = reached.preface(endpoints, name, announced.unique_id.as_deref())?;
    Ok(Connected {
        service: Arc::clone(service),
        reached,
        said: Prelude {
            bytes,
            for_us: announced.length,
            preface,
        },
    })
}

/// What a client has sent.
struct ClientBytes {
    /// By the proxy in front of it, if there is one.
    announced: Announced,
    /// Bytes behind that up to the end of the hello.
    length: usize,
    /// All of it, and what has come with it.
    bytes: Vec<u8>,
}

/// Reads the hello; of a proxy first its header.
async fn read(
    client: &mut TcpStream,
    is_proxy: bool,
    most: usize,
    ticket: &Permit,
) -> Result<ClientBytes, SniRefusal> {
    let mut bytes = Vec::new();
    let announced = match is_proxy {
        true => read_header(client, &mut bytes, ticket).await?,
        false => Announced::default(),
    };
    let mut reading = Reading::up_to(most);
    loop {
        let said = bytes.get(announced.length..).unwrap_or_default();
        match reading.find_end(said) {
            Ok(Reached::End(length)) => {
                return Ok(ClientBytes {
                    announced,
                    length,
                    bytes,
                });
            }
            Ok(Reached::Within { .. }) => keep(&mut bytes, ticket),
            Err(_) if decode::is_header(said) => return Err(SniRefusal::NoProxy),
            Err(refusal) => return Err(SniRefusal::Hello(refusal, None)),
        }
        read_more(client, &mut bytes).await?;
    }
}

/// Reads the header by which a proxy announces its client.
async fn read_header(
    client: &mut TcpStream,
    bytes: &mut Vec<u8>,
    ticket: &Permit,
) -> Result<Announced, SniRefusal> {
    loop {
        read_more(client, bytes).await?;
        match decode::read(bytes) {
            decode::HeaderReading::Found(announced) => return Ok(announced),
            decode::HeaderReading::Wrong => return Err(SniRefusal::Header),
            decode::HeaderReading::Incomplete => keep(bytes, ticket),
        }
    }
}

/// Reads once, as soon as there is something.
async fn read_more(client: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<(), SniRefusal> {
    loop {
        client.readable().await.map_err(|_| SniRefusal::Gone)?;
        // No buffer is kept for a client that has not sent anything. It does not double: it is cut after each read, and
        // what was cut off would be holes in the heap, a fifth of all that hellos take.
        bytes.reserve_exact(CHUNK);
        match client.try_read_buf(bytes) {
            Ok(0) => return Err(SniRefusal::Gone),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(SniRefusal::Gone),
        }
    }
}

/// Keeps what is not whole yet.
fn keep(bytes: &mut Vec<u8>, ticket: &Permit) {
    bytes.shrink_to_fit();
    ticket.keeps(bytes.len());
}

/// The pool for a hello.
fn route<'s>(
    hello: &'s Hello<'_>,
    announced: &Announced,
    addresses: ConnectionAddresses,
    sni: &'s SniRouting,
) -> Result<&'s str, SniRefusal> {
    let proxy = (*addresses.client.ip()).into();
    let client = match announced.endpoints {
        Some(endpoints) => endpoints.source.ip().to_canonical(),
        None => proxy,
    };
    let cluster = announced.cluster.as_deref();
    let of_cluster =
        cluster.and_then(|cluster| sni.routes.of_cluster(cluster, proxy, &hello.alpn, client));
    let name = hello.name.as_ref();
    let by_name = || {
        let otherwise = match name {
            Some(_) => &sni.no_match,
            None => &sni.no_name,
        };
        sni.routes.way(name, &hello.alpn, client, otherwise)
    };
    let shown = || name.map(ToString::to_string);
    match of_cluster.unwrap_or_else(by_name) {
        route::RouteTarget::Pool(pool) => Ok(pool),
        route::RouteTarget::Https(_) | route::RouteTarget::Nothing => {
            Err(SniRefusal::Nothing(shown()))
        }
        route::RouteTarget::Close => Err(SniRefusal::Close(shown())),
        route::RouteTarget::Denied => Err(SniRefusal::Denied(shown())),
    }
}

/// Sends a client the alert with the reason why it gets nothing.
async fn tell(mut client: TcpStream, alert: u8) {
    let alert = client_hello::alert_record(alert);
    if let Ok(Ok(())) = timeout(CLOSE_TIMEOUT, client.write_all(&alert)).await {
        hear_out(&client).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_hello_has_no_more_memory_than_it_takes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (mut client, (mut served, _)) = (client.unwrap(), listener.accept().await.unwrap());
        let mut bytes = Vec::new();
        for number in 1..=40 {
            client.write_all(&[7; 1500]).await.unwrap();
            while bytes.len() < number * 1500 {
                read_more(&mut served, &mut bytes).await.unwrap();
                assert!(bytes.capacity() <= bytes.len() + CHUNK, "{}", bytes.len());
                bytes.shrink_to_fit();
            }
        }
    }
}
