//! What is known of registers and frames at an instruction.

use std::{collections::BTreeMap, ops::Range};

use crate::code::{ALU, ALU64, FRAME, Instruction, JMP, STX};

/// Bytes of a frame, at most: `MAX_BPF_STACK`.
const BYTES: i32 = 512;
/// The registers that a call leaves as they are.
const KEPT: Range<usize> = 6..10;

/// What a register holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// An address in a frame: how many calls deep that is, and bytes from its end (negative).
    Stack(usize, i32),
    /// A map with keys and values of so many bytes.
    Map {
        key: i32,
        value: i32,
    },
    Number(i64),
    #[default]
    Other,
}

/// Which bytes of a frame are written.
pub(crate) type Written = [u64; 8];

/// A frame, and the values that lie in it whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Frame {
    written: Written,
    spilled: BTreeMap<i32, Value>,
}

/// All that is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    registers: [Value; 11],
    frames: Vec<Frame>,
}

impl Value {
    /// So many bytes further on.
    pub(crate) fn plus(self, bytes: i32) -> Self {
        match self {
            Self::Stack(depth, byte) => Self::Stack(depth, byte + bytes),
            _ => Self::Other,
        }
    }

    /// The number of bytes that it says; 0 if that is not known.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Number(number) => number.try_into().unwrap_or(0),
            _ => 0,
        }
    }

    fn joined(self, other: Self) -> Self {
        if self == other { self } else { Self::Other }
    }
}

impl Frame {
    /// The word and the bit of a byte.
    fn bit(byte: i32) -> (usize, u64) {
        let index = usize::try_from(BYTES + byte).expect("a byte of the frame");
        (index / 64, 1 << (index % 64))
    }

    fn is_written(&self, byte: i32) -> bool {
        let (word, bit) = Self::bit(byte);
        self.written[word] & bit != 0
    }

    fn write(&mut self, first: i32, bytes: i32) {
        for byte in first..first + bytes {
            let (word, bit) = Self::bit(byte);
            self.written[word] |= bit;
        }
        let is_apart = |at: i32| at + 8 <= first || at >= first + bytes;
        self.spilled.retain(|&at, _| is_apart(at));
    }
}

impl State {
    /// At the beginning of a program.
    pub(crate) fn new() -> Self {
        let state = Self {
            registers: [Value::Other; 11],
            frames: Vec::new(),
        };
        state.called()
    }

    pub(crate) fn get(&self, register: u8) -> Value {
        self.registers[usize::from(register)]
    }

    pub(crate) fn set(&mut self, register: u8, value: Value) {
        self.registers[usize::from(register)] = value;
    }

    /// What is written of each frame.
    pub(crate) fn written(&self) -> Vec<Written> {
        self.frames.iter().map(|frame| frame.written).collect()
    }

    /// At the beginning of a function that is called here.
    pub(crate) fn called(&self) -> Self {
        let mut state = self.clone();
        for register in KEPT.chain([0]) {
            state.registers[register] = Value::Other;
        }
        state.set(FRAME, Value::Stack(self.frames.len(), 0));
        state.frames.push(Frame::default());
        state
    }

    /// Behind the call of a function that ends with this `end`.
    pub(crate) fn returned(&self, mut end: Self) -> Self {
        end.frames.truncate(self.frames.len());
        for register in 1..=5 {
            end.set(register, Value::Other);
        }
        for register in KEPT.chain([usize::from(FRAME)]) {
            end.registers[register] = self.registers[register];
        }
        end
    }

    /// Behind the call of a function of the kernel.
    pub(crate) fn helped(&mut self) {
        for register in 0..=5 {
            self.set(register, Value::Other);
        }
    }

    /// What is true on this way, and on another that has written the same.
    pub(crate) fn joined(&self, other: &Self) -> Self {
        let mut state = self.clone();
        for (value, other) in state.registers.iter_mut().zip(other.registers) {
            *value = value.joined(other);
        }
        for (frame, other) in state.frames.iter_mut().zip(&other.frames) {
            let is_same = |at: &i32, value: &mut Value| other.spilled.get(at) == Some(value);
            frame.spilled.retain(is_same);
        }
        state
    }

    /// The first of these bytes that is not written: of which frame (how many calls deep), and where.
    pub(crate) fn unwritten(&self, address: Value, bytes: i32) -> Option<(usize, i32)> {
        let Value::Stack(depth, first) = address else {
            return None;
        };
        let mut read = first..first + bytes;
        let byte = read.find(|&byte| !self.frames[depth].is_written(byte));
        byte.map(|byte| (depth, byte))
    }

