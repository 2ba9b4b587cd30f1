//! Which bpf-linker is good: of the pinned series, and proved by linking what the toolchain compiles.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    cmd::{Cmd, text_of},
    pins,
    workspace::Workspace,
};

/// The bpf-linker to use, or why each one that was found cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Linker {
    Good(PathBuf),
    None { rejected: Vec<String> },
}

/// The first good bpf-linker: our own, then the one on PATH.
pub(crate) fn find(workspace: &Workspace, toolchain: bool) -> Linker {
    let cached = workspace
        .tool_root("bpf-linker", pins::BPF_LINKER)
        .join("bin/bpf-linker");
    let on_path = workspace
        .find("bpf-linker")
        .filter(|found| *found != cached);
    let mut rejected = Vec::new();
    for candidate in [Some(cached).filter(|file| file.exists()), on_path]
        .into_iter()
        .flatten()
    {
        match judged(workspace, &candidate, toolchain) {
            Ok(()) => return Linker::Good(candidate),
            Err(error) => rejected.push(format!("{}: {error:#}", candidate.display())),
        }
    }
    Linker::None { rejected }
}

/// Whether a bpf-linker is of the pinned series and, once the toolchain is there, links what it
/// compiles. One that was built against an older LLVM starts, but cannot read the bitcode.
fn judged(workspace: &Workspace, linker: &Path, toolchain: bool) -> Result<()> {
    let output = workspace
        .command(&linker.to_string_lossy())
        .arg("--version")
        .output()?;
    let text = text_of(&output);
    ensure!(
        output.status.success(),
        "it does not start: {}",
        text.trim()
    );
    ensure!(
        same_series(&text, pins::BPF_LINKER),
        "it is `{}`, but {} is needed",
        text.trim(),
        pins::BPF_LINKER
    );
    if toolchain {
        links(workspace, linker)
    } else {
        Ok(())
    }
}

/// `bpf-linker 0.13.2` is as good as 0.13.0.
fn same_series(version_line: &str, pinned: &str) -> bool {
    let series = |version: &str| {
        let mut parts = version.trim().split('.');
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    };
    let version = version_line.split_whitespace().last().unwrap_or_default();
    series(version).is_some() && series(version) == series(pinned)
}

/// Links the smallest possible program: a tenth of a second, because it needs no `core`.
fn links(workspace: &Workspace, linker: &Path) -> Result<()> {
    const PROGRAM: &str = r#"#![no_core] #![no_main] #![feature(no_core, lang_items)]
#[lang = "pointee_sized"] pub trait PointeeSized {}
#[lang = "meta_sized"] pub trait MetaSized: PointeeSized {}
#[lang = "sized"] pub trait Sized: MetaSized {}
#[unsafe(no_mangle)] #[unsafe(link_section = "xdp")] pub extern "C" fn probe() {}
"#;
    // Not in /tmp, where others could have made it.
    let dir = workspace
        .cache
        .join(format!("link-trial-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let source = dir.join("probe.rs");
    let result = fs::write(&source, PROGRAM)
        .context("write the trial program")
        .and_then(|()| trial(workspace, linker, &source).output());
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    let output = result?;
    ensure!(
        output.status.success(),
        "it cannot link what Rust {} compiles: {}",
        pins::TOOLCHAIN,
        text_of(&output).trim()
    );
    Ok(())
}

fn trial(workspace: &Workspace, linker: &Path, source: &Path) -> Cmd {
    workspace
        .command("rustc")
        .arg(format!("+{}", pins::TOOLCHAIN))
        .args([
            "--edition=2024",
            "--crate-type=cdylib",
            "--target=bpfel-unknown-none",
        ])
        .args(["-Ainternal_features", "-Cpanic=abort"])
        .arg(format!("-Clinker={}", linker.display()))
        .arg("-o")
        .arg(source.with_extension("o"))
        .arg(source)
        .env("RUSTC_BOOTSTRAP", "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linker_of_the_same_series_is_good_enough() {
        assert!(same_series("bpf-linker 0.13.0\n", "0.13.0"));
        assert!(same_series("bpf-linker 0.13.2", "0.13.0"));
        assert!(!same_series("bpf-linker 0.9.13", "0.13.0"));
        assert!(!same_series("", "0.13.0"));
    }
}
