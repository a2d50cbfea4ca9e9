//! From classic BPF to eBPF.
//!
//! A filter judges a frame as it is recorded, with the VLAN tag in it that the kernel or the card
//! took off. So it is translated twice: for frames that are **whole** where they lie, and for
//! frames whose tag is **stripped**, in which all behind the tag lies four bytes further in front,
//! and the tag in a register. Which of the two runs, the hook program knows from the packet, so a
//! whole frame costs nothing for it.
//!
//! Each becomes one or two translations, which `splice` puts into functions. The **direct**
//! one reads the frame where it lies. It looks once, at its beginning, whether all that it reads at
//! fixed places (up to [`PREFIX`] bytes) is there, and from then on such a load is a load; one
//! behind X compares once. What does not lie in the linear part of a packet is asked for by a call,
//! out of the way of the other code. Where already the look at the beginning fails, because the
//! frame is short or its linear part is, the **calling** translation takes over, which asks for
//! each byte by a call; it has no bound on what a frame must have, and it is all there is where a
//! hook cannot see the frame (netfilter). A packet socket's program cannot see it either, but may
//! read it by instructions of its own, each of which is a call in the end. So its **copying**
//! translation has the frame's beginning copied onto its stack by one call, reads it there, and
//! asks by those instructions for what lies further. Where the frame is shorter than the copy, the
//! calling translation takes over, with those instructions in the place of calls.
//!
//! Two translations, and not a check at every load, are what keeps the verifier's work in
//! proportion to the filter's length: what it knows of the frame is the same on every way through
//! either of them, so it never walks one twice.
//!
//! A translation is entered as the function it stands in is called: r1 the hook's context, r2 the
//! filter's number, r3 the stripped VLAN tag, r4 what else is known of the packet
//! (`td_filter_about` in bpf/filter.h). It leaves with r0 not 0 if it takes the packet.

mod loads;
mod places;

use places::{Lies, LoadFrom, TAG, TAG_END, asks_about, fixed_place, lies, reads_frame};

use super::cbpf::{Arithmetic, ClassicProgram, Condition, Instruction, Operand, Size, Value};
use super::ebpf::{self, FP, Insn, Reg};

/// The most bytes that the direct translation asks for at its beginning: every Ethernet frame has
/// as many, and the usual filters read no fixed place behind them.
const PREFIX: u32 = 60;
/// How far a pointer into a packet may be moved (`MAX_PACKET_OFF`).
const MAX_OFFSET: u32 = 0xffff;
/// Code that may lie between two islands; a jump reaches 32,767 instructions, and must get across
/// one island and as much code.
const ISLAND_DISTANCE: usize = 14_000;
/// The most instructions of one [`Detour`].
const DETOUR: usize = 21;

/// Where things are kept in the function's stack frame.
mod stack {
    pub const TAG: i16 = -8;
    pub const ABOUT: i16 = -16;
    pub const CONTEXT: i16 = -24;
    pub const DATA: i16 = -32;
    pub const END: i16 = -40;
    pub const OTHER: i16 = -48;
    /// The filter's words of memory.
    pub const MEMORY: i16 = -112;
    /// A copy of the frame's beginning. The verifier wants aligned reads of a stack, and two bytes
    /// behind a multiple of eight most of an IP packet's fields are.
    pub const COPY: i16 = -174;
}

/// What a translation calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee {
    /// `td_load_*` of bpf/filter.h, which reads what the code cannot see.
    Load,
    /// The calling translation of this filter.
    Calling,
}

/// Code that can be put anywhere in a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeFragment {
    pub insns: Vec<Insn>,
    /// Calls, by their place, whose distance is filled in later.
    pub calls: Vec<(usize, Callee)>,
}

/// Where a hook's context tells where the frame lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointers {
    pub data: i16,
    pub data_end: i16,
}

/// Which frames a translation judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Those that lie there as they are recorded.
    Whole,
    /// Those whose VLAN tag was taken off.
    Stripped,
}

