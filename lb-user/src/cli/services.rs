//! `lb services`.

use anyhow::Result;

use super::{
    arguments::{Format, Show},
    print, table,
};
use crate::observe::Observer;

pub(super) fn show(show: &Show) -> Result<()> {
    let services = Observer::open(&show.instance.name)?.services();
    if show.output.format == Format::Json {
        return print::json(&services);
    }
    table::print(
        ["SERVICE", "NETWORK", "LISTEN", "POOL"],
        services
            .into_iter()
            .map(|line| [line.name, line.network, line.listen, line.pool]),
    )
}
