//! A connection of a shared VIP that goes by XDP alone, as it is after its hand-over: the program gives its
//! segments the numbers of the other connection.

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    addr::{Be16, Be32},
    maps::{
        flow::Flow,
        snat::{PAGE, base},
        splice::{Numbers, Splice},
    },
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp},
    product::program::{Action, CLIENT, MGMT_NIC, Port},
};
use lb_user::{
    dataplane::{
        flows::{FlowOwners, UsageTable, coarse_now},
        splices::NoSplice,
    },
    model::registry::Kind,
};

use super::{
    paths::{KAS, NODE, from_client},
    stand::Stand,
};

const CLIENT_END: &str = "192.168.203.53:40000";
const NAMES: &str = "192.168.203.110:8443";

/// The first byte and the clock of each end, and what the other end takes them for.
const CLIENT_BYTE: [u32; 2] = [0x0200, 0x9234_5678];
const BACKEND_BYTE: [u32; 2] = [0x00ff_fff0, 0x6fed_cba0];
const CLIENT_TIME: [u32; 2] = [0x0100_0000, 0x1111_2222];
const BACKEND_TIME: [u32; 2] = [0x7fff_0001, 0x0000_0003];
/// Bytes that the client said before the hand-over.
const HELLO: u32 = 517;

/// Makes such a connection: data of its client, and data of its backend, both with timestamps.
pub(super) fn hand_over(stand: &mut Stand) -> Result<[Frame; 2]> {
    let id = lent_id(stand)?;
    let page = stand.plane.maps.snat_pages.get(&(id / PAGE), 0)?;
    let flow = flow(stand)?;
    let table = stand.plane.flow_table();
    let port = table.port(id).context("no entry")?;
    let snat = SocketAddrV4::new(page.address.into(), port.get()).to_string();
    let mut word = table.word(id).context("no entry")?;
    let mut change = |next: lb_common::conntrack::FlowState| {
        ensure!(table.swap(id, word, next), "{word:?} has changed");
        word = next;
        Ok(next)
    };
    let claimed = table.word(id).context("no entry")?.claim(false);
    let claimed = change(claimed)?;
    table.fill(id, &flow);
    let lent = change(claimed.lend())?;
    let held = change(lent.hold())?;
    stand.plane.maps.flow_lines.insert(&flow.key(false), id)?;
    let set = stand.plane.splices().set(id, held, &record(), b"");
    set.map_err(|NoSplice| anyhow::anyhow!("no room for a splice"))?;
    let spliced = change(held.splice())?;
    let counts = UsageTable::open(&stand.plane.maps_folder())?;
    counts.count(id, &FlowOwners::from(&flow), 1);
    change(spliced.release())?;

    let times = |own: u32, other: u32| {
        let [own, other] = [own, other].map(u32::to_be_bytes);
        [&[1, 1, 8, 10][..], &own, &other].concat()
    };
    let data = from_client(CLIENT_END, NAMES, ACK_ONLY)
        .numbers(CLIENT_BYTE[0] + HELLO, BACKEND_BYTE[1])
        .tcp_options(&times(CLIENT_TIME[0], BACKEND_TIME[1]));
    let answer = tcp(KAS, &snat, ACK_ONLY)
        .numbers(BACKEND_BYTE[0], CLIENT_BYTE[1] + HELLO)
        .tcp_options(&times(BACKEND_TIME[0], CLIENT_TIME[1]))
        .between(NODE, MGMT_NIC);
    // The backend has the hello.
    stand.send(Port::Mgmt, &answer.bytes(), Action::Redirect)?;
    ensure!(
        stand
            .plane
            .splices()
            .is_drained(id, table.word(id).context("no entry")?),
        "not drained"
    );
    Ok([data, answer])
}

/// Takes an id of the hub's SNAT address out of its queue.
fn lent_id(stand: &Stand) -> Result<u32> {
    let maps = &stand.plane.maps;
    let hub = Be32::from(std::net::Ipv4Addr::new(10, 32, 96, 50));
    for slot in 0..maps.limits().snat_addresses {
        let page = maps.snat_pages.get(&(base(slot) / PAGE), 0)?;
        if page.address == hub {
            let queue = maps.free_ids(slot)?;
            let mut queue = queue.context("no queue of free ids")?;
            return queue.pop().context("take a free id");
        }
    }
    anyhow::bail!("no SNAT address of the hub")
}

fn flow(stand: &Stand) -> Result<Flow> {
    let end = |text: &str| -> Result<(Be32, Be16)> {
        let end: SocketAddrV4 = text.parse()?;
        Ok(((*end.ip()).into(), Be16::new(end.port())))
    };
    let ((client, client_port), (vip, vip_port)) = (end(CLIENT_END)?, end(NAMES)?);
    let (backend, backend_port) = end(KAS)?;
    let service = stand.plane.ids.get(Kind::Service, "names");
    let backends = &stand.plane.desired.backends;
    let known = backends
        .iter()
        .find(|(_, known)| (known.address, known.port) == (backend, backend_port));
    Ok(Flow {
        client,
        vip,
        client_port,
        vip_port,
        network: stand.network("tenant-a")?,
        backend,
        backend_port,
        backend_id: u16::try_from(known.context("no such backend")?.0)?,
        service: u16::try_from(service.context("no such service")?)?,
        client_mac: CLIENT,
        last_seen: coarse_now()?,
        ack_request: Be32::new(BACKEND_BYTE[0]),
        ack_reply: Be32::new(CLIENT_BYTE[1]),
        ..Flow::default()
    })
}

/// The numbers of the connection; `generation` is that of its flow.
fn record() -> Splice {
    let numbers = |bytes: [u32; 2], times: [u32; 2], scale, promised| Numbers {
        sequence: bytes[1].wrapping_sub(bytes[0]),
        time: times[1].wrapping_sub(times[0]),
        scale,
        promised,
    };
    Splice {
        sent_end: CLIENT_BYTE[1] + HELLO,
        received: BACKEND_BYTE[0],
        to_backend: numbers(CLIENT_BYTE, CLIENT_TIME, 7, 10),
        to_client: numbers(BACKEND_BYTE, BACKEND_TIME, 9, 7),
        ..Splice::default()
    }
}
