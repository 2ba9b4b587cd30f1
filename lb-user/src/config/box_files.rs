//! The files by which a box shows its peer which one it is: its certificate, and the key of that.

use std::{
    io::{self, Read as _},
    path::Path,
};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use super::regular_file::{self, OTHERS};

/// The largest file that is read, in bytes: a chain of certificates has a few thousand.
const MAX_FILE_BYTES: u64 = 1 << 16;

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

/// The bytes of a regular file without the mode bits of `refused`.
fn bytes(path: &Path, refused: u32) -> io::Result<Vec<u8>> {
    let file = regular_file::open(path, refused)?;
    let mut bytes = Vec::new();
    file.take(1 + MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let words = format!("it has more than {} KiB", MAX_FILE_BYTES >> 10);
        return Err(io::Error::other(words));
    }
    Ok(bytes)
}
