//! What every `-o json` prints: one object, the version of its form first.

use schemars::JsonSchema;
use serde::Serialize;

/// The version of the forms. Within one, fields are added; none is renamed, and none changes its meaning or its unit.
pub const REPORT_VERSION: u32 = 1;

/// The content of a command's answer, or of one line of a stream, behind the version of its form.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Versioned<T> {
    /// The version of this form.
    #[schemars(extend("const" = REPORT_VERSION))]
    version: u32,
    /// The fields beside it.
    #[serde(flatten)]
    content: T,
}

impl<T> Versioned<T> {
    /// An answer of this version.
    #[must_use]
    pub const fn new(content: T) -> Self {
        Self {
            version: REPORT_VERSION,
            content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_first() {
        #[derive(Serialize)]
        struct Content {
            drops: [u8; 2],
        }
        let report = Versioned::new(Content { drops: [1, 2] });
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(json, r#"{"version":1,"drops":[1,2]}"#);
    }
}
