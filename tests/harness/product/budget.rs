//! What the programs may cost: the tables in `tests/verifier/budget.md`.

const TABLES: &str = include_str!("../../verifier/budget.md");

/// The first number in the row of this name: instructions of a program, nanoseconds of a path.
pub fn of(name: &str) -> Option<u32> {
    in_column(TABLES, name, 0)
}

/// The instructions of a program that a kernel of this release, such as `6.1.0-56-cloud-amd64`, walks.
pub fn of_program(name: &str, release: &str) -> Option<u32> {
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next()?, numbers.next()?);
    in_column(TABLES, name, usize::from(version < (6, 7)))
}

fn in_column(tables: &str, name: &str, column: usize) -> Option<u32> {
    let mut rows = tables.lines().map(|line| line.split('|').map(str::trim));
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
        for other in ["lb", "program", "TCP", "", "---"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_program_has_a_column_for_each_verifier() {
        let table =
            "| program | new | old |\n|---|---|---|\n| `x` | 1 | 2 |\n| lb_nic | 30 | 20 |\n";
        assert_eq!(
            [0, 1].map(|column| in_column(table, "lb_nic", column)),
            [Some(30), Some(20)]
        );
        for program in ["lb_nic", "lb_cell"] {
            let [old, older, new] = ["6.1.0-56-cloud-amd64", "6.6.1", "6.18.5"]
                .map(|release| of_program(program, release).expect("a number in its column"));
            assert_eq!(old, older, "{program}");
            assert_eq!(Some(new), of(program));
            assert_eq!(Some(old), in_column(TABLES, program, 1));
        }
    }
}
