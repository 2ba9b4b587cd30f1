//! Rebuilds the object when bpf-linker changes.

use std::env;

fn main() {
    println!("cargo::rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let mut programs = env::split_paths(&path).map(|folder| folder.join("bpf-linker"));
    if let Some(linker) = programs.find(|program| program.exists()) {
        println!("cargo::rerun-if-changed={}", linker.display());
    }
}
