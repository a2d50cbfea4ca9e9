//! How a translation reads a frame: where it lies, from a copy, by an instruction, or by a call.

use super::places::{Lies, LoadFrom, TAG, TAG_END};
use super::{
    CONTEXT, Callee, DATA, DIRECT, Detour, END, Into, KEPT_ABOUT, KEPT_CONTEXT, Kind, MAX_OFFSET,
    Machine, PART, Reads, Translator, stack,
};
use crate::filter::cbpf::{Instruction, Size};
use crate::filter::ebpf::{self, FP, Reg};

/// A place behind the end of every frame.
const NOWHERE: u32 = 0x00ff_ffff;

impl Translator<'_> {
    pub(super) fn load(&mut self, instruction: Instruction, into: Into) {
        match self.lies(&instruction) {
            Some((Lies::At(place), size)) => match self.machine.reads {
                Reads::WhereItLies => self.load_in_place(place, size, into),
                Reads::ByInstructions => self.load_by_instruction(place, size, into),
                Reads::FromCopy => self.load_from_copy(place, size, into),
                Reads::ByCalls => self.call(place, size.bytes(), into, false),
            },
            Some((Lies::InTag(place), size)) => self.load_of_tag(place, size, into),
            Some((Lies::Anywhere(place), size)) => self.call(place, size.bytes(), into, true),
            None => {}
        }
    }

    fn load_in_place(&mut self, place: LoadFrom, size: Size, into: Into) {
        let (LoadFrom::At(offset) | LoadFrom::BehindX(offset) | LoadFrom::Beside(offset)) = place;
        let end = offset.saturating_add(size.bytes());
        if matches!(place, LoadFrom::At(_)) && end <= self.prefix {
            self.read(DATA, offset as i16, size, into);
        } else if end > MAX_OFFSET - 1 {
            self.call(place, size.bytes(), into, false);
        } else {
            self.look(place, end, size, into);
        }
    }

    /// Loads from a fixed place of the copy, or by an instruction what is not in there. Behind X, a
    /// read of the stack would need CAP_PERFMON, which packet sockets do without.
    fn load_from_copy(&mut self, place: LoadFrom, size: Size, into: Into) {
        match place {
            LoadFrom::At(offset) if offset.saturating_add(size.bytes()) <= self.prefix => {
                let at = stack::COPY + offset as i16;
                let part = match size {
                    Size::Word if at % 4 == 0 => Size::Word,
                    Size::Word | Size::Half if at % 2 == 0 => Size::Half,
                    Size::Word | Size::Half | Size::Byte => Size::Byte,
                };
                self.read_parts(at, part, size, into);
            }
            _ => self.load_by_instruction(place, size, into),
        }
    }

    /// Loads from the stack in parts of one size, each of which is aligned.
    fn read_parts(&mut self, offset: i16, part: Size, size: Size, into: Into) {
        let to = self.target(into);
        let bits = 8 * part.bytes() as i32;
        for at in (0..size.bytes()).step_by(part.bytes() as usize) {
            let one = if at == 0 { to } else { PART };
            self.put(ebpf::load(code_of(part), one, FP, offset + at as i16));
            if part != Size::Byte {
                self.put(ebpf::swap(one, bits));
            }
            if at > 0 {
                self.put(ebpf::alu32_constant(ebpf::LSH, to, bits as u32));
                self.put(ebpf::alu32(ebpf::OR, to, PART));
            }
        }
        self.finish(into, to);
    }

    /// Loads by an instruction that refuses the packet where there is nothing.
    fn load_by_instruction(&mut self, place: LoadFrom, size: Size, into: Into) {
        let x = self.machine.x;
        let code = code_of(size);
        match place {
            LoadFrom::At(offset) if offset < NOWHERE => {
                self.put(ebpf::load_packet(code, offset));
            }
            LoadFrom::BehindX(offset) if offset < NOWHERE => {
                // The kernel takes a place from 2³¹ on for something else than the frame.
                let near = self.put(ebpf::jump32_constant(ebpf::JLE, x, NOWHERE));
                self.leave(false);
                self.land(near);
                self.put(ebpf::load_packet_behind(code, x, offset));
            }
            _ => return self.call(place, size.bytes(), into, false),
        }
        let to = self.target(into);
        self.put(ebpf::alu32(ebpf::MOV, to, Reg(0)));
        self.finish(into, to);
    }

    /// Loads bytes that all stand in the tag.
    fn load_of_tag(&mut self, place: u32, size: Size, into: Into) {
        let to = self.target(into);
        self.put(ebpf::load(ebpf::WORD, to, FP, stack::TAG));
        self.put(ebpf::swap(to, 32));
        let behind = TAG_END - place - size.bytes();
        if behind > 0 {
            self.put(ebpf::alu32_constant(ebpf::RSH, to, 8 * behind));
        }
        if place > TAG {
            self.put(ebpf::alu32_constant(ebpf::AND, to, u32::MAX >> (32 - 8 * size.bytes())));
        }
        self.finish(into, to);
    }

    fn target(&self, into: Into) -> Reg {
        if into == Into::A { self.machine.a } else { self.machine.x }
    }

    /// Loads from a place after a look whether the frame reaches that far.
    fn look(&mut self, place: LoadFrom, end: u32, size: Size, into: Into) {
        let Machine { x, work, .. } = self.machine;
        let mut from = Vec::new();
        if matches!(place, LoadFrom::BehindX(_)) {
            // The copy is one of 32 bits, so that what the verifier learns about it is not learnt
            // about X.
            self.put(ebpf::alu32(ebpf::MOV, work, x));
            let limit = (MAX_OFFSET - end) as i32;
            from.push(self.put(ebpf::jump64_constant(ebpf::JGT, work, limit)));
        } else {
            // The shift leaves 0, which the verifier does not know. If it did, what it learns about
            // this place would differ on every way here, and it would walk on once for each.
            self.put(ebpf::load(ebpf::DOUBLE, work, FP, stack::ABOUT));
            self.put(ebpf::alu64_constant(ebpf::RSH, work, 63));
        }
        self.put(ebpf::alu64(ebpf::ADD, work, DATA));
        self.put(ebpf::alu64_constant(ebpf::ADD, work, end as i32));
        from.push(self.put(ebpf::jump64(ebpf::JGT, work, END)));
        self.read(work, -(size.bytes() as i16), size, into);
        let back = self.here();
        self.detours.push(Detour { from, kind: Kind::Load { place, size, into, back } });
    }

    /// Leaves a register as it is, but the verifier no longer knows anything about it. A place in
    /// the frame that was computed has other bounds on every way to it, and the verifier would
    /// walk on from there once for each.
    pub(super) fn forget(&mut self, register: Reg) {
        let work = self.machine.work;
        // The shift leaves 0, which the verifier does not know.
        self.put(ebpf::load(ebpf::DOUBLE, work, FP, stack::ABOUT));
        self.put(ebpf::alu64_constant(ebpf::ARSH, work, 63));
        self.put(ebpf::alu64(ebpf::XOR, register, work));
    }

    /// Loads from a place that the verifier knows to be in the frame.
    fn read(&mut self, base: Reg, offset: i16, size: Size, into: Into) {
        let to = self.target(into);
        self.put(ebpf::load(code_of(size), to, base, offset));
        if size != Size::Byte {
            self.put(ebpf::swap(to, 8 * size.bytes() as i32));
        }
        self.finish(into, to);
    }

    fn finish(&mut self, into: Into, to: Reg) {
        if into == Into::X {
            self.put(ebpf::alu32_constant(ebpf::AND, to, 15));
            self.put(ebpf::alu32_constant(ebpf::LSH, to, 2));
        }
    }

    /// A load by a call, which refuses the packet where there is nothing. With `tagged`, the place
    /// is one of the frame with its tag.
    pub(super) fn call(&mut self, place: LoadFrom, size: u32, into: Into, tagged: bool) {
        let Machine { a, x, .. } = self.machine;
        let direct = self.machine == DIRECT;
        let kept = if into == Into::A { x } else { a };
        if direct {
            self.put(ebpf::store(ebpf::DOUBLE, FP, stack::CONTEXT, CONTEXT));
            self.put(ebpf::store(ebpf::DOUBLE, FP, stack::OTHER, kept));
            self.put(ebpf::store(ebpf::DOUBLE, FP, stack::DATA, DATA));
            self.put(ebpf::store(ebpf::DOUBLE, FP, stack::END, END));
        } else {
            self.put(ebpf::alu64(ebpf::MOV, Reg(1), KEPT_CONTEXT));
        }
        match place {
            LoadFrom::At(offset) | LoadFrom::Beside(offset) => {
                self.put(ebpf::alu32_constant(ebpf::MOV, Reg(2), offset));
            }
            LoadFrom::BehindX(offset) => {
                self.put(ebpf::alu64(ebpf::MOV, Reg(2), x));
                self.put(ebpf::alu64_constant(ebpf::ADD, Reg(2), offset as i32));
            }
        }
        self.put(ebpf::alu32_constant(ebpf::MOV, Reg(3), size));
        match place {
            _ if !direct => self.put(ebpf::alu64(ebpf::MOV, Reg(4), KEPT_ABOUT)),
            LoadFrom::Beside(_) => self.put(ebpf::load(ebpf::DOUBLE, Reg(4), FP, stack::ABOUT)),
            // Where the direct translation is in use, the loader has to know no more to find a
            // byte.
            _ => self.put(ebpf::alu32_constant(ebpf::MOV, Reg(4), 0)),
        };
        self.put(if tagged {
            ebpf::load(ebpf::WORD, Reg(5), FP, stack::TAG)
        } else {
            ebpf::alu32_constant(ebpf::MOV, Reg(5), 0)
        });
        let at = self.put(ebpf::call());
        self.fragment.calls.push((at, Callee::Load));
        let there = self.put(ebpf::jump64_constant(ebpf::JSGE, Reg(0), 0));
        self.leave(false);
        self.land(there);
        let to = self.target(into);
        if to != Reg(0) {
            self.put(ebpf::alu32(ebpf::MOV, to, Reg(0)));
        }
        self.finish(into, to);
        if direct {
            self.put(ebpf::load(ebpf::DOUBLE, CONTEXT, FP, stack::CONTEXT));
            self.put(ebpf::load(ebpf::DOUBLE, kept, FP, stack::OTHER));
            self.put(ebpf::load(ebpf::DOUBLE, DATA, FP, stack::DATA));
            self.put(ebpf::load(ebpf::DOUBLE, END, FP, stack::END));
        }
    }
}

/// How an instruction says the size of what it reads.
fn code_of(size: Size) -> u8 {
    match size {
        Size::Byte => ebpf::BYTE,
        Size::Half => ebpf::HALF,
        Size::Word => ebpf::WORD,
    }
}
