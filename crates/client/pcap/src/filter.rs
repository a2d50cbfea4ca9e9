//! A compiled filter, as it is run on packets in this process.
//!
//! libpcap writes `inbound` and `outbound` as a load from where the kernel keeps the packet's type,
//! which its interpreter cannot do. There are two answers only, so there are two programs: in each,
//! that load is replaced by its answer. Other things that only the kernel knows of a packet are
//! refused.

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
}

/// `SKF_AD_OFF`: loads from here on ask the kernel.
const ASK_KERNEL: u32 = 0xffff_f000;
/// `SKF_AD_PKTTYPE`.
const PACKET_TYPE: u32 = ASK_KERNEL + 4;
/// `PACKET_HOST` and `PACKET_OUTGOING`.
const HOST: u32 = 0;
const OUTGOING: u32 = 4;

const CLASS: u16 = 0x07;
const MODE: u16 = 0xe0;
/// `BPF_LD`, `BPF_ABS`, `BPF_IMM`.
const LOAD: u16 = 0x00;
const ABSOLUTE: u16 = 0x20;
const IMMEDIATE: u16 = 0x00;

/// A program for each way.
#[derive(Debug)]
pub struct Filter {
    inwards: Box<[Instruction]>,
    outwards: Box<[Instruction]>,
}

impl Filter {
    /// Takes a valid program; `None` where it asks for something that nobody knows here.
    pub fn new(program: &[Instruction]) -> Option<Self> {
        Some(Self { inwards: answered(program, HOST)?, outwards: answered(program, OUTGOING)? })
    }

    pub fn program(&self, way: Way) -> &[Instruction] {
        match way {
            Way::In => &self.inwards,
            Way::Out => &self.outwards,
        }
    }
}

/// The program, with the packet's type in it.
fn answered(program: &[Instruction], packet_type: u32) -> Option<Box<[Instruction]>> {
    let answer = |instruction: &Instruction| {
        let is_load = instruction.code & (CLASS | MODE) == LOAD | ABSOLUTE;
        match instruction.k {
            PACKET_TYPE if is_load => {
                Some(Instruction { code: LOAD | IMMEDIATE, k: packet_type, ..*instruction })
            }
            k if is_load && k >= ASK_KERNEL => None,
            _ => Some(*instruction),
        }
    };
    program.iter().map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::{Filter, Instruction, Way};

    const RETURN: Instruction = Instruction { code: 0x06, jt: 0, jf: 0, k: 1 };

    #[test]
    fn the_packets_type_is_answered_and_nothing_else_that_the_kernel_knows() {
        let load = |code, k| Instruction { code, jt: 0, jf: 0, k };
        let compare = Instruction { code: 0x15, jt: 0, jf: 1, k: 0xffff_f004 };
        for code in [0x20, 0x28, 0x30] {
            let filter = Filter::new(&[load(code, 0xffff_f004), compare, RETURN]).unwrap();
            assert_eq!(filter.program(Way::In), [load(0, 0), compare, RETURN]);
            assert_eq!(filter.program(Way::Out), [load(0, 4), compare, RETURN]);
            assert!(Filter::new(&[load(code, 0xffff_f008), RETURN]).is_none());
            assert!(Filter::new(&[load(code, 12), RETURN]).is_some());
        }
    }
}
