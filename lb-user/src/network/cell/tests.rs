use std::{
    collections::BTreeSet,
    fs,
    net::{TcpListener, TcpStream},
    process,
    time::Duration,
};

use futures_util::TryStreamExt as _;
use nix::sched::{CloneFlags, unshare};
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{address::AddressHeaderFlags, route::RouteProtocol},
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{addresses, *};
use crate::network::{
    cell_thread, garp_listener, namespace,
    neighbour::{self, Inquiry, NeighbourChange, Resolved, Side},
};

const LIMIT: Duration = Duration::from_secs(5);
const VIP: &str = "2001:db8:6::80";
const NODE: &str = "2001:db8:6::105";

#[test]
fn a_link_local_address_is_made_of_the_mac() {
    let mac = Mac::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    assert_eq!(link_local(mac).to_string(), "fe80::5054:6c:6212:3456");
    let local = Mac::new([2, 0xff, 0xfe, 0xaa, 0xbb, 0xcc]);
    assert_eq!(link_local(local).to_string(), "fe80::ff:fe6c:62aa:bbcc");
}

#[test]
fn a_cell_has_ipv6_with_a_prefix_or_an_address_of_it() {
    let ipv4 = Lab::cell("x", 1, &["10.0.0.9"], &["10.0.0.0/24"]);
    assert!(!ipv4.speaks_ipv6());
    assert!(Lab::cell("x", 1, &[], &["10.0.0.0/24", "2001:db8:6::/64"]).speaks_ipv6());
    assert!(Lab::cell("x", 1, &["10.0.0.9", VIP], &["10.0.0.0/24"]).speaks_ipv6());
}

/// A namespace for a host, and a cell beside it.
struct Lab {
    cell: Cell,
    resident: Resident,
}

