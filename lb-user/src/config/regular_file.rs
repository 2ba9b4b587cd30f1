//! Files that the configuration names, opened so that nothing else is read in their place.

use std::{
    fs::File,
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use nix::libc::O_NONBLOCK;

/// The mode bits by which other users may read or change a file.
pub(super) const OTHERS: u32 = 0o007;

/// Opens a regular file without the mode bits of `refused`. Fails at once for what is no file, such as a pipe.
///
/// # Errors
///
/// What is wrong with it, behind its path.
pub(super) fn open(path: &Path, refused: u32) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mode = metadata.mode() & 0o777;
    if mode & refused != 0 {
        let words = format!("its mode {mode:o} lets other users have it; expected 600 or 640");
        return Err(io::Error::other(words));
    }
    Ok(file)
}
