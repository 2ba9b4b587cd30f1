//! The reference NAT in the load balancer's place: see `tests/switch/src/nat.rs`.

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result, ensure};
use aya::{
    Pod,
    maps::{Array, HashMap, MapData, PerCpuArray},
    programs::Xdp,
};
use lb_tests::topology::{
    mac_of,
    path::{self, ENDS, NICS, Path},
};

use super::{
    configurations::{BACKENDS, NODE_PORT, PORT, ROOM4, VIP},
    programs::Programs,
    wire::{index, joined},
};

/// Both directions of a million flows of TCP, and of 65,536 each of UDP and of new ones.
const ENTRIES: u32 = 2_300_000;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Ends {
    source: [u8; 4],
    destination: [u8; 4],
    source_port: [u8; 2],
    destination_port: [u8; 2],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Key {
    ends: Ends,
    protocol: u32,
}

// SAFETY: only numbers, without padding: 12 bytes and a word.
unsafe impl Pod for Key {}

/// Where packets leave: destination and source address, and the interface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) macs: [u8; 12],
    pub(crate) port: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Rewrite {
    ends: Ends,
    exit: Exit,
}

// SAFETY: only numbers, without padding: 12 bytes, 12 and a word.
unsafe impl Pod for Rewrite {}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Service {
    vip: [u8; 4],
    vip_port: [u8; 2],
    backend_port: [u8; 2],
    backend: u32,
    backends: u32,
    snat: u32,
    room: u32,
    to_backend: Exit,
    to_client: Exit,
}

// SAFETY: only numbers, without padding: eight bytes, four words, and twice 12 bytes and a word.
unsafe impl Pod for Service {}

/// A flow: both ends that the client sees, and both that the backend sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translated {
    pub(crate) client: SocketAddrV4,
    pub(crate) vip: SocketAddrV4,
    pub(crate) snat: SocketAddrV4,
    pub(crate) backend: SocketAddrV4,
}

/// The program with its table; it leaves its interfaces with this value.
#[derive(Debug)]
pub(crate) struct ReferenceNat(Programs);

impl ReferenceNat {
    /// Loads it, with room for a million flows of which there are none.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn load() -> Result<Self> {
        Programs::with_entries(ENTRIES).map(Self)
    }

    /// Loads it and puts it at the NICs of a path, between the clients and the backends of both networks.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or a NIC has a program.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        let mut nat = Self::load()?;
        let hosts = [&path.client, &path.server, &path.server];
        let mut exits = Vec::new();
        for (((nic, _), (_, end)), host) in NICS.into_iter().zip(ENDS).zip(hosts) {
            let macs = [mac_of(&host.netns, end)?, mac_of(&path.lb, nic)?];
            let [next, own] = macs.map(|mac| mac.bytes());
            exits.push(Exit {
                macs: joined(next, own),
                port: index(&path.lb, nic)?,
            });
        }
        let [to_client, first, second] = exits[..] else {
            anyhow::bail!("{} NICs instead of three", exits.len())
        };
        let mut services: Array<&mut MapData, Service> = nat.0.map("NAT_SERVICES")?;
        for (place, to_backend) in (0..).zip([first, second]) {
            let network = usize::from(place) + 1;
            let service = Service {
                vip: VIP.octets(),
                vip_port: (PORT + place).to_be_bytes(),
                backend_port: NODE_PORT.to_be_bytes(),
                backend: path::address(network, 1, 1).into(),
                backends: BACKENDS.into(),
                snat: path::address(network, 2, 1).into(),
                room: ROOM4,
                to_backend,
                to_client,
            };
            services.set(place.into(), &service, 0)?;
        }
        for (nic, _) in NICS {
            let index = index(&path.lb, nic)?;
            path.lb
                .inside(|| nat.0.attach("nat", index))?
                .with_context(|| format!("at {nic} of {}", path.lb.name()))?;
        }
        Ok(nat)
    }

    /// Writes both directions of TCP flows into its table, whose packets leave by this interface.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn fill(
        &mut self,
        flows: impl IntoIterator<Item = Translated>,
        port: u32,
    ) -> Result<()> {
        let mut table: HashMap<&mut MapData, Key, Rewrite> = self.0.map("NAT_FLOWS")?;
        let macs = [2; 12];
        let exit = Exit { macs, port };
        for flow in flows {
            let Translated {
                client,
                vip,
                snat,
                backend,
            } = flow;
            let protocol = 6;
            let both = [
                (ends(client, vip), ends(snat, backend)),
                (ends(backend, snat), ends(vip, client)),
            ];
            for (before, ends) in both {
                let key = Key {
                    ends: before,
                    protocol,
                };
                let set = table.insert(&key, &Rewrite { ends, exit }, 0);
                set.with_context(|| format!("write {flow:?} into the reference NAT's table"))?;
            }
        }
        Ok(())
    }

    /// The loaded program.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    pub(crate) fn program(&mut self) -> Result<&Xdp> {
        self.0.program("nat").map(|program| &*program)
    }

    /// Whether it knew the flow of every packet.
    ///
    /// # Errors
    ///
    /// When it did not.
    pub(crate) fn has_missed_none(&mut self) -> Result<()> {
        let missed: PerCpuArray<&mut MapData, u64> = self.0.map("NAT_MISSED")?;
        let missed: u64 = missed.get(&0, 0)?.iter().sum();
        ensure!(missed == 0, "{missed} packets of no flow");
        Ok(())
    }
}

fn ends(source: SocketAddrV4, destination: SocketAddrV4) -> Ends {
    Ends {
        source: source.ip().octets(),
        destination: destination.ip().octets(),
        source_port: source.port().to_be_bytes(),
        destination_port: destination.port().to_be_bytes(),
    }
}
