//! The few eBPF instructions that translations are made of, by the names of the kernel's
//! documentation (Documentation/bpf/standardization/instruction-set.rst).

/// One instruction, as the kernel takes it (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    pub code: u8,
    /// The source register in the high half, the destination in the low one. (Big-endian machines
    /// have them the other way round.)
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

/// Bytes of an instruction.
pub const INSTRUCTION: usize = size_of::<Insn>();

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(pub u8);

/// The frame pointer.
pub const FP: Reg = Reg(10);

pub const REGISTERS: usize = 11;

/// The instructions' classes that read memory by a register, or write there.
const CLASS: u8 = 0x07;
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const LD_ABS: u8 = 0x20;
const LD_IND: u8 = 0x40;
const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const ST_MEM: u8 = 0x62;
const ALU32: u8 = 0x04;
const ALU64: u8 = 0x07;
const JMP32: u8 = 0x06;
const JMP64: u8 = 0x05;
const FROM_REGISTER: u8 = 0x08;
const TO_BIG_ENDIAN: u8 = 0xdc;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_WIDE: u8 = 0x18;
const MODE: u8 = 0xe0;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const FETCH: i32 = 1;
const COMPARE_AND_EXCHANGE: i32 = 0xf1;
const OPERATION: u8 = 0xf0;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_FUNC: u8 = 4;

/// `BPF_W`, `BPF_H`, `BPF_B` and `BPF_DW`.
pub const WORD: u8 = 0x00;
pub const HALF: u8 = 0x08;
pub const BYTE: u8 = 0x10;
pub const DOUBLE: u8 = 0x18;

/// Arithmetic, `BPF_OP`.
pub const ADD: u8 = 0x00;
pub const SUB: u8 = 0x10;
pub const MUL: u8 = 0x20;
pub const DIV: u8 = 0x30;
pub const OR: u8 = 0x40;
pub const AND: u8 = 0x50;
pub const LSH: u8 = 0x60;
pub const RSH: u8 = 0x70;
pub const NEG: u8 = 0x80;
pub const MOD: u8 = 0x90;
pub const XOR: u8 = 0xa0;
pub const MOV: u8 = 0xb0;
pub const ARSH: u8 = 0xc0;
/// Changes the order of bytes; which one is said in place of an operand.
const END: u8 = 0xd0;

/// Comparisons, `BPF_OP`; unsigned.
pub const JEQ: u8 = 0x10;
pub const JGT: u8 = 0x20;
pub const JGE: u8 = 0x30;
pub const JSET: u8 = 0x40;
pub const JNE: u8 = 0x50;
pub const JLT: u8 = 0xa0;
pub const JLE: u8 = 0xb0;
/// A comparison of signed numbers.
pub const JSGE: u8 = 0x70;

const fn insn(code: u8, to: Reg, from: Reg, offset: i16, immediate: i32) -> Insn {
    let registers =
        if cfg!(target_endian = "big") { to.0 << 4 | from.0 } else { from.0 << 4 | to.0 };
    Insn { code, registers, offset, immediate }
}

const NONE: Reg = Reg(0);

/// `to = *(size *)(from + offset)`
pub fn load(size: u8, to: Reg, from: Reg, offset: i16) -> Insn {
    insn(LDX_MEM | size, to, from, offset, 0)
}

/// `r0 =` a number of the packet of which r6 is the context, in the machine's order; r1 to r5 are
/// lost. Where there is no such byte, the function returns 0.
pub fn load_packet(size: u8, place: u32) -> Insn {
    insn(LD_ABS | size, NONE, NONE, 0, place as i32)
}

/// The same from that many bytes behind what a register says.
pub fn load_packet_behind(size: u8, from: Reg, place: u32) -> Insn {
    insn(LD_IND | size, NONE, from, 0, place as i32)
}

/// `*(size *)(to + offset) = from`
pub fn store(size: u8, to: Reg, offset: i16, from: Reg) -> Insn {
    insn(STX_MEM | size, to, from, offset, 0)
}

/// `*(size *)(to + offset) = constant`
pub fn store_constant(size: u8, to: Reg, offset: i16, constant: i32) -> Insn {
    insn(ST_MEM | size, to, NONE, offset, constant)
}

/// Arithmetic on the low 32 bits, which clears the high ones.
pub fn alu32(operation: u8, to: Reg, from: Reg) -> Insn {
    insn(ALU32 | FROM_REGISTER | operation, to, from, 0, 0)
}

