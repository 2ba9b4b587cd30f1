//! Reads of the stack: each byte has been written, on every way that leads to the read.
//!
//! Before Linux 6.3 a verifier refuses a program that reads a byte of its frame which it has not written, even if
//! nothing comes of it ("invalid read from stack"); and a compiler may well move a value that only some ways have.
//! So all ways are walked here, as that kernel would. Those that have written the same are walked as one, with what
//! is true on all of them.
//!
//! What goes through an address that differs between such ways is not looked at, as a read, and not counted, as a
//! write. Numbers are known where they are the same; any other branch is taken for possible.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aya_obj::Object;
use lb_user::dataplane::object::{OBJECT, PROGRAMS};

use crate::{
    code::{self, Function, Functions, LDX, LOAD64, Next, Place, ST, STX},
    frames::{State, Value, Written},
};

/// What a function of the kernel does with the stack, by the registers that it is given.
enum Access {
    /// Reads as many bytes as the map in the first register has in a key.
    ReadsKey(u8),
    /// As many as it has in a value.
    ReadsValue(u8),
    WritesId(u8),
    /// As many as the other register says.
    Reads(u8, u8),
}

/// By its number (include/uapi/linux/bpf.h). Others are given no address in a frame.
fn accesses(helper: i32) -> &'static [Access] {
    match helper {
        // bpf_map_lookup_elem, bpf_map_delete_elem
        1 | 3 => &[Access::ReadsKey(2)],
        // bpf_map_update_elem
        2 => &[Access::ReadsKey(2), Access::ReadsValue(3)],
        // bpf_csum_diff
        28 => &[Access::Reads(1, 2), Access::Reads(3, 4)],
        // bpf_map_push_elem
        87 => &[Access::ReadsValue(2)],
        // bpf_map_pop_elem: every queue is one of ids, in a map of maps, whose look-up does not say so.
        88 => &[Access::WritesId(2)],
        // bpf_ringbuf_output
        130 => &[Access::Reads(2, 3)],
        _ => &[],
    }
}

/// Whether a helper has no arguments: what lies in the registers is of no meaning to it.
const fn takes_nothing(helper: i32) -> bool {
    // bpf_ktime_get_ns, bpf_ktime_get_coarse_ns
    matches!(helper, 5 | 160)
}

/// Bytes of what a queue holds of a flow id.
const ID: i32 = 2;

/// How many ways that have written the same are walked apart, if they know different things.
const APART: usize = 8;

/// The states at each instruction: one by one those that have written something else, and a few of those that
/// have written the same.
#[derive(Default)]
struct Ways {
    states: BTreeMap<(usize, Vec<Written>), Vec<State>>,
    /// Those whose followers are still to be walked.
    open: BTreeSet<(usize, Vec<Written>, usize)>,
}

impl Ways {
    fn add(&mut self, at: usize, state: State) {
        let written = state.written();
        let known = self.states.entry((at, written.clone())).or_default();
        if known.iter().any(|known| known.joined(&state) == *known) {
            return;
        }
        let is_full = known.len() == APART;
        match known.last_mut() {
            Some(last) if is_full => *last = last.joined(&state),
            _ => known.push(state),
        }
        let index = known.len() - 1;
        self.open.insert((at, written, index));
    }

    fn take(&mut self) -> Option<(usize, State)> {
        let (at, written, index) = self.open.pop_first()?;
        let state = self.states[&(at, written)][index].clone();
        Some((at, state))
    }
}

struct Walk<'a> {
    functions: &'a Functions,
    maps: HashMap<String, Value>,
    /// How a function that began so has ended.
    ends: HashMap<(Place, State), Vec<State>>,
    found: BTreeSet<String>,
    steps: usize,
}

impl<'a> Walk<'a> {
    fn new(functions: &'a Functions) -> Self {
        let object = Object::parse(OBJECT).expect("the object");
        let maps = object.maps.into_iter().map(|(name, map)| {
            let (key, value) = (map.key_size().cast_signed(), map.value_size().cast_signed());
            (name, Value::Map { key, value })
        });
        Self {
            functions,
            maps: maps.collect(),
            ends: HashMap::new(),
            found: BTreeSet::new(),
            steps: 0,
        }
    }

