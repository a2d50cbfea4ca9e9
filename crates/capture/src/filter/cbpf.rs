//! Classic BPF, as libpcap writes it: instructions as a type, and what a program must hold to.
//!
//! The machine is that of McCanne and Jacobson (1993): an accumulator A, an index register X,
//! sixteen words of memory, jumps forward only. The rules are those of libpcap's validator
//! (`bpf_validate`), and what an instruction does is what its interpreter (`bpf_filter`) does, with
//! the kernel's additions: loads from offsets near 2³² do not read the frame but tell what stands
//! beside it (`SKF_AD_*` in linux/filter.h). No VLAN tag does: a filter judges frames as they are
//! recorded, with the tag in them.

use libc::sock_filter;

/// The most instructions that a program may have (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;
/// The least number of headers that a `protochain` loop follows when a program runs. RFC 8200, 4.1
/// has at most 7 in a row.
pub const MIN_ROUNDS: usize = 8;
/// Words of memory (`BPF_MEMWORDS`).
pub const MEMORY_WORDS: u32 = 16;

/// A load from this offset on asks for what the kernel knows of the frame besides its bytes
/// (`SKF_AD_OFF`).
const ANCILLARY: u32 = 0xffff_f000;

/// How much a load reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Byte,
    Half,
    Word,
}

impl Size {
    pub fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
        }
    }
}

/// Where a load or a return takes its value from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Constant(u32),
    /// The frame's length as it came, whatever of it is there.
    Length,
    Memory(u32),
}

/// The second operand of arithmetic and comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Constant(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    BitsSet,
}

/// An instruction that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Loads A from a fixed offset in the frame.
    Load(Size, u32),
    /// Loads A from the offset X plus this number.
    LoadBehindX(Size, u32),
    /// What the kernel knows of a packet beside its bytes, by its number; the hook program knows
    /// it.
    LoadBeside(u32),
    LoadValue(Value),
    LoadXValue(Value),
    /// X becomes the length of the IPv4 header whose first byte is there (`BPF_MSH`).
    LoadXHeaderLength(u32),
    Store(u32),
    StoreX(u32),
    Arithmetic(Arithmetic, Operand),
    Negate,
    /// Skips this many instructions.
    Jump(u32),
    Branch {
        condition: Condition,
        operand: Operand,
        yes: u8,
        no: u8,
    },
    /// Ends the program; 0 refuses the packet.
    Return(u32),
    ReturnA,
    XFromA,
    AFromX,
}

/// Why a list of instructions is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// no instruction, or too many of them
    #[error("it has {0} instructions, and 1 to {MAX_INSTRUCTIONS} are possible")]
    Length(usize),
    /// an opcode that libpcap does not have
    #[error("instruction {at} has the unknown code {code:#06x}")]
    Unknown { at: usize, code: u16 },
    /// a jump backwards that is not one of a loop as libpcap writes them for `protochain`
    #[error("instruction {0} jumps back, and the kernel runs no loops")]
    Loop(usize),
    /// loops that are too long to be written out
    #[error(
        "to follow {MIN_ROUNDS} headers, its protochain needs {0} instructions, and {MAX_INSTRUCTIONS} are possible: make it shorter, or name the headers that may stand between"
    )]
    LongLoop(usize),
    /// a jump past the end
    #[error("instruction {0} jumps past the end")]
    Jump(usize),
    /// a program that ends without a return
    #[error("it does not end with a return")]
    NoReturn,
    /// memory that is not there
    #[error("instruction {0} uses memory that is not there")]
    Memory(usize),
    /// a load of what no hook knows
    #[error("instruction {at} asks for what no hook knows (ancillary data {number})")]
    Ancillary { at: usize, number: u32 },
}

/// A program that is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicProgram {
    instructions: Vec<Instruction>,
    /// The same as the kernel has them (`struct sock_filter`), each in one word.
    words: Vec<u64>,
}

impl ClassicProgram {
    /// Checks a program as libpcap would.
    ///
    /// # Errors
    /// [`Invalid`]: which instruction, and what is wrong with it.
    pub fn new(code: &[sock_filter]) -> Result<Self, Invalid> {
        if code.is_empty() || code.len() > MAX_INSTRUCTIONS {
            return Err(Invalid::Length(code.len()));
        }
        let instructions: Vec<_> =
            code.iter().enumerate().map(|(at, i)| decode(at, *i)).collect::<Result<_, _>>()?;
        for (at, instruction) in instructions.iter().enumerate() {
            if successors(at, instruction).any(|next| next >= instructions.len()) {
                return Err(match instruction {
                    Instruction::Jump(_) | Instruction::Branch { .. } => Invalid::Jump(at),
                    _ => Invalid::NoReturn,
                });
            }
        }
        let words = code.iter().map(|i| {
            u64::from(i.code) | u64::from(i.jt) << 16 | u64::from(i.jf) << 24 | u64::from(i.k) << 32
        });
        Ok(Self { instructions, words: words.collect() })
    }