pub fn alu32_constant(operation: u8, to: Reg, constant: u32) -> Insn {
    insn(ALU32 | operation, to, NONE, 0, constant as i32)
}

pub fn alu64(operation: u8, to: Reg, from: Reg) -> Insn {
    insn(ALU64 | FROM_REGISTER | operation, to, from, 0, 0)
}

pub fn alu64_constant(operation: u8, to: Reg, constant: i32) -> Insn {
    insn(ALU64 | operation, to, NONE, 0, constant)
}

/// Converts the low `bits` between network order and the machine's.
pub fn swap(to: Reg, bits: i32) -> Insn {
    insn(TO_BIG_ENDIAN, to, NONE, 0, bits)
}

/// Compares the low 32 bits. Where the jump leads is filled in later.
pub fn jump32(condition: u8, a: Reg, b: Reg) -> Insn {
    insn(JMP32 | FROM_REGISTER | condition, a, b, 0, 0)
}

pub fn jump32_constant(condition: u8, a: Reg, constant: u32) -> Insn {
    insn(JMP32 | condition, a, NONE, 0, constant as i32)
}

pub fn jump64(condition: u8, a: Reg, b: Reg) -> Insn {
    insn(JMP64 | FROM_REGISTER | condition, a, b, 0, 0)
}

pub fn jump64_constant(condition: u8, a: Reg, constant: i32) -> Insn {
    insn(JMP64 | condition, a, NONE, 0, constant)
}

pub fn go() -> Insn {
    insn(JMP64, NONE, NONE, 0, 0)
}

/// Does nothing.
pub fn nop() -> Insn {
    go()
}

/// Calls another function of the program. Which one is filled in later.
pub fn call() -> Insn {
    insn(CALL, NONE, Reg(PSEUDO_CALL), 0, 0)
}

/// The kernel's function that copies a part of the packet (`BPF_FUNC_skb_load_bytes`).
pub const SKB_LOAD_BYTES: i32 = 26;

/// Calls a function of the kernel.
pub fn call_kernel(function: i32) -> Insn {
    insn(CALL, NONE, NONE, 0, function)
}

pub fn exit() -> Insn {
    insn(EXIT, NONE, NONE, 0, 0)
}

/// What arithmetic or a comparison works with besides its first register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Immediate(i32),
    Register(Reg),
}

/// What an instruction does, as far as it matters to who follows the numbers in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The first half of an instruction that is as long as two.
    LoadWide {
        to: Reg,
    },
    Load {
        to: Reg,
        from: Reg,
        bytes: usize,
    },
    /// `wide`: with all 64 bits.
    Alu {
        operation: u8,
        to: Reg,
        by: Operand,
        wide: bool,
    },
    Branch {
        condition: u8,
        a: Reg,
        b: Operand,
        wide: bool,
    },
    Go,
    Exit,
    Other,
}

/// Registers, a bit for each.
pub type Registers = u16;

const fn only(register: u8) -> Registers {
    1 << register
}

/// What calls may change, of which r0 is what they return and the others were their arguments.
const LOST_IN_CALLS: Registers = 0b11_1111;

impl Insn {
    /// Returns what the instruction does.
    pub fn effect(self) -> Effect {
        let (to, from) = (self.destination(), Reg(self.source()));
        let operand = if self.code & FROM_REGISTER != 0 {
            Operand::Register(from)
        } else {
            Operand::Immediate(self.immediate)
        };
        let class = self.code & CLASS;
        let operation = self.code & OPERATION;
        match class {
            _ if self.code == LOAD_WIDE => Effect::LoadWide { to },
            LDX if self.code & MODE == MODE_MEM => {
                let bytes = match self.code & DOUBLE {
                    WORD => 4,
                    HALF => 2,
                    BYTE => 1,
                    _ => 8,
                };
                Effect::Load { to, from, bytes }
            }
            // With an offset it is another operation.
            ALU32 | ALU64 if self.offset == 0 && operation != END && operation != NEG => {
                Effect::Alu { operation, to, by: operand, wide: class == ALU64 }
            }
            _ if self.code == EXIT => Effect::Exit,
            _ if self.code == JMP64 || self.code == JMP32 => Effect::Go,
            JMP32 | JMP64 if self.code != CALL => {
                Effect::Branch { condition: operation, a: to, b: operand, wide: class == JMP64 }
            }
            _ => Effect::Other,
        }
    }

