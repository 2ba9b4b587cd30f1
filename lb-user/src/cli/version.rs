//! `lb version`.

use anyhow::Result;
use lb_common::abi::ABI_VERSION;
use schemars::JsonSchema;
use serde::Serialize;

use super::{arguments::Format, print};

/// The answer of `-o json`.
#[derive(Serialize, JsonSchema)]
pub(super) struct VersionReport {
    /// Version of this program.
    lb_version: &'static str,
    /// Version of the pinned state that it makes and reads.
    abi: u32,
}

pub(super) fn show(format: Format) -> Result<()> {
    let version = VersionReport {
        lb_version: env!("CARGO_PKG_VERSION"),
        abi: ABI_VERSION,
    };
    if format == Format::Json {
        return print::report(&version);
    }
    let VersionReport { lb_version, abi } = version;
    print::line(format_args!("lb {lb_version} (pinned state version {abi})"))
}
