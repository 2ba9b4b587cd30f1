//! What stands behind a key: how it is read, what the field is, and how the reference calls it.

use std::{marker::PhantomData, net::IpAddr};

use ipnet::IpNet;
use serde_json::Value;

use super::{
    declare::{Declared, Section},
    mapping::{Mapping, Scope},
    reader::{at, boolean, one_or_more, section, text, texts, whole, whole_number},
    values::{checked, number_of, parsed, prefixes, within},
};
use crate::config::{
    address,
    list::{List, Named},
    names,
    place::{At, Location},
    problem::Findings,
    yaml::{Kind as NodeKind, Node},
};

/// A kind of value.
pub(in crate::config) trait Kind {
    /// The field of a section that has such a key.
    type Field;
    /// How the reference calls it.
    const NAME: &'static str;
    /// The section whose keys stand in the place of this one.
    const ALL: Option<&'static Section> = None;
    /// The keys inside of its value.
    const INSIDE: Inside = Inside::Keys(&[]);

    /// Reads the value of `key`.
    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field;
}

/// What the keys inside of a value are.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) enum Inside {
    /// Those of one of these sections, in each mapping of a list.
    Keys(&'static [&'static Section]),
    /// Names, with those of this section behind each.
    Names(&'static Section),
}

/// A field whose value is read from one node.
pub(in crate::config) trait Field: Sized {
    type Value;

    /// `absent` if the key is optional, and was not written.
    fn of(value: Option<Self::Value>, absent: bool) -> Self;
}

impl<T> Field for Option<T> {
    type Value = T;

    fn of(value: Self, _absent: bool) -> Self {
        value
    }
}

impl<T> Field for List<T> {
    type Value = Self;

    fn of(value: Option<Self>, absent: bool) -> Self {
        value.unwrap_or(Self {
            elements: Vec::new(),
            whole: absent,
        })
    }
}

/// Declares kinds: `NAME("in the reference"): FIELD = READER;`, with the sections that are inside behind the words.
macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident($name:literal $(, $Inside:ty)*): $Field:ty = $read:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(in crate::config) struct $Kind;

        impl $crate::config::schema::kinds::Kind for $Kind {
            type Field = $Field;
            const NAME: &'static str = $name;
            const INSIDE: $crate::config::schema::kinds::Inside =
                $crate::config::schema::kinds::Inside::Keys(
                    &[$(<$Inside as $crate::config::schema::declare::Declared>::SECTION),*],
                );

            fn field(
                keys: &$crate::config::schema::mapping::Mapping<'_>,
                key: &str,
                findings: &mut $crate::config::problem::Findings,
            ) -> $Field {
                let value = keys.value(key, findings, $read);
                $crate::config::schema::kinds::Field::of(value, keys.may_lack(key))
            }
        }
    )*};
}

pub(in crate::config) use kinds;

kinds! {
    Choice("word"): Option<At<String>> = text;
    Name("name"): Option<At<String>> = text;
    Address("address"): Option<At<IpAddr>> = parsed(address::address);
    File("path"): Option<At<String>> = text;
    Number("number"): Option<At<u64>> = whole_number;
    NodePort("port"): Option<At<Option<u16>>> = number_of("port", 1..=u16::MAX);
    /// How many flows there may be.
    Flows("number"): Option<At<u32>> = within(1..=u32::MAX);
    /// How many connections a backend may have.
    Connections("number"): Option<At<u16>> = within(1..=u16::MAX);
    Flag("`true` or `false`"): Option<At<bool>> = boolean;
    Domain("text"): Option<At<String>> = checked(names::check_domain);
    Texts("list of texts"): List<At<String>> = texts;
    Clients("list of prefixes, or `any`"): Option<At<AnyOrPrefixes>> = sources;
    Files("path, or list of paths"): Option<At<List<At<String>>>> = files;
}

/// Prefixes, or the word `any`.
#[derive(Clone, Debug)]
pub(in crate::config) enum AnyOrPrefixes {
    Any,
    Prefixes(List<At<IpNet>>),
}

/// A list of prefixes, or `any`. One that cannot be read is one of unknown content: it is not an empty one.
fn sources(node: &Node, place: Location, findings: &mut Findings) -> Option<At<AnyOrPrefixes>> {
    let any = matches!(&node.kind, NodeKind::Scalar { text, .. } if text == "any");
    let value = if any {
        AnyOrPrefixes::Any
    } else {
        let prefixes = prefixes(address::any_prefix)(node, place.clone(), findings);
        AnyOrPrefixes::Prefixes(prefixes.unwrap_or_default())
    };
    Some(At { place, value })
}

