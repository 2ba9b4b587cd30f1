//! Edges that lead back: what a verifier before Linux 6.7 takes for a loop.
//!
//! Its `check_cfg` (kernel/bpf/verifier.c) walks a program depth first, what is behind a branch before where it
//! jumps to. A jump may lead back to an instruction whose followers are still being walked; a plain instruction in
//! front of such a one may not: "back-edge from insn A to B". So it depends on the order in which the compiler has
//! put the blocks, and no later kernel finds it: the object is walked as that kernel would.

use crate::code::{Function, Next, functions};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Not,
    /// What follows it is not walked to the end yet.
    Open,
    Done,
}

/// Pairs of indices where the function falls back into what it has not done with.
fn back_edges(function: &Function) -> Vec<(usize, usize)> {
    let mut seen = vec![Seen::Not; function.code.len()];
    let (mut found, mut open) = (Vec::new(), vec![(0, 0)]);
    while let Some((at, walked)) = open.pop() {
        seen[at] = Seen::Open;
        let (follower, falls) = match (function.code[at].next(at), walked) {
            (Next::Falls(follower), 0) => (follower, true),
            (Next::Jumps(follower) | Next::Forks(follower, _), 0)
            | (Next::Forks(_, follower), 1) => (follower, false),
            _ => {
                seen[at] = Seen::Done;
                continue;
            }
        };
        open.push((at, walked + 1));
        match seen[follower] {
            Seen::Not => open.push((follower, 0)),
            Seen::Open if falls => found.push((at, follower)),
            Seen::Open | Seen::Done => {}
        }
    }
    found
}

#[test]
#[ignore = "needs the object, which lints are without: cargo xtask test"]
fn no_function_falls_back_into_what_a_kernel_before_6_7_has_not_done_with() {
    let functions = functions();
    let jumps_back = |function: &Function| {
        let mut code = function.code.iter().enumerate();
        code.any(|(at, it)| matches!(it.next(at), Next::Jumps(to) | Next::Forks(_, to) if to <= at))
    };
    assert!(functions.values().any(jumps_back), "no loop was found");
    let edges = |function: &Function| {
        let found = back_edges(function).into_iter();
        let name = function.name.clone();
        found.map(move |(from, to)| format!("{name}: from {from} to {to}"))
    };
    let found: Vec<_> = functions.values().flat_map(edges).collect();
    assert!(
        found.is_empty(),
        "\"back-edge from insn\" before Linux 6.7: {found:#?}"
    );
}
