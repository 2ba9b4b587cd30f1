//! Where an instance's state lives: pins on bpffs, and files on a runtime directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use lb_common::abi::ABI_VERSION;

/// bpffs, where the kernel keeps what outlives a process.
const BPFFS: &str = "/sys/fs/bpf";
/// Runtime files.
const RUNTIME: &str = "/run/lb";

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
        self.root().join(format!("v{ABI_VERSION}"))
    }

    /// Folder of the pinned links.
    pub fn links(&self) -> PathBuf {
        self.root().join("links")
    }

    /// Pin of the link on an interface. Interface names may hold dots, bpffs names may not, so the
    /// name is written as hexadecimal bytes.
    pub fn link(&self, program: &str, interface: &str) -> PathBuf {
        let hex: String = interface
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.links().join(format!("{program}-{hex}"))
    }

    /// Folder of runtime files: the lock.
    pub fn runtime(&self) -> PathBuf {
        Path::new(RUNTIME).join(&self.instance)
    }

    /// Whether an earlier run has left a data plane.
    pub fn exist(&self) -> bool {
        self.maps().exists()
    }

    /// Creates the folders.
    ///
    /// # Errors
    ///
    /// The error of the file system, with the folder's path.
    pub fn create(&self) -> io::Result<()> {
        for folder in [self.maps(), self.links(), self.runtime()] {
            fs::create_dir_all(&folder).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
            })?;
        }
        Ok(())
    }

    /// Removes every pin, which detaches the programs and frees the maps once no process holds
    /// them, and the runtime files.
    ///
    /// # Errors
    ///
    /// The first error of the file system; what does not exist is none.
    pub fn remove(&self) -> io::Result<()> {
        // Links first: nothing may run without its maps' pins and look alive.
        for folder in [self.links(), self.root(), self.runtime()] {
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pin_has_a_dot_in_its_name() {
        let pins = Pins::new("main");
        let link = pins.link("lb_nic", "eth0.2003");
        assert_eq!(link.file_name().unwrap(), "lb_nic-657468302e32303033");
        assert_eq!(pins.maps(), Path::new("/sys/fs/bpf/lb/main/v1"));
    }
}
