//! Files that are replaced as a whole: after a power cut there is the one of before or the new one.

use std::{
    fs::{self, File, Permissions},
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Writes a file so that it is never half a file: beside it, then in its place.
///
/// # Errors
///
/// If that fails; what was there before stays.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes)?.put(path)
}

/// As [`write()`], with the mode that the file shall have.
///
/// # Errors
///
/// As for [`write()`].
pub fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let beside = write_beside(path, bytes)?;
    let opened = fs::set_permissions(&beside.0, Permissions::from_mode(mode));
    opened.with_context(|| format!("set the mode of {}", beside.0.display()))?;
    beside.put(path)
}

/// A file that is written and waits to be put in its place.
#[derive(Debug)]
pub struct Beside(PathBuf);

impl Beside {
    /// Puts it in its place.
    ///
    /// # Errors
    ///
    /// If it cannot be renamed.
    pub fn put(self, path: &Path) -> Result<()> {
        fs::rename(&self.0, path).with_context(|| format!("rename to {}", path.display()))?;
        // The name is on the disk when the folder is.
        let folder = path.parent().unwrap_or(path);
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.with_context(|| format!("write the folder {}", folder.display()))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Once it is in its place there is nothing.
        let _gone = fs::remove_file(&self.0);
    }
}

/// Writes what shall be at `path`, but beside it: from then on a full disk is no danger.
///
/// # Errors
///
/// If that fails; nothing is left then.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<Beside> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Beside(beside.into());
    let name = || format!("write {}", beside.0.display());
    // What an earlier process has left half written; a link that another process has put there to lead
    // elsewhere is not followed.
    match fs::remove_file(&beside.0) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(name),
        _ => {}
    }
    let mut file = File::create_new(&beside.0).with_context(name)?;
    file.write_all(bytes).with_context(name)?;
    file.sync_all().with_context(name)?;
    Ok(beside)
}

/// As [`write_beside`]; nothing if that is what is there already, so that it needs no room.
///
/// # Errors
///
/// As for [`write_beside`].
pub fn change_beside(path: &Path, bytes: &[u8]) -> Result<Option<Beside>> {
    // A link is none of ours, whatever it leads to.
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let is_there = is_file && fs::read(path).is_ok_and(|there| there == bytes);
    (!is_there).then(|| write_beside(path, bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        assert!(change_beside(&path, b"one").unwrap().is_some());
        write(&path, b"one").unwrap();
        assert!(change_beside(&path, b"one").unwrap().is_none());
        assert!(change_beside(&path, b"on").unwrap().is_some());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(change_beside(&link, b"one").unwrap().is_some());
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, victim] = ["f", "victim"].map(|name| folder.path().join(name));
        fs::write(&victim, "mine").unwrap();
        for name in ["f", "f.new"] {
            std::os::unix::fs::symlink(&victim, folder.path().join(name)).unwrap();
        }
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert!(!path.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_file_that_is_not_put_in_its_place_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write(&path, b"old").unwrap();
        drop(write_beside(&path, b"new").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(!folder.path().join("f.new").exists());
    }
}
