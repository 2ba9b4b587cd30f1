//! The files that the page is of. They have nothing of the instance, so they need no token.

use hyper::body::Bytes;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the page.
pub(super) struct PageFile {
    path: &'static str,
    /// Its type.
    pub(super) kind: &'static str,
    bytes: &'static [u8],
}

impl PageFile {
    /// What is in it.
    pub(super) const fn body(&self) -> Bytes {
        Bytes::from_static(self.bytes)
    }
}

/// Scripts under their own names.
macro_rules! scripts {
    ($($name:literal)*) => {
        [$(PageFile {
            path: concat!("/", $name),
            kind: SCRIPT,
            bytes: include_bytes!(concat!("page/", $name)),
        }),*]
    };
}

static DOCUMENT: PageFile = PageFile {
    path: "/",
    kind: HTML,
    bytes: include_bytes!("page/index.html"),
};
static STYLE: PageFile = PageFile {
    path: "/style.css",
    kind: CSS,
    bytes: include_bytes!("page/style.css"),
};
static SCRIPTS: [PageFile; 17] = scripts! {
    "backends.js" "columns.js" "dom.js" "events.js" "filter.js" "head.js" "history.js" "keys.js" "networks.js" "page.js"
    "refusals.js" "scope.js" "services.js" "snat.js" "stream.js" "table.js" "text.js"
};

/// The one at this path.
pub(super) fn find(path: &str) -> Option<&'static PageFile> {
    all().find(|file| file.path == path)
}

fn all() -> impl Iterator<Item = &'static PageFile> {
    [&DOCUMENT, &STYLE].into_iter().chain(&SCRIPTS)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn every_file_of_the_page_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/page");
        let files = fs::read_dir(folder).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let paths: BTreeSet<String> = files
            .map(|name| match name.as_str() {
                "index.html" => "/".to_owned(),
                name => format!("/{name}"),
            })
            .collect();
        let served: BTreeSet<String> = all().map(|file| file.path.to_owned()).collect();
        assert_eq!(served, paths);
    }

    /// A browser would not load it anyway: see `POLICY`.
    #[test]
    fn nothing_of_the_page_comes_from_elsewhere() {
        for file in all() {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for address in ["http:", "https:", "//cdn", "<style", " style="] {
                let begin = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!begin.contains(address), "{}: {address}", file.path);
            }
        }
    }
}