/// Returns the translation of filter `number` that reads the frame where it lies.
pub fn direct(
    program: &ClassicProgram,
    number: u32,
    pointers: Pointers,
    frames: Frames,
) -> CodeFragment {
    let places = || program.instructions().iter().filter_map(|i| fixed_place(i, frames));
    let prefix = places().filter(|end| *end <= PREFIX).max().unwrap_or(0);
    let mut t = Translator::new(program, DIRECT, frames, prefix);
    let reads = program.instructions().iter().any(reads_frame);
    if reads {
        t.put(ebpf::load(ebpf::WORD, DATA, CONTEXT, pointers.data));
        t.put(ebpf::load(ebpf::WORD, END, CONTEXT, pointers.data_end));
    }
    if prefix > 0 {
        t.put(ebpf::alu64(ebpf::MOV, DIRECT.a, DATA));
        t.put(ebpf::alu64_constant(ebpf::ADD, DIRECT.a, prefix as i32));
        let at = t.put(ebpf::jump64(ebpf::JGT, DIRECT.a, END));
        t.detours.push(Detour { from: vec![at], kind: Kind::Calling { number } });
    }
    t.keep_tag();
    let far = places().any(|end| end > prefix);
    let computes = program.instructions().contains(&Instruction::XFromA);
    if far || computes || program.instructions().iter().any(asks_about) {
        t.put(ebpf::store(ebpf::DOUBLE, FP, stack::ABOUT, Reg(4)));
    }
    t.run()
}

/// Returns the translation that asks for everything by calls.
pub fn calling(program: &ClassicProgram, frames: Frames) -> CodeFragment {
    keeping(program, CALLING, frames, 0).run()
}

/// Returns the translation of filter `number` for a packet socket's program that copies the frame's
/// beginning.
pub fn copying(program: &ClassicProgram, number: u32, frames: Frames) -> CodeFragment {
    let places = || program.instructions().iter().filter_map(|i| fixed_place(i, frames));
    let ends = || places().filter(|end| *end <= PREFIX);
    // The copy costs as much as two reads by instructions.
    let prefix = if ends().count() < 2 { 0 } else { ends().max().unwrap_or(0) };
    let mut t = keeping(program, COPYING, frames, prefix);
    if prefix > 0 {
        t.copy_beginning(number);
    }
    t.run()
}

/// Returns the calling translation for a packet socket's program.
pub fn of_socket(program: &ClassicProgram, frames: Frames) -> CodeFragment {
    keeping(program, SOCKET, frames, 0).run()
}

/// Begins a translation that has everything in registers that calls keep.
fn keeping(
    program: &ClassicProgram,
    machine: Machine,
    frames: Frames,
    prefix: u32,
) -> Translator<'_> {
    let mut t = Translator::new(program, machine, frames, prefix);
    t.put(ebpf::alu64(ebpf::MOV, KEPT_CONTEXT, Reg(1)));
    t.put(ebpf::alu64(ebpf::MOV, KEPT_ABOUT, Reg(4)));
    t.keep_tag();
    t
}

/// The registers of the classic machine, one to work with, and how frames are read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Machine {
    a: Reg,
    x: Reg,
    work: Reg,
    reads: Reads,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    WhereItLies,
    ByCalls,
    ByInstructions,
    FromCopy,
}

/// The direct translation's registers: those that a call loses, so nothing has to be saved where
/// none is made.
const DIRECT: Machine = Machine { a: Reg(0), x: Reg(4), work: Reg(3), reads: Reads::WhereItLies };
const CONTEXT: Reg = Reg(1);
const DATA: Reg = Reg(2);
const END: Reg = Reg(5);

/// The calling translation's registers: those that a call keeps.
const CALLING: Machine = Machine { a: Reg(7), x: Reg(8), work: Reg(1), reads: Reads::ByCalls };
/// The instructions that read a packet want its context in the register where that is kept.
const SOCKET: Machine = Machine { reads: Reads::ByInstructions, ..CALLING };
const COPYING: Machine = Machine { reads: Reads::FromCopy, ..CALLING };
/// Holds the second part of what is read from a copy.
const PART: Reg = Reg(2);
const KEPT_CONTEXT: Reg = Reg(6);
const KEPT_ABOUT: Reg = Reg(9);

/// What becomes of what is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    A,
    /// X, as the length of a header.
    X,
}

