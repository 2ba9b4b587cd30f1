//! Load and validate: the first two words of a change, from the text of a file to a [`Config`].
//!
//! ```text
//! text -> yaml (tree with positions) -> schema (typed, each value with its place)
//!      -> validate (the rules)          -> Config
//! ```
//!
//! Each stage reports everything that it finds and hands on what it could read, so that one run
//! lists every problem of the file. A value that a stage has already refused is absent in the next
//! one, which then stays silent about it. The exception is a syntax error: behind it nothing of the
//! file has a known meaning, so it is the last problem reported.
//!
//! YAML types do not leave this module. It does not look at the host either: whether an interface
//! exists, or an address is free, is found out when the configuration is applied.

mod address;
mod model;
mod place;
mod problem;
mod schema;
mod suggest;
mod validate;
mod yaml;

#[cfg(test)]
mod tests;

use std::{fs::File, io::Read, path::Path};

use self::problem::Findings;
pub use self::{
    model::{Backend, Config, Limits, Listen, Network, Pool, Protocol, Role, Service},
    problem::{Problem, Problems},
};

/// The largest file that is read, in bytes: twenty times the size of one that fills every default
/// limit. It keeps a wrong path (`/dev/zero`, a disk image) from filling the memory.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Reads and validates the configuration file at `path`.
///
/// # Errors
///
/// Every problem of the file, or the one reason why it could not be read.
pub fn load(path: &Path) -> Result<Config, Problems> {
    load_text(path).map(|(config, _)| config)
}

/// As [`load`], with the text that was validated.
///
/// # Errors
///
/// As [`load`].
pub fn load_text(path: &Path) -> Result<(Config, String), Problems> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        return Err(Problems::of_file(
            &name,
            &format!("cannot be read: {error}"),
        ));
    }
    let config = parse_bytes(&name, &bytes)?;
    Ok((config, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Validates the configuration `text`; `name` stands for the file in the problems.
///
/// # Errors
///
/// Every problem of the text, in the order of its lines.
pub fn parse(name: &str, text: &str) -> Result<Config, Problems> {
    let mut findings = Findings::new(name);
    let config = yaml::read(text, &mut findings)
        .and_then(|tree| schema::read(&tree, &mut findings))
        .map(|raw| validate::validate(&raw, &mut findings));
    findings.into_result(config)
}

/// Validates `bytes`, which are text only if they are UTF-8 and not more than a file may have.
fn parse_bytes(name: &str, bytes: &[u8]) -> Result<Config, Problems> {
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE_BYTES) {
        let words = format!(
            "more than {} MiB; is it a configuration?",
            MAX_FILE_BYTES >> 20
        );
        return Err(Problems::of_file(name, &words));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(name, text),
        Err(error) => {
            let (valid, _) = bytes.split_at(error.valid_up_to());
            let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
            Err(Problems::of_line(name, line, "this line is not UTF-8 text"))
        }
    }
}
