//! The packages of Kubernetes whose types are in the schema that its API server serves. The file with the schema is
//! generated, and Debian's source does not have it.

/// Marks a file whose types are in the schema, as a regular expression of grep.
pub(super) const MARK: &str = r"^// *+k8s:openapi-gen=true";
/// Where such files are.
pub(super) const FOLDERS: [&str; 2] = ["pkg", "staging/src/k8s.io"];

/// Modules with examples, which Kubernetes' own build leaves out, too.
const EXAMPLES: [&str; 2] = ["code-generator", "sample-apiserver"];
const STAGING: &str = "staging/src/k8s.io/";

/// The import paths of the packages that have `files`, a path a line, below `root`: each once, and in order, because the
/// generated file follows it.
pub(super) fn packages(files: &str, root: &str) -> Vec<String> {
    let package = |file: &str| {
        let (folder, _name) = file.rsplit_once('/')?;
        let Some(module) = folder.strip_prefix(STAGING) else {
            return Some(format!("{root}/{folder}"));
        };
        let name = module.split('/').next().unwrap_or_default();
        let is_example = EXAMPLES.contains(&name);
        (!is_example).then(|| format!("{root}/vendor/k8s.io/{module}"))
    };
    let mut packages: Vec<String> = files.lines().filter_map(package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_imported_from_where_modules_are_vendored() {
        let files = "staging/src/k8s.io/api/core/v1/types.go\n\
                     staging/src/k8s.io/api/core/v1/doc.go\n\
                     staging/src/k8s.io/sample-apiserver/pkg/apis/wardle/v1/doc.go\n\
                     pkg/apis/abac/v0/doc.go\n";
        let expected = ["r/pkg/apis/abac/v0", "r/vendor/k8s.io/api/core/v1"];
        assert_eq!(packages(files, "r"), expected);
        assert_eq!(packages("", "r"), [""; 0]);
    }
}
