//! Where an instance's state lives: pins on bpffs, and files on a runtime directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use lb_common::abi::ABI_VERSION;

/// bpffs, where the kernel keeps what outlives a process.
pub(crate) const BPFFS: &str = "/sys/fs/bpf";
/// Runtime files.
const RUNTIME: &str = "/run/lb";
/// What outlives a reboot.
const STATE: &str = "/var/lib/lb";

/// The folders of one instance. Two instances never share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    instance: String,
}

impl Pins {
    /// The folders of `instance`; nothing is created.
    pub fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
        }
    }

    /// The instance's name.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Folder of all pins of the instance.
    pub fn root(&self) -> PathBuf {
        Path::new(BPFFS).join("lb").join(&self.instance)
    }

    /// Folder of the pinned maps; bpffs refuses dots in names, so the version is a plain number.
    pub fn maps(&self) -> PathBuf {
        self.maps_of(&Self::version())
    }

    /// The same of another version, as its folder is called.
    pub fn maps_of(&self, version: &str) -> PathBuf {
        self.root().join(version)
    }

    /// Folder of the pinned maps while those of flows are made larger, until it is that of [`Self::maps`].
    pub fn larger(&self) -> PathBuf {
        self.root().join("larger")
    }

    /// Folder of those before, until no program runs with them.
    pub fn smaller(&self) -> PathBuf {
        self.root().join("smaller")
    }

    /// The version of our maps, as their folder is called.
    pub fn version() -> String {
        format!("v{ABI_VERSION}")
    }

    /// Folder of the pinned links.
    pub fn links(&self) -> PathBuf {
        self.root().join("links")
    }

    /// Pin of a program's link on the interface with this index; an interface may be renamed.
    pub fn link(&self, program: &str, ifindex: u32) -> PathBuf {
        self.links().join(format!("{program}-{ifindex}"))
    }

    /// Indexes of the interfaces that `program` has a pinned link on.
    pub fn linked(&self, program: &str) -> Vec<u32> {
        let entries = fs::read_dir(self.links()).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let indexes =
            names.filter_map(|name| name.strip_prefix(program)?.strip_prefix('-')?.parse().ok());
        indexes.collect()
    }

    /// The folders of pinned maps of other versions of their layout.
    pub fn other_versions(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let ours = Self::version();
        let mut others: Vec<String> = names
            .filter(|name| name.starts_with('v') && *name != ours)
            .collect();
        others.sort_unstable();
        others
    }

    /// Removes the pinned maps of a version; the programs that use them keep them.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`].
    pub fn remove_maps(&self, version: &str) -> io::Result<()> {
        remove_folder(&self.maps_of(version))
    }

    /// The file whose lock makes a process the control plane. It is never removed: a lock on a removed file
    /// would exclude no process.
    pub fn lock(&self) -> PathBuf {
        Path::new(RUNTIME).join("locks").join(&self.instance)
    }

    /// The socket of the instance's control plane.
    pub fn socket(&self) -> PathBuf {
        self.runtime().join("lb.sock")
    }

    /// The socket where the next process gets what this one has.
    pub fn heirs(&self) -> PathBuf {
        self.runtime().join("heirs.sock")
    }

    /// Folder of the runtime files of all instances.
    pub fn all_runtimes() -> &'static Path {
        Path::new(RUNTIME)
    }

    /// Folder of runtime files: verdicts, drains, settings of NICs, and the sockets.
    pub fn runtime(&self) -> PathBuf {
        Path::new(RUNTIME).join(&self.instance)
    }

    /// Folder of what outlives a reboot: the applied configuration, and operators' overrides of backends.
    pub fn state(&self) -> PathBuf {
        Path::new(STATE).join(&self.instance)
    }

    /// Whether an earlier run has left a data plane, of this version or another. A folder that was only
    /// prepared is none.
    pub fn exist(&self) -> bool {
        fs::read_dir(self.root()).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The folders that must be there before a user can make anything of the instance, outer ones first.
    pub fn folders(&self) -> [PathBuf; 7] {
        let (bpffs, runtime) = (Path::new(BPFFS), PathBuf::from(RUNTIME));
        let locks = runtime.join("locks");
        [
            bpffs.join("lb"),
            runtime,
            locks,
            STATE.into(),
            self.root(),
            self.runtime(),
            self.state(),
        ]
    }

    /// What belongs to the user that runs the instance.
    pub fn own(&self) -> [PathBuf; 4] {
        [self.root(), self.runtime(), self.state(), self.lock()]
    }

    /// Creates the folders.
    ///
    /// # Errors
    ///
    /// The error of the file system, with the folder's path.
    pub fn create(&self) -> io::Result<()> {
        for folder in [self.maps(), self.links(), self.runtime(), self.state()] {
            fs::create_dir_all(&folder).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
            })?;
        }
        Ok(())
    }

    /// Removes the pins of the links, which detaches the programs.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`].
    pub fn remove_links(&self) -> io::Result<()> {
        remove_folder(&self.links())
    }

    /// Removes every pin, which detaches the programs and frees the maps once no process holds them, and the
    /// runtime files. Folders that were prepared for another user than root stay if that user does it.
    ///
    /// # Errors
    ///
    /// The first error of the file system; what does not exist is none.
    pub fn remove(&self) -> io::Result<()> {
        // Links first: nothing may run without its maps' pins and look alive.
        self.remove_links()?;
        remove_folder(&self.root())?;
        remove_folder(&self.runtime())
    }

    /// Removes what outlives a reboot.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`].
    pub fn remove_state(&self) -> io::Result<()> {
        remove_folder(&self.state())
    }
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            match fs::read_dir(folder)?.next() {
                Some(_) => Err(error),
                None => Ok(()),
            }
        }
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_share_no_path() {
        let (one, other) = (Pins::new("main"), Pins::new("main-2"));
        assert_eq!(one.maps(), Path::new("/sys/fs/bpf/lb/main/v7"));
        assert_eq!(
            one.link("lb_nic", 7),
            Path::new("/sys/fs/bpf/lb/main/links/lb_nic-7")
        );
        assert!(
            !other.root().starts_with(one.root()) && !other.runtime().starts_with(one.runtime())
        );
    }
}
