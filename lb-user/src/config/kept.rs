//! A configuration as a process has kept it for the next one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Config, parse};

/// What stands for a configuration in a file of a process: the data; or, of a version before, a text of the file's
/// form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Kept {
    /// As this version keeps it.
    Data(Box<Config>),
    /// As versions before did.
    Text(String),
    /// Of a version that had another form.
    Other(Value),
}

impl Kept {
    /// The configuration. Files that it names may be gone.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn config(&self) -> Result<Config, String> {
        match self {
            Self::Data(config) => Ok((**config).clone()),
            Self::Text(text) => {
                parse("applied.yaml", text).map_err(|problems| problems.to_string())
            }
            Self::Other(value) => Config::deserialize(value).map_err(|error| error.to_string()),
        }
    }
}

impl From<Config> for Kept {
    fn from(config: Config) -> Self {
        Self::Data(Box::new(config))
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{load_text, parse};

    /// A key of each kind; and what it was as text and as data when a process kept it for this version.
    const FILE: &str = include_str!("tests/kept/lb.yaml");
    const TEXT: &str = include_str!("tests/kept/applied.yaml");
    const DATA: &str = include_str!("tests/kept/applied.json");

    #[test]
    fn what_was_kept_as_data_or_text_is_the_configuration_that_it_was() {
        let config = parse("lb.yaml", FILE).unwrap();
        let text = serde_json::to_string(TEXT).unwrap();
        for kept in [DATA, &text] {
            let kept: Kept = serde_json::from_str(kept).unwrap();
            assert_eq!(
                matches!(kept, Kept::Data(_)),
                !matches!(kept, Kept::Text(_))
            );
            assert_eq!(kept.config().as_ref(), Ok(&config));
        }
    }

    #[test]
    fn what_is_kept_is_the_configuration_that_it_was() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
        let examples = files.map(|path| load_text(&path).unwrap().config);
        let configurations: Vec<_> = examples.chain(parse("lb.yaml", FILE)).collect();
        assert!(configurations.len() >= 6, "{}", configurations.len());
        for config in configurations {
            let kept = serde_json::to_string(&Kept::from(config.clone())).unwrap();
            let kept: Kept = serde_json::from_str(&kept).unwrap();
            assert!(matches!(kept, Kept::Data(_)));
            assert_eq!(kept.config().as_ref(), Ok(&config));
        }
    }

    #[test]
    fn a_key_of_a_later_version_is_no_error_and_one_that_is_missing_is() {
        let config = parse("lb.yaml", FILE).unwrap();
        let mut value = serde_json::to_value(&config).unwrap();
        value["networks"][0]["later"] = true.into();
        let kept: Kept = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(kept.config().as_ref(), Ok(&config));
        value["networks"][0].as_object_mut().unwrap().remove("role");
        let kept: Kept = serde_json::from_value(value).unwrap();
        assert_eq!(kept.config().unwrap_err(), "missing field `role`");
    }
}
