// The pinned versions, in one place. Only constants, and no inner doc comment: lb-user/build.rs
// reads this file by path, and .ci/run takes the toolchain from it with sed.

/// The Rust toolchain that builds everything but xtask itself. It has LLVM 22; later ones have
/// LLVM 23, which distributions do not package yet.
pub(crate) const TOOLCHAIN: &str = "1.98.0";

/// bpf-linker, which must not be built against an older LLVM than the toolchain's.
pub(crate) const BPF_LINKER: &str = "0.13.0";

/// The LLVM major version of `TOOLCHAIN`.
pub(crate) const LLVM: &str = "22";

/// mdBook, for `cargo xtask book`.
pub(crate) const MDBOOK: &str = "0.5.4";

/// typos, for `cargo xtask check`.
pub(crate) const TYPOS: &str = "1.52.0";

/// cargo-deny, for `cargo xtask check`.
pub(crate) const CARGO_DENY: &str = "0.20.2";

/// The API server of Kubernetes that namespace tests run, and its kubectl: the newest that Debian has whole sources of.
pub(crate) const KUBERNETES: &str = "1.20.2";

/// Debian's suite that has `KUBERNETES` and `ETCD`.
pub(crate) const KUBERNETES_SUITE: &str = "bookworm";

/// etcd, in which the API server keeps its objects.
pub(crate) const ETCD: &str = "3.4.23";

/// The Go that builds `KUBERNETES`: what a later one than 1.17 builds crashes in the first minute, because a module of that
/// time (reflect2) reads maps as they were laid out then.
pub(crate) const GO_OF_KUBERNETES: &str = "1.15";

/// Debian's suite that has `GO_OF_KUBERNETES`.
pub(crate) const GO_OF_KUBERNETES_SUITE: &str = "bullseye";
