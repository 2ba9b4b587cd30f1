//! What needs root and is not the work of a start: everything that a user's `lb run` must find.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    fcntl::{AtFlags, OFlag, open},
    sys::stat::{Mode, fstat},
    unistd::{Gid, Uid, User, fchownat, geteuid},
};

use super::{BPFFS, Lock, mount_bpffs, neighbours};
use crate::{
    config::Config,
    dataplane::pins::Pins,
    network::{cell, namespace},
};

/// What others need of a folder to get through, and to see what is in it.
const THROUGH: u32 = 0o001;
const SHOWN: u32 = 0o055;

/// A user by name or number.
///
/// # Errors
///
/// If there is none.
pub fn user(name: &str) -> Result<User> {
    let found = match name.parse() {
        Ok(number) => User::from_uid(Uid::from_raw(number)),
        Err(_) => User::from_name(name),
    };
    let found = found.with_context(|| format!("look up the user {name}"))?;
    found.ok_or_else(|| anyhow!("there is no user {name}"))
}

/// Prepares the host for `lb run` of an instance with this configuration by `user`, whether a data plane is
/// there or not. What other users have left is that user's afterwards. Returns what it did, in words.
///
/// # Errors
///
/// What could not be done; and if another user runs the instance.
pub fn prepare(config: &Config, pins: &Pins, user: &User) -> Result<Vec<String>> {
    ensure!(geteuid().is_root(), "lb prepare needs root");
    refuse_links(pins)?;
    let mut done = Vec::new();
    if mount_bpffs()? {
        done.push(format!("mounted bpffs at {BPFFS}"));
    }
    if open_folder(Path::new(BPFFS), THROUGH)? {
        done.push(format!("let other users through {BPFFS}"));
    }
    for folder in pins.folders() {
        done.extend(make(&folder)?.then(|| format!("made {}", folder.display())));
    }
    let given = give_instance(pins, user)?;
    if given > 0 {
        let name = &user.name;
        done.push(format!("gave {given} files and folders to {name}"));
    }
    for network in config.networks.iter().filter(|network| !network.host) {
        let cell = cell::name(pins.instance(), &network.name);
        done.extend(namespace::create(&cell)?.then(|| format!("made the namespace {cell}")));
    }
    done.extend(neighbours::provide(pins));
    Ok(done)
}

/// Whether the calling user can be the control plane of an instance with this configuration; root makes
/// and takes over what there is.
///
/// # Errors
///
/// What is missing, which root has to make for that user.
pub fn check(pins: &Pins, config: Option<&Config>) -> Result<()> {
    refuse_links(pins)?;
    let own = geteuid();
    if own.is_root() {
        return Ok(());
    }
    let is_own = |path: &Path| fs::metadata(path).is_ok_and(|found| found.uid() == own.as_raw());
    let paths = pins.own().into_iter().filter(|path| !is_own(path));
    let networks = config.into_iter().flat_map(|config| &config.networks);
    let cells = networks
        .filter(|network| !network.host)
        .map(|network| cell::name(pins.instance(), &network.name))
        .filter(|cell| !namespace::exists(cell))
        .map(|cell| namespace::path(&cell));
    let missing: Vec<String> = paths
        .chain(cells)
        .map(|path| path.display().to_string())
        .collect();
    ensure!(
        missing.is_empty(),
        "not there for uid {own}: {}; `lb prepare --config FILE --instance {} --user {own}`, as root, \
         makes it",
        missing.join(", "),
        pins.instance()
    );
    Ok(())
}

/// Refuses links in place of what is an instance's own: they may lead to another user's files.
fn refuse_links(pins: &Pins) -> Result<()> {
    for path in pins.own() {
        ensure!(
            !path.is_symlink(),
            "{} is a symbolic link, which is not followed: remove it",
            path.display()
        );
    }
    Ok(())
}

/// Makes root, which has the lock of the instance, the owner of what another user has left: a process that
/// runs may no more than that user.
///
/// # Errors
///
/// If it cannot.
pub fn take_over(pins: &Pins) -> Result<()> {
    if geteuid().is_root() {
        let root = user("0")?;
        for path in pins.own().iter().filter(|path| path.exists()) {
            give(path, &root)?;
        }
    }
    Ok(())
}

