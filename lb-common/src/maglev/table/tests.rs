use std::collections::BTreeMap;

use super::*;

/// Members of these weights, with their whole shares.
fn members(weights: &[u16]) -> Vec<TableMember> {
    (1..)
        .zip(weights)
        .map(|(id, &weight)| TableMember {
            id,
            share: u32::from(weight) * 100,
            whole: u32::from(weight) * 100,
            name: format!("10.32.96.{id}:30918"),
        })
        .collect()
}

fn size_of(members: &[TableMember]) -> u32 {
    let weights = members.iter().map(|member| member.whole / 100);
    size_for(weights.map(|weight| u16::try_from(weight).unwrap()))
}

fn table(members: &[TableMember]) -> Vec<u32> {
    build(members, size_of(members), "")
}

/// The members of these weights with other shares.
fn shared(weights: &[u16], shares: &[u32]) -> Vec<TableMember> {
    let mut members = members(weights);
    for (member, share) in members.iter_mut().zip(shares) {
        member.share = *share;
    }
    members
}

fn counts(table: &[u32]) -> BTreeMap<u32, usize> {
    table.iter().fold(BTreeMap::new(), |mut counts, &id| {
        *counts.entry(id).or_default() += 1;
        counts
    })
}

/// How many entries changed at all, and how many from a member to another without `one` having a part in it.
fn moved(before: &[u32], after: &[u32], one: u32) -> (usize, usize) {
    assert_eq!(before.len(), after.len(), "the size");
    let changed = before.iter().zip(after).filter(|(old, new)| old != new);
    let changed: Vec<_> = changed.collect();
    let of_others = changed
        .iter()
        .filter(|(old, new)| **old != one && **new != one);
    (changed.len(), of_others.count())
}

#[test]
fn equal_weights_share_the_table_evenly() {
    let table = table(&members(&[1, 1, 1, 1]));
    assert_eq!(table.len(), 509);
    for (_, count) in counts(&table) {
        assert!((127..=128).contains(&count), "{count}");
    }
}

#[test]
fn weights_are_shares() {
    let counts = counts(&table(&members(&[3, 1])));
    assert_eq!(counts, BTreeMap::from([(1, 382), (2, 127)]));
}

#[test]
fn a_member_more_moves_few_entries_of_the_others() {
    let ten = members(&[1; 10]);
    let size = size_of(&ten);
    let (before, after) = (build(&ten, size, ""), build(&ten[..9], size, ""));
    let kept = before.iter().filter(|&&id| id != 10).count();
    let (_, of_others) = moved(&before, &after, 10);
    assert!(of_others * 100 <= kept * 15, "{of_others} of {kept} moved");
}

/// The size of a table would move the flows of all members.
#[test]
fn the_size_goes_by_weights_and_by_no_share() {
    for weights in [&[1u16, 1, 1][..], &[1, 3], &[256, 1], &[1; 100]] {
        let all = members(weights);
        let size = size_of(&all);
        for percent in [0, 5, 50, 95, 100] {
            let mut some = all.clone();
            some[0].share = some[0].whole * percent / 100;
            let table = build(&some, size, "");
            assert_eq!(table.len(), size as usize, "{weights:?} at {percent} %");
        }
    }
    assert_eq!(size_of(&members(&[1, 1, 1])), 509);
    assert_eq!(size_of(&members(&[256, 1])), 32_749);
}

/// Each step of a slow start gives the member entries, and takes none from one of the others for another one of them;
/// neither do its death before, a member that is dead all the time, and one that comes back at the same time.
#[test]
fn a_share_that_changes_moves_entries_of_one_member_only() {
    let weights = [1, 3, 1, 2, 1];
    let steps: Vec<u32> = (0..=20).map(|step| step * 5).collect();
    for others in [
        [100, 300, 100, 200],
        [0, 300, 100, 200],
        [100, 45, 0, 200],
        [5, 0, 0, 0],
    ] {
        let at = |percent: u32| {
            let shares = [&others[..], &[percent][..]].concat();
            table(&shared(&weights, &shares))
        };
        let mut all = 0;
        for step in steps.windows(2) {
            let (before, after) = (at(step[0]), at(step[1]));
            let (changed, of_others) = moved(&before, &after, 5);
            assert_eq!(of_others, 0, "{others:?}, {step:?}");
            let [old, new] = [before, after].map(|table| counts(&table).get(&5).copied());
            let gained = new.unwrap_or(0) - old.unwrap_or(0);
            assert_eq!(gained, changed, "it gives none away: {others:?}, {step:?}");
            all += changed;
        }
        assert_eq!(Some(&all), counts(&at(100)).get(&5), "{others:?}");
    }
}

