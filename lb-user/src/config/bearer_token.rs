//! The token of a file, which requests must have: never part of the configuration, which is kept and printed.

use std::{
    fmt,
    io::{self, Read as _},
    ops::RangeInclusive,
    path::Path,
};

use super::regular_file::{self, OTHERS};

/// How many characters it has. Less could be guessed.
const LENGTH: RangeInclusive<usize> = 16..=256;

/// A token. It is compared in a time that shows nothing of it, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(String);

impl BearerToken {
    /// Reads the first line of a file.
    ///
    /// # Errors
    ///
    /// What is wrong with it, behind its path.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = text(path).map_err(|error| format!("cannot be read: {error}"))?;
        let token = text.lines().next().unwrap_or_default().trim_end();
        let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
        if !LENGTH.contains(&token.len()) || !is_plain {
            return Err(format!(
                "has no token in its first line; expected {} to {} characters of ASCII without spaces (`openssl rand \
                 -hex 32`)",
                LENGTH.start(),
                LENGTH.end()
            ));
        }
        Ok(Self(token.to_owned()))
    }

    /// Whether this is what a request has. Each byte is compared, whatever the ones before were.
    pub fn is(&self, sent: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differs = own.iter().zip(sent).fold(0, |sum, (a, b)| sum | (a ^ b));
        own.len() == sent.len() && std::hint::black_box(differs) == 0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}

/// The text of a small file that no other user may read.
fn text(path: &Path) -> io::Result<String> {
    let file = regular_file::open(path, OTHERS)?;
    let mut text = String::new();
    file.take(4 * *LENGTH.end() as u64)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn read(text: &str, mode: u32) -> Result<BearerToken, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        BearerToken::read(&path)
    }

    #[test]
    fn the_first_line_is_the_token() {
        let token = read("0123456789abcdef\nmore\n", 0o600).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef0",
        ] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert_eq!(format!("{token:?}"), "BearerToken");
        assert!(
            read("0123456789abcdef  \r\n", 0o640)
                .unwrap()
                .is(b"0123456789abcdef")
        );
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        for (text, mode, words) in [
            ("0123456789abcde\n", 0o600, "expected 16 to 256 characters"),
            (
                "\n0123456789abcdef\n",
                0o600,
                "expected 16 to 256 characters",
            ),
            (
                "0123456789 abcdef\n",
                0o600,
                "expected 16 to 256 characters",
            ),
            (
                "0123456789abcdef\n",
                0o644,
                "its mode 644 lets other users have it",
            ),
            (
                "0123456789abcdef\n",
                0o602,
                "its mode 602 lets other users have it",
            ),
        ] {
            let refused = read(text, mode).unwrap_err();
            assert!(refused.contains(words), "{text:?}: {refused}");
        }
        let refused = BearerToken::read(Path::new("/dev")).unwrap_err();
        assert_eq!(refused, "cannot be read: it is not a regular file");
    }
}
