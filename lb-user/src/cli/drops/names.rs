//! `lb drops --names`: the names that shared VIPs have refused.

use anyhow::{Result, bail};

use crate::{
    admin::client,
    api::{Answer, RefusedName, Request},
    cli::{
        arguments::{Format, Show},
        ask::OTHER_ANSWER,
        print, table,
    },
    model::ago::ago_seconds,
    reports::drops::NamesReport,
};

pub(in crate::cli) fn show(show: &Show) -> Result<()> {
    let names = match client::ask(&show.instance.name, &Request::RefusedNames)? {
        Answer::RefusedNames { names } => names,
        Answer::Refused { reasons, .. } => bail!("{}", reasons.join("\n")),
        _ => bail!(OTHER_ANSWER),
    };
    if show.output.format == Format::Json {
        return print::report(&NamesReport { names });
    }
    table::print(
        [
            "SERVICE", "NETWORK", "NAME", "REASON", "COUNT", "CLIENT", "AGO",
        ],
        names.into_iter().map(row),
    )
}

fn row(refused: RefusedName) -> [String; 7] {
    let RefusedName {
        service,
        network,
        name,
        reason,
        count,
        client,
        age_seconds,
    } = refused;
    [
        service,
        network,
        name.unwrap_or_else(|| "-".to_owned()),
        reason,
        count.to_string(),
        client,
        ago_seconds(age_seconds),
    ]
}
