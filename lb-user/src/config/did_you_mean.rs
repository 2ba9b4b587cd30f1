//! "Did you mean": the known word closest to an unknown one.

/// Longer words are not compared: no key or name is that long.
const MAX_LENGTH: usize = 64;

/// The most candidates that are compared, so that a large file full of unknown names stays quick.
const MAX_CANDIDATES: usize = 1024;

/// The candidate that `word` is most likely a typing error of, if there is one.
pub(crate) fn closest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let word: Vec<char> = word.chars().take(MAX_LENGTH + 1).collect();
    if word.len() > MAX_LENGTH {
        return None;
    }
    // One error in four letters: `vlan` must not be taken for `snat`.
    let most = if word.len() > 4 { 2 } else { 1 };
    candidates
        .into_iter()
        .take(MAX_CANDIDATES)
        .filter(|candidate| candidate.len() <= MAX_LENGTH)
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(errors, _)| *errors <= most)
        .min_by_key(|(errors, _)| *errors)
        .map(|(_, candidate)| candidate)
}

/// Typing errors between the two words: letters inserted, left out, replaced or swapped with the
/// next one (optimal string alignment). Upper and lower case are the same letter.
fn distance(word: &[char], candidate: &str) -> usize {
    let candidate: Vec<char> = candidate.chars().collect();
    let same = |i: usize, j: usize| word[i].eq_ignore_ascii_case(&candidate[j]);
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=candidate.len()).collect();
    for i in 0..word.len() {
        let mut row = vec![i + 1];
        for j in 0..candidate.len() {
            let replaced = above[j] + usize::from(!same(i, j));
            let mut errors = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && same(i, j - 1) && same(i - 1, j) {
                errors = errors.min(before[j - 1] + 1);
            }
            row.push(errors);
        }
        before = above;
        above = row;
    }
    above.last().copied().unwrap_or(word.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognised() {
        let keys = ["role", "interface", "prefixes", "snat"];
        for (word, key) in [
            ("interfcae", "interface"),
            ("prefix", "prefixes"),
            ("snta", "snat"),
            ("Role", "role"),
            ("roles", "role"),
        ] {
            assert_eq!(closest(word, keys), Some(key), "{word}");
        }
    }

    #[test]
    fn other_words_get_no_suggestion() {
        let keys = ["role", "interface", "prefixes", "snat"];
        for word in ["vlan", "", "x", "balance", &"x".repeat(100)] {
            assert_eq!(closest(word, keys), None, "{word}");
        }
    }
}
