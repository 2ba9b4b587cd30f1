//! Backends that leave clients without an answer are found by that: FEATURES E12.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::{addr::Mac, wire::header::SYN};
use lb_tests::{
    frames::{packet, raw::RawPort},
    oracle::{links, observe, raw_map::RawMap},
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Host, TENANT_NIC, Topology},
    traffic::{client, pace::Pace},
};
use lb_user::dataplane::pins::Pins;
use serde_json::json;

use crate::{
    flows::life::LIMIT,
    health::{
        redispatch::{deafen, undeafen},
        sweep::backends,
    },
};

/// New connections of the clients.
const PACE: Pace = Pace {
    per_second: 100,
    threads: 64,
};
/// From the beginning of the silence until no new flow goes there.
const MAX_LOSS: Duration = Duration::from_secs(3);
/// Addresses of one client.
const SOURCES: u8 = 12;
/// Until a backend that nothing checks is tried again, and has answered.
const MAX_TRIAL: Duration = Duration::from_secs(20);
/// SYNs of each address that no server answers, how long they are sent, and how soon each of them comes again.
const FAKES: u16 = 8;
const FAKED: Duration = Duration::from_secs(5);
const REPEAT: Duration = Duration::from_millis(700);
/// Where the checksum of TCP begins in a frame without tag and options.
const CHECKSUM: usize = 50;
/// A MAC that no station has: what is sent to the client's addresses there reaches no stack.
const UNUSED: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);

struct Site<'t> {
    topology: &'t Topology,
    lb: Lb<'t>,
    tables: RawMap,
    _echo: Vec<EchoServer<'t>>,
}

impl<'t> Site<'t> {
    fn start(topology: &'t Topology, pool: impl FnOnce(Keys) -> Keys) -> Result<Self> {
        let at = |node: &Host| SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        for node in &topology.nodes {
            node.netns.keep_flows_on_a_cpu("eth0")?;
        }
        let nodes = topology.nodes.iter();
        let echo = nodes.map(|node| EchoServer::start(&node.netns, at(node), node.name));
        let echo = echo.collect::<Result<_>>()?;
        for source in sources() {
            let line = format!("ip addr add {source}/24 dev eth0");
            topology.client().netns.run(&line)?;
        }
        let config = Config::poc()
            .mgmt_pool("echo-a", topology.nodes.iter().map(at))
            .pool("echo-a", pool)
            .tcp_service("echo-a", ECHO);
        let lb = Lb::start(topology, &config)?;
        let maps = links::pins(topology.run()).join(Pins::version());
        let site = Self {
            topology,
            lb,
            tables: RawMap::open(&maps.join("MAGLEV"))?,
            _echo: echo,
        };
        site.wait_for(topology.nodes.len(), LIMIT)?;
        Ok(site)
    }

    /// Waits until so many backends are in the tables.
    fn wait_for(&self, count: usize, limit: Duration) -> Result<()> {
        poll::until("as many backends in the tables", limit, || {
            Ok((backends(&self.tables)?.len() == count).then_some(()))
        })
    }

    /// Does it while clients connect, and every one of them is answered.
    fn under_load<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let step = |number: u64| {
            let sources: Vec<Ipv4Addr> = sources().collect();
            let index = usize::try_from(number)? % sources.len();
            client::who(Some(sources[index]), ECHO).map(drop)
        };
        let netns = &self.topology.client().netns;
        let (done, load) = PACE.beside(netns, &step, work)?;
        println!("{:.0} connections/s", load.per_second());
        Ok(done)
    }

    fn state(&self, node: &Host) -> Result<String> {
        let address = node.address.to_string();
        let backends = self.lb.backends()?.into_iter();
        let mut backends = backends.filter(|one| one.address.starts_with(&address));
        Ok(backends.next().context("the backend")?.state)
    }

    /// What became of a backend, by `lb events`.
    fn events(&self) -> Result<Vec<String>> {
        let events = self.lb.events()?.into_iter();
        let events = events.filter(|event| event.kind == "health");
        Ok(events.map(|event| event.words).collect())
    }
}

fn sources() -> impl Iterator<Item = Ipv4Addr> {
    (0..SOURCES).map(|number| Ipv4Addr::new(192, 168, 203, 150 + number))
}

