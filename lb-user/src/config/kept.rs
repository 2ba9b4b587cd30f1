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
    use crate::config::load_text;

    /// The files that are shipped, and one with all kinds of checks.
    fn configurations() -> Vec<(String, crate::config::Loaded)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
        let loaded =
            files.filter_map(|path| Some((path.display().to_string(), load_text(&path).ok()?)));
        loaded.collect()
    }

    #[test]
    fn what_is_kept_as_data_or_text_is_the_configuration_that_it_was() {
        let all = configurations();
        assert!(all.len() >= 4, "{}", all.len());
        for (name, loaded) in all {
            let kept = serde_json::to_string(&Kept::from(loaded.config.clone())).unwrap();
            let kept: Kept = serde_json::from_str(&kept).unwrap();
            assert!(matches!(kept, Kept::Data(_)), "{name}");
            assert_eq!(kept.config().as_ref(), Ok(&loaded.config), "{name}");
            let text = serde_json::to_string(&loaded.expanded()).unwrap();
            let text: Kept = serde_json::from_str(&text).unwrap();
            assert_eq!(text.config().as_ref(), Ok(&loaded.config), "{name}");
        }
    }

    #[test]
    fn a_key_of_a_later_version_is_no_error_and_one_that_is_missing_is() {
        let (_, loaded) = configurations().remove(0);
        let mut value = serde_json::to_value(&loaded.config).unwrap();
        value["networks"][0]["later"] = true.into();
        let kept: Kept = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(kept.config().as_ref(), Ok(&loaded.config));
        value["networks"][0].as_object_mut().unwrap().remove("role");
        let kept: Kept = serde_json::from_value(value).unwrap();
        assert_eq!(kept.config().unwrap_err(), "missing field `role`");
    }
}