/// Gives everything of an instance to a user, unless another user runs it; how much was another's.
fn give_instance(pins: &Pins, user: &User) -> Result<usize> {
    let lock = Lock::take(pins);
    let owned = pins.own();
    let is_his =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.uid() == user.uid.as_raw());
    if let Err(error) = lock
        && !owned.iter().all(|path| is_his(path) || is_unused(path))
    {
        bail!(
            "{error:#}, by another user than {}: stop it first, the data plane goes on",
            user.name
        );
    }
    let given = owned.iter().map(|path| give(path, user));
    given.sum()
}

/// Whether this is a folder that root has made and no process has used: an older one that runs may not know of it.
fn is_unused(path: &PathBuf) -> bool {
    let is_of_root = fs::metadata(path).is_ok_and(|found| found.uid() == 0);
    is_of_root && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Makes a folder that every user can look into, if there is none.
fn make(folder: &Path) -> Result<bool> {
    let is_new = !folder.exists();
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(open_folder(folder, SHOWN)? || is_new)
}

/// Gives others these rights on a folder; whether they lacked them.
fn open_folder(folder: &Path, rights: u32) -> Result<bool> {
    let open = || {
        let mode = fs::metadata(folder)?.permissions().mode();
        if mode & rights == rights {
            return Ok(false);
        }
        fs::set_permissions(folder, Permissions::from_mode(mode | rights))?;
        std::io::Result::Ok(true)
    };
    open().with_context(|| format!("open {} to others", folder.display()))
}

/// Gives a file, or a folder with all in it, to a user; how many were another's.
///
/// What is the user's already is not looked into. Of another's folder only what is that owner's is given,
/// never what that owner may have put a name to, and the folder last: so a half is completed by the next
/// time.
fn give(path: &Path, user: &User) -> Result<usize> {
    let all = || -> Result<usize> {
        let owner = fs::symlink_metadata(path)?.uid();
        if owner == user.uid.as_raw() {
            return Ok(0);
        }
        let mut given = 1;
        if fs::symlink_metadata(path)?.is_dir() {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                if entry.metadata()?.uid() == owner {
                    given += give(&entry.path(), user)?;
                }
            }
        }
        change_owner(path, owner, user.uid, user.gid)?;
        Ok(given)
    };
    all().with_context(|| format!("give {} to {}", path.display(), user.name))
}

/// Changes the owner of exactly the file that is `from`'s, whatever its name leads to afterwards.
fn change_owner(path: &Path, from: u32, uid: Uid, gid: Gid) -> Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    ensure!(fstat(&file)?.st_uid == from, "it has changed meanwhile");
    fchownat(&file, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!(user("root").unwrap().uid, Uid::from_raw(0));
        assert_eq!(user("0").unwrap().name, "root");
        let error = user("no-such-user").unwrap_err();
        assert_eq!(error.to_string(), "there is no user no-such-user");
    }

    /// What a user has put a name to in a folder of their own does not become another's by it.
    #[test]
    fn only_what_belongs_to_the_owner_of_a_folder_is_given() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let his = folder.path().join("his");
        let inner = his.join("inner");
        fs::create_dir_all(&inner).unwrap();
        let names = ["own", "roots", "link"].map(|name| inner.join(name));
        fs::write(&names[0], "").unwrap();
        fs::write(&names[1], "").unwrap();
        let target = folder.path().join("target");
        fs::write(&target, "").unwrap();
        symlink(&target, &names[2]).unwrap();
        for path in [&his, &inner, &names[0], &names[2]] {
            lchown(path, Some(1234), Some(1234)).unwrap();
        }
        let nobody = user("65534").unwrap();
        assert_eq!(give(&his, &nobody).unwrap(), 4);
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        let owners = [&his, &inner, &names[0], &names[1], &names[2], &target];
        let owners = owners.map(|path| owner(path));
        assert_eq!(owners, [65534, 65534, 65534, 0, 65534, 0]);
        assert_eq!(give(&his, &nobody).unwrap(), 0);
    }
}
