//! A configuration as a file in which everything is written out, and that means the same.
//!
//! Mappings have the keys of their sections, in the order of the declarations, with the values of the
//! configuration's data. Only where a file has another form than the data does this say which.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value, json};
use serde_saphyr::FlowSeq;

use super::{
    expand::Origins,
    health::Health,
    listen::Protocol,
    model::{Backend, Config, Ha, HaBox, Network, Pool, Service, Snat, TCP_IDLE, UDP_IDLE, any},
    quota::{Quota, quotas},
    schema::{
        RawFile,
        declare::{Declared as _, Key, Section},
        kinds::Inside,
    },
};

/// What a mapping has.
type Keys = Map<String, Value>;

/// The text of the file. Comments say what an entry was expanded from, and what limits it.
pub(super) fn text(config: &Config, origins: &Origins) -> io::Result<String> {
    let comments = Comments {
        quotas: quotas(config),
        origins,
    };
    let file = file(config)?;
    let mut text = String::new();
    for (key, value) in written(RawFile::SECTION, &file) {
        match (key.inside, value) {
            (Inside::Names(section), Value::Array(entries)) => {
                text.push_str(&format!("{}:\n", key.name));
                for entry in entries {
                    text.push_str(&named(entry, section, key.name, &comments)?);
                }
                text.push('\n');
            }
            (Inside::Keys(sections), value) => text.push_str(&yaml(key.name, sections, value)?),
            (Inside::Names(_), _) => {}
        }
    }
    Ok(text)
}

/// An entry of the mapping of names that is called `of`, with its comments.
fn named(
    entry: &Value,
    section: &'static Section,
    of: &str,
    comments: &Comments<'_>,
) -> io::Result<String> {
    let name = entry["name"].as_str().unwrap_or_default();
    let mut comments = comments.of(of, name);
    let hosted = entry["hosted"].as_str();
    comments.extend(hosted.map(|hosted| format!("# {}", hosted.escape_debug())));
    let entry = yaml(name, &[section], entry)?;
    let lines = comments.iter().map(String::as_str).chain(entry.lines());
    Ok(lines.flat_map(|line| ["  ", line, "\n"]).collect())
}

/// A key with its value.
fn yaml(key: &str, sections: &[&'static Section], value: &Value) -> io::Result<String> {
    let entry = BTreeMap::from([(key, InFile { value, sections })]);
    serde_saphyr::to_string(&entry).map_err(io::Error::other)
}

/// A value with the keys that one of the sections has in a file: the one that has all of them, or else the first.
struct InFile<'v> {
    value: &'v Value,
    sections: &'v [&'static Section],
}

impl Serialize for InFile<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sections = self.sections;
        match (self.value, sections) {
            (Value::Object(keys), [first, ..]) => {
                let mut mapping = serializer.serialize_map(None)?;
                let has_all = |section: &&&'static Section| {
                    let mut all = keys.keys();
                    all.all(|key| section.key(key).is_some())
                };
                let section = sections.iter().find(has_all).unwrap_or(first);
                for (key, value) in written(section, keys) {
                    let sections = inside(key);
                    mapping.serialize_entry(key.name, &InFile { value, sections })?;
                }
                mapping.end()
            }
            (Value::Array(values), [_, ..]) => {
                serializer.collect_seq(values.iter().map(|value| InFile { value, sections }))
            }
            (Value::Array(values), []) => FlowSeq(values).serialize(serializer),
            (value, _) => value.serialize(serializer),
        }
    }
}

/// The sections whose keys are inside of the value of a key.
pub(super) const fn inside(key: &Key) -> &'static [&'static Section] {
    match key.inside {
        Inside::Keys(sections) => sections,
        Inside::Names(_) => &[],
    }
}

/// The keys of a section that a mapping has.
pub(super) fn written<'k>(
    section: &'static Section,
    keys: &'k Keys,
) -> impl Iterator<Item = (&'static Key, &'k Value)> {
    section.keys().filter_map(|key| {
        let value = keys.get(key.name)?;
        let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        (key.required || !is_empty).then_some((key, value))
    })
}

