//! `lb events -o json`: one object, or with `--follow` one for each event.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{Event, Severity},
    events::file::time,
};

/// The answer without `--follow`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventsReport {
    /// Oldest first.
    pub events: Vec<EventReport>,
}

/// Something that happened; with `--follow` a line.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventReport {
    /// Its number, one more with each; a number that is left out is an event that was not read in time.
    pub number: u64,
    /// When, as RFC 3339 has it, in UTC.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// What kind: `confirm`, `drain`, `ha`, `health`, `interface`, `kill`, `mend`, `metrics`, `neighbour`, `override`, `process`, `reload`,
    /// `rollback`, `state`.
    pub kind: String,
    /// How grave it is: `error` if something does not serve, `warning` if a part of it does not, `notice` else.
    pub severity: Severity,
    /// What it happened to, as `backend kas-a/10.32.96.105:30918`.
    pub object: String,
    /// What happened, for people.
    pub words: String,
    /// The process that requested it: user id and process id, if one did.
    pub by: Option<String>,
}

impl From<Event> for EventReport {
    fn from(event: Event) -> Self {
        let Event {
            number,
            time_ms,
            kind,
            severity,
            object,
            words,
            by,
        } = event;
        Self {
            number,
            time: time(time_ms).to_string(),
            kind,
            severity,
            object,
            words,
            by,
        }
    }
}
