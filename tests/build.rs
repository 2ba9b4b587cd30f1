//! Builds the programs of the tests' networks with the pinned toolchain, `OUT_DIR/lb-test-switch` and
//! `OUT_DIR/lb-bench-path`, and lb's object as it is not shipped, `OUT_DIR/lb-ebpf`: see `harness/product/builds.rs`.

use std::{env, fs, path::Path, process::Command};

mod pins {
    #![expect(dead_code, reason = "only the toolchain's pin is needed here")]
    include!("../xtask/src/pins.rs");
}

fn main() {
    println!("cargo::rerun-if-changed=../lb-common/src");
    println!("cargo::rerun-if-changed=../xtask/src/pins.rs");
    println!("cargo::rerun-if-env-changed=PATH");
    let skip = env::var("AYA_BUILD_SKIP").is_ok_and(|value| value == "1");
    if skip {
        // Lints and documentation need the files that the library includes, not their content.
        let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
        for object in ["lb-test-switch", "lb-bench-path", "lb-ebpf"] {
            fs::write(Path::new(&out).join(object), []).expect("OUT_DIR is writable");
        }
        println!("cargo::rerun-if-env-changed=AYA_BUILD_SKIP");
        return;
    }
    if !works("rustup", &["run", pins::TOOLCHAIN, "rustc", "--version"])
        || !works("bpf-linker", &["--version"])
    {
        println!(
            "cargo::error=the programs of the tests need Rust {} and bpf-linker on PATH: run `cargo xtask setup`",
            pins::TOOLCHAIN
        );
        return;
    }
    // The inner cargo is quiet because aya-build passes all it says on as warnings.
    for (name, value) in [("RUSTC_BOOTSTRAP", "1"), ("CARGO_TERM_QUIET", "true")] {
        // SAFETY: a build script has one thread, so no other reads the environment meanwhile.
        unsafe { env::set_var(name, value) };
    }
    let switch = aya_build::Package {
        name: "lb-test-switch",
        root_dir: "switch",
        ..Default::default()
    };
    let with_reply_lines = aya_build::Package {
        name: "lb-ebpf",
        root_dir: "../lb-ebpf",
        features: &["line-per-direction"],
        ..Default::default()
    };
    let toolchain = aya_build::Toolchain::Custom(pins::TOOLCHAIN);
    if let Err(error) = aya_build::build_ebpf([switch, with_reply_lines], toolchain) {
        println!("cargo::error=building the programs of the tests failed: {error:#}");
    }
}

fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
