//! ClientHellos: those that real clients have sent, and those that a test makes up.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// The type of the extension with the server's name.
pub const SERVER_NAME: u16 = 0;
/// The type of that with the protocols.
const ALPN: u16 = 16;
/// The most bytes of a record.
pub const LARGEST_RECORD: usize = 1 << 14;
/// The name that captured hellos ask for, if they ask for one.
pub const CAPTURED_NAME: &str = "hub.example.test";

/// Bytes of the head of a message.
const HEAD: usize = 4;

/// The first flight of a real client.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Which client it was.
    pub client: String,
    /// What is in it, in words.
    pub said: String,
    /// Its bytes: the hello in its records, and in some what came behind it.
    pub bytes: Vec<u8>,
}

/// All that have been captured, by their clients' names.
///
/// # Errors
///
/// When the files are not there, or not in the form that they have.
pub fn captured() -> Result<Vec<Captured>> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../lb-common/src/client_hello/tests/data");
    let files = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut all = files
        .map(|file| {
            let path = file?.path();
            read(&path).with_context(|| format!("read {}", path.display()))
        })
        .collect::<Result<Vec<_>>>()?;
    all.sort_by(|one, other| one.client.cmp(&other.client));
    ensure!(!all.is_empty(), "no captures in {}", folder.display());
    Ok(all)
}

/// The one of this client.
///
/// # Errors
///
/// As for [`captured`], and when there is none.
pub fn captured_of(client: &str) -> Result<Captured> {
    let mut all = captured()?.into_iter();
    let wanted = all.find(|captured| captured.client == client);
    wanted.with_context(|| format!("no capture of {client}"))
}

fn read(path: &Path) -> Result<Captured> {
    let text = fs::read_to_string(path)?;
    let mut lines = text.lines().skip(1);
    let said = lines.next().and_then(|line| line.strip_prefix("# "));
    let digits: String = lines.collect();
    let byte = |at: usize| {
        Ok(u8::from_str_radix(
            digits.get(at..at + 2).context("half a byte")?,
            16,
        )?)
    };
    Ok(Captured {
        client: path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("a name")?
            .to_owned(),
        said: said.context("what is in it")?.to_owned(),
        bytes: (0..digits.len())
            .step_by(2)
            .map(byte)
            .collect::<Result<_>>()?,
    })
}

impl Captured {
    /// Whether it asks for [`CAPTURED_NAME`].
    pub fn has_name(&self) -> bool {
        self.said.contains(CAPTURED_NAME)
    }

    /// Whether it has an encrypted hello in it, or GREASE in its place.
    pub fn has_ech(&self) -> bool {
        self.said.contains("ech yes")
    }
}

/// A hello with the extension of the server's name behind all others: they may come in any order.
///
/// # Panics
///
/// When it is no whole hello.
pub fn with_name_last(stream: &[u8]) -> Vec<u8> {
    let (whole, behind) = message(stream);
    let (fixed, extensions) = whole.split_at(extensions_at(&whole));
    let mut rest = &extensions[2..];
    let (mut others, mut last) = (Vec::new(), Vec::new());
    while let [kind_high, kind_low, high, low, ..] = *rest {
        let (extension, after) = rest.split_at(4 + usize::from(u16::from_be_bytes([high, low])));
        let is_name = u16::from_be_bytes([kind_high, kind_low]) == SERVER_NAME;
        let list = if is_name { &mut last } else { &mut others };
        list.extend_from_slice(extension);
        rest = after;
    }
    let whole = [fixed, &long(&[others, last].concat())].concat();
    [&cut(&whole, LARGEST_RECORD), behind].concat()
}

/// Where the extensions stand in a message.
fn extensions_at(message: &[u8]) -> usize {
    let session = HEAD + 2 + 32;
    let suites = session + 1 + usize::from(message[session]);
    let length = u16::from_be_bytes([message[suites], message[suites + 1]]);
    let methods = suites + 2 + usize::from(length);
    methods + 1 + usize::from(message[methods])
}

