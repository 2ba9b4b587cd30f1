//! Readers of one text or number as the value that it means, for the kinds of keys that have a range or a few words.
//!
//! A problem is reported here. What is read in spite of it is what causes no other problem: the largest number of a
//! range, the first word, the text, or that nothing could be read.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use ipnet::IpNet;

use super::reader::{bounded, list_not_empty, text, whole_number};
use crate::config::{
    duration,
    list::List,
    place::{At, Location, quote},
    problem::Findings,
    yaml::Node,
};

/// A text that `parse` understands.
pub(in crate::config) fn parsed<T>(
    parse: impl Fn(&str) -> Result<T, String>,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<T>> {
    move |node, place, findings| {
        let At { place, value } = text(node, place, findings)?;
        let value = findings.check(&place, parse(&value))?;
        Some(At { place, value })
    }
}

/// A text for which `check` reports what is wrong with it.
pub(in crate::config) fn checked(
    check: impl Fn(&str, &Location, &mut Findings),
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<String>> {
    move |node, place, findings| {
        let written = text(node, place, findings)?;
        check(&written.value, &written.place, findings);
        Some(written)
    }
}

/// A list of such texts.
pub(super) fn all_checked(
    check: impl Fn(&str, &Location, &mut Findings),
) -> impl Fn(&Node, Location, &mut Findings) -> Option<List<At<String>>> {
    let text = checked(check);
    move |node, place, findings| list_not_empty(node, &place, findings, &text)
}

/// A list of prefixes that `parse` understands.
pub(super) fn prefixes(
    parse: impl Fn(&str) -> Result<IpNet, String>,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<List<At<IpNet>>> {
    let prefix = parsed(parse);
    move |node, place, findings| {
        bounded(node, &place, findings)?;
        list_not_empty(node, &place, findings, &prefix)
    }
}

/// A number in `range`.
pub(in crate::config) fn within<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<T>>
where
    T: Copy + TryFrom<u64> + Into<u64>,
{
    move |node, place, findings| {
        let At { place, value } = whole_number(node, place, findings)?;
        let (least, most): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
        let fitting = T::try_from(value).ok();
        let value = fitting
            .filter(|_| (least..=most).contains(&value))
            .unwrap_or_else(|| {
                findings.add(&place, format!("found {value}, expected {least} to {most}"));
                *range.end()
            });
        Some(At { place, value })
    }
}

/// A number that is `what`, none if it is not in `range`.
pub(super) fn number_of(
    what: &'static str,
    range: RangeInclusive<u16>,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<Option<u16>>> {
    move |node, place, findings| {
        let At { place, value } = whole_number(node, place, findings)?;
        let number = u16::try_from(value).ok();
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (first, last) = (range.start(), range.end());
            let words = format!("{value} is not a {what}; expected {first} to {last}");
            findings.add(&place, words);
        }
        Some(At {
            place,
            value: number,
        })
    }
}

/// A time in `range`.
pub(in crate::config) fn time_in(
    range: RangeInclusive<Duration>,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<Duration>> {
    parsed(move |text| duration::parse_in(text, range.clone()))
}

/// The same, and none if it cannot be read: where that it is written matters.
pub(super) fn time_or_none(
    range: RangeInclusive<Duration>,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<Option<Duration>>> {
    move |node, place, findings| {
        let At { place, value } = text(node, place, findings)?;
        let value = findings.check(&place, duration::parse_in(&value, range.clone()));
        Some(At { place, value })
    }
}

/// The one of `all` whose word is written.
pub(super) fn word<T: Copy + Default + Display>(
    all: &'static [T],
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<T>> {
    move |node, place, findings| {
        let At { place, value } = text(node, place, findings)?;
        let one = all.iter().find(|one| one.to_string() == value);
        if one.is_none() {
            let words: Vec<String> = all.iter().map(T::to_string).collect();
            let words = format!("found {}, expected {}", quote(&value), one_of(&words));
            findings.add(&place, words);
        }
        Some(At {
            place,
            value: one.copied().unwrap_or_default(),
        })
    }
}

/// `a, b or c`.
fn one_of(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// Whether `word`, the only one that there is, is written.
pub(super) fn only_word(
    word: &'static str,
) -> impl Fn(&Node, Location, &mut Findings) -> Option<At<bool>> {
    move |node, place, findings| {
        let At { place, value } = text(node, place, findings)?;
        let is_it = value == word;
        if !is_it {
            findings.add(&place, format!("found {}, expected {word}", quote(&value)));
        }
        Some(At {
            place,
            value: is_it,
        })
    }
}
