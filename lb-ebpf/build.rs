//! Rebuilds the object when bpf-linker changes.

fn main() {
    if let Some(paths) = std::env::var_os("PATH") {
        if let Some(linker) = std::env::split_paths(&paths)
            .map(|dir| dir.join("bpf-linker"))
            .find(|path| path.exists())
        {
            println!("cargo::rerun-if-changed={}", linker.display());
        }
    }
    println!("cargo::rerun-if-env-changed=PATH");
}