/// Code that is seldom needed, kept out of the way.
struct Detour {
    /// The jumps that lead to it.
    from: Vec<usize>,
    kind: Kind,
}

enum Kind {
    /// The calling translation does it all.
    Calling { number: u32 },
    /// One load by a call, and back.
    Load { place: LoadFrom, size: Size, into: Into, back: usize },
}

struct Translator<'a> {
    program: &'a ClassicProgram,
    machine: Machine,
    frames: Frames,
    /// Bytes of the frame that are known to be there.
    prefix: u32,
    fragment: CodeFragment,
    /// For each instruction of the program, the jumps to it that are not yet filled in.
    jumps: Vec<Vec<usize>>,
    detours: Vec<Detour>,
    /// The oldest jump or detour that waits, or where the last island ended.
    waiting_since: usize,
}

impl<'a> Translator<'a> {
    fn new(program: &'a ClassicProgram, machine: Machine, frames: Frames, prefix: u32) -> Self {
        Self {
            program,
            machine,
            frames,
            prefix,
            fragment: CodeFragment::default(),
            jumps: vec![Vec::new(); program.instructions().len()],
            detours: Vec::new(),
            waiting_since: 0,
        }
    }

    /// Keeps the tag where it will be asked for.
    fn keep_tag(&mut self) {
        let asks = |i: &Instruction| match self.lies(i) {
            Some((Lies::InTag(_) | Lies::Anywhere(_), _)) => true,
            Some((Lies::At(_), _)) | None => false,
        };
        if self.program.instructions().iter().any(asks) {
            self.put(ebpf::store(ebpf::WORD, FP, stack::TAG, Reg(3)));
        }
    }

    /// Copies the frame's beginning, or leaves all to the calling translation where it is shorter.
    fn copy_beginning(&mut self, number: u32) {
        // Nothing is in A yet, and a call keeps it.
        self.put(ebpf::alu64(ebpf::MOV, self.machine.a, Reg(3)));
        // A copy that fails takes as long as four reads, so the length is looked at first: the low
        // half of r4, as recorded.
        let tag = if self.frames == Frames::Stripped { TAG_END - TAG } else { 0 };
        let short = self.put(ebpf::jump32_constant(ebpf::JLT, Reg(4), self.prefix + tag));
        self.put(ebpf::alu64_constant(ebpf::MOV, Reg(2), 0));
        self.put(ebpf::alu64(ebpf::MOV, Reg(3), FP));
        self.put(ebpf::alu64_constant(ebpf::ADD, Reg(3), stack::COPY.into()));
        self.put(ebpf::alu64_constant(ebpf::MOV, Reg(4), self.prefix as i32));
        self.put(ebpf::call_kernel(ebpf::SKB_LOAD_BYTES));
        let failed = self.put(ebpf::jump64_constant(ebpf::JNE, Reg(0), 0));
        self.detours.push(Detour { from: vec![short, failed], kind: Kind::Calling { number } });
    }

    /// Returns where an instruction reads the frame, and how much.
    fn lies(&self, instruction: &Instruction) -> Option<(Lies, Size)> {
        lies(instruction, self.frames)
    }

    fn run(mut self) -> CodeFragment {
        let first = self.program.memory_read_first();
        for word in (0..16u32).filter(|word| first & 1 << word != 0) {
            self.put(ebpf::store_constant(ebpf::WORD, FP, memory(word), 0));
        }
        self.put(ebpf::alu32_constant(ebpf::MOV, self.machine.a, 0));
        if self.machine == DIRECT {
            // The shift leaves 0 of what r4 holds at first, which the verifier does not know; see
            // `look`.
            self.put(ebpf::alu64_constant(ebpf::RSH, self.machine.x, 63));
        } else {
            self.put(ebpf::alu32_constant(ebpf::MOV, self.machine.x, 0));
        }
        let reachable = self.program.reachable();
        let mut falls = true;
        for (at, instruction) in self.program.instructions().iter().enumerate() {
            // The verifier wants no code that cannot be reached.
            if !reachable[at] {
                continue;
            }
            if self.here() - self.waiting_since + self.detours.len() * DETOUR > ISLAND_DISTANCE {
                self.island(at, falls);
            }
            for from in std::mem::take(&mut self.jumps[at]) {
                self.land(from);
            }
            falls = self.instruction(at, *instruction);
        }
        self.take_detours();
        self.fragment
    }