    /// Reads a program as [`ClassicProgram::words`] gives it.
    ///
    /// # Errors
    /// As [`ClassicProgram::new`].
    pub fn from_words(words: &[u64]) -> Result<Self, Invalid> {
        let code: Vec<sock_filter> = words
            .iter()
            .map(|&word| sock_filter {
                code: word as u16,
                jt: (word >> 16) as u8,
                jf: (word >> 24) as u8,
                k: (word >> 32) as u32,
            })
            .collect();
        Self::new(&code)
    }

    /// Returns the program's instructions as the kernel has them, each in one word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns whether the program does nothing but refuse.
    pub fn refuses_all(&self) -> bool {
        self.instructions == [Instruction::Return(0)]
    }

    /// Returns how many instructions divide by X.
    pub fn divisions(&self) -> usize {
        use Arithmetic::{Divide, Modulo};
        let divides =
            |i: &&Instruction| matches!(i, Instruction::Arithmetic(Divide | Modulo, Operand::X));
        self.instructions.iter().filter(divides).count()
    }

    /// Returns, for each instruction, whether any run can get to it.
    pub fn reachable(&self) -> Vec<bool> {
        let mut reached = vec![false; self.instructions.len()];
        reached[0] = true;
        for (at, instruction) in self.instructions.iter().enumerate() {
            if reached[at] {
                successors(at, instruction).for_each(|next| reached[next] = true);
            }
        }
        reached
    }

    /// Returns the words of memory that some run reads before it has written them, as a bit for
    /// each. Such a word must read as 0.
    pub fn memory_read_first(&self) -> u16 {
        let mut written: Vec<Option<u16>> = vec![None; self.instructions.len()];
        written[0] = Some(0);
        let mut first = 0;
        for (at, instruction) in self.instructions.iter().enumerate() {
            let Some(mut before) = written[at] else { continue };
            match *instruction {
                Instruction::Store(word) | Instruction::StoreX(word) => before |= 1 << word,
                Instruction::LoadValue(Value::Memory(word))
                | Instruction::LoadXValue(Value::Memory(word)) => first |= !before & 1 << word,
                _ => {}
            }
            for next in successors(at, instruction) {
                written[next] = Some(written[next].map_or(before, |other| other & before));
            }
        }
        first
    }
}

/// The instructions that may follow one.
fn successors(at: usize, instruction: &Instruction) -> impl Iterator<Item = usize> + use<> {
    let next = at + 1;
    let (one, other) = match *instruction {
        Instruction::Return(_) | Instruction::ReturnA => (None, None),
        Instruction::Jump(ahead) => (Some(next.saturating_add(ahead as usize)), None),
        Instruction::Branch { yes, no, .. } => {
            (Some(next + usize::from(yes)), Some(next + usize::from(no)))
        }
        _ => (Some(next), None),
    };
    one.into_iter().chain(other)
}

