//! Where a program bound to its device may end.
//!
//! The kernel keeps a program in whole pages, and moves it to others when it outgrows them while
//! the verifier works. A program that is bound to its device must not be moved: the kernel then
//! forgets to tell the device, and reads freed memory when the device goes away. The loader
//! therefore pads such a program before it is loaded ([`before_page_end`]) and looks afterwards
//! whether it stayed ([`stays_in_place`]).

use crate::filter::ebpf::INSTRUCTION;

/// Instructions that the verifier may add to a program, filters left out: it puts several in the
/// place of a map look-up or of a kernel function.
pub(super) const GROWTH: usize = 512;

/// Returns how many instructions that do nothing are to be put before a program of so many bytes.
/// The verifier writes out loops (`bpf_loop`) before it takes them out again. So that the program
/// does not outgrow its pages in between, whatever size the structure before it has, they push its
/// end away from a page's.
pub(super) fn before_page_end(loaded: usize) -> usize {
    const PAGE: usize = 4096;
    const LOOPS: usize = 1024;
    // The structure before the program takes from 48 to 128 bytes.
    const FIRST: usize = 88;
    let end = (128 + loaded) % PAGE;
    let missing = if end < FIRST {
        FIRST - end
    } else if end > PAGE - LOOPS {
        PAGE - end + FIRST
    } else {
        0
    };
    missing.div_ceil(INSTRUCTION)
}

/// Returns whether a program of so many bytes, with `struct bpf_prog` before them, still has room
/// in the pages that the kernel took for it when it has grown to `translated`. The structure's size
/// differs between kernels: it is taken as small before and as large after.
pub(super) fn stays_in_place(loaded: usize, translated: usize) -> bool {
    const PAGE: usize = 4096;
    const SMALLEST: usize = 48;
    const LARGEST: usize = 128;
    LARGEST + translated <= (SMALLEST + loaded).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::{before_page_end, stays_in_place};

    #[test]
    fn a_program_stays_where_its_pages_have_room() {
        assert!(stays_in_place(4000, 3900));
        assert!(!stays_in_place(4000, 4000), "the structure before it takes room too");
        assert!(stays_in_place(4090, 8000), "two pages from the start");
        assert!(!stays_in_place(3000, 4096));
    }

    #[test]
    fn a_program_ends_where_its_last_page_has_room_for_loops() {
        for loaded in (0..20_000).step_by(8) {
            let all = loaded + before_page_end(loaded) * 8;
            for structure in [48, 56, 64, 128] {
                let end: usize = structure + all;
                assert!(end.next_multiple_of(4096) - end >= 1000, "{loaded} {structure}");
            }
        }
    }
}