fn files(node: &Node, place: Location, findings: &mut Findings) -> Option<At<List<At<String>>>> {
    let value = one_or_more(node, place.clone(), findings)?;
    Some(At { place, value })
}

/// The keys of `S` in the place of this one.
#[derive(Debug)]
pub(in crate::config) struct All<S>(PhantomData<S>);

impl<S: Declared> Kind for All<S> {
    type Field = S;
    const NAME: &'static str = "";
    const ALL: Option<&'static Section> = Some(S::SECTION);

    fn field(keys: &Mapping<'_>, _key: &str, findings: &mut Findings) -> S {
        S::read(keys, findings)
    }
}

/// A mapping with the keys of `S`. Each key that it lacks may be in the same mapping of the defaults.
#[derive(Debug)]
pub(in crate::config) struct Merged<S>(PhantomData<S>);

impl<S: Declared> Kind for Merged<S> {
    type Field = Option<At<S>>;
    const NAME: &'static str = "mapping";
    const INSIDE: Inside = Inside::Keys(&[S::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        let defaults = keys.defaults_inside(key, S::SECTION);
        let own = keys.inside(key, S::SECTION, findings)?;
        let own = own.with_defaults(defaults.as_ref());
        Some(At {
            place: own.place().clone(),
            value: S::read(&own, findings),
        })
    }
}

/// A mapping with the keys of `S`, all of it written or all of it of the defaults.
#[derive(Debug)]
pub(in crate::config) struct Whole<S>(PhantomData<S>);

impl<S: Declared> Kind for Whole<S> {
    type Field = Option<At<S>>;
    const NAME: &'static str = "mapping";
    const INSIDE: Inside = Inside::Keys(&[S::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        keys.value(key, findings, at)
    }
}

/// A mapping with the keys of `S`, in which there is a meaning without any key.
#[derive(Debug)]
pub(in crate::config) struct Filled<S>(PhantomData<S>);

impl<S: Declared> Kind for Filled<S> {
    type Field = S;
    const NAME: &'static str = "mapping";
    const INSIDE: Inside = Inside::Keys(&[S::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> S {
        keys.value(key, findings, whole::<S>).unwrap_or_default()
    }
}

/// Names, and for each one the keys of `S`, or else those that the defaults have for all.
#[derive(Debug)]
pub(in crate::config) struct Entries<S>(PhantomData<S>);

impl<S: Declared> Kind for Entries<S> {
    type Field = List<Named<S>>;
    const NAME: &'static str = "mapping of names";
    const INSIDE: Inside = Inside::Names(S::SECTION);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        let defaults = keys.defaults_inside(S::SECTION.name, S::SECTION);
        section(keys, key, findings, |node, place, findings| {
            let own = Mapping::open(node, place, S::SECTION, Scope::All, findings)?;
            Some(S::read(&own.with_defaults(defaults.as_ref()), findings))
        })
    }
}

/// What entries have that do not say otherwise. It is read here for its problems, and later for each entry.
#[derive(Debug)]
pub(in crate::config) struct Preset<S>(PhantomData<S>);

impl<S: Declared> Kind for Preset<S> {
    type Field = ();
    const NAME: &'static str = "mapping";
    const INSIDE: Inside = Inside::Keys(&[S::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) {
        keys.value(key, findings, |node, place, findings| {
            let keys = Mapping::open(node, place, S::SECTION, Scope::Defaults, findings)?;
            S::read(&keys, findings);
            Some(())
        });
    }
}

/// The same, and as data for entries that other sources have.
#[derive(Debug)]
pub(in crate::config) struct KeptPreset<S>(PhantomData<S>);

impl<S: Declared> Kind for KeptPreset<S> {
    type Field = Option<Value>;
    const NAME: &'static str = Preset::<S>::NAME;
    const INSIDE: Inside = Preset::<S>::INSIDE;

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        keys.value(key, findings, |node, place, findings| {
            let keys = Mapping::open(node, place, S::SECTION, Scope::Defaults, findings)?;
            S::read(&keys, findings);
            Some(data(node))
        })
    }
}

/// What a node is as data.
fn data(node: &Node) -> Value {
    match &node.kind {
        NodeKind::Mapping(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|entry| (entry.key.clone(), data(&entry.value)));
            Value::Object(entries.collect())
        }
        NodeKind::Sequence(nodes) => nodes.iter().map(data).collect(),
        NodeKind::Scalar { text, plain } => {
            let number = text.parse::<u64>().map(Value::from);
            let word = text.parse::<bool>().map(Value::from);
            let other = number.or(word).ok().filter(|_| *plain);
            other.unwrap_or_else(|| text.as_str().into())
        }
        NodeKind::Null | NodeKind::Invalid => Value::Null,
    }
}