    /// What is loaded from there.
    pub(crate) fn load(&self, address: Value, bytes: i32) -> Value {
        match address {
            Value::Stack(depth, first) if bytes == 8 => {
                let spilled = self.frames[depth].spilled.get(&first);
                spilled.copied().unwrap_or_default()
            }
            _ => Value::Other,
        }
    }

    /// So many bytes there are written.
    pub(crate) fn write(&mut self, address: Value, bytes: i32) {
        if let Value::Stack(depth, first) = address {
            self.frames[depth].write(first, bytes);
        }
    }

    /// Stores there what the instruction says.
    pub(crate) fn store(&mut self, address: Value, it: &Instruction) {
        self.write(address, it.bytes());
        let value = match it.class() {
            _ if it.is_atomic() => {
                self.set(0, Value::Other);
                self.set(it.source, Value::Other);
                return;
            }
            STX => self.get(it.source),
            _ => Value::Number(it.immediate.into()),
        };
        if let (Value::Stack(depth, first), 8) = (address, it.bytes())
            && value != Value::Other
        {
            self.frames[depth].spilled.insert(first, value);
        }
    }

    /// Behind arithmetic; what is none changes nothing.
    pub(crate) fn calculate(&mut self, it: &Instruction) {
        if !matches!(it.class(), ALU | ALU64) {
            return;
        }
        let right = self.operand(it);
        let value = match (self.get(it.destination), right, it.opcode & 0xf0) {
            (_, value, 0xb0) if it.class() == ALU64 => value,
            (Value::Stack(..), Value::Number(bytes), 0) => {
                let bytes = bytes.try_into().expect("bytes of a frame");
                self.get(it.destination).plus(bytes)
            }
            (Value::Number(left), Value::Number(right), operation) => {
                number(it, operation, left, right)
            }
            (_, Value::Number(right), 0xb0) => number(it, 0xb0, 0, right),
            _ => Value::Other,
        };
        self.set(it.destination, value);
    }

    /// What an instruction takes beside its destination: a register, or its own number.
    fn operand(&self, it: &Instruction) -> Value {
        match it.opcode & 8 {
            0 => Value::Number(it.immediate.into()),
            _ => self.get(it.source),
        }
    }

    /// What is known if the condition of a jump is met, or is not; `None` if that cannot be.
    pub(crate) fn given(&self, it: &Instruction, is_met: bool) -> Option<Self> {
        let mut state = self.clone();
        let (left, right) = (self.get(it.destination), self.operand(it));
        if it.class() != JMP {
            return Some(state);
        }
        let condition = it.opcode & 0xf0;
        if let (Value::Number(left), Value::Number(right)) = (left, right)
            && meets(condition, left, right).is_some_and(|meets| meets != is_met)
        {
            return None;
        }
        let is_equal = (condition == 0x10 && is_met) || (condition == 0x50 && !is_met);
        if is_equal && left == Value::Other {
            state.set(it.destination, right);
        }
        Some(state)
    }
}

/// What arithmetic makes of two numbers (RFC 9669 section 4.1), if it is of a kind that is followed here.
fn number(it: &Instruction, operation: u8, left: i64, right: i64) -> Value {
    let is_whole = it.class() == ALU64;
    let (left, right) = match is_whole {
        true => (left, right),
        false => (left & 0xffff_ffff, right & 0xffff_ffff),
    };
    let bits = u32::try_from(right & if is_whole { 63 } else { 31 }).expect("at most 63");
    let result = match operation {
        0 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x40 => left | right,
        0x50 => left & right,
        0x60 => left.wrapping_shl(bits),
        0x70 => (left.cast_unsigned() >> bits).cast_signed(),
        0xa0 => left ^ right,
        0xb0 => right,
        _ => return Value::Other,
    };
    Value::Number(if is_whole {
        result
    } else {
        result & 0xffff_ffff
    })
}

/// Whether two numbers meet the condition of a jump (RFC 9669 section 4.3), if it is one that is followed here.
fn meets(condition: u8, left: i64, right: i64) -> Option<bool> {
    let (unsigned_left, unsigned_right) = (left.cast_unsigned(), right.cast_unsigned());
    Some(match condition {
        0x10 => left == right,
        0x20 => unsigned_left > unsigned_right,
        0x30 => unsigned_left >= unsigned_right,
        0x40 => left & right != 0,
        0x50 => left != right,
        0x60 => left > right,
        0x70 => left >= right,
        0xa0 => unsigned_left < unsigned_right,
        0xb0 => unsigned_left <= unsigned_right,
        0xc0 => left < right,
        0xd0 => left <= right,
        _ => return None,
    })
}