/// E12: a black hole has no new flows within 3 s, with a check every 10 s of which five must fail; it is back by its
/// checks.
#[privileged_test]
fn e12_a_black_hole_is_out_long_before_its_check() -> Result<()> {
    let topology = Topology::poc()?;
    let health =
        json!({ "tcp": {}, "interval": "10s", "fast_interval": "1s", "fall": 5, "rise": 2 });
    let site = Site::start(&topology, |pool| pool.set("health", health))?;
    let deaf = &topology.nodes[1];

    let took = site.under_load(|| {
        thread::sleep(Duration::from_secs(1));
        deafen(deaf)?;
        let start = Instant::now();
        site.wait_for(3, MAX_LOSS)?;
        Ok(start.elapsed())
    })?;

    println!("out of the table after {took:?}");
    assert_eq!(site.state(deaf)?, "up, unresponsive");
    undeafen(deaf)?;
    site.wait_for(4, Duration::from_secs(10))?;
    assert_eq!(site.state(deaf)?, "up");
    let check = "does not answer clients, nor its check: no connection within 300ms; no new flows until it does";
    assert_eq!(site.events()?, [check, "answers again: connected"]);
    Ok(())
}

/// Without checks it is out when several clients had no answer, and none had one; it is tried again by new flows.
#[privileged_test]
fn a_black_hole_that_nothing_checks_is_out_until_it_answers() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::start(&topology, |pool| pool)?;
    let deaf = &topology.nodes[1];

    site.under_load(|| {
        thread::sleep(Duration::from_secs(1));
        deafen(deaf)?;
        let start = Instant::now();
        site.wait_for(3, MAX_LOSS)?;
        println!("out of the table after {:?}", start.elapsed());
        assert_eq!(site.state(deaf)?, "unchecked, unresponsive");
        undeafen(deaf)?;
        site.wait_for(4, MAX_TRIAL)?;
        println!("tried after {:?}", start.elapsed());
        poll::until("it answers", LIMIT, || {
            Ok((site.events()?.len() == 3).then_some(()))
        })
    })?;

    assert_eq!(site.state(deaf)?, "unchecked");
    let wanted = [
        "does not answer: no client had a SYN-ACK; no new flows for 10s",
        "gets new flows again, to see whether it answers",
        "answers again",
    ];
    assert_eq!(site.events()?, wanted);
    Ok(())
}

/// A client can make a SYN that no server answers, and repeat it. Of a backend that is checked the check says then that it
/// answers: it keeps its share, and other clients notice nothing.
#[privileged_test]
fn faked_silence_takes_no_share_of_a_backend_that_is_checked() -> Result<()> {
    let topology = Topology::poc()?;
    let health =
        json!({ "tcp": {}, "interval": "10s", "fast_interval": "1s", "fall": 2, "rise": 2 });
    let site = Site::start(&topology, |pool| pool.set("health", health))?;
    let port = RawPort::open(&topology.client().netns, "eth0")?;
    let gateway = topology.mac(TENANT_NIC)?;

    site.under_load(|| {
        let start = Instant::now();
        while start.elapsed() < FAKED {
            fakes(gateway).try_for_each(|fake| port.send(&fake))?;
            let repeat = Instant::now() + REPEAT;
            while Instant::now() < repeat {
                let serving = backends(&site.tables)?.len();
                ensure!(serving == 4, "{serving} of four backends have a share");
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    })?;

    for backend in site.lb.backends()? {
        ensure!(backend.syns.unanswered > 0, "{backend:?}");
        assert_eq!(backend.state, "up");
    }
    for node in &topology.nodes {
        ensure!(observe::wrong_checksums(&node.netns)? > 0, "{}", node.name);
    }
    assert_eq!(site.events()?, [""; 0]);
    Ok(())
}

/// SYNs of all the client's addresses, whose checksums are wrong; each time the same ones.
fn fakes(gateway: Mac) -> impl Iterator<Item = Vec<u8>> {
    sources().flat_map(move |source| {
        (0..FAKES).map(move |number| {
            let from = SocketAddrV4::new(source, 1024 + number).to_string();
            let syn = packet::tcp(&from, &ECHO.to_string(), SYN).between(UNUSED, gateway);
            let mut frame = syn.bytes();
            frame[CHECKSUM] ^= 0xff;
            frame
        })
    })
}
