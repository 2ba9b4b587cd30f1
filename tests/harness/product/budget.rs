//! What the programs may cost: the tables in `tests/verifier/budget.md`.

const TABLES: &str = include_str!("../../verifier/budget.md");

/// The first number in the row of this name: instructions of a program, nanoseconds of a path.
pub fn of(name: &str) -> Option<u32> {
    in_column(name, 0)
}

/// The instructions of a program that a kernel of this release, such as `6.1.0-56-cloud-amd64`, walks.
pub fn of_program(name: &str, release: &str) -> Option<u32> {
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next()?, numbers.next()?);
    in_column(name, usize::from(version < (6, 7)))
}

fn in_column(name: &str, column: usize) -> Option<u32> {
    let mut rows = TABLES.lines().map(|line| line.split('|').map(str::trim));
    rows.find_map(|mut cells| {
        let is_there = cells.nth(1)? == name;
        is_there.then(|| cells.nth(column)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_all_of_its_name() {
        assert!(of("lb_nic").is_some_and(|number| number > 1000));
        assert!(of("TCP request").is_some());
        let [old, new] = ["6.1.0-56-cloud-amd64", "6.18.5"].map(|of| of_program("lb_nic", of));
        assert!(old > new && new == of("lb_nic"), "{old:?} {new:?}");
        for other in ["lb", "program", "TCP", "", "---"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
