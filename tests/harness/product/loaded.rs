//! Loaded objects. To load and to verify one takes longer than most tests, so data planes have it one after
//! the other; each finds its maps as those of a new one.

use std::{
    collections::BTreeMap,
    fs::File,
    ops::{Deref, DerefMut},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use lb_user::{
    config::Limits,
    dataplane::{
        object::{Build, MAPS, Object},
        pins::Pins,
    },
};
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::resource::{Resource, getrlimit, setrlimit},
};

use crate::{leftovers::Run, oracle::raw_map::RawMap};

/// What stands in for the outer ends of cells, in the order of the networks.
pub(crate) const CELLS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

/// An object with its maps, and a namespace with its interfaces.
pub(crate) struct Loaded {
    pub(crate) object: Object,
    /// Every map of it, by name.
    pub(crate) maps: BTreeMap<&'static str, RawMap>,
    /// Indexes of the interfaces.
    pub(crate) ifindex: BTreeMap<&'static str, u32>,
    namespace: File,
    limits: Limits,
}

impl Loaded {
    /// Loads the object, in a namespace that the calling thread is in from now on.
    fn load(build: Build, limits: &Limits) -> Result<(Self, Kept)> {
        unshare(CloneFlags::CLONE_NEWNET).context("needs root: run by `cargo xtask test`")?;
        // Each object has a descriptor of each map, and a shell gives 1024.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        let mut ifindex = BTreeMap::new();
        for (index, name) in (101..).zip(["t0", "m0", "n0", "f0"].into_iter().chain(CELLS)) {
            let add = format!("link add {name} index {index} type veth peer name {name}p");
            let done = Command::new("ip").args(add.split(' ')).status()?;
            ensure!(done.success(), "ip {add}");
            ifindex.insert(name, index);
        }
        let kept = Kept::new()?;
        let object = Object::load_build(build, &kept.pins, limits, 0)?;
        let folder = kept.pins.maps();
        let open = |name: &'static str| Ok((name, RawMap::open(&folder.join(name))?));
        let loaded = Self {
            object,
            maps: MAPS.into_iter().map(open).collect::<Result<_>>()?,
            ifindex,
            namespace: File::open("/proc/thread-self/ns/net")?,
            limits: *limits,
        };
        Ok((loaded, kept))
    }

    /// Moves the calling thread into its namespace, clears its maps and pins them anew.
    pub(crate) fn enter(&self) -> Result<Kept> {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).context("enter the namespace")?;
        let kept = Kept::new()?;
        for (name, map) in &self.maps {
            map.clear().with_context(|| format!("clear {name}"))?;
            map.pin(&kept.pins.maps().join(name))?;
        }
        Ok(kept)
    }
}

/// Those that no data plane has.
static FREE: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// A loaded object that one data plane has at a time.
pub(crate) struct Lent {
    /// Until it is given back.
    loaded: Option<Loaded>,
    is_shared: bool,
}

impl Lent {
    /// One that others have had, if there is one with these limits, and the pins of its maps.
    pub(crate) fn shared(limits: &Limits) -> Result<(Self, Kept)> {
        let free = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            let place = free.iter().position(|loaded| loaded.limits == *limits);
            place.map(|place| free.swap_remove(place))
        };
        let (loaded, kept) = match free {
            Some(loaded) => loaded.enter().map(|kept| (loaded, kept)),
            None => Loaded::load(Build::SHIPPED, limits),
        }?;
        let loaded = Some(loaded);
        let is_shared = true;
        Ok((Self { loaded, is_shared }, kept))
    }

    /// One that no other data plane has, before or after.
    pub(crate) fn alone(build: Build, limits: &Limits) -> Result<(Self, Kept)> {
        let (loaded, kept) = Loaded::load(build, limits)?;
        let loaded = Some(loaded);
        let is_shared = false;
        Ok((Self { loaded, is_shared }, kept))
    }
}

impl Deref for Lent {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        self.loaded.as_ref().expect("it is not given back yet")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Loaded {
        self.loaded.as_mut().expect("it is not given back yet")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // What a failed test was in the middle of goes with it.
        if let Some(loaded) = self.loaded.take()
            && self.is_shared
            && !thread::panicking()
        {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            free.push(loaded);
        }
    }
}

/// The pins of one data plane; removed on drop, also when the rest of it could not be made. What a killed
/// test leaves goes with the first run of the next one.
pub(crate) struct Kept {
    pub(crate) pins: Pins,
    _run: Run,
}

impl Kept {
    fn new() -> Result<Self> {
        let run = Run::new()?;
        let kept = Self {
            pins: Pins::new(run.name()),
            _run: run,
        };
        kept.pins.create()?;
        Ok(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove() {
            eprintln!("pins of {} stay: {error}", self.pins.instance());
        }
    }
}
