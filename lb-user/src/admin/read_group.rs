//! The group whose members may look at the instance, and change nothing.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

/// Where groups have their numbers. Those of other services of names are not looked up: that may take long.
const GROUPS: &str = "/etc/group";
/// Modes of the socket: for its user; for the group as well; for the group where the kernel does not let this process
/// give the socket to it. Then every user may connect, and is refused by this process.
const OWN: u32 = 0o600;
const OF_GROUP: u32 = 0o660;
const OF_ALL: u32 = 0o666;
/// What it takes to get through a folder.
const THROUGH: u32 = 0o011;

/// The number of the group, which may change while a server goes by it; none at first.
#[derive(Clone, Debug)]
pub struct ReadGroup(Arc<AtomicI64>);

impl Default for ReadGroup {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(-1)))
    }
}

impl ReadGroup {
    /// The number, if there is a group.
    pub(super) fn id(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok()
    }

    /// From now on it is that one, and the socket at `path` lets it in. A name that is none lets no member in.
    ///
    /// # Errors
    ///
    /// Why it cannot be so.
    pub fn set(&self, group: Option<&str>, path: &Path) -> io::Result<()> {
        let id = group.map(|group| number(group, &fs::read_to_string(GROUPS)?));
        let id = id.transpose();
        let number = id.as_ref().ok().copied().flatten();
        self.0
            .store(number.map_or(-1, i64::from), Ordering::Relaxed);
        open(path, number)?;
        id.map(drop)
    }
}

/// The number of a group, which is given by name or number, by the text of `/etc/group`.
fn number(group: &str, groups: &str) -> io::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let mut lines = groups.lines().map(|line| line.split(':'));
    let number = lines.find_map(|mut parts| {
        let is_it = parts.next() == Some(group);
        parts.nth(1).filter(|_| is_it)?.parse().ok()
    });
    number.ok_or_else(|| io::Error::other(format!("found no group {group} in {GROUPS}")))
}

/// Lets the group in at a socket, and none but its user where there is no group.
fn open(path: &Path, group: Option<u32>) -> io::Result<()> {
    let mode = match group {
        None => OWN,
        Some(group) if chown(path, None, Some(group)).is_ok() => OF_GROUP,
        Some(_) => OF_ALL,
    };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    if let Some(folder) = path.parent().filter(|_| group.is_some()) {
        let found = fs::metadata(folder)?.mode();
        if found & THROUGH != THROUGH {
            fs::set_permissions(folder, Permissions::from_mode(found & 0o7777 | THROUGH))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_or_a_number() {
        let text = "root:x:0:\nadm:x:4:syslog,one\nlb-read:x:998:\nbroken\n";
        assert_eq!(number("lb-read", text).unwrap(), 998);
        assert_eq!(number("adm", text).unwrap(), 4);
        assert_eq!(number("1234", "").unwrap(), 1234);
        for wrong in ["lb", "syslog", "broken", "-1", "4294967296", ""] {
            let error = number(wrong, text).unwrap_err().to_string();
            assert_eq!(error, format!("found no group {wrong} in /etc/group"));
        }
    }

    #[test]
    fn a_socket_is_open_as_long_as_there_is_a_group() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::write(&path, "").unwrap();
        let own = nix::unistd::getegid().to_string();
        let group = ReadGroup::default();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        group.set(Some(&own), &path).unwrap();
        assert_eq!((group.id(), mode()), (own.parse().ok(), OF_GROUP));
        assert!(group.set(Some("no-such-group"), &path).is_err());
        assert_eq!((group.id(), mode()), (None, OWN));
        group.set(Some(&own), &path).unwrap();
        group.set(None, &path).unwrap();
        assert_eq!((group.id(), mode()), (None, OWN));
    }
}
