//! A mapping with the keys of a section, and what `defaults` have for it.

use super::{
    declare::{DefaultValue, Key, Section},
    reader::{entries, place_of},
};
use crate::config::{
    did_you_mean::closest,
    place::{Location, MAIN, child, quote},
    problem::Findings,
    yaml::{Entry, Node},
};

/// Which keys of a section a mapping can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Scope {
    All,
    /// Those that can have a default; none of them is required.
    Defaults,
    /// Those of one form of the section; others are not read.
    Form(&'static str),
    /// Those of no form alone; none of them is required, and others are not read.
    Included,
}

impl Scope {
    fn has(self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Defaults => !key.own,
            Self::Form(form) => key.only.is_empty() || key.only.contains(&form),
            Self::Included => key.only.is_empty(),
        }
    }
}

/// A mapping with the keys of a section.
#[derive(Debug)]
pub(in crate::config) struct Mapping<'n> {
    /// Of the key whose value this is: where its missing keys are reported.
    place: Location,
    section: &'static Section,
    scope: Scope,
    entries: &'n [Entry],
    /// The known keys that unknown ones were taken for: they are not missing as well.
    meant: Vec<&'static str>,
    /// What `defaults` have for the keys that are not here.
    defaults: Option<&'n Self>,
    /// Of a file: the section `defaults`.
    presets: Option<&'n Self>,
}

impl<'n> Mapping<'n> {
    pub(in crate::config) fn open(
        node: &'n Node,
        place: Location,
        section: &'static Section,
        scope: Scope,
        findings: &mut Findings,
    ) -> Option<Self> {
        let mut mapping = Self {
            entries: entries(node, &place, findings)?,
            place,
            section,
            scope,
            meant: Vec::new(),
            defaults: None,
            presets: None,
        };
        for entry in mapping.entries {
            if !mapping.known().any(|key| key == entry.key) {
                mapping.refuse(entry, findings);
            }
        }
        Some(mapping)
    }

    /// One that could not be read, or is made up: no key is known not to be in it.
    pub(in crate::config) fn unknown(section: &'static Section) -> Self {
        Self {
            place: Location::root(MAIN),
            section,
            scope: Scope::All,
            entries: &[],
            meant: section.keys().map(|key| key.name).collect(),
            defaults: None,
            presets: None,
        }
    }

    /// The same keys, and for those that are not written what `defaults` have.
    pub(super) fn with_defaults<'d>(self, defaults: Option<&'d Mapping<'d>>) -> Mapping<'d>
    where
        'n: 'd,
    {
        Mapping { defaults, ..self }
    }

    /// The same keys of a file, and the section `defaults` for its entries.
    pub(super) fn with_presets<'d>(self, presets: Option<&'d Mapping<'d>>) -> Mapping<'d>
    where
        'n: 'd,
    {
        Mapping { presets, ..self }
    }

    /// The same keys as those of an included file.
    pub(super) fn included(self) -> Self {
        let scope = Scope::Included;
        Self { scope, ..self }
    }

    /// Where it is.
    pub(super) fn place(&self) -> &Location {
        &self.place
    }

    /// Whether this is a default, in which nothing is required.
    pub(super) fn is_default(&self) -> bool {
        self.scope == Scope::Defaults
    }

