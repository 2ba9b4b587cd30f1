//! Load and validate: the first two words of a change, from the text of a file to a [`Config`].
//!
//! ```text
//! files -> yaml (trees with positions) -> schema (typed, each value with its place, defaults)
//!       -> expand (nodes and clusters written out) -> validate (the rules) -> Config
//! ```
//!
//! Each stage reports everything that it finds and hands on what it could read, so that one run
//! lists every problem of every file. A value that a stage has already refused is absent in the next
//! one, which then stays silent about it. The exception is a syntax error: behind it nothing of the
//! file has a known meaning, so it is the last problem reported of that file.
//!
//! YAML types do not leave this module. It does not look at the host either, but for the files that
//! are named: whether an interface exists, or an address is free, is found out when the configuration is
//! applied.

mod address;
mod algorithm;
mod authorities;
mod bearer_token;
mod check;
mod discover;
mod duration;
mod expand;
mod expanded;
mod file_marks;
mod files;
mod health;
mod hosted;
mod kept;
mod list;
mod listen;
mod model;
mod names;
mod number;
mod place;
mod problem;
mod quota;
mod regular_file;
mod schema;
mod shared;
mod syslog;
mod validate;
mod words;
mod yaml;

pub mod box_files;
mod did_you_mean;
mod difference;
pub mod server_names;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use self::{
    algorithm::Algorithm,
    authorities::Authorities,
    bearer_token::BearerToken,
    check::{Check, Get, Tls},
    discover::{
        Credentials, Discover, KubernetesCluster, LoadBalancer, ObjectName, PortOfService,
        ServicePort,
    },
    health::{Health, JITTER_PERCENT, OnDead},
    hosted::{HostedCluster, HostedClusters, HostedName, VipRange, with_hosted},
    kept::Kept,
    listen::{Listen, Protocol},
    model::{
        Admin, AdminHttp, Backend, BelowMinUp, Config, DRAIN_TIMEOUT, Ha, HaBox, Limits, Network,
        OnStop, Pool, ProxyProtocol, Role, Route, Rule, SecondSegment, Service, Snat, TCP_IDLE,
        Timeouts, UDP_IDLE,
    },
    names::is_backend_name,
    problem::{Problem, Problems, Warning},
    quota::{Quota, quotas},
    shared::{Balance, Ech, Http, LateBinding, NameRoute, Otherwise, Sni, SynCookies, Target, To},
    syslog::{Facility, Syslog, SyslogServer},
};
pub(crate) use self::{
    did_you_mean::closest,
    duration::{parse_in as parse_time, text as time_text},
    file_marks::{Files, Marks},
    model::TCP_IP_BYTES,
};
use self::{expand::Origins, problem::Findings, schema::RawFile};

/// Reads and validates the configuration file at `path`, and what it includes.
///
/// # Errors
///
/// Every problem of the files, or the one reason why the first could not be read.
pub fn load(path: &Path) -> Result<Config, Problems> {
    load_text(path).map(|loaded| loaded.config)
}

/// A valid configuration from files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What the files mean.
    pub config: Config,
    /// What an operator should know of it, in the order of files and lines.
    pub warnings: Vec<Warning>,
    origins: Origins,
}

impl Loaded {
    /// One file that means the same: everything is written out.
    ///
    /// # Errors
    ///
    /// What of it is no text.
    pub fn expanded(&self) -> io::Result<String> {
        expanded::text(&self.config, &self.origins)
    }
}

impl Config {
    /// One file that means the same: everything is written out, but for backends that were discovered.
    ///
    /// # Errors
    ///
    /// What of it is no text.
    pub fn expanded(&self) -> io::Result<String> {
        expanded::text(self, &Origins::default())
    }
}

/// As [`load`], with all that is to be known of the files.
///
/// # Errors
///
/// As [`load`].
pub fn load_text(path: &Path) -> Result<Loaded, Problems> {
    read(path).1
}

/// As [`load_text`], with the files that were read.
pub(crate) fn read(path: &Path) -> (Files, Result<Loaded, Problems>) {
    let mut files = Files::of(path);
    let loaded = load_from(&Declaration::File(path.to_owned()), &mut files);
    (files, loaded)
}

/// What differs between two configurations, in the words of the file, a line each.
///
/// # Errors
///
/// What of them is no text.
pub fn difference(before: &Config, after: &Config) -> io::Result<Vec<String>> {
    difference::lines(before, after)
}

/// What a source declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declaration {
    /// What is in the file with this path, and in those that it includes.
    File(PathBuf),
    /// A text, of which JSON is a form.
    Text {
        /// What stands for a file in its problems.
        name: String,
        /// The text.
        text: String,
    },
}

/// The configuration that a source declares.
///
/// # Errors
///
/// As [`load`].
pub fn load_declared(source: &Declaration) -> Result<Loaded, Problems> {
    load_from(source, &mut Files::default())
}

fn load_from(source: &Declaration, files: &mut Files) -> Result<Loaded, Problems> {
    let name = match source {
        Declaration::File(path) => path.display().to_string(),
        Declaration::Text { name, .. } => name.clone(),
    };
    let mut findings = Findings::new(&name);
    let raw = files::read(source, &[], files, &mut findings);
    resolve(raw, findings)
}

/// The text of the reference page, `docs/configuration.md`.
#[doc(hidden)]
#[must_use]
pub fn reference() -> String {
    schema::reference()
}

/// The text of the `example`, `config/lb.yaml`, with the comments of the declarations.
///
/// # Errors
///
/// What of it is no YAML.
#[doc(hidden)]
pub fn explained(example: &str) -> Result<String, Problems> {
    schema::explained(example)
}

/// Validates the configuration `text`, which includes no file; `name` stands for it in the problems.
/// What was valid once stays so: what is wrong with a file that it names is no problem.
///
/// # Errors
///
/// Every problem of the text, in the order of its lines.
pub fn parse(name: &str, text: &str) -> Result<Config, Problems> {
    let mut findings = Findings::of_text(name);
    let raw = files::read_text(text, &mut findings);
    resolve(raw, findings).map(|loaded| loaded.config)
}

/// The configuration that `raw` means, if there was no problem.
fn resolve(raw: Option<RawFile>, mut findings: Findings) -> Result<Loaded, Problems> {
    let loaded = raw.map(|raw| {
        let expanded = expand::expand(raw, &mut findings);
        Loaded {
            config: validate::validate(&expanded, &mut findings),
            origins: expanded.origins,
            warnings: findings.warnings(),
        }
    });
    findings.into_result(loaded)
}
