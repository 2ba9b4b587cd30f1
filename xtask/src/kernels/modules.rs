//! The modules that a guest's kernel is given, unpacked.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::apt::Release;
use crate::{cmd::text_of, workspace::Workspace};

/// Modules that are loaded at the start, with those that they depend on; what the kernel has built in is not there.
pub(super) const AT_START: [&str; 22] = [
    "veth",
    "8021q",
    "dummy",
    "bridge",
    "sch_ingress",
    "cls_bpf",
    "tun",
    "nf_conntrack",
    "nf_defrag_ipv6",
    "nf_log_syslog",
    "nf_tables",
    "nft_chain_nat",
    "nft_counter",
    "nft_ct",
    "nft_fib_inet",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_nat",
    "nft_reject",
    "nft_reject_inet",
    "nft_reject_ipv4",
];

/// Those of the machine's NICs, which a step loads.
pub(super) const OF_NICS: [&str; 2] = ["virtio_pci", "virtio_net"];

/// Unpacks these modules into `folder`. Returns the order to load them in, a name a line: what one depends on comes
/// before it.
///
/// # Errors
/// When one cannot be read or unpacked.
pub(super) fn gather(
    workspace: &Workspace,
    release: &Release,
    folder: &Path,
    modules: &[&str],
) -> Result<String> {
    let mut files = Vec::new();
    let mut folders = vec![release.modules.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    let mut loaded = Modules {
        workspace,
        files,
        folder: folder.to_owned(),
        order: Vec::new(),
    };
    for name in modules {
        loaded.add(name)?;
    }
    let names = loaded.order.iter().map(|name| format!("{name}\n"));
    Ok(names.collect())
}

struct Modules<'a> {
    workspace: &'a Workspace,
    files: Vec<PathBuf>,
    folder: PathBuf,
    order: Vec<String>,
}

impl Modules<'_> {
    fn add(&mut self, name: &str) -> Result<()> {
        let is_it = |file: &&PathBuf| {
            let file = file.file_name().unwrap_or_default().to_string_lossy();
            let stem = file.split(".ko").next().unwrap_or_default();
            file.contains(".ko") && stem.replace('-', "_") == name
        };
        let Some(packed) = self.files.iter().find(is_it) else {
            return Ok(());
        };
        if self.order.iter().any(|known| known == name) {
            return Ok(());
        }
        let module = unpacked(self.workspace, packed)?;
        let file = self.folder.join(format!("{name}.ko"));
        fs::write(&file, &module).with_context(|| format!("write {}", file.display()))?;
        for needed in needs(&module) {
            self.add(&needed)?;
        }
        self.order.push(name.to_owned());
        Ok(())
    }
}

/// What a module depends on by its own description (`modinfo`).
fn needs(module: &[u8]) -> Vec<String> {
    let mut words = module.split(|byte| *byte == 0);
    let list = words
        .find_map(|word| word.strip_prefix(b"depends="))
        .unwrap_or_default();
    let list = String::from_utf8_lossy(list).into_owned();
    let names = list.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

fn unpacked(workspace: &Workspace, packed: &Path) -> Result<Vec<u8>> {
    let end = packed.extension().unwrap_or_default().to_string_lossy();
    let command = match &*end {
        "xz" => "xz",
        "zst" => "zstd",
        "gz" => "gzip",
        _ => return fs::read(packed).with_context(|| format!("read {}", packed.display())),
    };
    let output = workspace.command(command).arg("-dc").arg(packed).output()?;
    if !output.status.success() {
        bail!("unpack {}: {}", packed.display(), text_of(&output));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needs_of_a_module_are_in_its_words() {
        let module = b"\x7fELF\0license=GPL\0depends=nf-conntrack,nf_tables\0name=nft_ct\0";
        assert_eq!(needs(module), ["nf_conntrack", "nf_tables"]);
        assert_eq!(needs(b"\x7fELF\0depends=\0"), [""; 0]);
    }
}