    /// The states in which a function ends that begins in this one.
    fn function(&mut self, function: &'a Function, begin: State) -> Vec<State> {
        let (mut ways, mut ends) = (Ways::default(), Ways::default());
        ways.add(0, begin);
        while let Some((at, state)) = ways.take() {
            self.steps += 1;
            for after in self.instruction(function, at, state) {
                let it = &function.code[at];
                match it.next(at) {
                    Next::Falls(one) | Next::Jumps(one) => ways.add(one, after),
                    Next::Forks(one, other) => {
                        for (follower, is_met) in [(one, false), (other, true)] {
                            if let Some(after) = after.given(it, is_met) {
                                ways.add(follower, after);
                            }
                        }
                    }
                    Next::Ends => ends.add(0, after),
                }
            }
        }
        ends.states.into_values().flatten().collect()
    }

    /// The states behind an instruction: several after a call, and none if that never ends.
    fn instruction(&mut self, function: &'a Function, at: usize, mut state: State) -> Vec<State> {
        let it = &function.code[at];
        if it.calls_function() {
            let ends = self.call(function.calls[&at], state.called());
            return ends.into_iter().map(|end| state.returned(end)).collect();
        }
        match it.class() {
            _ if it.is_call() => self.help(function, at, &mut state),
            LDX => {
                let address = state.get(it.source).plus(it.offset.into());
                self.read(function, at, &state, address, it.bytes());
                state.set(it.destination, state.load(address, it.bytes()));
            }
            ST | STX => {
                let address = state.get(it.destination).plus(it.offset.into());
                if it.is_atomic() {
                    self.read(function, at, &state, address, it.bytes());
                }
                state.store(address, it);
            }
            _ if it.opcode == LOAD64 => {
                let map = function.data.get(&at).and_then(|name| self.maps.get(name));
                state.set(it.destination, map.copied().unwrap_or_default());
            }
            _ => state.calculate(it),
        }
        vec![state]
    }

    fn call(&mut self, called: Place, begin: State) -> Vec<State> {
        let key = (called, begin);
        if let Some(ends) = self.ends.get(&key) {
            return ends.clone();
        }
        let ends = self.function(&self.functions[&called], key.1.clone());
        self.ends.insert(key, ends.clone());
        ends
    }

    /// A call of a function of the kernel.
    fn help(&mut self, function: &Function, at: usize, state: &mut State) {
        let accesses = accesses(function.code[at].immediate);
        let given = (1..=5).map(|register| state.get(register));
        let is_given_stack = given.into_iter().any(|it| matches!(it, Value::Stack(..)));
        assert!(
            !accesses.is_empty() || !is_given_stack || takes_nothing(function.code[at].immediate),
            "{}: instruction {at}: what does this helper do with the stack?",
            function.name
        );
        let (key, value) = match state.get(1) {
            Value::Map { key, value } => (key, value),
            _ => (0, 0),
        };
        for access in accesses {
            let (register, bytes) = match *access {
                Access::ReadsKey(register) => (register, key),
                Access::ReadsValue(register) => (register, value),
                Access::Reads(register, size) => (register, state.get(size).number()),
                Access::WritesId(register) => {
                    state.write(state.get(register), ID);
                    continue;
                }
            };
            self.read(function, at, state, state.get(register), bytes);
        }
        state.helped();
    }

    fn read(&mut self, function: &Function, at: usize, state: &State, address: Value, bytes: i32) {
        if let Some((depth, byte)) = state.unwritten(address, bytes) {
            let name = &function.name;
            let read = format!("{name}: instruction {at} reads byte {byte} of frame {depth}");
            self.found.insert(read);
        }
    }
}

#[test]
#[ignore = "needs the object, which lints are without: cargo xtask test"]
fn no_byte_of_the_stack_is_read_that_some_way_has_not_written() {
    let functions = code::functions();
    let mut walk = Walk::new(&functions);
    for program in PROGRAMS {
        let ends = walk.function(code::program(&functions, program), State::new());
        assert!(!ends.is_empty(), "{program} never ends");
    }
    println!(
        "{} instructions in {} calls were walked",
        walk.steps,
        walk.ends.len()
    );
    let found = walk.found;
    assert!(
        found.is_empty(),
        "\"invalid read from stack\" before Linux 6.3: {found:#?}"
    );
}