    /// Returns the registers that the instruction changes.
    pub fn writes(self) -> Registers {
        match self.code & CLASS {
            _ if self.code == LOAD_WIDE => only(self.destination().0),
            LDX | ALU32 | ALU64 => only(self.destination().0),
            // What is left of this class reads the packet, as a call does.
            LD => LOST_IN_CALLS,
            STX if self.code & MODE == MODE_ATOMIC => match self.immediate {
                COMPARE_AND_EXCHANGE => only(0),
                operation if operation & FETCH != 0 => only(self.source()),
                _ => 0,
            },
            _ if self.code == CALL => LOST_IN_CALLS,
            _ => 0,
        }
    }

    /// Returns the registers that the instruction may read.
    pub fn reads(self) -> Registers {
        let (to, from) = (only(self.destination().0), only(self.source()));
        let operation = self.code & OPERATION;
        let by = if self.code & FROM_REGISTER != 0 { from } else { 0 };
        match self.code & CLASS {
            _ if self.code == LOAD_WIDE => 0,
            LD => LOST_IN_CALLS | only(6) | from,
            LDX => from,
            ST => to,
            STX => to | from | only(0),
            ALU32 | ALU64 if operation == MOV => by,
            ALU32 | ALU64 if operation == END => to,
            ALU32 | ALU64 => to | by,
            _ if self.code == CALL => LOST_IN_CALLS,
            _ if self.code == EXIT => only(0),
            _ if self.code == JMP64 || self.code == JMP32 => 0,
            _ => to | by,
        }
    }

    /// Returns how many instructions behind the next one that is which the instruction goes on
    /// with, or names; `None`: it does neither.
    pub fn distance(self) -> Option<i32> {
        match self.effect() {
            Effect::Go if self.code == JMP32 => Some(self.immediate),
            Effect::Go | Effect::Branch { .. } => Some(self.offset.into()),
            _ => self.names_function().then_some(self.immediate),
        }
    }

    /// Returns the same instruction with another [distance](Self::distance).
    pub fn with_distance(self, distance: i32) -> Self {
        if self.names_function() || self.code == JMP32 {
            Self { immediate: distance, ..self }
        } else {
            Self { offset: distance as i16, ..self }
        }
    }

    /// Returns the same arithmetic or comparison with a constant in place of the second register.
    pub fn with_constant(self, constant: i32) -> Self {
        insn(self.code & !FROM_REGISTER, self.destination(), NONE, self.offset, constant)
    }

    /// Returns whether the instruction loads the address of a place in that map's value.
    pub fn names_value_of(self, map: i32) -> bool {
        self.code == LOAD_WIDE && self.source() == PSEUDO_MAP_VALUE && self.immediate == map
    }

    /// Returns whether the instruction loads a number of 64 bits.
    pub fn is_wide_number(self) -> bool {
        self.code == LOAD_WIDE && self.source() == 0
    }

    fn source(self) -> u8 {
        if cfg!(target_endian = "big") { self.registers & 15 } else { self.registers >> 4 }
    }

    pub fn destination(self) -> Reg {
        Reg(if cfg!(target_endian = "big") { self.registers >> 4 } else { self.registers & 15 })
    }

    /// Returns how far from where a register points the instruction reads or writes; `None` where
    /// it does not do so by that register.
    pub fn accesses(self, by: Reg) -> Option<i16> {
        let register = match self.code & CLASS {
            LDX => self.source(),
            ST | STX => self.destination().0,
            _ => return None,
        };
        (register == by.0).then_some(self.offset)
    }

    /// Returns whether the instruction names another function of the program by its distance from
    /// the next instruction.
    pub fn names_function(self) -> bool {
        match self.code {
            CALL => self.source() == PSEUDO_CALL,
            LOAD_WIDE => self.source() == PSEUDO_FUNC,
            _ => false,
        }
    }

    /// Returns whether the instruction puts a constant into a register.
    pub fn moves_constant(self) -> bool {
        self.code == ALU32 | MOV || self.code == ALU64 | MOV
    }

    /// Returns whether the instruction calls another function of the program.
    pub fn calls_function(self) -> bool {
        self.code == CALL && self.source() == PSEUDO_CALL
    }
}

impl From<libbpf_sys::bpf_insn> for Insn {
    fn from(i: libbpf_sys::bpf_insn) -> Self {
        insn(i.code, Reg(i.dst_reg()), Reg(i.src_reg()), i.off, i.imm)
    }
}