    fn known(&self) -> impl Iterator<Item = &'static str> + use<> {
        let scope = self.scope;
        let keys = self.section.keys().filter(move |key| scope.has(key));
        keys.map(|key| key.name)
    }

    fn refuse(&mut self, entry: &Entry, findings: &mut Findings) {
        let glued = entry.key.split_once(':').map(|(key, _)| key);
        let glued = glued.and_then(|glued| self.known().find(|key| *key == glued));
        let words = if entry.key == "<<" {
            "merge keys (<<) are not supported; write the values again".to_owned()
        } else if let Some(key) = glued {
            self.meant.push(key);
            format!("unknown key; is the space behind \"{key}:\" missing?")
        } else if let Some(key) = closest(&entry.key, self.known()) {
            self.meant.push(key);
            format!("unknown key; did you mean {}?", quote(key))
        } else {
            let known: Vec<_> = self.known().collect();
            format!("unknown key; expected one of {}", known.join(", "))
        };
        findings.add(&place_of(entry, &self.place), words);
    }

    /// The value of `key`, or else that of the defaults, or else the declared one. A required one that is in none is a
    /// problem.
    pub(in crate::config) fn value<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl Fn(&Node, Location, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let rule = self.rule(key);
        let is_partial = matches!(self.scope, Scope::Included | Scope::Form(_));
        if is_partial && rule.is_some_and(|rule| !self.scope.has(rule)) {
            return None;
        }
        let lenient = matches!(self.scope, Scope::Defaults | Scope::Included);
        let needed = rule.is_some_and(|rule| rule.required) && !lenient;
        if needed && self.lacks(key) && !self.is_set_aside(key) {
            findings.add(&self.place_of_key(key), "missing; this key is required");
        }
        let written = match self.defaults_of(key) {
            // Its problems were reported where it is.
            Some(defaults) if self.is_absent(key) => {
                defaults.own(key, &mut Findings::new(""), &read)
            }
            _ => self.own(key, findings, &read),
        };
        written.or_else(|| {
            let DefaultValue::Value(text) = rule?.default else {
                return None;
            };
            let key = child(&self.place.key, key);
            let place = Location::unwritten(self.place.file, key);
            let declared = read(&Node::plain(text), place, &mut Findings::new(""));
            debug_assert!(declared.is_some(), "{text} is no value of its key");
            declared
        })
    }

    /// The value of `key` that is written here.
    pub(in crate::config) fn own<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl FnOnce(&'n Node, Location, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let place = entry
            .value
            .place(self.place.file, child(&self.place.key, key));
        read(&entry.value, place, findings)
    }

    /// The mapping `key` that is written here.
    pub(super) fn inside(
        &self,
        key: &str,
        section: &'static Section,
        findings: &mut Findings,
    ) -> Option<Self> {
        self.own(key, findings, |node, place, findings| {
            let scope = if self.is_default() {
                Scope::Defaults
            } else {
                Scope::All
            };
            Self::open(node, place, section, scope, findings)
        })
    }

    /// What the defaults have in their mapping `key`, or for each entry of a section of that name.
    pub(super) fn defaults_inside(&self, key: &str, section: &'static Section) -> Option<Self> {
        let defaults = self.defaults.or(self.presets)?;
        defaults.rule(key)?;
        defaults.own(key, &mut Findings::new(""), |node, place, findings| {
            Self::open(node, place, section, Scope::Defaults, findings)
        })
    }

    fn rule(&self, key: &str) -> Option<&'static Key> {
        self.section.key(key)
    }

    /// Whether a key is written that `key` is not for.
    fn is_set_aside(&self, key: &str) -> bool {
        let mut unless = self.rule(key).into_iter().flat_map(|rule| rule.unless);
        unless.any(|other| self.has(other))
    }

    /// The defaults, if they can have `key`.
    pub(in crate::config) fn defaults_of(&self, key: &str) -> Option<&'n Self> {
        let own = self.rule(key).is_some_and(|rule| rule.own);
        self.defaults.filter(|_| !own && !self.is_set_aside(key))
    }

    /// The place of a key that is there, or where a missing one is reported.
    pub(in crate::config) fn place_of_key(&self, key: &str) -> Location {
        match self.entries.iter().find(|entry| entry.key == key) {
            Some(entry) => place_of(entry, &self.place),
            None => self.place.with_key(child(&self.place.key, key)),
        }
    }

    /// Whether this key is written here.
    pub(in crate::config) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Whether neither this key is written here nor one that was taken for it.
    pub(in crate::config) fn is_absent(&self, key: &str) -> bool {
        !self.has(key) && !self.meant.contains(&key)
    }

    /// Whether it is absent from the defaults, too.
    pub(in crate::config) fn lacks(&self, key: &str) -> bool {
        let defaults = self.defaults_of(key);
        self.is_absent(key) && defaults.is_none_or(|defaults| defaults.is_absent(key))
    }

    /// Whether it is absent and need not be there.
    pub(in crate::config) fn may_lack(&self, key: &str) -> bool {
        self.lacks(key) && self.rule(key).is_none_or(|rule| !rule.required)
    }
}
