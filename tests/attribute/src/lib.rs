//! The attribute of tests that need privileges.

use proc_macro::{TokenStream, TokenTree};

/// Marks a test that loads programs or makes namespaces: it runs under `cargo xtask test`, which sees to its
/// privileges, and is ignored elsewhere. When it fails, the harness prints status, drops and log of each `lb`
/// that it has started.
///
/// With `families` the test is a function of a `&Family`, a type in its scope, and runs once for each family of IP:
/// `name::v4` with `Family::V4`, and `name::v6` with `Family::V6`.
#[proc_macro_attribute]
pub fn privileged_test(of: TokenStream, function: TokenStream) -> TokenStream {
    match &*of.to_string() {
        "" => with_code(MARKS, function),
        "families" => with_code(&of_each_family(&name(&function)), function),
        _ => with_code(r#"compile_error!("`families`, or nothing");"#, function),
    }
}

const MARKS: &str = r#"#[test] #[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]"#;

/// The tests of a function with this name: in a module of the same name, so that a list of tests has both.
fn of_each_family(name: &str) -> String {
    format!(
        "mod {name} {{
            use super::Family;
            {MARKS} fn v4() {{ super::{name}(&Family::V4) }}
            {MARKS} fn v6() {{ super::{name}(&Family::V6) }}
        }}"
    )
}

fn name(function: &TokenStream) -> String {
    let mut tokens = function.clone().into_iter();
    tokens.find(|token| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn"));
    tokens
        .next()
        .map(|name| name.to_string())
        .unwrap_or_default()
}

/// A function behind other code.
fn with_code(code: &str, function: TokenStream) -> TokenStream {
    let code: TokenStream = code.parse().unwrap_or_default();
    code.into_iter().chain(function).collect()
}
