//! The object's code: its functions, their instructions, and what these refer to.

use std::collections::BTreeMap;

use lb_user::dataplane::object::OBJECT;
use object::{
    File, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, Symbol, SymbolKind,
};

/// The register that points to the end of the frame.
pub(crate) const FRAME: u8 = 10;
/// The classes of instructions (RFC 9669 section 3.1).
pub(crate) const LDX: u8 = 1;
pub(crate) const ST: u8 = 2;
pub(crate) const STX: u8 = 3;
pub(crate) const ALU: u8 = 4;
pub(crate) const JMP: u8 = 5;
pub(crate) const JMP32: u8 = 6;
pub(crate) const ALU64: u8 = 7;
/// Loads a number of 64 bits, or the address of a map: the only instruction of two places.
pub(crate) const LOAD64: u8 = 0x18;

/// Where a function begins: its section, and bytes from the beginning of that.
pub(crate) type Place = (usize, u64);
pub(crate) type Functions = BTreeMap<Place, Function>;

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
    /// The functions that it calls, by the index of the instruction.
    pub(crate) calls: BTreeMap<usize, Place>,
    /// The maps (or other data) whose addresses it loads, by the index of the instruction.
    pub(crate) data: BTreeMap<usize, String>,
}

/// An instruction (RFC 9669).
pub(crate) struct Instruction {
    pub(crate) opcode: u8,
    pub(crate) destination: u8,
    pub(crate) source: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

/// Where an instruction leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To the one behind it (or behind its own second place).
    Falls(usize),
    /// By a jump.
    Jumps(usize),
    /// By a condition: behind it, or to the other.
    Forks(usize, usize),
    Ends,
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

    pub(crate) fn class(&self) -> u8 {
        self.opcode & 7
    }

    /// How many bytes it reads from memory, or writes to it.
    pub(crate) fn bytes(&self) -> i32 {
        match self.opcode & 0x18 {
            0 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => 8,
        }
    }

    /// Whether it reads what it writes, in one.
    pub(crate) fn is_atomic(&self) -> bool {
        self.class() == STX && self.opcode & 0xe0 == 0xc0
    }

    pub(crate) fn is_call(&self) -> bool {
        self.opcode == 0x85
    }

    /// Whether what it calls is a function of the object, not one of the kernel.
    pub(crate) fn calls_function(&self) -> bool {
        self.is_call() && self.source == 1
    }

    /// What runs after it, if its index is `at`.
    pub(crate) fn next(&self, at: usize) -> Next {
        let target = || (at + 1).wrapping_add_signed(self.offset.into());
        match (self.class(), self.opcode & 0xf0) {
            (JMP | JMP32, 0x80) => Next::Falls(at + 1),
            (JMP | JMP32, 0x90) => Next::Ends,
            (JMP, 0) => Next::Jumps(target()),
            (JMP | JMP32, _) => Next::Forks(at + 1, target()),
            _ if self.opcode == LOAD64 => Next::Falls(at + 2),
            _ => Next::Falls(at + 1),
        }
    }
}

/// The object.
pub(crate) fn file() -> File<'static> {
    File::parse(OBJECT).expect("the object")
}

/// All functions of the object.
pub(crate) fn functions() -> Functions {
    let file = file();
    let symbols = file.symbols().filter(|it| it.kind() == SymbolKind::Text);
    symbols.map(|symbol| function(&file, &symbol)).collect()
}

/// The program of this name.
pub(crate) fn program<'a>(functions: &'a Functions, name: &str) -> &'a Function {
    let found = functions.values().find(|it| it.name == name);
    found.expect("a program of the object")
}

/// The function of a symbol.
fn function(file: &File<'_>, symbol: &Symbol<'_, '_>) -> (Place, Function) {
    let index = symbol.section_index().expect("a function's section");
    let section = file.section_by_index(index).expect("the section");
    let code = section.data_range(symbol.address(), symbol.size());
    let code = code.expect("a section").expect("all of its code");
    let relocations: BTreeMap<_, _> = section.relocations().collect();
    let target = |at| match relocations.get(&at)?.target() {
        RelocationTarget::Symbol(symbol) => file.symbol_by_index(symbol).ok(),
        _ => None,
    };
    let mut function = Function {
        name: symbol.name().expect("a name").to_owned(),
        code: code.chunks(8).map(Instruction::read).collect(),
        calls: BTreeMap::new(),
        data: BTreeMap::new(),
    };
    let places = (symbol.address()..).step_by(8);
    for (index_of, (at, instruction)) in places.zip(&function.code).enumerate() {
        if instruction.opcode == LOAD64 {
            let name = target(at).and_then(|symbol| Some(symbol.name().ok()?.to_owned()));
            function.data.extend(name.map(|name| (index_of, name)));
        }
        if !instruction.calls_function() {
            continue;
        }
        let distance = i64::from(instruction.immediate) + 1;
        let next = |at: u64| at.wrapping_add_signed(distance * 8);
        let called = match target(at) {
            Some(called) => {
                let first = match called.kind() {
                    SymbolKind::Section => next(0),
                    _ => called.address(),
                };
                (called.section_index().expect("its section").0, first)
            }
            None => (index.0, next(at)),
        };
        function.calls.insert(index_of, called);
    }
    ((index.0, symbol.address()), function)
}