    fn here(&self) -> usize {
        self.fragment.insns.len()
    }

    fn put(&mut self, insn: Insn) -> usize {
        self.fragment.insns.push(insn);
        self.here() - 1
    }

    /// Fills in a jump so that it leads to what comes next.
    fn land(&mut self, from: usize) {
        self.aim(from, self.here());
    }

    fn aim(&mut self, from: usize, to: usize) {
        let distance = to as i64 - from as i64 - 1;
        self.fragment.insns[from].offset =
            i16::try_from(distance).expect("islands keep jumps within reach");
    }

    fn jump_to(&mut self, target: usize, insn: Insn) {
        let at = self.put(insn);
        self.jumps[target].push(at);
    }

    /// Puts an island here: the detours that wait, and a stop for each jump that leads farther than
    /// one instruction can.
    fn island(&mut self, next: usize, falls: bool) {
        let over = falls.then(|| self.put(ebpf::go()));
        for target in next..self.jumps.len() {
            let jumps = std::mem::take(&mut self.jumps[target]);
            if jumps.is_empty() {
                continue;
            }
            for from in jumps {
                self.land(from);
            }
            self.jump_to(target, ebpf::go());
        }
        self.take_detours();
        if let Some(over) = over {
            self.land(over);
        }
        self.waiting_since = self.here();
    }

    /// Translates one instruction, and returns whether the run may go on to the next one.
    fn instruction(&mut self, at: usize, instruction: Instruction) -> bool {
        let Machine { a, x, .. } = self.machine;
        match instruction {
            Instruction::Load(..) | Instruction::LoadBehindX(..) => {
                self.load(instruction, Into::A);
            }
            Instruction::LoadXHeaderLength(_) => self.load(instruction, Into::X),
            // There are none of size 0 in a frame: that is how the loader tells.
            Instruction::LoadBeside(number) => {
                self.call(LoadFrom::Beside(number), 0, Into::A, false);
            }
            Instruction::LoadValue(value) => self.value(a, value),
            Instruction::LoadXValue(value) => self.value(x, value),
            Instruction::Store(word) => {
                self.put(ebpf::store(ebpf::WORD, FP, memory(word), a));
            }
            Instruction::StoreX(word) => {
                self.put(ebpf::store(ebpf::WORD, FP, memory(word), x));
            }
            Instruction::Arithmetic(operation, operand) => self.arithmetic(operation, operand),
            Instruction::Negate => {
                self.put(ebpf::alu32_constant(ebpf::NEG, a, 0));
            }
            Instruction::Jump(ahead) => {
                if ahead > 0 {
                    self.jump_to(at + 1 + ahead as usize, ebpf::go());
                }
                return ahead == 0;
            }
            Instruction::Branch { condition, operand, yes, no } => {
                let (yes, no) = (at + 1 + usize::from(yes), at + 1 + usize::from(no));
                return self.branch(condition, operand, at + 1, yes, no);
            }
            Instruction::Return(k) => {
                self.leave(k != 0);
                return false;
            }
            Instruction::ReturnA => {
                if a != Reg(0) {
                    self.put(ebpf::alu32(ebpf::MOV, Reg(0), a));
                }
                self.put(ebpf::exit());
                return false;
            }
            Instruction::XFromA => {
                self.put(ebpf::alu32(ebpf::MOV, x, a));
                if self.machine == DIRECT {
                    self.forget(x);
                }
            }
            Instruction::AFromX => {
                self.put(ebpf::alu32(ebpf::MOV, a, x));
            }
        }
        true
    }

    fn leave(&mut self, accept: bool) {
        self.put(ebpf::alu32_constant(ebpf::MOV, Reg(0), u32::from(accept)));
        self.put(ebpf::exit());
    }

