//! What differs between two configurations, in the words of the file.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use serde_json::{Map, Value};

use super::{
    expanded,
    model::{Config, Service},
    schema::{
        RawFile,
        declare::{Declared as _, DefaultValue, Key, Section},
        kinds::Inside,
    },
};

/// A line for each key that has another value, and each object that comes or goes, in the order of the file.
pub(super) fn lines(before: &Config, after: &Config) -> io::Result<Vec<String>> {
    let [before, after] = without_same(before, after);
    let files = [expanded::file(&before)?, expanded::file(&after)?];
    let mut lines = Lines::default();
    lines.keys("", &[RawFile::SECTION], [&files[0], &files[1]]);
    Ok(lines.0)
}

/// Both without the pools and services that are the same in both, of which there may be thousands.
fn without_same(before: &Config, after: &Config) -> [Config; 2] {
    let pools = same(&before.pools, &after.pools, |pool| &pool.name);
    let services = same(&before.services, &after.services, |service| &service.name);
    [before, after].map(|config| {
        let mut config = config.clone();
        config.pools.retain(|pool| !pools.contains(&*pool.name));
        let services = |service: &Service| !services.contains(&*service.name);
        config.services.retain(services);
        config
    })
}

/// The names of those that are the same before and after.
fn same<'o, T: PartialEq>(
    before: &'o [T],
    after: &'o [T],
    name: impl Fn(&T) -> &str,
) -> HashSet<&'o str> {
    let before: HashMap<&str, &T> = before.iter().map(|one| (name(one), one)).collect();
    let is_same = |one: &&T| before.get(name(one)) == Some(one);
    after.iter().filter(is_same).map(&name).collect()
}

#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    /// The keys of a mapping; `place` is what stands before each.
    fn keys(
        &mut self,
        place: &str,
        sections: &[&'static Section],
        values: [&Map<String, Value>; 2],
    ) {
        let Some(section) = sections.first() else {
            return;
        };
        for key in section.keys() {
            let [before, after] = values.map(|keys| keys.get(key.name).unwrap_or(&Value::Null));
            if before != after && !(is_absent(before) && is_absent(after)) {
                self.value(place, key, [before, after]);
            }
        }
    }

    fn value(&mut self, place: &str, key: &Key, values: [&Value; 2]) {
        let name = key.name;
        let kind = format!("{place}{}", name.trim_end_matches('s'));
        match (key.inside, values) {
            (Inside::Names(section), [Value::Array(before), Value::Array(after)]) => {
                self.entries(&kind, &[section], [before, after]);
            }
            (Inside::Keys(sections), [Value::Array(before), Value::Array(after)])
                if before.iter().chain(after).all(|one| name_of(one).is_some()) =>
            {
                self.entries(&kind, sections, [before, after]);
            }
            (Inside::Keys(sections), [Value::Object(before), Value::Object(after)])
                if !sections.is_empty() =>
            {
                self.keys(&format!("{place}{name}."), sections, [before, after]);
            }
            (_, values) => {
                let [before, after] = values.map(|value| value_of(key, value));
                self.0.push(format!("{place}{name}: {before} -> {after}"));
            }
        }
    }

    /// Objects of a kind that have names.
    fn entries(
        &mut self,
        kind: &str,
        sections: &[&'static Section],
        [before, after]: [&[Value]; 2],
    ) {
        let of = |entry: &Value| {
            let object = format!("{kind} {}", name_of(entry).unwrap_or_default());
            match entry["hosted"].as_str() {
                Some(hosted) => format!("{object} ({hosted})"),
                None => object,
            }
        };
        let [in_before, in_after] = [before, after].map(by_name);
        let stays = |entry: &&Value| in_after.contains_key(&name_of(entry));
        for gone in before.iter().filter(|entry| !stays(entry)) {
            self.0.push(format!("{}: removed", of(gone)));
        }
        for entry in after {
            match (in_before.get(&name_of(entry)), entry) {
                (Some(Value::Object(before)), Value::Object(after)) => {
                    self.keys(&format!("{}: ", of(entry)), sections, [before, after]);
                }
                _ => self.added(&of(entry), sections, entry),
            }
        }
    }

    /// An object that comes: its keys that have no default value, and a line for each object inside of it.
    fn added(&mut self, object: &str, sections: &[&'static Section], entry: &Value) {
        let (Value::Object(keys), [section, ..]) = (entry, sections) else {
            return self.0.push(format!("{object}: added"));
        };
        let name = name_of(entry);
        let (objects, values): (Vec<_>, Vec<_>) = expanded::written(section, keys)
            .filter(|(key, value)| !is_name(key, value, name))
            .partition(|(_, value)| holds_objects(value));
        let values = values.into_iter().filter_map(|(key, value)| {
            let text = text(value, expanded::inside(key));
            let is_default = matches!(key.default, DefaultValue::Value(default) if default == text);
            (!is_default).then(|| format!("{}: {text}", key.name))
        });
        let values = values.collect::<Vec<_>>().join(", ");
        self.0.push(match values.is_empty() {
            true => format!("{object}: added"),
            false => format!("{object}: added: {{ {values} }}"),
        });
        for (key, value) in objects {
            self.value(
                &format!("{object}: "),
                key,
                [&Value::Array(Vec::new()), value],
            );
        }
    }
}

/// Whether a key has what an entry is known by.
fn is_name(key: &Key, value: &Value, name: Option<&str>) -> bool {
    matches!(key.name, "name" | "address") && value.as_str() == name
}

/// Whether a value is a list of objects that have names.
fn holds_objects(value: &Value) -> bool {
    let entries = value.as_array().filter(|entries| !entries.is_empty());
    entries.is_some_and(|entries| entries.iter().all(|one| name_of(one).is_some()))
}

/// The first entry with each name.
fn by_name(all: &[Value]) -> HashMap<Option<&str>, &Value> {
    all.iter().rev().map(|one| (name_of(one), one)).collect()
}

/// What an entry of a list is known by.
fn name_of(entry: &Value) -> Option<&str> {
    let name = entry["name"].as_str();
    name.or_else(|| entry["address"].as_str())
}

fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// A value as in the file; of an absent one what that means.
fn value_of(key: &Key, value: &Value) -> String {
    match key.default {
        DefaultValue::Means(words) if is_absent(value) => format!("({words})"),
        _ => text(value, expanded::inside(key)),
    }
}

/// With the keys that one of the sections has in a file, in their order.
fn text(value: &Value, sections: &[&'static Section]) -> String {
    match (value, sections) {
        (value, _) if is_absent(value) => "(none)".to_owned(),
        (Value::String(text), _) => text.clone(),
        (Value::Array(values), _) => {
            let values = values.iter().map(|value| text(value, sections));
            values.collect::<Vec<_>>().join(", ")
        }
        (Value::Object(keys), [section, ..]) => {
            let keys = expanded::written(section, keys);
            let keys = keys.map(|(key, value)| {
                let value = text(value, expanded::inside(key));
                format!("{}: {value}", key.name)
            });
            match keys.collect::<Vec<_>>().join(", ") {
                keys if keys.is_empty() => "{}".to_owned(),
                keys => format!("{{ {keys} }}"),
            }
        }
        (Value::Object(names), []) => {
            let names = names.iter();
            let names = names.map(|(name, value)| format!("{name}: {}", text(value, &[])));
            format!("{{ {} }}", names.collect::<Vec<_>>().join(", "))
        }
        (value, _) => value.to_string(),
    }
}
