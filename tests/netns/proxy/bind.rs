//! Shared VIPs whose connections XDP opens by the names in their hellos: the process has nothing to do with them.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::SocketAddrV4,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_tests::{
    product::{config::Keys, lb::Lb},
    topology::Topology,
    traffic::{client::open_from, conn_pair::reset, hello::named},
};

use crate::{
    handoff::{connections::handed_over, opener::Opener},
    proxy::{
        cookies::{OFFERS, offer},
        guard::{self, teller as serve},
        pipe::carry,
        relayed::fast_line,
        sni::{self, ROUTES, SHARED, Site, config, reaches},
    },
};

/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);

fn bound() -> Keys {
    Keys::from("late_binding: always").with(ROUTES)
}

/// What XDP has made of the hellos of tenant-a.
pub(crate) fn hellos(lb: &Lb<'_>) -> Result<BTreeMap<String, u64>> {
    let status = lb.status()?;
    let network = status
        .networks
        .iter()
        .find(|network| network.name == "tenant-a");
    Ok(network.context("tenant-a")?.hellos.clone())
}

fn counted(lb: &Lb<'_>, end: &str) -> Result<u64> {
    Ok(hellos(lb)?.get(end).copied().unwrap_or_default())
}

/// Real clients reach the backends of their names, without the process; those whose names XDP does not know, by it.
#[privileged_test]
fn a_known_name_needs_no_process() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let mut lb = Lb::start(&topology, &site.config(bound()))?;
    let client = topology.client();
    let known = [("a.lab", "a.lab"), ("C.Lab", "c.lab"), ("x.b.lab", "b.lab")];
    let mut count = 0;
    for version in ["-tls1_2", "-tls1_3"] {
        for (asked, name) in known {
            reaches(client, Some(asked), name, version)?;
            count += 1;
        }
    }
    let all_bound = BTreeMap::from([("bound".to_owned(), count)]);
    assert_eq!(hellos(&lb)?, all_bound, "and none is repeated");
    reaches(client, Some("x.y.b.lab"), "b.lab", "-tls1_3")?;
    assert_eq!(
        (counted(&lb, "bound")?, counted(&lb, "unrouted")?),
        (count, 1)
    );
    assert_eq!(handed_over(&lb)?, 1);

    lb.kill()?;
    for (asked, name) in known {
        reaches(client, Some(asked), name, "-tls1_3")?;
    }
    lb.restart(&site.config(bound()))?;
    assert_eq!(counted(&lb, "bound")?, count + 3);
    assert_eq!(sni::counted(&lb, "bound")?, count + 3, "of the service");
    Ok(())
}

const BULK: u64 = 1 << 20;

/// All bytes come in both directions, whatever a client and its backend agree on.
#[privileged_test]
fn every_offer_carries_all_bytes() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &Opener::Xdp.config(&topology))?;
    let line = fast_line(&topology)?;
    let (client, node) = (&topology.client().netns, &topology.nodes[0].netns);
    for offered in OFFERS {
        offer(client, offered)?;
        let carried = line.open().and_then(|pair| {
            carry(&pair.client, &pair.server, BULK)?;
            carry(&pair.server, &pair.client, BULK)
        });
        carried.with_context(|| format!("offered {offered:03b}"))?;
    }
    println!("{:?}", hellos(&lb)?);
    assert_eq!(counted(&lb, "bound")?, 8);
    // A backend that has less than the client was promised: the process has the connection.
    for option in ["tcp_timestamps", "tcp_window_scaling"] {
        client.set_sysctl(&format!("ipv4/{option}"), "1")?;
        node.set_sysctl(&format!("ipv4/{option}"), "0")?;
        let before = counted(&lb, "disagreed")?;
        let pair = line.open().with_context(|| format!("without {option}"))?;
        carry(&pair.client, &pair.server, BULK)?;
        carry(&pair.server, &pair.client, BULK)?;
        assert_eq!(counted(&lb, "disagreed")?, before + 1, "without {option}");
        node.set_sysctl(&format!("ipv4/{option}"), "1")?;
    }
    Ok(())
}

/// How long there is no process.
const DEAD: Duration = Duration::from_secs(2);

/// Clients connect while no process runs, while the next one starts, and while another one takes over from that: none fails, and
/// XDP has opened all of their connections.
#[privileged_test]
fn clients_connect_whatever_the_process_does() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let config = guard::config(&topology, "late_binding: always");
    let mut lb = Lb::start(&topology, &config)?;
    let (_before, measured) = guard::beside(topology.client(), || {
        lb.kill()?;
        thread::sleep(DEAD);
        lb.restart(&config)?;
        lb.take_over(&config)
    })?;
    let hellos = hellos(&lb)?;
    println!("{measured}, {hellos:?}");
    assert_eq!(hellos.keys().collect::<Vec<_>>(), ["bound"]);
    Ok(())
}

/// A connection from a port that has just had one is another one, also where that was not closed in peace.
#[privileged_test]
fn a_port_may_have_one_connection_after_the_other() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = serve(&topology.nodes[2], "right")?;
    let lb = Lb::start(&topology, &config(&topology, bound()))?;
    let client = topology.client();
    let from = SocketAddrV4::new(client.address, 41_000);
    for round in 0..10 {
        let stream = client.netns.inside(|| open_from(Some(from), SHARED))?;
        let mut stream = stream.with_context(|| format!("round {round}"))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(&named(b"c.lab"))?;
        let mut name = [0; 5];
        let read = stream.read_exact(&mut name);
        read.with_context(|| format!("round {round}"))?;
        assert_eq!(&name, b"right");
        reset(stream)?;
    }
    assert_eq!(counted(&lb, "bound")?, 10);
    Ok(())
}
