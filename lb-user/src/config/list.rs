//! What a list or a mapping of the file has, as far as it could be read.

use super::place::Location;

/// A value with the name that is its key, and the place of that key.
#[derive(Clone, Debug)]
pub(in crate::config) struct Named<T> {
    pub(in crate::config) name: String,
    pub(in crate::config) place: Location,
    pub(in crate::config) value: T,
}

impl<T> Named<T> {
    /// Where a problem is reported that `place`, which may be a default, has only in this entry.
    pub(in crate::config) fn blame<'p>(&'p self, place: &'p Location) -> &'p Location {
        if place.is_inside(&self.place) {
            place
        } else {
            &self.place
        }
    }
}

/// A list, without the elements that could not be read.
#[derive(Clone, Debug)]
pub(in crate::config) struct List<T> {
    pub(in crate::config) elements: Vec<T>,
    /// Whether these are all the elements that were written. Only then something can be missing.
    pub(in crate::config) whole: bool,
}

impl<T> Default for List<T> {
    /// A list of which nothing could be read.
    fn default() -> Self {
        Self {
            elements: Vec::new(),
            whole: false,
        }
    }
}