    fn value(&mut self, to: Reg, value: Value) {
        match value {
            Value::Constant(k) => {
                self.put(ebpf::alu32_constant(ebpf::MOV, to, k));
            }
            Value::Memory(word) => {
                self.put(ebpf::load(ebpf::WORD, to, FP, memory(word)));
            }
            Value::Length => {
                if self.machine == DIRECT {
                    self.put(ebpf::load(ebpf::DOUBLE, to, FP, stack::ABOUT));
                    self.put(ebpf::alu32(ebpf::MOV, to, to));
                } else {
                    self.put(ebpf::alu32(ebpf::MOV, to, KEPT_ABOUT));
                }
            }
        }
    }

    fn arithmetic(&mut self, operation: Arithmetic, operand: Operand) {
        let Machine { a, x, .. } = self.machine;
        let code = match operation {
            Arithmetic::Add => ebpf::ADD,
            Arithmetic::Subtract => ebpf::SUB,
            Arithmetic::Multiply => ebpf::MUL,
            Arithmetic::Divide => ebpf::DIV,
            Arithmetic::Modulo => ebpf::MOD,
            Arithmetic::And => ebpf::AND,
            Arithmetic::Or => ebpf::OR,
            Arithmetic::Xor => ebpf::XOR,
            Arithmetic::ShiftLeft => ebpf::LSH,
            Arithmetic::ShiftRight => ebpf::RSH,
        };
        if let Operand::Constant(k) = operand {
            self.put(ebpf::alu32_constant(code, a, k));
            return;
        }
        match operation {
            Arithmetic::Divide | Arithmetic::Modulo => {
                let divisible = self.put(ebpf::jump32_constant(ebpf::JNE, x, 0));
                self.leave(false);
                self.land(divisible);
                self.put(ebpf::alu32(code, a, x));
            }
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight => {
                let short = self.put(ebpf::jump32_constant(ebpf::JLT, x, 32));
                self.put(ebpf::alu32_constant(ebpf::MOV, a, 0));
                let done = self.put(ebpf::go());
                self.land(short);
                self.put(ebpf::alu32(code, a, x));
                self.land(done);
            }
            _ => {
                self.put(ebpf::alu32(code, a, x));
            }
        }
    }

    fn branch(
        &mut self,
        condition: Condition,
        operand: Operand,
        next: usize,
        yes: usize,
        no: usize,
    ) -> bool {
        if yes == no {
            if yes != next {
                self.jump_to(yes, ebpf::go());
            }
            return yes == next;
        }
        let Machine { a, x, .. } = self.machine;
        let compare = |code| match operand {
            Operand::Constant(k) => ebpf::jump32_constant(code, a, k),
            Operand::X => ebpf::jump32(code, a, x),
        };
        let (code, opposite) = match condition {
            Condition::Equal => (ebpf::JEQ, Some(ebpf::JNE)),
            Condition::Greater => (ebpf::JGT, Some(ebpf::JLE)),
            Condition::GreaterOrEqual => (ebpf::JGE, Some(ebpf::JLT)),
            Condition::BitsSet => (ebpf::JSET, None),
        };
        match opposite {
            Some(opposite) if yes == next => self.jump_to(no, compare(opposite)),
            _ => {
                self.jump_to(yes, compare(code));
                if no != next {
                    self.jump_to(no, ebpf::go());
                }
            }
        }
        yes == next || no == next
    }

    fn take_detours(&mut self) {
        for detour in std::mem::take(&mut self.detours) {
            for from in detour.from {
                self.land(from);
            }
            match detour.kind {
                Kind::Calling { number } => {
                    if self.machine == COPYING {
                        self.put(ebpf::alu64(ebpf::MOV, Reg(1), KEPT_CONTEXT));
                        self.put(ebpf::alu64(ebpf::MOV, Reg(3), self.machine.a));
                        self.put(ebpf::alu64(ebpf::MOV, Reg(4), KEPT_ABOUT));
                    }
                    self.put(ebpf::alu32_constant(ebpf::MOV, Reg(2), number));
                    let at = self.put(ebpf::call());
                    self.fragment.calls.push((at, Callee::Calling));
                    self.put(ebpf::exit());
                }
                Kind::Load { place, size, into, back } => {
                    self.call(place, size.bytes(), into, false);
                    let at = self.put(ebpf::go());
                    self.aim(at, back);
                }
            }
        }
    }
}

fn memory(word: u32) -> i16 {
    stack::MEMORY + 4 * word as i16
}
