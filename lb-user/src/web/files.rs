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

/// All of them.
const FILES: [PageFile; 3] = [
    PageFile {
        path: "/",
        kind: HTML,
        bytes: include_bytes!("page/index.html"),
    },
    PageFile {
        path: "/style.css",
        kind: CSS,
        bytes: include_bytes!("page/style.css"),
    },
    PageFile {
        path: "/page.js",
        kind: SCRIPT,
        bytes: include_bytes!("page/page.js"),
    },
];

/// The one at this path.
pub(super) fn find(path: &str) -> Option<&'static PageFile> {
    const { &FILES }.iter().find(|file| file.path == path)
}
