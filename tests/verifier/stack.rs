//! The stack: the frames of a chain of calls add up, in the units of the oldest kernel.
//!
//! `check_max_stack_depth` (kernel/bpf/verifier.c) lets the frames of functions that call each other add up to
//! `MAX_BPF_STACK`. Before Linux 6.9 it rounds each up to 32 bytes, an empty one too, because the interpreter
//! gives them out so; since then to 16 where there is a compiler. So an older kernel may refuse what this one
//! loads: the object is read instead of asking this kernel's verifier.

use std::collections::BTreeSet;

use lb_user::dataplane::object::PROGRAMS;

use crate::code::{self, FRAME, Function, Functions, Instruction, LDX, ST, STX};

/// Bytes of all frames of a chain, at most: `MAX_BPF_STACK`.
const MAX_BYTES: usize = 512;
/// Bytes that a frame is a multiple of.
const UNIT: usize = 32;

/// Where in the frame an instruction reads or writes, or points one of the registers that copy the frame's.
fn reaches(it: &Instruction, pointers: &mut BTreeSet<u8>) -> Option<i32> {
    match (it.opcode, it.class()) {
        (_, LDX) if it.source == FRAME => Some(it.offset.into()),
        (_, ST | STX) if it.destination == FRAME => Some(it.offset.into()),
        // A move of the register, and a number added to it.
        (0xbf, _) if it.source == FRAME => {
            pointers.insert(it.destination);
            None
        }
        (0x07, _) => pointers.remove(&it.destination).then_some(it.immediate),
        _ => None,
    }
}

/// Bytes of its frame, as they are used.
fn frame(function: &Function) -> usize {
    let mut pointers = BTreeSet::new();
    let places = function
        .code
        .iter()
        .filter_map(|it| reaches(it, &mut pointers));
    let deepest = places.min().unwrap_or(0).min(0);
    deepest.unsigned_abs() as usize
}

/// Adds all chains that begin with this one.
fn follow<'a>(functions: &'a Functions, chain: &[&'a Function], chains: &mut Vec<(usize, String)>) {
    let name = |function: &&Function| format!("{} {}", function.name, frame(function));
    let names: Vec<_> = chain.iter().map(name).collect();
    let bytes = chain
        .iter()
        .map(|function| frame(function).max(1).next_multiple_of(UNIT))
        .sum();
    chains.push((bytes, names.join(" + ")));
    assert!(chain.len() < 9, "8 frames at most: {names:?}");
    let called: BTreeSet<_> = chain[chain.len() - 1].calls.values().collect();
    for called in called {
        follow(functions, &[chain, &[&functions[called]]].concat(), chains);
    }
}

#[test]
#[ignore = "needs the object, which lints are without: cargo xtask test"]
fn every_chain_of_calls_fits_into_the_stack_of_the_oldest_kernel() {
    let functions = code::functions();
    let mut chains = Vec::new();
    for program in PROGRAMS {
        follow(
            &functions,
            &[code::program(&functions, program)],
            &mut chains,
        );
    }
    chains.sort();
    assert!(chains.len() > 2, "no calls were found");
    println!("{} chains, the deepest: {:?}", chains.len(), chains.last());
    chains.retain(|&(bytes, _)| bytes > MAX_BYTES);
    assert!(
        chains.is_empty(),
        "more than {MAX_BYTES} bytes, with each function's rounded up to {UNIT}: {chains:#?}"
    );
}
