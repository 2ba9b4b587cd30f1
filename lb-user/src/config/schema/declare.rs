//! A section of the configuration is declared once, by [`section!`]: its keys, what each one is, and what
//! it means.
//!
//! To add a key, write one entry into its section, `required KEY: KIND,`, or `optional KEY: KIND = "DEFAULT",`
//! with its meaning above it, use the new field in `validate`, and write the key into `config/lb.yaml`. The list
//! of known keys, the reader, the default, what `defaults` may have, `docs/configuration.md` and the comments of
//! `config/lb.yaml` follow from that. The kinds are in `kinds.rs`; one that is read in another way than the
//! existing ones, such as with another range, is added there, or beside the section that has it.

use super::{
    kinds::{Inside, Kind},
    mapping::Mapping,
};
use crate::config::problem::Findings;

/// The keys of a mapping, in the order in which problems and the reference list them.
#[derive(Debug)]
pub(in crate::config) struct Section {
    /// The key under which `defaults` have such entries, if they do.
    pub(in crate::config) name: &'static str,
    /// What it is, for the reference.
    pub(in crate::config) about: &'static str,
    pub(in crate::config) keys: &'static [Key],
}

impl Section {
    /// Its keys, and those of the sections that it takes over.
    pub(in crate::config) fn keys(&'static self) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().flat_map(|key| match key.all {
            Some(section) => section.keys,
            None => std::slice::from_ref(key),
        })
    }

    /// The key called `name`.
    pub(in crate::config) fn key(&'static self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }
}

/// What is known of a key.
#[derive(Debug)]
pub(in crate::config) struct Key {
    pub(in crate::config) name: &'static str,
    /// What its value is, for the reference.
    pub(in crate::config) kind: &'static str,
    /// What it means, for the reference.
    pub(in crate::config) about: &'static str,
    pub(in crate::config) required: bool,
    /// Keys beside which it is not required, and not taken from `defaults` either.
    pub(in crate::config) unless: &'static [&'static str],
    /// What an optional key is without being written.
    pub(in crate::config) default: DefaultValue,
    /// Whether `defaults` cannot have it.
    pub(in crate::config) own: bool,
    /// The forms of the section that have this key; none: all of them.
    pub(in crate::config) only: &'static [&'static str],
    /// The keys inside of its value.
    pub(in crate::config) inside: Inside,
    /// The section whose keys stand here instead of this one.
    all: Option<&'static Section>,
}

/// What a key is that is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum DefaultValue {
    /// Absent.
    None,
    /// As if this were written.
    Value(&'static str),
    /// What the rules make of it, in words for the reference.
    Means(&'static str),
}

impl Key {
    pub(in crate::config) const fn optional<K: Kind>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            kind: K::NAME,
            about,
            required: false,
            unless: &[],
            default: DefaultValue::None,
            own: false,
            only: &[],
            inside: K::INSIDE,
            all: K::ALL,
        }
    }

    pub(in crate::config) const fn required<K: Kind>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            required: true,
            ..Self::optional::<K>(name, about)
        }
    }

    pub(in crate::config) const fn value(self, text: &'static str) -> Self {
        Self {
            default: DefaultValue::Value(text),
            ..self
        }
    }

    pub(in crate::config) const fn means(self, words: &'static str) -> Self {
        Self {
            default: DefaultValue::Means(words),
            ..self
        }
    }

    pub(in crate::config) const fn own(self) -> Self {
        Self { own: true, ..self }
    }

    pub(in crate::config) const fn unless(self, unless: &'static [&'static str]) -> Self {
        Self { unless, ..self }
    }

    pub(in crate::config) const fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }
}

/// A key by the name of its field, which has `r#` in front where it is a word of Rust.
pub(in crate::config) const fn key_name(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// The values of a section.
pub(in crate::config) trait Declared: Default {
    const SECTION: &'static Section;

    /// Reads every key; `defaults` fill in what is not written.
    fn read(keys: &Mapping<'_>, findings: &mut Findings) -> Self;
}

/// Declares a section: `struct TYPE = NAME { KEYS }`. A key is
///
/// ```text
/// /// Its meaning, for the reference.
/// required KEY: KIND,
/// optional KEY: KIND,
/// optional KEY: KIND = "what is read where it is not written",
/// optional KEY: KIND => "what that means, for the reference",
/// ```
///
/// and behind the first word there may be `[own]` (`defaults` cannot have it), `[unless(A, B)]` (not required
/// beside those) or `[only(FORM)]` (for some forms of the section). The kind `All<SECTION>` takes over the keys
/// of another section. `also(keys) { FIELD: TYPE = EXPRESSION, }` adds fields that are no keys.
macro_rules! section {
    (
        $(#[doc = $about:literal])*
        struct $Type:ident = $name:literal {
            $(
                $(#[doc = $meaning:literal])*
                $need:ident $([$how:ident $(($($of:ident),+))?])? $key:ident: $Kind:ty $(= $value:literal)? $(=> $means:literal)?,
            )*
        }
        $(also($keys:ident) {
            $($(#[doc = $of_field:literal])* $field:ident: $Field:ty = $of_keys:expr,)*
        })?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub(in crate::config) struct $Type {
            $(
                $(#[doc = $meaning])*
                pub(in crate::config) $key: <$Kind as $crate::config::schema::kinds::Kind>::Field,
            )*
            $($($(#[doc = $of_field])* pub(in crate::config) $field: $Field,)*)?
        }

        impl Default for $Type {
            /// The declared values, and lists of which nothing is known.
            fn default() -> Self {
                use $crate::config::{
                    problem::Findings,
                    schema::{declare::Declared as _, mapping::Mapping},
                };
                Self::read(&Mapping::unknown(Self::SECTION), &mut Findings::new(""))
            }
        }

        impl $crate::config::schema::declare::Declared for $Type {
            const SECTION: &'static $crate::config::schema::declare::Section =
                &$crate::config::schema::declare::Section {
                    name: $name,
                    about: concat!($($about, "\n"),*),
                    keys: &[$(
                        $crate::config::schema::declare::Key::$need::<$Kind>(
                            $crate::config::schema::declare::key_name(stringify!($key)),
                            concat!($($meaning, "\n"),*),
                        )
                        $(.$how($(&[$(stringify!($of)),+])?))?
                        $(.value($value))?
                        $(.means($means))?,
                    )*],
                };

            fn read(
                keys: &$crate::config::schema::mapping::Mapping<'_>,
                findings: &mut $crate::config::problem::Findings,
            ) -> Self {
                Self {
                    $($key: <$Kind as $crate::config::schema::kinds::Kind>::field(
                        keys,
                        $crate::config::schema::declare::key_name(stringify!($key)),
                        findings,
                    ),)*
                    $($($field: { let $keys = keys; $of_keys },)*)?
                }
            }
        }
    };
}

pub(in crate::config) use section;