/// Within the deviation of as many entries as were divided anew: three standard deviations.
#[test]
fn shares_are_parts_of_the_table_whatever_part_of_the_members_has_them() {
    let weights = [1, 3, 1, 2, 1];
    for shares in [
        [100, 300, 100, 200, 5],
        [100, 300, 100, 200, 50],
        [0, 300, 100, 200, 100],
        [0, 0, 100, 200, 45],
        [5, 15, 5, 10, 5],
        [0, 0, 0, 200, 100],
    ] {
        let members = shared(&weights, &shares);
        let table = table(&members);
        let number = |count: usize| f64::from(u32::try_from(count).unwrap());
        let (size, counts) = (number(table.len()), counts(&table));
        let total: u32 = shares.iter().sum();
        for member in &members {
            let wanted = f64::from(member.share) / f64::from(total);
            let found = number(counts.get(&member.id).copied().unwrap_or(0));
            let most = 3.0 * (size * wanted * (1.0 - wanted)).sqrt();
            assert!(
                (found - size * wanted).abs() <= most,
                "{shares:?}: {counts:?}"
            );
            assert_eq!(found > 0.0, member.share > 0, "{shares:?}: {counts:?}");
        }
    }
}

#[test]
fn the_table_depends_neither_on_order_nor_on_ids() {
    let ordered = shared(&[1, 2, 3, 1], &[100, 0, 150, 100]);
    let mut reversed = ordered.clone();
    reversed.reverse();
    assert_eq!(table(&ordered), table(&reversed));
    let mut others = ordered.clone();
    others.iter_mut().for_each(|member| member.id += 70);
    let renamed: Vec<u32> = table(&ordered).iter().map(|id| id + 70).collect();
    assert_eq!(table(&others), renamed);
}

#[test]
fn another_seed_is_another_table_of_the_same_shares() {
    let four = members(&[1; 4]);
    let with = |seed| build(&four, 509, seed);
    assert_eq!(with("a"), with("a"));
    let same = with("a")
        .iter()
        .zip(&with("b"))
        .filter(|(a, b)| a == b)
        .count();
    // A quarter by chance; five standard deviations are 49.
    assert!((79..=176).contains(&same), "{same} of 509 are the same");
    assert_eq!(counts(&with("a")).values().max(), Some(&128));
}

#[test]
fn no_share_is_no_table_and_one_is_all_of_it() {
    assert!(build(&[], 509, "").is_empty());
    assert!(table(&shared(&[1, 1], &[0, 0])).is_empty());
    assert!(table(&members(&[7])).iter().all(|&id| id == 1));
    assert!(table(&shared(&[1, 1], &[0, 5])).iter().all(|&id| id == 2));
}

/// Also where the weight is one that the operator has set, which the size does not go by.
#[test]
fn the_lightest_has_an_entry_however_heavy_the_others_are() {
    let extreme = table(&members(&[256, 1]));
    assert!(counts(&extreme)[&2] >= 60);
    let mut many = members(&[256; 100]);
    many[41].share = 100;
    many[41].whole = 100;
    let table = build(&many, size_for([1; 100].into_iter()), "");
    assert_eq!(counts(&table)[&42], 1);
}

/// A version with other tables would move the flows of every client at its take-over.
#[test]
fn a_table_is_what_earlier_versions_made_of_the_same_members() {
    let digest = |table: &[u32]| {
        let ids = table.iter().map(|id| id.to_string()).collect::<Vec<_>>();
        fnv(FNV_BASIS, &ids.join(" "))
    };
    let equal = members(&[1; 256]);
    let heavy = members(&[7, 1, 3, 200]);
    let partly = shared(&[1, 2, 3, 4], &[100, 0, 50, 400]);
    let digests = [equal, heavy, partly].map(|members| digest(&table(&members)));
    let before = [
        17_873_795_924_085_530_429,
        15_127_415_254_866_334_468,
        2_501_636_961_450_332_033,
    ];
    assert_eq!(digests, before);
}
