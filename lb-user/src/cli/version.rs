//! `lb version`.

use anyhow::Result;
use lb_common::abi::ABI_VERSION;
use serde::Serialize;

use super::{arguments::Format, print};

#[derive(Serialize)]
struct Version {
    version: &'static str,
    abi: u32,
}

pub(super) fn show(format: Format) -> Result<()> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        abi: ABI_VERSION,
    };
    if format == Format::Json {
        return print::json(&version);
    }
    let Version { version, abi } = version;
    print::line(format_args!("lb {version} (pinned state version {abi})"))
}
