//! How is a compiled filter run in a process that has no kernel to ask?
//!
//! libpcap compiles `inbound` and `outbound` to a load from where the kernel keeps the packet's
//! type, which libpcap's own interpreter cannot do. That load has two possible answers, so a
//! [`Filter`] is two programs, one for each way that a packet can go, in which the load is replaced
//! by its answer. Loads of anything else that only the kernel knows of a packet are refused.
//!
//! Programs are not run here; libpcap's `bpf_filter` does that.

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

/// `SKF_AD_OFF` of linux/filter.h: loads from this offset on ask the kernel.
const ASK_KERNEL: u32 = 0xffff_f000;
/// `SKF_AD_PKTTYPE`.
const PACKET_TYPE: u32 = ASK_KERNEL + 4;
/// `PACKET_HOST` of linux/if_packet.h.
const HOST: u32 = 0;
/// `PACKET_OUTGOING` of linux/if_packet.h.
const OUTGOING: u32 = 4;

/// The bits of an instruction's code that are its class (linux/bpf_common.h).
const CLASS: u16 = 0x07;
/// The bits of an instruction's code that are its mode.
const MODE: u16 = 0xe0;
/// `BPF_LD`
const LOAD: u16 = 0x00;
/// `BPF_ABS`
const ABSOLUTE: u16 = 0x20;
/// `BPF_IMM`
const IMMEDIATE: u16 = 0x00;

/// A filter: one program for packets that came in, and one for packets that went out.
#[derive(Debug)]
pub struct Filter {
    inwards: Box<[Instruction]>,
    outwards: Box<[Instruction]>,
}

impl Filter {
    /// Makes a filter of a valid program. `None` where the program asks for something that only the
    /// kernel knows.
    pub fn new(program: &[Instruction]) -> Option<Self> {
        Some(Self { inwards: answered(program, HOST)?, outwards: answered(program, OUTGOING)? })
    }

    /// Returns the program for packets that went this way.
    pub fn program(&self, way: Way) -> &[Instruction] {
        match way {
            Way::In => &self.inwards,
            Way::Out => &self.outwards,
        }
    }
}

/// Returns the program with each load of the packet's type replaced by this type.
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
