//! Programs with loops, which libpcap writes for `protochain` alone, as programs without.
//!
//! `protochain` follows the headers of a packet to their end, and jumps back for each. Neither
//! machine of the kernel takes that: the classic one knows no jump backwards, and the verifier of
//! the other walks every way there is. So a loop is written out: its body stands there once for
//! each time that it may be run, and a jump back leads into the next copy. The last one's leads to
//! a return: a packet that would go round once more is refused, whatever the rest of the program
//! would say to it.
//!
//! The bound is more than a limit. libpcap takes the length of an authentication header for its
//! place, so some packets lead its loop in circles; where it runs one itself, they hold it for
//! ever.

use libc::sock_filter;

use super::cbpf::{Invalid, MAX_INSTRUCTIONS, MIN_ROUNDS};

/// Headers that each loop follows at most. With as many, `protochain 6` fits into the 20 KiB that
/// older kernels let a socket have for it (`net.core.optmem_max`).
pub const MAX_ROUNDS: usize = 16;

/// `BPF_JMP`, the class of all jumps, and `BPF_JMP | BPF_JA`, which needs no condition.
const JUMPS: u16 = 0x05;
const CLASS: u16 = 0x07;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// How far a conditional jump reaches.
const REACH: usize = u8::MAX as usize;

/// Writes out the loops of a program, with as many rounds as there is room for.
///
/// # Errors
/// [`Invalid`] where a loop is none of libpcap's, or does not fit.
pub fn unroll(code: &[sock_filter]) -> Result<Vec<sock_filter>, Invalid> {
    let loops = loops(code)?;
    if loops.is_empty() {
        return Ok(code.to_vec());
    }
    let mut len = 0;
    for rounds in (MIN_ROUNDS..=MAX_ROUNDS).rev() {
        let program = write_out(code, &loops, rounds)?;
        len = program.len();
        if len <= MAX_INSTRUCTIONS {
            return Ok(program);
        }
    }
    Err(Invalid::LongLoop(len))
}

/// From the first instruction of its body to the last, which jumps back to that.
#[derive(Clone, Copy)]
struct Loop {
    head: usize,
    end: usize,
}

impl Loop {
    fn len(self) -> usize {
        self.end + 1 - self.head
    }

    fn holds(self, at: usize) -> bool {
        (self.head..=self.end).contains(&at)
    }
}

/// The loops of a program, in their order. None is in another.
fn loops(code: &[sock_filter]) -> Result<Vec<Loop>, Invalid> {
    let mut loops: Vec<Loop> = Vec::new();
    for (at, i) in code.iter().enumerate().filter(|(_, i)| i.code == JUMPS) {
        let distance = i.k.cast_signed();
        if distance >= 0 {
            continue;
        }
        let head = (at + 1).checked_add_signed(distance as isize).ok_or(Invalid::Loop(at))?;
        match loops.last_mut() {
            Some(last) if last.head == head => last.end = at,
            Some(last) if last.end >= head => return Err(Invalid::Loop(at)),
            _ => loops.push(Loop { head, end: at }),
        }
    }
    Ok(loops)
}

/// An instruction, and where it may jump to, by the place in the list of all.
struct Node {
    insn: sock_filter,
    yes: usize,
    no: usize,
}

impl Node {
    fn is_branch(&self) -> bool {
        self.insn.code & CLASS == JUMPS && self.insn.code != JUMPS
    }
}

fn write_out(
    code: &[sock_filter],
    loops: &[Loop],
    rounds: usize,
) -> Result<Vec<sock_filter>, Invalid> {
    // Where an instruction stands, in the first copy if it is in a loop.
    let place = |at: usize| {
        let before = loops.iter().filter(|l| l.end < at);
        at + before.map(|l| l.len() * rounds).sum::<usize>()
    };
    let refusal = place(code.len());
    let mut nodes = Vec::with_capacity(refusal + 1);
    let mut at = 0;
    while at < code.len() {
        let within = loops.iter().copied().find(|l| l.head == at);
        let (end, copies) = within.map_or((at, 1), |l| (l.end, rounds + 1));
        for round in 0..copies {
            for from in at..=end {
                let target = |distance: i64| -> Result<usize, Invalid> {
                    let to = usize::try_from(from as i64 + 1 + distance);
                    let to = to.ok().filter(|to| *to < code.len()).ok_or(Invalid::Jump(from))?;
                    Ok(match within {
                        Some(_) if to <= from && round == rounds => refusal,
                        Some(l) if to <= from => place(to) + l.len() * (round + 1),
                        Some(l) if l.holds(to) => place(to) + l.len() * round,
                        _ => place(to),
                    })
                };
                let insn = code[from];
                nodes.push(match insn.code {
                    JUMPS => Node { insn, yes: target(i64::from(insn.k.cast_signed()))?, no: 0 },
                    c if c & CLASS == JUMPS => {
                        let (yes, no) = (target(insn.jt.into())?, target(insn.jf.into())?);
                        Node { insn, yes, no }
                    }
                    _ => Node { insn, yes: 0, no: 0 },
                });
            }
        }
        at = end + 1;
    }
    nodes.push(Node { insn: jump(RETURN, 0), yes: 0, no: 0 });
    Ok(lay_out(&nodes))
}

fn jump(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Puts the instructions in a row. Where a condition's target is out of its reach, a jump that
/// reaches it stands behind the condition.
fn lay_out(nodes: &[Node]) -> Vec<sock_filter> {
    let mut far = vec![(false, false); nodes.len()];
    let places = loop {
        let places: Vec<usize> = far
            .iter()
            .scan(0, |next, (yes, no)| {
                let place = *next;
                *next += 1 + usize::from(*yes) + usize::from(*no);
                Some(place)
            })
            .collect();
        let mut changed = false;
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.is_branch()) {
            let is_far = |to: usize| places[to] - places[at] - 1 > REACH;
            let now = (far[at].0 || is_far(node.yes), far[at].1 || is_far(node.no));
            changed |= now != far[at];
            far[at] = now;
        }
        if !changed {
            break places;
        }
    };
    let mut program = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        // From behind the instruction that is put next.
        let distance = |program: &[sock_filter], to: usize| places[to] - program.len() - 1;
        let mut insn = node.insn;
        if insn.code == JUMPS {
            insn.k = distance(&program, node.yes) as u32;
            program.push(insn);
        } else if node.is_branch() {
            let (yes, no) = far[at];
            insn.jt = if yes { 0 } else { distance(&program, node.yes) as u8 };
            insn.jf = if no { u8::from(yes) } else { distance(&program, node.no) as u8 };
            program.push(insn);
            for (_, to) in [(yes, node.yes), (no, node.no)].into_iter().filter(|(far, _)| *far) {
                program.push(jump(JUMPS, distance(&program, to) as u32));
            }
        } else {
            program.push(insn);
        }
    }
    program
}
