//! Backends that get a header of the PROXY protocol from XDP: see [`bind`](crate::proxy::bind). What HAProxy understands of it
//! is in [`proxy_out`](crate::proxy::proxy_out).

use std::{
    net::{SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::{Host, Topology},
    traffic::{
        client::open,
        hello::{CAPTURED_NAME, captured_of, named},
    },
};

use crate::proxy::{
    bind::hellos,
    bind_two::{EACH, through_trouble},
    guard,
    sni::{PORT, SHARED},
};

/// Connections while nothing happens.
const QUIET: usize = 50;

pub(super) fn config(topology: &Topology, second: &str) -> Config {
    guard::config(topology, Keys::default())
        .pool("a", |pool| pool.set("proxy_protocol", "v2"))
        .network("mgmt", |mgmt| mgmt.set("second_segment", second))
}

pub(super) fn teller(node: &Host) -> Result<Teller> {
    let at = SocketAddrV4::new(node.address, PORT);
    Teller::start_behind_header(&node.netns, at, "a")
}

/// A hello of one segment, and one of two.
fn both() -> Result<[Vec<u8>; 2]> {
    let long = captured_of("like-chrome131")?.bytes;
    ensure!(long.len() > 1448, "{} bytes", long.len());
    Ok([named(CAPTURED_NAME.as_bytes()), long])
}

/// Connects so often; the backend has heard each time of this client, and got its hello.
fn come(times: usize) -> Result<()> {
    for (round, hello) in both()?.iter().cycle().take(times).enumerate() {
        let stream = open(None, SHARED).with_context(|| format!("connection {round}"))?;
        let SocketAddr::V4(client) = stream.local_addr()? else {
            return Err(anyhow!("an address"));
        };
        let said = teller::ask_on(stream, &[hello], Duration::ZERO);
        let said = said.with_context(|| format!("connection {round}"))?;
        ensure!(said == Some(format!("a {client}")), "{round}: {said:?}");
    }
    Ok(())
}

/// The backend gets the header of each connection, also of those that are opened while no process runs.
#[privileged_test]
fn each_connection_has_its_header() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = teller(&topology.nodes[0])?;
    for second in ["at_once", "on_ack"] {
        let mut lb = Lb::start(&topology, &config(&topology, second))?;
        let client = &topology.client().netns;
        client.inside(|| come(QUIET))??;
        assert_eq!(hellos(&lb)?["bound"], u64::try_from(QUIET)?, "{second}");
        lb.kill()?;
        client.inside(|| come(QUIET))??;
        lb.restart(&config(&topology, second))?;
        let bound = hellos(&lb)?["bound"];
        assert_eq!(bound, u64::try_from(2 * QUIET)?, "{second}");
        lb.down()?;
    }
    Ok(())
}

/// Three percent of all frames are lost, on all sides, headers among them: each backend has the header once, and then the hello.
#[privileged_test]
fn headers_arrive_where_three_percent_are_lost() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = teller(&topology.nodes[0])?;
    let lb = Lb::start(&topology, &config(&topology, "at_once"))?;
    through_trouble(&topology, &lb, || come(EACH))
}