/// What is said above the entries.
struct Comments<'c> {
    quotas: Vec<Quota<'c>>,
    origins: &'c Origins,
}

impl Comments<'_> {
    /// Those of the entry `name` of a section.
    fn of(&self, section: &str, name: &str) -> Vec<String> {
        let origins = match section {
            "pools" => &self.origins.pools,
            "services" => &self.origins.services,
            _ => return self.parts(name),
        };
        let origin = origins.get(name);
        let comments = origin.map(|origin| format!("# {}", origin.escape_debug()));
        comments.into_iter().collect()
    }

    /// What holds for a network without `max_flows`, which would be for all backends together.
    fn parts(&self, network: &str) -> Vec<String> {
        let quotas = self.quotas.iter().filter(|quota| quota.network == network);
        let parts = quotas.filter_map(|quota| {
            Some(format!(
                "# at most {} flows on the {} SNAT ports of {} ({}), which {} networks share",
                quota.most?,
                quota.ports,
                quota.backends,
                quota.family(),
                quota.networks
            ))
        });
        parts.collect()
    }
}

/// The sections of the file.
pub(super) fn file(config: &Config) -> io::Result<Keys> {
    let mut keys = keys(config)?;
    keys.insert("version".to_owned(), 1.into());
    keys.insert(
        "networks".to_owned(),
        each(&config.networks, |one| network(one, config.ha.as_ref()))?,
    );
    keys.insert("pools".to_owned(), each(&config.pools, pool)?);
    keys.insert("services".to_owned(), each(&config.services, service)?);
    if let Some(two) = &config.ha {
        keys.insert("ha".to_owned(), ha(two)?.into());
    }
    if let Some(defaults) = &config.cluster_defaults {
        keys.insert("defaults".to_owned(), json!({ "cluster": defaults }));
    }
    let mut log = Keys::new();
    for (key, path) in [("flows", &config.flow_log), ("http", &config.http_log)] {
        if let Some(path) = path {
            log.insert(key.to_owned(), json!(path));
        }
    }
    if let Some(syslog) = keys.remove("syslog") {
        log.insert("syslog".to_owned(), syslog);
    }
    if !log.is_empty() {
        keys.insert("log".to_owned(), Value::Object(log));
    }
    Ok(keys)
}

/// The mappings of named entries.
fn each<T>(all: &[T], form: impl Fn(&T) -> io::Result<Keys>) -> io::Result<Value> {
    all.iter().map(|one| form(one).map(Value::Object)).collect()
}

/// The data of a mapping; a word alone is a key without more.
fn keys(data: impl Serialize) -> io::Result<Keys> {
    match serde_json::to_value(data)? {
        Value::Object(keys) => Ok(keys),
        value => Ok([(value.as_str().unwrap_or_default().to_owned(), json!({}))]
            .into_iter()
            .collect()),
    }
}

/// Boxes are a mapping of their names.
fn ha(ha: &Ha) -> io::Result<Keys> {
    let mut keys = keys(ha)?;
    let boxes = ha.boxes.iter();
    let boxes = boxes.map(|one| (one.name.clone(), json!({ "sync": one.sync })));
    keys.insert("boxes".to_owned(), Value::Object(boxes.collect()));
    Ok(keys)
}

fn network(network: &Network, ha: Option<&Ha>) -> io::Result<Keys> {
    let mut keys = keys(network)?;
    if network.host {
        keys.insert("address".to_owned(), "host".into());
    }
    if network.sources == any() {
        keys.insert("sources".to_owned(), "any".into());
    }
    let [own, peer] = [ha.and_then(Ha::own), ha.and_then(Ha::peer)];
    let of_own = network.snat.iter().map(|one| snat(one, own));
    let of_peer = network.peer_snat.iter().map(|one| snat(one, peer));
    keys.insert("snat".to_owned(), of_own.chain(of_peer).collect());
    let of_own = network.checks_from.iter().map(|one| stays(*one, own));
    let of_peer = network.peer_checks_from.iter();
    let of_peer = of_peer.map(|one| stays(*one, peer));
    keys.insert("checks_from".to_owned(), of_own.chain(of_peer).collect());
    Ok(keys)
}

