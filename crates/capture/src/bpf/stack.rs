//! How much stack does a program need, with the functions that it calls?
//!
//! Kernels before 6.9 count the frame of each function in whole 32 bytes, and give a chain of calls
//! 512. Later ones are less strict: what they load may be too much for those before. Debug builds
//! therefore look at each program here, whatever kernel they run on.

use crate::filter::ebpf::{self, ADD, FP, Insn, MOV};
use crate::filter::splice::Text;

/// Bytes that a chain of calls may have.
pub(super) const MOST: usize = 512;
const GRANULE: usize = 32;

/// Returns the bytes of the deepest chain of calls that begins with the first function.
pub(super) fn deepest(text: &Text) -> usize {
    depth(text, 0, &mut vec![None; text.functions.len()])
}

fn depth(text: &Text, function: usize, known: &mut [Option<usize>]) -> usize {
    if let Some(depth) = known[function] {
        return depth;
    }
    let range = text.range(function);
    let mut called = 0;
    for at in range.clone() {
        let insn = text.insns[at];
        if insn.names_function() {
            let start = (at + 1).wrapping_add_signed(insn.immediate as isize);
            let to = text.functions.iter().position(|function| function.start == start);
            called = called.max(depth(text, to.expect("functions begin where calls lead"), known));
        }
    }
    let own = frame(&text.insns[range]).max(1).next_multiple_of(GRANULE);
    known[function] = Some(own + called);
    own + called
}

/// Returns the bytes of a function's frame: how far below the frame pointer it reads or writes, or
/// has a pointer to.
fn frame(insns: &[Insn]) -> usize {
    let accessed = insns.iter().filter_map(|insn| insn.accesses(FP)).map(i32::from);
    let pointed_to = insns.windows(2).filter_map(|pair| {
        let to = pair[1].destination();
        let is_place = pair[0] == ebpf::alu64(MOV, to, FP)
            && pair[1] == ebpf::alu64_constant(ADD, to, pair[1].immediate);
        is_place.then_some(pair[1].immediate)
    });
    let lowest = accessed.chain(pointed_to).min().unwrap_or(0).min(0);
    lowest.unsigned_abs() as usize
}

#[cfg(test)]
mod tests {
    use super::deepest;
    use crate::filter::ebpf::{
        ADD, DOUBLE, FP, Insn, MOV, Reg, alu64, alu64_constant, call, exit, load, store,
    };
    use crate::filter::splice::{Function, Text};

    fn calls(from: usize, to: usize) -> Insn {
        Insn { immediate: to as i32 - from as i32 - 1, ..call() }
    }

    #[test]
    fn the_frames_of_the_deepest_chain_are_added_in_whole_32_bytes() {
        let insns = vec![
            // 0: 40 bytes, of which it has a pointer to the last.
            alu64(MOV, Reg(2), FP),
            alu64_constant(ADD, Reg(2), -40),
            calls(2, 5),
            calls(3, 8),
            exit(),
            // 5: 8 bytes.
            store(DOUBLE, FP, -8, Reg(1)),
            calls(6, 8),
            exit(),
            // 8: none.
            load(DOUBLE, Reg(1), Reg(2), -300),
            exit(),
        ];
        let functions = [0, 5, 8].map(|start| Function { start, type_id: 0 }).into();
        assert_eq!(deepest(&Text { insns, functions }), 64 + 32 + 32);
    }
}
