//! The tenant that is measured, as its clients see it: new connections of several kinds, and flows that stand.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    netns::Netns,
    topology::{ECHO, Host, TENANT_NIC, mac_of},
    traffic::secret::SecretFlow,
};
use lb_user::network::cell;

use super::{
    kind::{Client, Kind, connect, hello},
    scene::{SHARED, Scene, TENANTS},
    times::Times,
};

/// How long an established flow may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// From one question of an established flow to the next.
const PAUSE: Duration = Duration::from_millis(50);
/// Established flows: those that are asked beside the attack, those that are idle meanwhile, and those over the
/// shared VIP, which are idle as well.
const ASKED: usize = 6;
const IDLE: usize = 6;
const OVER_SHARED: usize = 2;

/// Connections of each kind that are made without an attack.
pub(super) const BEFORE: u32 = 10;
/// From one connection of a kind to the next.
const EVERY: Duration = Duration::from_millis(100);

/// Connections of each kind that are made beside an attack.
pub(super) fn beside() -> u32 {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 200,
        None => 20,
    }
}

/// A client and its flows.
pub(super) struct Victim<'t> {
    client: Client<'t>,
    kinds: Vec<Kind>,
    /// How long its idle flows are left alone after an attack.
    rest: Duration,
    every: Duration,
    /// Forgets its neighbours before each connection, and so does this cell.
    forgets: Option<String>,
    asked: Vec<SecretFlow>,
    idle: Vec<SecretFlow>,
    shared: Vec<TcpStream>,
}

impl<'t> Victim<'t> {
    /// The second tenant.
    pub(super) fn start(scene: &Scene<'t>) -> Result<Self> {
        Self::of(scene, scene.trunk.tenants[1].client(), TENANTS[1])
    }

    /// Another client of the tenant that attacks.
    pub(super) fn beside_the_attacker(scene: &Scene<'t>) -> Result<Self> {
        Self::of(scene, &scene.trunk.tenants[0].clients[1], TENANTS[0])
    }

    fn of(scene: &Scene<'t>, host: &'t Host, tenant: &'static str) -> Result<Self> {
        let hops = [mac_of(&host.netns, "eth0")?, scene.trunk.mac(TENANT_NIC)?];
        let flows = |count| {
            let flow = |_| SecretFlow::open(&host.netns, None, ECHO);
            let flows = (0..count).map(flow).collect::<Result<Vec<_>>>()?;
            for flow in &flows {
                flow.set_patience(TIMEOUT)?;
                ensure!(flow.server() == tenant, "{} answers", flow.server());
            }
            Ok(flows)
        };
        let shared = (0..OVER_SHARED).map(|_| host.netns.inside(|| shared_flow(tenant))?);
        Ok(Self {
            client: Client { host, tenant, hops },
            kinds: vec![Kind::Echo, Kind::Shared, Kind::Datagram],
            rest: Duration::ZERO,
            every: EVERY,
            forgets: None,
            asked: flows(ASKED)?,
            idle: flows(IDLE)?,
            shared: shared.collect::<Result<_>>()?,
        })
    }