/// A hello with this version and these extensions.
pub fn hello(version: u16, extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let extensions: Vec<u8> = extensions
        .iter()
        .flat_map(|(kind, data)| [&kind.to_be_bytes()[..], &long(data)].concat())
        .collect();
    let fixed = [
        &version.to_be_bytes()[..],
        &[7; 32],
        &[0],
        &[0, 2, 0, 0x2f],
        &[1, 0],
    ]
    .concat();
    let body = [&fixed[..], &long(&extensions)].concat();
    let [_, length @ ..] = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    cut(&[&[1], &length[..], &body].concat(), LARGEST_RECORD)
}

/// A hello that asks for `name`, whatever is in it.
pub fn named(name: &[u8]) -> Vec<u8> {
    hello(TLS12, &[(SERVER_NAME, names(&[(0, name)]))])
}

/// The same, whose client offers these protocols.
pub fn offering(name: &[u8], protocols: &[&[u8]]) -> Vec<u8> {
    let short = |protocol: &&[u8]| {
        let length = u8::try_from(protocol.len()).unwrap_or(u8::MAX);
        [&[length][..], protocol].concat()
    };
    let list: Vec<u8> = protocols.iter().flat_map(short).collect();
    let mut extensions = vec![(SERVER_NAME, names(&[(0, name)]))];
    if !list.is_empty() {
        extensions.push((ALPN, long(&list)));
    }
    hello(TLS12, &extensions)
}

/// The version of TLS 1.2, which hellos of TLS 1.3 have as well.
pub const TLS12: u16 = 0x0303;

/// What the extension with names of these types has in it.
pub fn names(names: &[(u8, &[u8])]) -> Vec<u8> {
    let write = |&(kind, name): &(u8, &[u8])| [&[kind][..], &long(name)].concat();
    long(&names.iter().flat_map(write).collect::<Vec<u8>>())
}

/// The vector with a length of two bytes.
pub fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes(), bytes].concat()
}

/// A hello in records of at most `size` bytes, and what was behind it.
pub fn in_records_of(stream: &[u8], size: usize) -> Vec<u8> {
    let (message, behind) = message(stream);
    [&cut(&message, size)[..], behind].concat()
}

/// The same in this many records.
pub fn in_records(stream: &[u8], count: usize) -> Vec<u8> {
    let (message, _) = message(stream);
    in_records_of(stream, message.len().div_ceil(count))
}

fn cut(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &long(part)].concat();
    message.chunks(size).flat_map(record).collect()
}

/// The message out of its records, and what comes behind them.
fn message(mut stream: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut message = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = stream {
        let (part, rest) = rest.split_at(usize::from(*high) << 8 | usize::from(*low));
        message.extend_from_slice(part);
        stream = rest;
        if total(&message).is_some_and(|total| message.len() >= total) {
            break;
        }
    }
    (message, stream)
}

fn total(message: &[u8]) -> Option<usize> {
    let length = message.get(1..HEAD)?;
    let length = length
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    Some(HEAD + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_is_put_last_is_the_last_of_the_same_hello() {
        for Captured { client, bytes, .. } in captured().expect("captures") {
            let (before, behind) = message(&bytes);
            let late = with_name_last(&bytes);
            let (after, still_behind) = message(&late);
            assert_eq!(
                (after.len(), behind),
                (before.len(), still_behind),
                "{client}"
            );
            let sorted = |mut bytes: Vec<u8>| {
                bytes.sort_unstable();
                bytes
            };
            if before.ends_with(CAPTURED_NAME.as_bytes()) {
                assert_eq!(after, before, "{client}");
            }
            let has_name = before
                .windows(CAPTURED_NAME.len())
                .any(|bytes| bytes == CAPTURED_NAME.as_bytes());
            assert_eq!(
                after.ends_with(CAPTURED_NAME.as_bytes()),
                has_name,
                "{client}"
            );
            assert_eq!(sorted(after), sorted(before), "{client}");
        }
    }

    #[test]
    fn a_hello_in_other_records_is_the_same_hello() {
        for Captured { client, bytes, .. } in captured().expect("captures") {
            let (whole, behind) = message(&bytes);
            for count in [1, 2, 50] {
                let cut = in_records(&bytes, count);
                assert_eq!(message(&cut), (whole.clone(), behind), "{client}");
                let records = cut.len() - behind.len() - whole.len();
                assert_eq!(
                    records / 5,
                    whole.len().div_ceil(whole.len().div_ceil(count))
                );
            }
        }
    }
}
