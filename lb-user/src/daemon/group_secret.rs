//! The secret of the group of boxes that this one belongs to: a file that all of them have, or one of its own.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result, ensure};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{
    config::Config,
    dataplane::{cookie_secret::CookieSecret, pins::Pins},
    system::files,
};

/// The file in the state folder.
const OWN: &str = "syn-cookie.key";
/// Bytes of a secret, at least, and at most.
const MIN_BYTES: usize = 16;
const MAX_BYTES: u64 = 4096;

/// Reads it; that of a box by itself is made at its first start.
pub(super) fn read(config: &Config, pins: &Pins) -> Result<CookieSecret> {
    match &config.syn_cookie_key {
        Some(path) => shared(path),
        None => own(&pins.state().join(OWN)),
    }
}

fn shared(path: &Path) -> Result<CookieSecret> {
    let name = || format!("read the syn_cookie_key {}", path.display());
    let about = fs::metadata(path).with_context(name)?;
    ensure!(
        about.len() <= MAX_BYTES,
        "{}: it has {} bytes; expected {MAX_BYTES} at most",
        name(),
        about.len()
    );
    let bytes = fs::read(path).with_context(name)?;
    // So that one that an editor or a shell has written is the same as without the line's end.
    let secret = bytes.trim_ascii_end();
    ensure!(
        secret.len() >= MIN_BYTES,
        "{}: found {} bytes, expected at least {MIN_BYTES} random ones, such as by `openssl rand -hex 32`",
        name(),
        secret.len()
    );
    Ok(CookieSecret::new(secret))
}

fn own(path: &Path) -> Result<CookieSecret> {
    match fs::read(path) {
        Ok(bytes) if bytes.len() >= MIN_BYTES => return Ok(CookieSecret::new(&bytes)),
        // Half of one, after a full disk.
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("read the key {}", path.display()));
        }
    }
    let mut bytes = [0; 32];
    getrandom(&mut bytes[..], GetRandomFlags::empty()).context("make a key for SYN cookies")?;
    files::write_with_mode(path, &bytes, 0o600).context("keep the key of SYN cookies")?;
    Ok(CookieSecret::new(&bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_box_keeps_its_own_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(OWN);
        let key = own(&path).unwrap().key(1);
        assert_eq!(own(&path).unwrap().key(1), key);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&path, b"half").unwrap();
        let other = own(&path).unwrap().key(1);
        assert_ne!(other, key);
        assert_eq!(own(&path).unwrap().key(1), other);
    }

    #[test]
    fn a_group_has_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let missing = format!("{:#}", shared(&path).unwrap_err());
        assert!(missing.contains("read the syn_cookie_key"), "{missing}");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        let key = shared(&path).unwrap().key(1);
        assert_eq!(key, CookieSecret::new(b"0123456789abcdef").key(1));
        fs::write(&path, "0123456789abcde\n\n").unwrap();
        let short = format!("{:#}", shared(&path).unwrap_err());
        assert!(
            short.contains("found 15 bytes, expected at least 16"),
            "{short}"
        );
        fs::write(&path, vec![b'x'; 5000]).unwrap();
        let long = format!("{:#}", shared(&path).unwrap_err());
        assert!(long.contains("5000 bytes"), "{long}");
    }
}
