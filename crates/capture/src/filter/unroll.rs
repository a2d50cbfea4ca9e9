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

/// Headers that each loop follows at most: twice as many as [`MIN_ROUNDS`].
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

/// The instructions of a loop's body, from the first to the last, which jumps back to the first.
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

/// A program whose loops are being written out.
struct Copies<'a> {
    code: &'a [sock_filter],
    loops: &'a [Loop],
    rounds: usize,
}

/// A copy of a part of the program: of a loop, which of its rounds it is, or of one instruction in
/// no loop.
#[derive(Clone, Copy)]
struct CopyOf {
    within: Option<Loop>,
    round: usize,
}

impl Copies<'_> {
    /// Returns where an instruction stands, in the first copy if it is in a loop.
    fn place(&self, at: usize) -> usize {
        let before = self.loops.iter().filter(|l| l.end < at);
        at + before.map(|l| l.len() * self.rounds).sum::<usize>()
    }

    /// Returns where the return stands that refuses a packet which would go round once more.
    fn refusal(&self) -> usize {
        self.place(self.code.len())
    }

    /// Returns where a jump leads that is at `from` in the program and has this distance.
    fn target(&self, copy: CopyOf, from: usize, distance: i64) -> Result<usize, Invalid> {
        let to = usize::try_from(from as i64 + 1 + distance);
        let to = to.ok().filter(|to| *to < self.code.len()).ok_or(Invalid::Jump(from))?;
        Ok(match copy.within {
            Some(_) if to <= from && copy.round == self.rounds => self.refusal(),
            Some(l) if to <= from => self.place(to) + l.len() * (copy.round + 1),
            Some(l) if l.holds(to) => self.place(to) + l.len() * copy.round,
            _ => self.place(to),
        })
    }

    fn node(&self, copy: CopyOf, from: usize) -> Result<Node, Invalid> {
        let insn = self.code[from];
        let target = |distance| self.target(copy, from, distance);
        Ok(match insn.code {
            JUMPS => Node { insn, yes: target(i64::from(insn.k.cast_signed()))?, no: 0 },
            c if c & CLASS == JUMPS => {
                Node { insn, yes: target(insn.jt.into())?, no: target(insn.jf.into())? }
            }
            _ => Node { insn, yes: 0, no: 0 },
        })
    }
}

fn write_out(
    code: &[sock_filter],
    loops: &[Loop],
    rounds: usize,
) -> Result<Vec<sock_filter>, Invalid> {
    let copies = Copies { code, loops, rounds };
    let mut nodes = Vec::with_capacity(copies.refusal() + 1);
    let mut at = 0;
    while at < code.len() {
        let within = loops.iter().copied().find(|l| l.head == at);
        let (end, last_round) = within.map_or((at, 0), |l| (l.end, rounds));
        for round in 0..=last_round {
            for from in at..=end {
                nodes.push(copies.node(CopyOf { within, round }, from)?);
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
    let (places, far) = places(nodes);
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

/// Returns where each instruction comes to stand, and which of its two targets are out of reach. A
/// jump more moves what is behind it, which may put other targets out of reach, so this goes on
/// until nothing changes.
fn places(nodes: &[Node]) -> (Vec<usize>, Vec<(bool, bool)>) {
    let mut far = vec![(false, false); nodes.len()];
    loop {
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
            return (places, far);
        }
    }
}
