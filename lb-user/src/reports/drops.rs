//! `lb drops -o json`, and with `--names`.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{api::RefusedName, model::seconds::Seconds, observe::DropLine};

/// The answer of `lb drops -o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DropsReport {
    /// Reasons that packets were dropped or refused for, by hook and network; none without such packets.
    pub drops: Vec<DropLine>,
    /// How long ago the last look was, if `since_last` of the drops is known: the last run of this command with this
    /// format.
    pub seconds: Option<Seconds>,
}

/// The answer of `lb drops --names -o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NamesReport {
    /// By service, the latest first: at most 64 of each service.
    pub names: Vec<RefusedName>,
}
