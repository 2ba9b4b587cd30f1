//! What a backend sees of connections that XDP opens, as tcpdump captures it: the SYN of the client, and no byte twice.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    syn_cookie::offer::{self, SynOptions},
    wire::Slice,
};
use lb_tests::{
    frames::{packet::flags::SYN_ONLY, segment::Segment},
    oracle::wire::Wire,
    product::lb::Lb,
    servers::teller,
    topology::Topology,
    traffic::hello::{CAPTURED_NAME, captured_of, named},
};

use crate::proxy::{
    cookies::{OFFERS, offer},
    guard,
    sni::SHARED,
};

/// Clients of each kind.
const EACH: usize = 5;
/// More than any segment takes.
const MOST: u16 = 9000;

/// What SYNs have: the sequence number and the options, of timestamps only whether there are any.
type Syn = (u32, u16, bool, Option<u8>, bool);

/// What a capture has of connections, in the order of their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    syns: Vec<Syn>,
    /// The segments with data: sequence number, and bytes.
    data: Vec<(u32, u32)>,
}

fn sent(frames: &[Vec<u8>]) -> Result<Sent> {
    let Sent { mut syns, mut data } = Sent::default();
    for frame in frames {
        let Some(segment) = Segment::read(frame) else {
            continue;
        };
        if segment.flags == SYN_ONLY {
            let mut bytes = frame.clone();
            let options = offer::read(&Slice::new(&mut bytes), MOST);
            let SynOptions { offer, mss, time } = options.context("the options of a SYN")?;
            syns.push((
                segment.sequence,
                mss,
                offer.has_sack,
                offer.scale,
                time.is_some(),
            ));
        } else if segment.payload != 0 {
            data.push((segment.sequence, segment.payload));
        }
    }
    syns.sort_unstable();
    data.sort_unstable();
    Ok(Sent { syns, data })
}

/// Whatever a client offers: the backend gets its number, its options and its bytes, each once.
#[privileged_test]
fn a_backend_sees_the_client_and_nothing_twice() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let _lb = Lb::start(&topology, &guard::config(&topology, ""))?;
    let (client, node) = (topology.client(), &topology.nodes[0]);
    let long = captured_of("like-chrome131")?.bytes;
    let hellos = [named(CAPTURED_NAME.as_bytes()), long];
    let from_client = format!("tcp and dst {}", SHARED.ip());
    for offered in OFFERS {
        offer(&client.netns, offered)?;
        let at_client = Wire::received(&topology.tenant_lan, "p-c1", &from_client, topology.dir())?;
        let at_backend = Wire::received(&node.netns, "eth0", "tcp", topology.dir())?;
        for hello in hellos.iter().cycle().take(hellos.len() * EACH) {
            let ask = || teller::ask(SHARED, &[hello], Duration::ZERO);
            let reached = client.netns.inside(ask)??;
            ensure!(
                reached.as_deref() == Some("a"),
                "{offered:03b}: {reached:?}"
            );
        }
        let (of_client, of_backend) = (sent(&at_client.stop()?)?, sent(&at_backend.stop()?)?);
        println!(
            "offered {offered:03b}: {} SYNs, {} segments with data",
            of_client.syns.len(),
            of_client.data.len()
        );
        assert_eq!(of_client.syns.len(), hellos.len() * EACH);
        assert_eq!(of_client.data.len(), 3 * EACH, "{of_client:?}");
        assert_eq!(of_client, of_backend, "offered {offered:03b}");
    }
    Ok(())
}
