//! Does an expression have an answer at all?
//!
//! libpcap keeps where a GENEVE packet's inner headers begin in the scratch memory of its filter
//! machine. In `geneve or port 53` it looks for the port there even if there was no GENEVE header,
//! so where the memory was never written. libpcap does not clear it: the answer depends on what lay
//! on the stack, and two programs need not agree, nor one program with itself.

use std::collections::BTreeMap;

const LOAD_MEMORY: [u16; 2] = [0x60, 0x61];
const STORE_MEMORY: [u16; 2] = [0x02, 0x03];
const JUMP_ALWAYS: u16 = 0x05;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

/// Whether a way through the program, which is given as `tcpdump -ddd` prints it, reads memory
/// before it is written.
pub fn reads_unwritten_memory(program: &str) -> bool {
    let program: Vec<[u32; 4]> = program.lines().skip(1).map(instruction).collect();
    // The memory words that are written on every way to an instruction, as bits.
    let mut written = BTreeMap::from([(0, 0_u16)]);
    let mut changed = vec![0];
    while let Some(at) = changed.pop() {
        let ([code, jt, jf, k], mut here) = (program[at], written[&at]);
        let code = code as u16;
        if LOAD_MEMORY.contains(&code) && here & 1 << k == 0 {
            return true;
        }
        if STORE_MEMORY.contains(&code) {
            here |= 1 << k;
        }
        let next = match code {
            JUMP_ALWAYS => vec![(at as i32 + 1 + k as i32) as usize],
            _ if code & 7 == JUMP => vec![at + 1 + jt as usize, at + 1 + jf as usize],
            _ if code & 7 == RETURN => vec![],
            _ => vec![at + 1],
        };
        for next in next {
            let before = written.get(&next).copied();
            let both = before.unwrap_or(u16::MAX) & here;
            if before != Some(both) {
                written.insert(next, both);
                changed.push(next);
            }
        }
    }
    false
}

fn instruction(line: &str) -> [u32; 4] {
    let fields: Option<Vec<u32>> = line.split(' ').map(|field| field.parse().ok()).collect();
    fields.and_then(|f| f.try_into().ok()).unwrap_or_else(|| panic!("{line} is no instruction"))
}
