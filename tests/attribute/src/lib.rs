//! The attribute of tests that need privileges.

use proc_macro::TokenStream;

/// Marks a test that loads programs or makes namespaces: it runs under `cargo xtask test`, which sees to its
/// privileges, and is ignored elsewhere. When it fails, the harness prints status, drops and log of each `lb`
/// that it has started.
#[proc_macro_attribute]
pub fn privileged_test(_nothing: TokenStream, function: TokenStream) -> TokenStream {
    let marks: TokenStream = MARKS.parse().unwrap_or_default();
    marks.into_iter().chain(function).collect()
}

const MARKS: &str = r#"#[test] #[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]"#;