impl Lab {
    /// Runs `work` in it, on a thread of its own.
    fn run(name: &str, work: impl FnOnce(&mut Self) + Send) {
        let name = format!("lbtest{}.{name}", process::id());
        let ran = namespace::on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            link::with_netlink(async |handle| {
                let lo = loopback(&handle).await?.context("lo")?;
                link::set_up(&handle, lo).await
            })?;
            let mut lab = Self {
                cell: Self::cell(&name, 7, &[VIP, "10.0.0.9"], &["2001:db8:6::/64"]),
                resident: Resident::start(&name)?,
            };
            work(&mut lab);
            Ok(())
        });
        remove(&name).unwrap();
        ran.unwrap();
    }

    fn cell(name: &str, mac: u8, addresses: &[&str], prefixes: &[&str]) -> Cell {
        Cell {
            name: name.to_owned(),
            nic: 4711,
            mac: Mac::new([2, 0, 0, 0, 0, mac]),
            mtu: 1500,
            vlan: None,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            checks_from: Vec::new(),
            prefixes: prefixes.iter().map(|text| text.parse().unwrap()).collect(),
            routes: Vec::new(),
        }
    }

    /// Brings the cell to what it must be, and takes away what it needs no more.
    fn build(&self) -> Link {
        let outer = self.cell.build(&self.resident).unwrap();
        self.cell.trim(&self.resident).unwrap();
        outer
    }

    /// The addresses that the inner end has.
    fn addresses(&self) -> BTreeSet<String> {
        let list = || {
            link::with_netlink(async |handle| {
                let inner = link::find(&handle, INNER).await?.context("inner end")?;
                addresses::addresses(&handle, inner.ifindex).await
            })
        };
        let found = self.resident.run(list).unwrap();
        found
            .into_iter()
            .map(|(found, _)| found.to_string())
            .collect()
    }

    /// The IPv4 addresses that the inner end has, with their prefixes.
    fn prefixes(&self) -> BTreeSet<String> {
        let list = || {
            link::with_netlink(async |handle| {
                let inner = link::find(&handle, INNER).await?.context("inner end")?;
                addresses::addresses(&handle, inner.ifindex).await
            })
        };
        let found = self.resident.run(list).unwrap().into_iter();
        let found = found.filter(|(found, _)| found.is_ipv4());
        found
            .map(|(found, message)| format!("{found}/{}", message.header.prefix_len))
            .collect()
    }

    /// The destinations of the IPv6 routes that are not the kernel's own.
    fn routes(&self) -> Vec<String> {
        let list = || {
            link::with_netlink(async |handle| {
                let all = RouteMessageBuilder::<Ipv6Addr>::new().build();
                Ok(handle.route().get(all).execute().try_collect().await?)
            })
        };
        let found: Vec<_> = self.resident.run(list).unwrap();
        let mut found: Vec<String> = found
            .iter()
            .filter(|route| route.header.protocol != RouteProtocol::Kernel)
            .map(|route| format!("{:?}", route.attributes))
            .collect();
        found.sort();
        found
    }

    /// A sysctl of the cell.
    fn sysctl(&self, key: &str) -> String {
        let path = format!("/proc/sys/net/{key}");
        let read = move || Ok(fs::read_to_string(path)?.trim().to_owned());
        self.resident.run(read).unwrap()
    }

    /// Gives the outer end an address, as if a node were there.
    fn become_node(&self, outer: &Link) {
        for (key, value) in [
            ("ndisc_notify", "1"),
            ("addr_gen_mode", "1"),
            ("disable_ipv6", "0"),
        ] {
            self.set_node(key, value);
        }
        link::with_netlink(async |handle| {
            for (address, bits) in [(NODE, 64), ("fe80::105", 64)] {
                let mut add = handle.address().add(outer.ifindex, address.parse()?, bits);
                add.message_mut().header.flags |= AddressHeaderFlags::Nodad;
                add.execute().await?;
            }
            Ok(())
        })
        .unwrap();
    }

    fn set_node(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/net/ipv6/conf/{}/{key}", self.cell.outer());
        fs::write(path, value).unwrap();
    }

    /// Gives the node another MAC.
    fn move_node(&self, outer: &Link, mac: Mac) {
        link::with_netlink(async |handle| {
            let settings = LinkUnspec::new_with_index(outer.ifindex)
                .address(mac.bytes().to_vec())
                .build();
            Ok(handle.link().set(settings).execute().await?)
        })
        .unwrap();
    }
}

fn strings(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|&one| one.to_owned()).collect()
}

