//! What the programs may cost: the tables in `tests/verifier/budget.md`.

const TABLES: &str = include_str!("../verifier/budget.md");

/// The number in the row of this name: instructions of a program, nanoseconds of a path.
pub fn of(name: &str) -> Option<u32> {
    let mut rows = TABLES.lines().map(|line| line.split('|').map(str::trim));
    rows.find_map(|mut cells| {
        let is_there = cells.nth(1)? == name;
        is_there.then(|| cells.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_all_of_its_name() {
        assert!(of("lb_nic").is_some_and(|number| number > 1000));
        assert!(of("TCP request").is_some());
        for other in ["lb", "program", "TCP", "", "---"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
