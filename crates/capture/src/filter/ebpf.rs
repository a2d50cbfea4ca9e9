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

/// The instructions' classes that read memory by a register, or write there.
const CLASS: u8 = 0x07;
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
const LOAD_WIDE: u8 = 0x18;
const PSEUDO_CALL: u8 = 1;
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
    insn(0x95, NONE, NONE, 0, 0)
}

impl Insn {
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
