//! The stack: the frames of a chain of calls add up, in the units of the oldest kernel.
//!
//! `check_max_stack_depth` (kernel/bpf/verifier.c) lets the frames of functions that call each other add up to
//! `MAX_BPF_STACK`. Before Linux 6.9 it rounds each up to 32 bytes, an empty one too, because the interpreter
//! gives them out so; since then to 16 where there is a compiler. So an older kernel may refuse what this one
//! loads: the object is read instead of asking this kernel's verifier.

use std::collections::{BTreeMap, BTreeSet};

use lb_user::dataplane::object::{CELL, NIC, OBJECT};
use object::{
    File, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, Symbol, SymbolKind,
};

/// Bytes of all frames of a chain, at most: `MAX_BPF_STACK`.
const MOST: usize = 512;
/// Bytes that a frame is a multiple of.
const UNIT: usize = 32;
/// The register that points to the end of the frame.
const FRAME: u8 = 10;

/// Where a function begins: its section, and bytes from the beginning of that.
type Place = (usize, u64);

struct Function {
    name: String,
    /// Bytes of its frame, as they are used.
    frame: usize,
    calls: BTreeSet<Place>,
}

/// An instruction (RFC 9669).
struct Instruction {
    opcode: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        let (offset, immediate) = bytes[2..].split_at(2);
        Self {
            opcode: bytes[0],
            destination: bytes[1] & 15,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes(offset.try_into().expect("two bytes")),
            immediate: i32::from_le_bytes(immediate.try_into().expect("four bytes")),
        }
    }

    /// Where in the frame it reads or writes, or points one of the registers that copy the frame's.
    fn reaches(&self, pointers: &mut BTreeSet<u8>) -> Option<i32> {
        match (self.opcode, self.opcode & 7) {
            (_, 1) if self.source == FRAME => Some(self.offset.into()),
            (_, 2 | 3) if self.destination == FRAME => Some(self.offset.into()),
            // A move of the register, and a number added to it.
            (0xbf, _) if self.source == FRAME => {
                pointers.insert(self.destination);
                None
            }
            (0x07, _) => pointers.remove(&self.destination).then_some(self.immediate),
            _ => None,
        }
    }

    /// How many instructions behind the next one the function is that it calls, if no relocation says more.
    fn calls(&self) -> Option<i32> {
        (self.opcode == 0x85 && self.source == 1).then_some(self.immediate)
    }
}

/// The function of a symbol.
fn function(file: &File<'_>, symbol: &Symbol<'_, '_>) -> (Place, Function) {
    let index = symbol.section_index().expect("a function's section");
    let section = file.section_by_index(index).expect("the section");
    let code = section.data_range(symbol.address(), symbol.size());
    let code = code.expect("a section").expect("all of its code");
    let relocations: BTreeMap<_, _> = section.relocations().collect();
    let (mut deepest, mut pointers, mut calls) = (0, BTreeSet::new(), BTreeSet::new());
    for (at, bytes) in (symbol.address()..).step_by(8).zip(code.chunks(8)) {
        let instruction = Instruction::read(bytes);
        deepest = deepest.min(instruction.reaches(&mut pointers).unwrap_or(0));
        let Some(distance) = instruction.calls() else {
            continue;
        };
        let next = |at: u64| at.wrapping_add_signed((i64::from(distance) + 1) * 8);
        calls.insert(match relocations.get(&at).map(|found| found.target()) {
            Some(RelocationTarget::Symbol(called)) => {
                let called = file.symbol_by_index(called).expect("what is called");
                let first = match called.kind() {
                    SymbolKind::Section => next(0),
                    _ => called.address(),
                };
                (called.section_index().expect("its section").0, first)
            }
            _ => (index.0, next(at)),
        });
    }
    let function = Function {
        name: symbol.name().expect("a name").to_owned(),
        frame: deepest.unsigned_abs() as usize,
        calls,
    };
    ((index.0, symbol.address()), function)
}

/// Adds all chains that begin with this one.
fn follow<'a>(
    functions: &'a BTreeMap<Place, Function>,
    chain: &[&'a Function],
    chains: &mut Vec<(usize, String)>,
) {
    let name = |function: &&Function| format!("{} {}", function.name, function.frame);
    let names: Vec<_> = chain.iter().map(name).collect();
    let bytes = chain
        .iter()
        .map(|function| function.frame.max(1).next_multiple_of(UNIT))
        .sum();
    chains.push((bytes, names.join(" + ")));
    assert!(chain.len() < 9, "8 frames at most: {names:?}");
    for called in &chain[chain.len() - 1].calls {
        follow(functions, &[chain, &[&functions[called]]].concat(), chains);
    }
}

#[test]
#[ignore = "needs the object, which lints are without: cargo xtask test"]
fn every_chain_of_calls_fits_into_the_stack_of_the_oldest_kernel() {
    let file = File::parse(OBJECT).expect("the object");
    let symbols = file.symbols().filter(|it| it.kind() == SymbolKind::Text);
    let functions: BTreeMap<_, _> = symbols.map(|symbol| function(&file, &symbol)).collect();
    let mut chains = Vec::new();
    for program in [NIC, CELL] {
        let program = functions.values().find(|it| it.name == program);
        follow(&functions, &[program.expect("a program")], &mut chains);
    }
    chains.sort();
    assert!(chains.len() > 2, "no calls were found");
    println!("{} chains, the deepest: {:?}", chains.len(), chains.last());
    chains.retain(|&(bytes, _)| bytes > MOST);
    assert!(
        chains.is_empty(),
        "more than {MOST} bytes, with each function's rounded up to {UNIT}: {chains:#?}"
    );
}