/// So the kernel asks for the neighbours of that prefix in its name.
#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
fn an_address_that_checks_come_from_has_the_prefix_of_its_link() {
    Lab::run("checks", |lab| {
        let [snat, first, second] =
            ["10.0.0.9", "10.0.0.61", "10.0.0.62"].map(|text| text.parse::<IpAddr>().unwrap());
        lab.cell.prefixes = vec!["10.0.0.0/24".parse().unwrap()];
        lab.cell.addresses = BTreeSet::from([snat, first]);
        lab.build();
        assert_eq!(lab.prefixes(), strings(&["10.0.0.9/32", "10.0.0.61/32"]));
        let amiss = |lab: &Lab| lab.cell.amiss(&lab.resident).unwrap().unwrap();
        assert_eq!(amiss(lab), [""; 0]);

        lab.cell.checks_from = vec![first];
        assert_eq!(amiss(lab), ["address 10.0.0.61 was missing"]);
        lab.build();
        assert_eq!(lab.prefixes(), strings(&["10.0.0.9/32", "10.0.0.61/24"]));
        assert_eq!(amiss(lab), [""; 0]);

        lab.cell.addresses = BTreeSet::from([snat, second]);
        lab.cell.checks_from = vec![second];
        lab.build();
        assert_eq!(lab.prefixes(), strings(&["10.0.0.9/32", "10.0.0.62/24"]));
        assert_eq!(amiss(lab), [""; 0]);

        lab.cell.checks_from = Vec::new();
        lab.build();
        assert_eq!(lab.prefixes(), strings(&["10.0.0.9/32", "10.0.0.62/32"]));
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
fn a_cell_gets_ipv6_and_follows_its_nic_and_loses_it() {
    Lab::run("life", |lab| {
        lab.cell.prefixes = vec!["10.0.0.0/24".parse().unwrap()];
        lab.cell.addresses.remove(&VIP.parse().unwrap());
        lab.build();
        assert_eq!(lab.addresses(), strings(&["10.0.0.9"]));
        assert_eq!(lab.sysctl("ipv6/conf/cell/disable_ipv6"), "1");

        lab.cell.prefixes.push("2001:db8:6::/64".parse().unwrap());
        lab.cell.addresses.insert(VIP.parse().unwrap());
        let route = |(to, via): (&str, &str)| Route {
            to: to.parse().unwrap(),
            via: via.parse().unwrap(),
        };
        let ways = [("2001:db8:7::/48", "2001:db8:6::1"), ("::/0", "fe80::1")];
        lab.cell.routes = ways.map(route).to_vec();
        lab.build();
        let ours = ["10.0.0.9", VIP, "fe80::6c:6200:7"];
        assert_eq!(lab.addresses(), strings(&ours));
        assert_eq!(lab.routes().len(), 3, "{:?}", lab.routes());
        for (key, value) in [
            ("conf/all/disable_ipv6", "1"),
            ("conf/default/disable_ipv6", "1"),
            ("conf/lo/disable_ipv6", "1"),
            ("conf/cell/disable_ipv6", "0"),
            ("conf/cell/accept_ra", "0"),
            ("conf/cell/accept_redirects", "0"),
            ("conf/cell/accept_dad", "0"),
            ("conf/cell/forwarding", "0"),
            ("conf/cell/addr_gen_mode", "1"),
            ("conf/cell/ndisc_notify", "1"),
            ("neigh/cell/base_reachable_time_ms", "600"),
            ("neigh/cell/delay_first_probe_time", "0"),
            ("neigh/cell/retrans_time_ms", "300"),
        ] {
            assert_eq!(lab.sysctl(&format!("ipv6/{key}")), value, "{key}");
        }

        // What is there already stays as it is, and what the NIC has now follows.
        lab.build();
        assert_eq!(lab.addresses(), strings(&ours));
        for mtu in [1280, 9000, 1500] {
            lab.cell.mtu = mtu;
            lab.build();
            assert_eq!(lab.addresses(), strings(&ours), "MTU {mtu}");
        }
        lab.cell.mac = Mac::new([2, 0, 0, 0, 0, 8]);
        lab.cell.routes.clear();
        lab.build();
        let ours = ["10.0.0.9", VIP, "fe80::6c:6200:8"];
        assert_eq!(lab.addresses(), strings(&ours));
        assert_eq!(lab.routes().len(), 1, "{:?}", lab.routes());

        lab.cell.prefixes.pop();
        lab.cell.addresses.remove(&VIP.parse().unwrap());
        lab.build();
        assert_eq!(lab.addresses(), strings(&["10.0.0.9"]));
        assert_eq!(lab.sysctl("ipv6/conf/cell/disable_ipv6"), "1");
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
fn a_cell_and_a_node_find_each_other_by_ipv6() {
    Lab::run("find", |lab| {
        let outer = lab.build();
        lab.become_node(&outer);
        let node = TcpListener::bind((NODE, 0)).unwrap();
        let to = node.local_addr().unwrap();
        let asks = move || Ok(TcpStream::connect_timeout(&to, LIMIT)?);
        let _asked = lab.resident.run(asks).unwrap();
        let serves = || Ok(TcpListener::bind((VIP, 80))?);
        let _served = lab.resident.run(serves).unwrap();
        let vip = format!("[{VIP}]:80").parse().unwrap();
        TcpStream::connect_timeout(&vip, LIMIT).unwrap();
    });
}

/// By the very socket that receives the advertisements of nodes in the host's namespace.
#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
fn a_cell_says_where_its_ipv6_addresses_are() {
    Lab::run("announce", |lab| {
        lab.build();
        let ears = garp_listener::open().unwrap();
        lab.cell.announce(&lab.resident).unwrap();
        let mut heard = BTreeSet::new();
        let all = strings(&["10.0.0.9", VIP, "fe80::6c:6200:7"]);
        cell_thread::runtime().unwrap().block_on(async {
            let ears = ears.register().unwrap();
            while heard != all {
                let said = timeout(LIMIT, ears.next()).await;
                heard.insert(said.expect("in time").unwrap().to_string());
            }
        });
    });
}

/// It is followed when it announces its new MAC, and when an inquiry comes for it.
#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
fn an_ipv6_neighbour_is_resolved_and_followed() {
    Lab::run("resolve", |lab| {
        let outer = lab.build();
        lab.become_node(&outer);
        let node: IpAddr = NODE.parse().unwrap();
        let (_targets, followed) = watch::channel(BTreeSet::from([node]));
        let (report, mut resolved) = mpsc::unbounded_channel();
        let (asks, questions) = mpsc::channel(1);
        let (answers, mut answered) = mpsc::channel(8);
        let side = Side {
            cell: Some(lab.cell.name.clone()),
            interface: INNER.to_owned(),
        };
        let inquiry = Inquiry { questions, answers };
        neighbour::resolve(side, 3, followed, report, inquiry).unwrap();
        let at = |mac| Resolved {
            network: 3,
            address: node,
            mac,
        };
        cell_thread::runtime().unwrap().block_on(async {
            let reported = |mac| Some(NeighbourChange::Resolved(at(mac)));
            let first = timeout(LIMIT, resolved.recv()).await;
            assert_eq!(first.expect("in time"), reported(outer.mac));

            let second = Mac::new([2, 0, 0, 0, 0x77, 1]);
            lab.move_node(&outer, second);
            let told = timeout(LIMIT, resolved.recv()).await;
            assert_eq!(told.expect("in time"), reported(second));

            lab.set_node("ndisc_notify", "0");
            let third = Mac::new([2, 0, 0, 0, 0x77, 2]);
            lab.move_node(&outer, third);
            asks.send(node).await.unwrap();
            let answer = timeout(LIMIT, answered.recv()).await;
            assert_eq!(answer.expect("in time"), Some(at(third)));
            assert_eq!(resolved.recv().await, reported(third));
        });
    });
}

/// Also where nothing checks it.
#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
fn an_ipv6_neighbour_that_does_not_answer_is_silent_until_it_does() {
    Lab::run("silent", |lab| {
        let outer = lab.build();
        lab.become_node(&outer);
        let node: IpAddr = NODE.parse().unwrap();
        let (_targets, followed) = watch::channel(BTreeSet::from([node]));
        let (report, mut changes) = mpsc::unbounded_channel();
        let (_asks, questions) = mpsc::channel(1);
        let (answers, _answered) = mpsc::channel(1);
        let side = Side {
            cell: Some(lab.cell.name.clone()),
            interface: INNER.to_owned(),
        };
        let inquiry = Inquiry { questions, answers };
        neighbour::resolve(side, 3, followed, report, inquiry).unwrap();
        let resolved = NeighbourChange::Resolved(Resolved {
            network: 3,
            address: node,
            mac: outer.mac,
        });
        let silent = NeighbourChange::Silent {
            network: 3,
            address: node,
        };
        cell_thread::runtime().unwrap().block_on(async {
            let first = timeout(LIMIT, changes.recv()).await;
            assert_eq!(first.expect("in time"), Some(resolved));
            let quiet = timeout(LIMIT, changes.recv()).await;
            assert!(quiet.is_err(), "it answers: {quiet:?}");

            lab.set_node("disable_ipv6", "1");
            let gone = timeout(LIMIT, changes.recv()).await;
            assert_eq!(gone.expect("in time"), Some(silent));

            lab.become_node(&outer);
            let back = timeout(LIMIT, changes.recv()).await;
            assert_eq!(back.expect("in time"), Some(resolved));
        });
    });
}
