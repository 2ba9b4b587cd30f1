//! The table of a pool whose backends take turns: each is in it as often as its share says, as evenly as can be, and new
//! flows take its entries one after the other.

use crate::maglev::{SIZES, TableMember};

/// The most entries: shares that would need more are rounded.
const MAX_SIZE: u32 = SIZES[SIZES.len() - 1];

/// The table of `members`: backend ids, or empty where none has a share.
pub fn build(members: &[TableMember]) -> Vec<u32> {
    let mut members: Vec<&TableMember> = members.iter().filter(|it| it.share > 0).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let shares: Vec<u32> = members.iter().map(|member| member.share).collect();
    let mut entries = Vec::new();
    for (index, turns) in turns(&shares).into_iter().enumerate() {
        // In the middle of each of its parts of the round.
        let times = (0..turns).map(|turn| ((2 * u64::from(turn) + 1) << 32) / u64::from(turns));
        entries.extend(times.map(|time| (time, index)));
    }
    entries.sort_unstable();
    let entries = entries.into_iter();
    entries.map(|(_, index)| members[index].id).collect()
}

/// How many turns each has in a round: the smallest numbers with the relations of these shares, of which none is 0.
fn turns(shares: &[u32]) -> Vec<u32> {
    let divisor = shares.iter().copied().fold(0, common_divisor).max(1);
    let turns: Vec<u32> = shares.iter().map(|share| share / divisor).collect();
    let total: u64 = turns.iter().copied().map(u64::from).sum();
    if total <= u64::from(MAX_SIZE) {
        return turns;
    }
    let rounded = |turns: &u32| {
        let part = u64::from(*turns) * u64::from(MAX_SIZE) / total;
        u32::try_from(part).unwrap_or(MAX_SIZE).max(1)
    };
    turns.iter().map(rounded).collect()
}

const fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(shares: &[u32]) -> Vec<u32> {
        let members = (1..).zip(shares).map(|(id, &share)| TableMember {
            id,
            share,
            whole: share.max(1),
            name: format!("b{id:05}"),
        });
        build(&members.collect::<Vec<_>>())
    }

    fn count(table: &[u32], id: u32) -> usize {
        table.iter().filter(|it| **it == id).count()
    }

    #[test]
    fn each_has_one_turn_after_the_other() {
        assert_eq!(table(&[100, 100, 100]), [1, 2, 3]);
        assert_eq!(table(&[100, 0, 100]), [1, 3]);
        assert_eq!(table(&[0, 0]), [0; 0]);
        assert_eq!(table(&[]), [0; 0]);
    }

    #[test]
    fn turns_go_by_shares_and_are_spread() {
        assert_eq!(table(&[300, 100]), [1, 1, 2, 1]);
        assert_eq!(table(&[300, 200]), [1, 2, 1, 2, 1]);
        let ramp = table(&[100, 100, 5]);
        assert_eq!(ramp.len(), 41);
        assert_eq!(ramp[20], 3, "once, in the middle");
    }

    /// Primes have no smaller relation.
    #[test]
    fn more_turns_than_a_table_has_room_for_are_rounded() {
        let shares = [25_600, 25_583, 25_579, 1];
        let table = table(&shares);
        assert!(table.len() <= SIZES[5] as usize, "{}", table.len());
        assert_eq!(count(&table, 4), 1);
        let total = table.len() * 25_600 / 76_763;
        assert!(count(&table, 1).abs_diff(total) <= 1);
        let many = build(
            &(1..=70_000)
                .map(|id| TableMember {
                    id,
                    share: 1,
                    whole: 1,
                    name: format!("{id}"),
                })
                .collect::<Vec<_>>(),
        );
        assert_eq!(many.len(), 70_000, "each has a turn");
    }
}
