//! The programs of the test switch, on the ports of one namespace: see `tests/switch`.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::HashMap,
    programs::{Xdp, XdpMode, xdp::XdpLinkId},
};
use nix::net::if_::if_nametoindex;

use crate::netns::Netns;

/// The XDP programs around the load balancer in the bench: see `tests/switch/src/path.rs`.
pub static PATH: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-bench-path"));
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-test-switch"));

/// Programs on switch ports; they leave with this value.
#[derive(Debug)]
pub struct Switch {
    object: Mutex<Ebpf>,
    /// Of the ports with nothing but `pass`, by namespace and name.
    passing: Mutex<BTreeMap<(String, String), XdpLinkId>>,
}

impl Switch {
    /// Loads the programs; none is on a port yet.
    ///
    /// # Errors
    ///
    /// When the kernel refuses one.
    pub fn load() -> Result<Self> {
        let mut object = EbpfLoader::new()
            .load(OBJECT)
            .context("load the test switch")?;
        for name in ["trunk", "access", "pass", "trouble"] {
            program(&mut object, name)?
                .load()
                .with_context(|| format!("load program {name} of the test switch"))?;
        }
        Ok(Self {
            object: Mutex::new(object),
            passing: Mutex::default(),
        })
    }

    /// Lets a port of a plain bridge take the frames that XDP sends to it.
    ///
    /// # Errors
    ///
    /// When there is no such port, or it has a program.
    pub fn pass(&self, lan: &Netns, port: &str) -> Result<()> {
        let link = self.attach(lan, port, "pass")?;
        let mut passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        passing.insert((lan.name().to_owned(), port.to_owned()), link);
        Ok(())
    }

    /// Makes a port a trunk: tags come off on their way from the load balancer.
    ///
    /// # Errors
    ///
    /// As for [`Self::pass`].
    pub fn trunk(&self, lan: &Netns, port: &str) -> Result<()> {
        self.attach(lan, port, "trunk").map(drop)
    }

    /// Makes `port` the access port of `vlan` behind the port `trunk`.
    ///
    /// # Errors
    ///
    /// As for [`Self::pass`].
    pub fn access(&self, lan: &Netns, port: &str, vlan: u16, trunk: &str) -> Result<()> {
        let [access_index, trunk_index] = [index(lan, port)?, index(lan, trunk)?];
        self.insert("ACCESS_PORTS", vlan.into(), access_index)?;
        self.insert("VLANS", access_index, vlan.into())?;
        self.insert("TRUNKS", access_index, trunk_index)?;
        self.attach(lan, port, "access").map(drop)
    }

    /// Has one IPv4 frame out of so many that come in at `port` sent out of the port `late` instead.
    ///
    /// # Errors
    ///
    /// When there is no such port, or it has a program other than `pass`.
    pub fn divert(&self, lan: &Netns, port: &str, late: &str, out_of: u32) -> Result<()> {
        let [port_index, late_index] = [index(lan, port)?, index(lan, late)?];
        self.insert("DIVERTED", port_index, late_index)?;
        self.insert("OUT_OF", port_index, out_of)?;
        let mut passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = passing.remove(&(lan.name().to_owned(), port.to_owned())) {
            let mut object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
            let detached = program(&mut object, "pass")?.detach(link);
            detached.with_context(|| format!("detach pass from {port}"))?;
        }
        self.attach(lan, port, "trouble").map(drop)
    }

    fn insert(&self, map: &str, key: u32, value: u32) -> Result<()> {
        let mut object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        let found = object.map_mut(map);
        let found = found.with_context(|| format!("the test switch has no map {map}"))?;
        let mut found: HashMap<_, u32, u32> = HashMap::try_from(found)?;
        found
            .insert(&key, &value, 0)
            .with_context(|| format!("write {map}"))
    }

    fn attach(&self, lan: &Netns, port: &str, name: &str) -> Result<XdpLinkId> {
        let mut object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        let program = program(&mut object, name)?;
        let index = index(lan, port)?;
        lan.inside(|| program.attach(index, XdpMode::Driver))?
            .with_context(|| format!("attach {name} to {port} of {}", lan.name()))
    }
}

fn program<'o>(object: &'o mut Ebpf, name: &str) -> Result<&'o mut Xdp> {
    let program = object.program_mut(name);
    let program = program.with_context(|| format!("the test switch has no program {name}"))?;
    Ok(program.try_into()?)
}

fn index(lan: &Netns, port: &str) -> Result<u32> {
    lan.inside(|| if_nametoindex(port))?
        .with_context(|| format!("find {port} of {}", lan.name()))
}
