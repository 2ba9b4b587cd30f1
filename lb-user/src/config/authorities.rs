//! The CAs of a file that a check trusts, read once for a configuration.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    names,
    place::{At, quote},
    problem::Findings,
    regular_file,
};

/// The largest file that is read, in bytes: four times the size of what browsers trust.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The CAs of a PEM file as it was when the configuration was read.
#[derive(Clone)]
pub struct Authorities {
    file: PathBuf,
    /// Or why there are none.
    roots: Result<Arc<RootCertStore>, String>,
}

impl Authorities {
    /// Reads a file.
    pub(crate) fn read(file: PathBuf) -> Self {
        let roots = bytes(&file)
            .map_err(|error| format!("cannot be read: {error}"))
            .and_then(|bytes| roots(&bytes));
        Self {
            roots: roots.map(Arc::new),
            file,
        }
    }

    /// The file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The CAs, at least one.
    ///
    /// # Errors
    ///
    /// What is wrong with the file.
    pub(crate) fn roots(&self) -> Result<Arc<RootCertStore>, String> {
        self.roots.clone()
    }
}

/// The CAs of the files that were read, by their paths: the file that is usual for all pools is read
/// once.
#[derive(Default)]
pub(in crate::config) struct Library(BTreeMap<PathBuf, Authorities>);

impl Library {
    /// Those of the file that is named there.
    pub(in crate::config) fn authorities(
        &mut self,
        at: &At<String>,
        findings: &mut Findings,
    ) -> Option<Authorities> {
        let path = names::file_path(at, "/etc/lb/ca.pem", findings)?;
        let known = self
            .0
            .entry(path)
            .or_insert_with_key(|path| Authorities::read(path.clone()));
        if let Err(why) = known.roots() {
            findings.add_of_file(&at.place, format!("{} {why}", quote(&at.value)));
        }
        Some(known.clone())
    }
}

/// Fails at once for what is no file, such as a pipe without a writer, which an open would wait for.
fn bytes(file: &Path) -> io::Result<Vec<u8>> {
    // Any user may read it.
    let file = regular_file::open(file, 0)?;
    let mut bytes = Vec::new();
    file.take(1 + MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let words = format!("it has more than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(io::Error::other(words));
    }
    Ok(bytes)
}

fn roots(bytes: &[u8]) -> Result<RootCertStore, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|error| format!("is not a PEM file: {error}"))?;
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(found) {
        (0, refused) => Err(format!(
            "has no certificate of a CA ({refused} are none that can be used); expected a PEM file"
        )),
        _ => Ok(roots),
    }
}

/// Those of files with other contents are others.
impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        let Self { file, roots } = self;
        let same_roots = match (roots, &other.roots) {
            (Ok(one), Ok(other)) => one.roots == other.roots,
            (Err(one), Err(other)) => one == other,
            _ => false,
        };
        *file == other.file && same_roots
    }
}

impl Eq for Authorities {}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl Serialize for Authorities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.file.serialize(serializer)
    }
}

/// Of a file that cannot be read any more there are none.
impl<'de> Deserialize<'de> for Authorities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PathBuf::deserialize(deserializer).map(Self::read)
    }
}