    /// With connections of this kind as well.
    pub(super) fn with(mut self, kind: Kind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// From now on as if each connection were the first one for a while: the client asks where its VIP is, and
    /// the cell where the client is. As soon as one of them knows, all connections that wait go on, so that
    /// they begin at short intervals.
    pub(super) fn forgetting(mut self, scene: &Scene<'_>) -> Self {
        self.every = Duration::from_millis(10);
        self.forgets = Some(cell::name(scene.trunk.run(), self.client.tenant));
        self
    }

    /// From now on its idle flows are left alone for this long after an attack.
    pub(super) const fn rest(&mut self, rest: Duration) {
        self.rest = rest;
    }

    pub(super) fn name(&self) -> &str {
        self.client.host.name
    }

    /// How many flows stand at the beginning.
    pub(super) const fn flows(&self) -> usize {
        ASKED + IDLE + OVER_SHARED
    }

    /// The client's ends of its flows over the L4 VIP.
    pub(super) fn tuples(&self) -> Result<Vec<SocketAddrV4>> {
        let flows = self.asked.iter().chain(&self.idle);
        flows.map(|flow| Ok(flow.local()?.parse()?)).collect()
    }

    /// New connections of each kind.
    pub(super) fn measure(&self, count: u32) -> Result<Vec<Times>> {
        let Self {
            client,
            kinds,
            every,
            forgets,
            ..
        } = self;
        measure(client, kinds, (*every, forgets.as_deref()), count)
    }

    /// The same while its flows are asked, and which of these were lost.
    pub(super) fn measure_with_flows(&mut self, count: u32) -> Result<(Vec<Times>, Vec<String>)> {
        let Self {
            client,
            kinds,
            every,
            forgets,
            asked,
            ..
        } = self;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut lost = Vec::new();
                while !done.load(Ordering::Acquire) {
                    lost.extend(ask_all(asked));
                    thread::sleep(PAUSE);
                }
                lost
            });
            let measured = measure(client, kinds, (*every, forgets.as_deref()), count);
            done.store(true, Ordering::Release);
            let lost = asking.join().map_err(|_| anyhow!("a flow panicked"))?;
            Ok((measured?, lost))
        })
    }

    /// Asks all flows that are there; those that do not answer.
    pub(super) fn lost(&mut self) -> Vec<String> {
        let mut lost = ask_all(&mut self.asked);
        thread::sleep(self.rest);
        lost.extend(ask_all(&mut self.idle));
        for stream in &self.shared {
            if let Err(error) = ends(stream) {
                lost.push(format!("over the shared VIP: {error:#}"));
            }
        }
        lost
    }
}

/// Asks each of these flows once, all at the same time, and forgets those that do not answer.
fn ask_all(flows: &mut Vec<SecretFlow>) -> Vec<String> {
    let asked: Vec<Result<()>> = thread::scope(|scope| {
        let asking: Vec<_> = flows
            .iter_mut()
            .map(|flow| scope.spawn(|| flow.round()))
            .collect();
        let asked = asking.into_iter().map(|asked| {
            let asked = asked.join();
            asked.unwrap_or_else(|_| Err(anyhow!("panicked")))
        });
        asked.collect()
    });
    let mut lost = Vec::new();
    let mut asked = asked.into_iter();
    flows.retain(|flow| match asked.next() {
        Some(Err(error)) => {
            lost.push(format!("{}: {error:#}", flow.local().unwrap_or_default()));
            false
        }
        _ => true,
    });
    lost
}

fn measure(
    client: &Client<'_>,
    kinds: &[Kind],
    (every, forgets): (Duration, Option<&str>),
    count: u32,
) -> Result<Vec<Times>> {
    let measure = || {
        thread::scope(|scope| {
            let mut attempts = Vec::new();
            for _ in 0..count {
                if let Some(cell) = forgets {
                    forget(&client.host.netns, cell)?;
                }
                for &kind in kinds {
                    attempts.push((kind, scope.spawn(move || kind.attempt(client))));
                }
                thread::sleep(every);
            }
            let ended = attempts.into_iter().map(|(kind, attempt)| {
                let ended = attempt.join();
                (kind, ended.unwrap_or_else(|_| Err(anyhow!("panicked"))))
            });
            let mut ended: Vec<_> = ended.collect();
            let times = kinds.iter().map(|kind| {
                let of_kind = ended.extract_if(.., |(of, _)| of == kind);
                Times::new(*kind, of_kind.map(|(_, result)| result).collect())
            });
            Ok(times.collect())
        })
    };
    client.host.netns.inside(measure)?
}

/// Both forget where their neighbours are.
fn forget(netns: &Netns, cell: &str) -> Result<()> {
    netns.run("ip neigh flush all")?;
    netns
        .run(&format!("ip -n {cell} neigh flush all"))
        .map(drop)
}

/// A connection over the shared VIP that stands: the hello has arrived.
fn shared_flow(tenant: &str) -> Result<TcpStream> {
    let mut stream = connect(SHARED.into())?;
    stream.write_all(&hello())?;
    // The name, and a byte that ends it.
    let mut name = vec![0; tenant.len() + 1];
    stream.read_exact(&mut name).context("hear a name")?;
    ensure!(name.starts_with(tenant.as_bytes()), "{name:?} answers");
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Ends a flow over the shared VIP, which gives back what it has got.
fn ends(mut stream: &TcpStream) -> Result<()> {
    stream
        .shutdown(Shutdown::Write)
        .context("close this side")?;
    let mut back = Vec::new();
    stream.read_to_end(&mut back).context("read it back")?;
    ensure!(back == hello(), "{} bytes came back", back.len());
    Ok(())
}
