//! The programs of a path, loaded once for each: see `tests/switch/src/path.rs`.

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::Map,
    programs::{Xdp, XdpMode},
};
use lb_tests::topology::switch::PATH;

/// The programs with their maps; they leave their interfaces with this value.
#[derive(Debug)]
pub(crate) struct Programs(Ebpf);

impl Programs {
    /// None is at an interface yet.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the maps.
    pub(crate) fn new() -> Result<Self> {
        Self::with_entries(1)
    }

    /// The same, with a table of so many entries for the reference NAT.
    ///
    /// # Errors
    ///
    /// As for [`Self::new`].
    pub(crate) fn with_entries(entries: u32) -> Result<Self> {
        let object = EbpfLoader::new()
            .map_max_entries("NAT_FLOWS", entries)
            .load(PATH);
        Ok(Self(object.context("load the programs of the path")?))
    }

    /// # Errors
    ///
    /// When there is no such map, or of another kind.
    pub(crate) fn map<'o, M>(&'o mut self, name: &str) -> Result<M>
    where
        M: TryFrom<&'o mut Map, Error = aya::maps::MapError>,
    {
        let map = self.0.map_mut(name);
        let map = map.with_context(|| format!("the path has no map {name}"))?;
        M::try_from(map).with_context(|| format!("open the map {name}"))
    }

    /// # Errors
    ///
    /// When there is no such program, or the kernel refuses it.
    pub(crate) fn program(&mut self, name: &str) -> Result<&mut Xdp> {
        let program = self.0.program_mut(name);
        let program = program.with_context(|| format!("the path has no program {name}"))?;
        let program: &mut Xdp = program.try_into()?;
        if program.fd().is_err() {
            program.load().with_context(|| format!("load {name}"))?;
        }
        Ok(program)
    }

    /// Attaches a program to an interface of the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// When the interface has one, or its driver knows no XDP.
    pub(crate) fn attach(&mut self, name: &str, index: u32) -> Result<()> {
        let link = self.program(name)?.attach(index, XdpMode::Driver);
        link.with_context(|| format!("attach {name}")).map(drop)
    }
}
