//! The programs of the test switch, on the ports of one namespace: see `tests/switch`.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::HashMap,
    programs::{Xdp, XdpMode},
};
use nix::net::if_::if_nametoindex;

use crate::netns::Netns;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-test-switch"));

/// Programs on switch ports; they leave with this value.
#[derive(Debug)]
pub struct Switch {
    object: Mutex<Ebpf>,
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
        for name in ["trunk", "access", "pass"] {
            program(&mut object, name)?
                .load()
                .with_context(|| format!("load program {name} of the test switch"))?;
        }
        Ok(Self {
            object: Mutex::new(object),
        })
    }

    /// Lets a port of a plain bridge take the frames that XDP sends to it.
    ///
    /// # Errors
    ///
    /// When there is no such port, or it has a program.
    pub fn pass(&self, lan: &Netns, port: &str) -> Result<()> {
        self.attach(lan, port, "pass")
    }

    /// Makes a port a trunk: tags come off on their way from the load balancer.
    ///
    /// # Errors
    ///
    /// As for [`Self::pass`].
    pub fn trunk(&self, lan: &Netns, port: &str) -> Result<()> {
        self.attach(lan, port, "trunk")
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
        self.attach(lan, port, "access")
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

    fn attach(&self, lan: &Netns, port: &str, name: &str) -> Result<()> {
        let mut object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        let program = program(&mut object, name)?;
        let index = index(lan, port)?;
        lan.inside(|| program.attach(index, XdpMode::Driver).map(drop))?
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
