//! The files by which a box shows its peer which one it is: its certificate, and the key of that.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use nix::libc::O_NONBLOCK;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

/// The largest file that is read, in bytes: a chain of certificates has a few thousand.
const MAX_FILE_BYTES: u64 = 1 << 16;
/// The mode bits by which other users may read or change a file.
const OTHERS: u32 = 0o007;

/// The certificates of a PEM file, at least one: the box's own, and those between it and a CA.
///
/// # Errors
///
/// What is wrong with the file, behind its path.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = bytes(path, 0).map_err(|error| format!("cannot be read: {error}"))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| format!("is not a PEM file: {error}"))?;
    if found.is_empty() {
        return Err("has no certificate; expected a PEM file with that of this box".to_owned());
    }
    Ok(found)
}

/// The key of a PEM file that no other user may read.
///
/// # Errors
///
/// What is wrong with the file, behind its path.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = bytes(path, OTHERS).map_err(|error| format!("cannot be read: {error}"))?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|error| format!("has no private key that can be used: {error}"))
}

/// The bytes of a regular file without the mode bits of `refused`. Fails at once for what is no file, such as a pipe.
fn bytes(path: &Path, refused: u32) -> io::Result<Vec<u8>> {
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
    let mut bytes = Vec::new();
    file.take(1 + MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let words = format!("it has more than {} KiB", MAX_FILE_BYTES >> 10);
        return Err(io::Error::other(words));
    }
    Ok(bytes)
}