/// An address that stays with a box.
fn stays(address: IpAddr, of: Option<&HaBox>) -> Value {
    json!({ "address": address, "box": of.map(|one| &one.name) })
}

fn snat(snat: &Snat, of: Option<&HaBox>) -> Value {
    let Snat {
        address,
        first_port,
        ports,
    } = snat;
    let ports = format!("{first_port}-{}", first_port + (ports - 1));
    let name = of.map(|one| &one.name);
    json!({ "address": address, "ports": ports, "box": name })
}

fn pool(pool: &Pool) -> io::Result<Keys> {
    let mut keys = keys(pool)?;
    let discovered = pool.discover.iter().map(|one| json!(one));
    let literal = pool
        .backends
        .iter()
        .filter(|backend| backend.discovered.is_none());
    let backends = literal.map(|backend| {
        let Backend {
            name,
            address,
            port,
            weight,
            backup,
            discovered: _,
        } = backend;
        let tuple = SocketAddr::new(*address, *port).to_string();
        let name = Some(name).filter(|name| **name != tuple);
        json!({ "address": tuple, "name": name, "weight": weight, "backup": backup })
    });
    keys.insert("backends".to_owned(), backends.chain(discovered).collect());
    keys.insert("min_up".to_owned(), format!("{}%", pool.min_up).into());
    if let Some(checks) = &pool.health {
        keys.insert("health".to_owned(), health(checks)?.into());
    }
    Ok(keys)
}

/// The kind of check is a key, and its port in there.
fn health(health: &Health) -> io::Result<Keys> {
    let mut keys_of_health = keys(health)?;
    for (kind, mut check) in keys(&health.check)? {
        if let Some([first, last]) = check["status"].as_array().map(Vec::as_slice) {
            check["status"] = format!("{first}-{last}").into();
        }
        check["port"] = health.port.into();
        keys_of_health.insert(kind, check);
    }
    Ok(keys_of_health)
}

fn service(service: &Service) -> io::Result<Keys> {
    let mut keys = keys(service)?;
    let listen = service.listen.iter().map(ToString::to_string);
    keys.insert("listen".to_owned(), listen.collect());
    for (key, allow) in [("allow", true), ("deny", false)] {
        let rules = service.rules.iter().filter(|rule| rule.allow == allow);
        let prefixes: Vec<IpNet> = rules.map(|rule| rule.prefix).collect();
        keys.insert(key.to_owned(), json!(prefixes));
    }
    // One key says both, except that UDP has a default of its own.
    let default = if service.listens(Protocol::Tcp) {
        TCP_IDLE
    } else {
        UDP_IDLE
    };
    if (service.idle_timeout, service.udp_idle_timeout) == (Some(default), UDP_IDLE) {
        keys.remove("idle_timeout");
    }
    for form in ["sni", "http"] {
        if let Some(Value::Object(shared)) = keys.get_mut(form) {
            rename(shared, "proxies", "proxy_protocol_from");
            let routes = shared.get_mut("routes").and_then(Value::as_array_mut);
            routes
                .into_iter()
                .flatten()
                .filter_map(Value::as_object_mut)
                .for_each(route);
        }
    }
    Ok(keys)
}

fn route(keys: &mut Keys) {
    rename(keys, "expressions", "regex");
    rename(keys, "clusters", "cluster_ids");
    match keys.remove("to") {
        Some(Value::Object(pool)) => keys.extend(pool),
        Some(word) => {
            keys.insert("redirect".to_owned(), word);
        }
        None => {}
    }
    // It has no place beside names of requests by HTTP.
    if keys.get("no_name") == Some(&Value::Bool(false)) {
        keys.remove("no_name");
    }
}

fn rename(keys: &mut Keys, before: &str, now: &str) {
    if let Some(value) = keys.remove(before) {
        keys.insert(now.to_owned(), value);
    }
}