fn decode(at: usize, i: sock_filter) -> Result<Instruction, Invalid> {
    let unknown = || Invalid::Unknown { at, code: i.code };
    let operand = if i.code & 0x08 == 0 { Operand::Constant(i.k) } else { Operand::X };
    match i.code & 0x07 {
        0 | 1 => load(at, i),
        2 | 3 if i.k >= MEMORY_WORDS => Err(Invalid::Memory(at)),
        2 if i.code == 2 => Ok(Instruction::Store(i.k)),
        3 if i.code == 3 => Ok(Instruction::StoreX(i.k)),
        4 => match i.code {
            0x84 => Ok(Instruction::Negate),
            code => arithmetic(code & 0xf0, operand).ok_or_else(unknown),
        },
        5 if i.code == 0x05 && i.k >= 1 << 31 => Err(Invalid::Loop(at)),
        5 if i.code == 0x05 => Ok(Instruction::Jump(i.k)),
        5 => {
            let condition = match i.code & 0xf0 {
                0x10 => Condition::Equal,
                0x20 => Condition::Greater,
                0x30 => Condition::GreaterOrEqual,
                0x40 => Condition::BitsSet,
                _ => return Err(unknown()),
            };
            Ok(Instruction::Branch { condition, operand, yes: i.jt, no: i.jf })
        }
        6 => match i.code {
            0x06 => Ok(Instruction::Return(i.k)),
            0x16 => Ok(Instruction::ReturnA),
            _ => Err(unknown()),
        },
        7 => match i.code {
            0x07 => Ok(Instruction::XFromA),
            0x87 => Ok(Instruction::AFromX),
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

fn arithmetic(code: u16, operand: Operand) -> Option<Instruction> {
    let operation = match code {
        0x00 => Arithmetic::Add,
        0x10 => Arithmetic::Subtract,
        0x20 => Arithmetic::Multiply,
        0x30 => Arithmetic::Divide,
        0x40 => Arithmetic::Or,
        0x50 => Arithmetic::And,
        0x60 => Arithmetic::ShiftLeft,
        0x70 => Arithmetic::ShiftRight,
        0x90 => Arithmetic::Modulo,
        0xa0 => Arithmetic::Xor,
        _ => return None,
    };
    Some(match (operation, operand) {
        // Division by zero refuses the packet.
        (Arithmetic::Divide | Arithmetic::Modulo, Operand::Constant(0)) => Instruction::Return(0),
        // Nothing is left after so many shifts.
        (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(32..)) => {
            Instruction::LoadValue(Value::Constant(0))
        }
        _ => Instruction::Arithmetic(operation, operand),
    })
}

fn load(at: usize, i: sock_filter) -> Result<Instruction, Invalid> {
    let size = match i.code & 0x18 {
        0x00 => Size::Word,
        0x08 => Size::Half,
        _ => Size::Byte,
    };
    let value = match i.code & 0xe0 {
        0x00 => Some(Value::Constant(i.k)),
        0x60 if i.k >= MEMORY_WORDS => return Err(Invalid::Memory(at)),
        0x60 => Some(Value::Memory(i.k)),
        0x80 => Some(Value::Length),
        _ => None,
    };
    Ok(match (i.code, value) {
        (0x00 | 0x60 | 0x80, Some(value)) => Instruction::LoadValue(value),
        (0x01 | 0x61 | 0x81, Some(value)) => Instruction::LoadXValue(value),
        (0x20 | 0x28 | 0x30, _) if i.k >= ANCILLARY => ancillary(at, i.k - ANCILLARY)?,
        // No frame is so long that such a load stays within it.
        (0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1, _) if i.k >= 1 << 31 => {
            Instruction::Return(0)
        }
        (0x20 | 0x28 | 0x30, _) => Instruction::Load(size, i.k),
        (0x40 | 0x48 | 0x50, _) => Instruction::LoadBehindX(size, i.k),
        (0xb1, _) => Instruction::LoadXHeaderLength(i.k),
        _ => return Err(Invalid::Unknown { at, code: i.code }),
    })
}

/// Ancillary data that programs ask for, by the numbers of linux/filter.h (`SKF_AD_*`).
mod skf_ad {
    pub const PROTOCOL: u32 = 0;
    pub const PKTTYPE: u32 = 4;
    pub const IFINDEX: u32 = 8;
    pub const MARK: u32 = 20;
    pub const QUEUE: u32 = 24;
    pub const HATYPE: u32 = 28;
    pub const RXHASH: u32 = 32;
    pub const CPU: u32 = 36;
    pub const VLAN_TAG: u32 = 44;
    pub const VLAN_TAG_PRESENT: u32 = 48;
    pub const RANDOM: u32 = 56;
    pub const VLAN_TPID: u32 = 60;
}

/// Returns what an instruction does that asks for ancillary data.
fn ancillary(at: usize, number: u32) -> Result<Instruction, Invalid> {
    match number {
        skf_ad::VLAN_TAG | skf_ad::VLAN_TAG_PRESENT | skf_ad::VLAN_TPID => {
            Ok(Instruction::LoadValue(Value::Constant(0)))
        }
        skf_ad::PROTOCOL
        | skf_ad::PKTTYPE
        | skf_ad::IFINDEX
        | skf_ad::MARK
        | skf_ad::QUEUE
        | skf_ad::HATYPE
        | skf_ad::RXHASH
        | skf_ad::CPU
        | skf_ad::RANDOM => Ok(Instruction::LoadBeside(number)),
        _ => Err(Invalid::Ancillary { at, number }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
        sock_filter { code, jt, jf, k }
    }

    #[test]
    fn what_libpcap_refuses_is_refused() {
        let accept = i(0x06, 0, 0, 1);
        let cases = [
            (vec![], Invalid::Length(0)),
            (vec![accept; 4097], Invalid::Length(4097)),
            (vec![i(0x38, 0, 0, 0), accept], Invalid::Unknown { at: 0, code: 0x38 }),
            (vec![i(0x15, 0, 1, 0), accept], Invalid::Jump(0)),
            (vec![i(0x05, 0, 0, 9), accept], Invalid::Jump(0)),
            (vec![accept, i(0x05, 0, 0, u32::MAX), accept], Invalid::Loop(1)),
            (vec![i(0x28, 0, 0, 12)], Invalid::NoReturn),
            (vec![i(0x02, 0, 0, 16), accept], Invalid::Memory(0)),
            (vec![i(0x61, 0, 0, 16), accept], Invalid::Memory(0)),
            (
                vec![accept, i(0x20, 0, 0, 0xffff_f034), accept],
                Invalid::Ancillary { at: 1, number: 52 },
            ),
        ];
        for (code, why) in cases {
            assert_eq!(ClassicProgram::new(&code), Err(why));
        }
    }

    #[test]
    fn the_data_flow_is_found() {
        let program = ClassicProgram::new(&[
            i(0x30, 0, 0, 9),
            i(0x15, 0, 2, 6),
            i(0x02, 0, 0, 3),
            i(0x05, 0, 0, 1),
            i(0x03, 0, 0, 4),
            i(0x60, 0, 0, 3),
            i(0x16, 0, 0, 0),
            i(0x06, 0, 0, 0),
        ]);
        let program = program.expect("it is valid");
        assert_eq!(program.memory_read_first(), 1 << 3, "one way leads past the store");
        assert_eq!(program.reachable(), [true, true, true, true, true, true, true, false]);
    }
}
