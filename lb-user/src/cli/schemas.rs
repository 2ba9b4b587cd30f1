//! The schemas of what `-o json` prints, for `docs/json`.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use super::{
    ask::ChangeReport,
    check::CheckReport,
    discover::DiscoverReport,
    flows::{FlowsReport, WhoReport, who_at::WhoAtReport},
    nodes::NodesReport,
    version::VersionReport,
};
use crate::{
    api::ha::HaStatus,
    model::report::Versioned,
    reports::{
        backends::BackendsReport,
        box_health::BoxHealth,
        drops::{DropsReport, NamesReport},
        events::{EventReport, EventsReport},
        health::Summary,
        overview::Overview,
        services::ServicesReport,
        status::StatusReport,
    },
};

/// What stands in an object beside properties of its own.
const COMPOSING: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];

/// The form of an answer.
#[derive(Debug)]
pub struct AnswerSchema {
    /// The name of its file.
    pub name: &'static str,
    /// The commands that print it.
    pub commands: &'static [&'static str],
    /// The schema.
    pub schema: Value,
}

/// All of them, in the order of the commands.
#[must_use]
pub fn schemas() -> Vec<AnswerSchema> {
    vec![
        of::<CheckReport<'_>>("check", &["lb check FILE"]),
        of::<DiscoverReport>("discover", &["lb discover --dry-run FILE"]),
        of::<ChangeReport<'_>>(
            "change",
            &[
                "lb plan FILE",
                "lb reload",
                "lb confirm",
                "lb backend drain NAME",
                "lb backend disable NAME",
                "lb backend enable NAME",
                "lb backend weight NAME N",
                "lb node drain NAME",
                "lb node disable NAME",
                "lb node enable NAME",
                "lb flows --kill --all",
            ],
        ),
        of::<StatusReport>("status", &["lb status"]),
        of::<Summary>("health", &["lb health"]),
        of::<BoxHealth>("health-box", &["lb health --box"]),
        of::<ServicesReport>("services", &["lb services"]),
        of::<BackendsReport>("backends", &["lb backends"]),
        of::<NodesReport>("nodes", &["lb nodes"]),
        of::<FlowsReport>("flows", &["lb flows"]),
        of::<WhoReport>("who", &["lb who SNATIP:PORT"]),
        of::<WhoAtReport>("who-at", &["lb who SNATIP:PORT --at WHEN"]),
        of::<HaStatus>("ha", &["lb ha status"]),
        of::<EventsReport>("events", &["lb events"]),
        of::<EventReport>("event", &["lb events --follow"]),
        of::<DropsReport>("drops", &["lb drops"]),
        of::<NamesReport>("names", &["lb drops --names"]),
        of::<Overview>("overview", &["lb top"]),
        of::<VersionReport>("version", &["lb version"]),
    ]
}

fn of<T: JsonSchema>(name: &'static str, commands: &'static [&'static str]) -> AnswerSchema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<Versioned<T>>();
    let with_option = commands.iter().map(|words| format!("`{words} -o json`"));
    let printed_by: Vec<String> = with_option.collect();
    let description = format!("What is printed by {}.", printed_by.join(", "));
    schema.insert("title".to_owned(), name.into());
    schema.insert("description".to_owned(), description.into());
    let mut schema = Value::from(schema);
    close(&mut schema, false);
    AnswerSchema {
        name,
        commands,
        schema,
    }
}

/// Has every object refuse fields that its schema has not; `is_part`: it is an alternative of one that does so itself.
fn close(value: &mut Value, is_part: bool) {
    let fields = match value {
        Value::Array(values) => return values.iter_mut().for_each(|value| close(value, is_part)),
        Value::Object(fields) => fields,
        _ => return,
    };
    let has_fields = fields.get("properties").is_some_and(Value::is_object);
    let is_composed = COMPOSING.iter().any(|key| fields.contains_key(*key));
    for (key, inside) in fields.iter_mut() {
        let is_alternative = COMPOSING.contains(&key.as_str());
        match (key.as_str(), inside) {
            ("properties" | "$defs", Value::Object(named)) => {
                named.values_mut().for_each(|schema| close(schema, false));
            }
            (_, inside) => close(inside, is_alternative && (has_fields || is_part)),
        }
    }
    if has_fields && !is_part {
        let key = match is_composed {
            true => "unevaluatedProperties",
            false => "additionalProperties",
        };
        fields.insert(key.to_owned(), false.into());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    /// Notes each property in a schema: its name, and its own schema.
    fn properties<'s>(schema: &'s Value, found: &mut Vec<(&'s str, &'s Value)>) {
        match schema {
            Value::Array(values) => values.iter().for_each(|value| properties(value, found)),
            Value::Object(fields) => {
                if let Some(Value::Object(named)) = fields.get("properties") {
                    found.extend(named.iter().map(|(name, schema)| (name.as_str(), schema)));
                }
                fields.values().for_each(|value| properties(value, found));
            }
            _ => {}
        }
    }

    #[test]
    fn every_answer_has_its_version() {
        let schemas = schemas();
        let names: BTreeSet<_> = schemas.iter().map(|answer| answer.name).collect();
        assert_eq!(names.len(), schemas.len());
        for AnswerSchema { name, schema, .. } in &schemas {
            assert_eq!(schema["properties"]["version"]["const"], json!(1), "{name}");
            let required = schema["required"].as_array().unwrap();
            assert!(required.contains(&json!("version")), "{name}");
        }
    }

    #[test]
    fn a_time_has_one_unit_and_its_name() {
        let schemas = schemas();
        let mut seconds = 0;
        for AnswerSchema { name, schema, .. } in &schemas {
            let mut found = Vec::new();
            properties(schema, &mut found);
            for (property, schema) in found {
                for unit in ["_ms", "_us", "_ns", "_millis", "_secs", "_s"] {
                    assert!(!property.ends_with(unit), "{name}: {property}");
                }
                if property.ends_with("_seconds") {
                    seconds += 1;
                    let is_number =
                        [json!("number"), json!(["number", "null"])].contains(&schema["type"]);
                    let is_positive = schema["minimum"] == json!(0);
                    assert!(is_number && is_positive, "{name}: {property}: {schema}");
                }
            }
        }
        assert!(seconds > 10, "{seconds}");
    }

    #[test]
    fn an_object_has_no_field_that_the_schema_has_not() {
        let mut schema = json!({
            "properties": { "plain": { "properties": {} }, "any": { "anyOf": [{ "properties": {} }] } },
            "oneOf": [{ "properties": { "inside": { "properties": {} } } }],
            "$defs": { "properties": { "type": "object", "properties": {} } },
        });
        close(&mut schema, false);
        let closed = json!({
            "properties": {
                "plain": { "properties": {}, "additionalProperties": false },
                "any": { "anyOf": [{ "properties": {}, "additionalProperties": false }] },
            },
            "oneOf": [{ "properties": { "inside": { "properties": {}, "additionalProperties": false } } }],
            "$defs": { "properties": { "type": "object", "properties": {}, "additionalProperties": false } },
            "unevaluatedProperties": false,
        });
        assert_eq!(schema, closed);
    }
}
