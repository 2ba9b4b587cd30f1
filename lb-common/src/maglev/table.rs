//! The table of a pool, made in two steps, so that a share that changes moves no more flows than it must.
//!
//! First Maglev fills a table for all members with their whole shares: exactly even, and a member that the pool gets or
//! loses moves few entries of the others. Then a member that has less than its whole share, because it is dead, is
//! drained or comes back slowly, keeps that part of its entries, and the rest go to members by their shares, each by
//! the highest of weighted random numbers (weighted rendezvous hashing). So a share that grows takes entries, and one
//! that shrinks gives entries away, and no entry changes between two others.

use super::{FNV_BASIS, fnv, mix};

/// Table sizes: primes, as the permutations need; each pool takes the smallest that gives its
/// lightest backend about a hundred entries.
pub const SIZES: [u32; 6] = [509, 2039, 8191, 16_381, 32_749, 65_521];

/// One backend of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMember {
    /// What the table's entries hold: the backend's id.
    pub id: u32,
    /// Its part of new flows in relation to the others; 0 for one that gets none now.
    pub share: u32,
    /// Its share if nothing takes of it, at least 1.
    pub whole: u32,
    /// What its permutation is made of; the backend's name, so that the table depends neither on
    /// the order of the file nor on ids.
    pub name: String,
}

/// The size of a table for members with these weights: not for those that have a share at the moment, because another
/// size moves the flows of all of them.
pub fn size_for(weights: impl Iterator<Item = u16> + Clone) -> u32 {
    let total: u64 = weights.clone().map(u64::from).sum();
    let lightest = weights.map(u64::from).min().unwrap_or(1);
    let wanted = total.div_ceil(lightest.max(1)) * 100;
    let [.., largest] = SIZES;
    SIZES
        .into_iter()
        .find(|&size| u64::from(size) >= wanted)
        .unwrap_or(largest)
}

/// The table of `members`, of one of [`SIZES`]: backend ids, or empty where none has a share. Another `seed` is another
/// table, and the same one makes the same table everywhere.
pub fn build(members: &[TableMember], size: u32, seed: &str) -> Vec<u32> {
    let seed = fnv(FNV_BASIS, seed);
    let mut members: Vec<Seeded<'_>> = members
        .iter()
        .map(|member| Seeded {
            member,
            hash: fnv(seed, &member.name),
        })
        .collect();
    members.sort_by(|a, b| a.member.name.cmp(&b.member.name));
    let sharing: Vec<Seeded<'_>> = members.iter().copied().filter(Seeded::has_share).collect();
    match &sharing[..] {
        [] => return Vec::new(),
        [only] => return vec![only.member.id; size as usize],
        _ => {}
    }
    let claims = fill(&members, size);
    let mut counts = vec![0; members.len()];
    for claim in &claims {
        counts[claim.member()] += 1;
    }
    let entry = |(position, claim): (u64, &Claim)| {
        let owner = &members[claim.member()];
        match owner.keeps(claim.turn, counts[claim.member()]) {
            true => owner.member.id,
            false => heir(position, &sharing),
        }
    };
    (0..).zip(&claims).map(entry).collect()
}

/// A member, and the hash of its name under the seed.
#[derive(Clone, Copy)]
struct Seeded<'m> {
    member: &'m TableMember,
    hash: u64,
}

impl Seeded<'_> {
    fn has_share(&self) -> bool {
        self.member.share > 0
    }

    /// Whether it keeps the entry that it has claimed in this turn, of as many as `count`.
    fn keeps(&self, turn: u32, count: u32) -> bool {
        u64::from(turn) * u64::from(self.member.whole)
            < u64::from(count) * u64::from(self.member.share)
    }
}

/// Which member an entry is of while all have their whole shares, and how many that one had claimed before.
#[derive(Clone, Copy, Default)]
struct Claim {
    member: u32,
    turn: u32,
}

impl Claim {
    const fn member(self) -> usize {
        self.member as usize
    }
}

/// Maglev: members take turns, each of which claims the next free entry of the member's permutation.
///
/// A member with weight w takes its turn in the first round and in w of `max(weights)` rounds, so its part of the table
/// is proportional to its weight, and none is left out.
fn fill(members: &[Seeded<'_>], size: u32) -> Vec<Claim> {
    let wholes = members.iter().map(|seeded| seeded.member.whole);
    let heaviest = wholes.clone().max().unwrap_or(1);
    let mut walks: Vec<Walk> = members.iter().map(|it| Walk::new(it.hash, size)).collect();
    let mut credits: Vec<u32> = wholes.map(|whole| heaviest - whole).collect();
    let mut turns = vec![0; members.len()];
    let mut claims = vec![Claim::default(); size as usize];
    // Most steps lead to an entry that is taken: bits stay in the first level of the cache, claims do not.
    let mut taken = vec![0u64; (size as usize).div_ceil(64)];
    let mut left = size;
    while left > 0 {
        for (member, seeded) in (0..).zip(members) {
            let index = member as usize;
            credits[index] += seeded.member.whole;
            if credits[index] < heaviest {
                continue;
            }
            credits[index] -= heaviest;
            let free = loop {
                let position = walks[index].next_position(size);
                let (word, bit) = (&mut taken[position / 64], 1 << (position % 64));
                if *word & bit == 0 {
                    *word |= bit;
                    break position;
                }
            };
            claims[free] = Claim {
                member,
                turn: turns[index],
            };
            turns[index] += 1;
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    claims
}

/// The member that gets the entry at this position from one that does not keep it.
///
/// Of exponentially distributed numbers with the shares as rates each is the least with the probability of its share;
/// and the number of a member depends on no other's share.
fn heir(position: u64, sharing: &[Seeded<'_>]) -> u32 {
    let place = mix(!position);
    let mut best = (f64::INFINITY, 0);
    for Seeded { member, hash } in sharing {
        let drawn = (mix(hash ^ place) >> 32) as u32;
        let uniform = (f64::from(drawn) + 0.5) / 4_294_967_296.0;
        let rate = f64::from(member.share);
        // A logarithm takes longer than all else here, and -ln(u) is never less than 1 - u.
        if 1.0 - uniform >= best.0 * rate {
            continue;
        }
        let number = -uniform.ln() / rate;
        if number < best.0 {
            best = (number, member.id);
        }
    }
    best.1
}

/// One member's permutation of the table's positions.
struct Walk {
    position: u32,
    skip: u32,
}

impl Walk {
    /// That of a member whose name has this hash.
    fn new(hash: u64, size: u32) -> Self {
        let below = |limit: u32, value: u64| {
            u32::try_from(value % u64::from(limit))
                .expect("a remainder is below its 32-bit divisor")
        };
        Self {
            position: below(size, mix(hash)),
            skip: below(size - 1, mix(hash ^ !0)) + 1,
        }
    }

    fn next_position(&mut self, size: u32) -> usize {
        let position = self.position as usize;
        // Both are below the size; a remainder takes ten times as long.
        let next = self.position + self.skip;
        self.position = if next < size { next } else { next - size };
        position
    }
}

#[cfg(test)]
mod tests;
