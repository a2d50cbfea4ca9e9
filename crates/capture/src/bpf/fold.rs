//! Writes the parameters into a hook program as constants.
//!
//! What a program is told before it is verified stands in a map that nobody can change any more.
//! The verifier knows that, and takes out what such a parameter rules out; but it leaves in the
//! loads of parameters, the comparisons of them where both ways meet again, and all that is
//! reckoned out for what was taken out, on the way of each packet. This follows each way through
//! the program, and what is known of each register on it (conditional constant propagation, Wegman
//! and Zadeck 1991), puts constants in the place of what is known, and takes out what nobody reads
//! and where no way leads.

use crate::filter::ebpf::{self, Effect, Insn, Operand, Registers};
use crate::filter::splice::{Function, Text};

/// What programs read of a map that is not written any more.
#[derive(Clone, Debug)]
pub(super) struct Constants {
    /// The map's descriptor, by which instructions name it.
    pub map: i32,
    pub bytes: Vec<u8>,
}

impl Constants {
    /// Returns the number of that many bytes at a place.
    fn read(&self, place: i64, len: usize) -> Option<u64> {
        let start = usize::try_from(place).ok()?;
        let bytes = self.bytes.get(start..start.checked_add(len)?)?;
        let mut number = [0; 8];
        if cfg!(target_endian = "big") {
            number[8 - len..].copy_from_slice(bytes);
            Some(u64::from_be_bytes(number))
        } else {
            number[..len].copy_from_slice(bytes);
            Some(u64::from_le_bytes(number))
        }
    }
}

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Any,
    Number(u64),
    /// Points to that place of the constants.
    Place(i64),
}

/// What is known of all registers before an instruction; `None`: no way leads there.
type State = Option<[Value; ebpf::REGISTERS]>;

/// Returns the program with the constants in the place of what reads them.
pub(super) fn fold(text: &Text, constants: &Constants) -> Text {
    let mut insns = text.insns.clone();
    let states = follow(text, constants);
    for (at, state) in states.iter().enumerate() {
        if let Some(state) = state {
            insns[at] = simplified(text.insns[at], state, constants);
        }
    }
    let mut is_kept: Vec<bool> = states.iter().map(Option::is_some).collect();
    for at in 0..insns.len() {
        // The second half goes with the first, where no way leads to it but by that.
        if is_kept[at] && matches!(insns[at].effect(), Effect::LoadWide { .. }) {
            is_kept[at + 1] = true;
        }
    }
    leave_out_unread(&insns, &states, &mut is_kept);
    without_others(&Text { insns, functions: text.functions.clone() }, &is_kept)
}

/// Returns the program with those instructions alone that are kept. The others do nothing, or no
/// way leads there.
fn without_others(text: &Text, is_kept: &[bool]) -> Text {
    let mut places = Vec::with_capacity(is_kept.len() + 1);
    let mut kept = 0;
    for is_kept in is_kept {
        places.push(kept);
        kept += usize::from(*is_kept);
    }
    places.push(kept);
    let mut new = Text { insns: Vec::with_capacity(kept), functions: Vec::new() };
    for (at, insn) in text.insns.iter().enumerate().filter(|(at, _)| is_kept[*at]) {
        let distance = |old: i32| {
            let to = (at + 1).wrapping_add_signed(old as isize);
            (places[to] as i64 - places[at] as i64 - 1) as i32
        };
        new.insns.push(insn.distance().map_or(*insn, |old| insn.with_distance(distance(old))));
    }
    let functions = (0..text.functions.len()).filter(|i| text.range(*i).any(|at| is_kept[at]));
    new.functions = functions
        .map(|i| Function { start: places[text.functions[i].start], ..text.functions[i] })
        .collect();
    new
}

/// Returns what is known before each instruction, whatever way leads there.
fn follow(text: &Text, constants: &Constants) -> Vec<State> {
    let insns = &text.insns;
    let mut states: Vec<State> = vec![None; insns.len()];
    states[0] = Some([Value::Any; ebpf::REGISTERS]);
    let mut todo = vec![0];
    while let Some(at) = todo.pop() {
        let Some(before) = states[at] else { continue };
        let after = step(&insns[at..], &before, constants);
        if insns[at].names_function() {
            let start = (at + 1).wrapping_add_signed(insns[at].immediate as isize);
            if states[start].is_none() {
                states[start] = Some([Value::Any; ebpf::REGISTERS]);
                todo.push(start);
            }
        }
        for next in successors(at, simplified(insns[at], &before, constants)) {
            let joined = match states.get(next) {
                None => continue,
                Some(None) => after,
                Some(Some(there)) => join(there, &after),
            };
            if states[next] != Some(joined) {
                states[next] = Some(joined);
                todo.push(next);
            }
        }
    }
    states
}

fn join(a: &[Value; ebpf::REGISTERS], b: &[Value; ebpf::REGISTERS]) -> [Value; ebpf::REGISTERS] {
    std::array::from_fn(|i| if a[i] == b[i] { a[i] } else { Value::Any })
}

/// Returns which instructions may come next.
fn successors(at: usize, insn: Insn) -> impl Iterator<Item = usize> {
    let (falls_through, jump) = match insn.effect() {
        Effect::Exit => (None, None),
        Effect::Go => (None, insn.distance()),
        Effect::Branch { .. } => (Some(at + 1), insn.distance()),
        Effect::LoadWide { .. } => (Some(at + 2), None),
        _ => (Some(at + 1), None),
    };
    let there = jump.map(|distance| (at + 1).wrapping_add_signed(distance as isize));
    falls_through.into_iter().chain(there)
}

fn number_of(operand: Operand, state: &[Value; ebpf::REGISTERS]) -> Option<u64> {
    match operand {
        // The kernel extends its sign.
        Operand::Immediate(number) => Some(i64::from(number) as u64),
        Operand::Register(register) => match state[usize::from(register.0)] {
            Value::Number(number) => Some(number),
            _ => None,
        },
    }
}

/// Returns what is known behind an instruction, which is the first of these.
fn step(
    insns: &[Insn],
    state: &[Value; ebpf::REGISTERS],
    constants: &Constants,
) -> [Value; ebpf::REGISTERS] {
    let insn = insns[0];
    let mut after = *state;
    for (register, value) in after.iter_mut().enumerate() {
        if insn.writes() & 1 << register != 0 {
            *value = Value::Any;
        }
    }
    match insn.effect() {
        Effect::LoadWide { to } => {
            let low = insn.immediate;
            let high = insns.get(1).map_or(0, |second| second.immediate);
            after[usize::from(to.0)] = if insn.names_value_of(constants.map) {
                Value::Place(i64::from(high))
            } else if insn.is_wide_number() {
                Value::Number(u64::from(low as u32) | u64::from(high as u32) << 32)
            } else {
                Value::Any
            };
        }
        Effect::Load { to, .. } | Effect::Alu { to, .. } => {
            after[usize::from(to.0)] = result(insn, state, constants);
        }
        _ => {}
    }
    after
}

/// Returns what a load or arithmetic comes to.
fn result(insn: Insn, state: &[Value; ebpf::REGISTERS], constants: &Constants) -> Value {
    match insn.effect() {
        Effect::Load { from, bytes, .. } => match state[usize::from(from.0)] {
            Value::Place(place) => constants
                .read(place.wrapping_add(i64::from(insn.offset)), bytes)
                .map_or(Value::Any, Value::Number),
            _ => Value::Any,
        },
        Effect::Alu { to, by, wide, operation } => {
            let before = state[usize::from(to.0)];
            let by_number = number_of(by, state);
            match (operation, before, by, by_number) {
                (ebpf::MOV, _, Operand::Register(from), _) if wide => state[usize::from(from.0)],
                (ebpf::MOV, _, _, Some(number)) => Value::Number(cut(number, wide)),
                (ebpf::ADD, Value::Place(place), _, Some(number)) if wide => {
                    Value::Place(place.wrapping_add(number as i64))
                }
                (_, Value::Number(a), _, Some(b)) => {
                    arithmetic(operation, a, b, wide).map_or(Value::Any, Value::Number)
                }
                _ => Value::Any,
            }
        }
        _ => Value::Any,
    }
}

/// Returns the low half, where an instruction works on that alone.
fn cut(number: u64, wide: bool) -> u64 {
    if wide { number } else { u64::from(number as u32) }
}

fn arithmetic(operation: u8, a: u64, b: u64, wide: bool) -> Option<u64> {
    let (a, b) = (cut(a, wide), cut(b, wide));
    let shift = (b & if wide { 63 } else { 31 }) as u32;
    let number = match operation {
        ebpf::ADD => a.wrapping_add(b),
        ebpf::SUB => a.wrapping_sub(b),
        ebpf::MUL => a.wrapping_mul(b),
        ebpf::OR => a | b,
        ebpf::AND => a & b,
        ebpf::XOR => a ^ b,
        ebpf::LSH => a << shift,
        ebpf::RSH => a >> shift,
        _ => return None,
    };
    Some(cut(number, wide))
}

/// Returns whether a jump of that condition is taken.
fn is_taken(condition: u8, a: u64, b: u64, wide: bool) -> Option<bool> {
    let (a, b) = (cut(a, wide), cut(b, wide));
    Some(match condition {
        ebpf::JEQ => a == b,
        ebpf::JNE => a != b,
        ebpf::JGT => a > b,
        ebpf::JGE => a >= b,
        ebpf::JLT => a < b,
        ebpf::JLE => a <= b,
        ebpf::JSET => a & b != 0,
        _ => return None,
    })
}

/// Returns an instruction that does the same where this is known.
fn simplified(insn: Insn, state: &[Value; ebpf::REGISTERS], constants: &Constants) -> Insn {
    match insn.effect() {
        Effect::Load { to, .. } | Effect::Alu { to, .. } => {
            match result(insn, state, constants) {
                // Moved to the low half, which clears the high one.
                Value::Number(number) if u32::try_from(number).is_ok() => {
                    ebpf::alu32_constant(ebpf::MOV, to, number as u32)
                }
                _ => with_constant(insn, state),
            }
        }
        Effect::Branch { condition, a, b, wide } => {
            let known = match state[usize::from(a.0)] {
                Value::Number(a) => {
                    number_of(b, state).and_then(|b| is_taken(condition, a, b, wide))
                }
                _ => None,
            };
            match known {
                Some(true) => ebpf::go().with_distance(insn.offset.into()),
                Some(false) => ebpf::nop(),
                None => with_constant(insn, state),
            }
        }
        _ => insn,
    }
}

/// Returns the same arithmetic or comparison with a constant for a register of which the number is
/// known.
fn with_constant(insn: Insn, state: &[Value; ebpf::REGISTERS]) -> Insn {
    let (by, wide) = match insn.effect() {
        // The verifier refuses to divide by 0, if that is a constant.
        Effect::Alu { operation: ebpf::DIV | ebpf::MOD, .. } => return insn,
        Effect::Alu { by: by @ Operand::Register(_), wide, .. }
        | Effect::Branch { b: by @ Operand::Register(_), wide, .. } => (by, wide),
        _ => return insn,
    };
    let most = match insn.effect() {
        // The verifier refuses to shift by more, if that is a constant.
        Effect::Alu { operation: ebpf::LSH | ebpf::RSH | ebpf::ARSH, .. } if wide => 63,
        Effect::Alu { operation: ebpf::LSH | ebpf::RSH | ebpf::ARSH, .. } => 31,
        _ if wide => i32::MAX as u64,
        _ => u64::from(u32::MAX),
    };
    match number_of(by, state).map(|number| cut(number, wide)) {
        Some(number) if number <= most => insn.with_constant(number as u32 as i32),
        _ => insn,
    }
}

/// Keeps nothing that does nothing, or reckons out what nobody reads.
fn leave_out_unread(insns: &[Insn], states: &[State], is_kept: &mut [bool]) {
    let reached: Vec<usize> = (0..insns.len()).filter(|at| states[*at].is_some()).collect();
    let mut from: Vec<Vec<usize>> = vec![Vec::new(); insns.len()];
    for &at in &reached {
        for next in successors(at, insns[at]).filter(|next| *next < insns.len()) {
            from[next].push(at);
        }
    }
    let mut read_behind: Vec<Registers> = vec![0; insns.len()];
    let mut todo = reached.clone();
    while let Some(at) = todo.pop() {
        let insn = insns[at];
        let read = if is_unread(insn, read_behind[at]) {
            read_behind[at]
        } else {
            read_behind[at] & !insn.writes() | insn.reads()
        };
        for &earlier in &from[at] {
            if read_behind[earlier] | read != read_behind[earlier] {
                read_behind[earlier] |= read;
                todo.push(earlier);
            }
        }
    }
    for at in reached {
        if insns[at] == ebpf::nop() {
            is_kept[at] = false;
        } else if is_unread(insns[at], read_behind[at]) {
            let len = if matches!(insns[at].effect(), Effect::LoadWide { .. }) { 2 } else { 1 };
            is_kept[at..at + len].fill(false);
        }
    }
}

/// Returns whether an instruction only writes registers, of which none is among those that are read
/// behind it.
fn is_unread(insn: Insn, read_behind: Registers) -> bool {
    // A function to which no instruction leads any more would be refused.
    matches!(insn.effect(), Effect::LoadWide { .. } | Effect::Alu { .. })
        && !insn.names_function()
        && insn.writes() & read_behind == 0
}

#[cfg(test)]
mod tests {
    use tapdeck_testkit::SplitMix64;

    use super::{Constants, fold};
    use crate::filter::ebpf::{
        self, ADD, AND, ARSH, Effect, HALF, Insn, JEQ, JGE, JGT, JLE, JLT, JNE, JSET, JSGE, LSH,
        MOV, MUL, OR, Operand, REGISTERS, RSH, Reg, SUB, WORD, XOR, alu32, alu32_constant, alu64,
        alu64_constant, call, call_kernel, exit, go, jump32, jump32_constant, jump64,
        jump64_constant, load, store,
    };
    use crate::filter::splice::{Function, Text};

    const MAP: i32 = 7;

    /// Returns 5, 0, 0x8000_0000, and 9 in two bytes.
    fn constants() -> Constants {
        let words = [5u32, 0, 0x8000_0000].map(u32::to_ne_bytes).concat();
        Constants { map: MAP, bytes: [words, 9u16.to_ne_bytes().to_vec()].concat() }
    }

    fn place(to: Reg, place: i32) -> [Insn; 2] {
        let first = Insn { code: 0x18, registers: 2 << 4 | to.0, offset: 0, immediate: MAP };
        [first, Insn { code: 0, registers: 0, offset: 0, immediate: place }]
    }

    fn text(parts: &[&[Insn]], functions: &[usize]) -> Text {
        let functions = functions.iter().map(|start| Function { start: *start, type_id: 0 });
        Text { insns: parts.concat(), functions: functions.collect() }
    }

    fn by(distance: i32, insn: Insn) -> Insn {
        insn.with_distance(distance)
    }

    fn folded(parts: &[&[Insn]]) -> Vec<Insn> {
        fold(&text(parts, &[0]), &constants()).insns
    }

    #[test]
    fn what_is_read_of_constants_is_written_into_the_program() {
        let insns = folded(&[
            &place(Reg(2), 0),
            &[
                load(WORD, Reg(3), Reg(2), 0),
                load(HALF, Reg(4), Reg(2), 12),
                alu64_constant(ADD, Reg(2), 8),
                load(WORD, Reg(5), Reg(2), 0),
                alu32_constant(ADD, Reg(3), u32::MAX),
                store(WORD, Reg(1), 0, Reg(3)),
                store(WORD, Reg(1), 4, Reg(4)),
                load(WORD, Reg(6), Reg(1), 8),
                // The sign of what stands in an instruction would be extended.
                alu64(AND, Reg(6), Reg(5)),
                alu32(AND, Reg(6), Reg(5)),
                alu64(AND, Reg(6), Reg(4)),
                alu64(MOV, Reg(0), Reg(6)),
                exit(),
            ],
        ]);
        let expected = [
            alu32_constant(MOV, Reg(4), 9),
            alu32_constant(MOV, Reg(5), 0x8000_0000),
            alu32_constant(MOV, Reg(3), 4),
            store(WORD, Reg(1), 0, Reg(3)),
            store(WORD, Reg(1), 4, Reg(4)),
            load(WORD, Reg(6), Reg(1), 8),
            alu64(AND, Reg(6), Reg(5)),
            alu32_constant(AND, Reg(6), 0x8000_0000),
            alu64_constant(AND, Reg(6), 9),
            alu64(MOV, Reg(0), Reg(6)),
            exit(),
        ];
        assert_eq!(insns, expected);
    }

    #[test]
    fn ways_that_constants_rule_out_are_left_out() {
        let insns = folded(&[
            &place(Reg(2), 4),
            &[
                load(WORD, Reg(3), Reg(2), 0),
                by(2, jump32_constant(JEQ, Reg(3), 0)),
                alu32_constant(MOV, Reg(0), 1),
                exit(),
                by(1, jump32_constant(JNE, Reg(1), 2)),
                by(1, jump32_constant(JNE, Reg(3), 0)),
                by(2, jump32(JEQ, Reg(1), Reg(3))),
                alu32_constant(MOV, Reg(0), 3),
                exit(),
                alu32_constant(MOV, Reg(0), 4),
                exit(),
            ],
        ]);
        let expected = [
            by(0, go()),
            by(0, jump32_constant(JNE, Reg(1), 2)),
            by(2, jump32_constant(JEQ, Reg(1), 0)),
            alu32_constant(MOV, Reg(0), 3),
            exit(),
            alu32_constant(MOV, Reg(0), 4),
            exit(),
        ];
        assert_eq!(insns, expected);
    }

    #[test]
    fn what_ways_disagree_on_and_what_calls_lose_is_not_known() {
        let same = [
            alu32_constant(MOV, Reg(6), 1),
            by(1, jump32_constant(JEQ, Reg(1), 0)),
            alu32_constant(MOV, Reg(6), 2),
            alu32_constant(MOV, Reg(1), 3),
            call_kernel(5),
            alu32(ADD, Reg(0), Reg(6)),
            alu32(ADD, Reg(0), Reg(1)),
            // Back to where r6 has been 1 or 2.
            alu32_constant(ADD, Reg(6), 1),
            by(-6, jump32_constant(JNE, Reg(0), 7)),
            exit(),
        ];
        assert_eq!(folded(&[&same]), same);
    }

    #[test]
    fn what_the_verifier_would_refuse_is_left_as_it_is() {
        let same = [
            // Nobody reads r7, but without it no way leads to the function.
            Insn { code: 0x18, registers: 4 << 4 | 7, offset: 0, immediate: 5 },
            Insn { code: 0, registers: 0, offset: 0, immediate: 0 },
            alu32_constant(MOV, Reg(2), 32),
            alu32(LSH, Reg(1), Reg(2)),
            alu64(MOV, Reg(0), Reg(1)),
            exit(),
            alu32_constant(MOV, Reg(0), 1),
            exit(),
        ];
        let same = text(&[&same], &[0, 6]);
        assert_eq!(fold(&same, &constants()), same);
    }

    #[test]
    fn functions_are_kept_that_ways_lead_to() {
        let parts: [&[Insn]; 4] = [
            &place(Reg(6), 4),
            &[
                load(WORD, Reg(7), Reg(6), 0),
                by(3, jump32_constant(JEQ, Reg(7), 0)),
                // 4: the function at 9.
                by(4, call()),
                ebpf::nop(),
                exit(),
                // 7: the function at 11.
                by(3, call()),
                exit(),
            ],
            &[alu32_constant(MOV, Reg(0), 9), exit()],
            &[alu32_constant(MOV, Reg(0), 11), exit()],
        ];
        let text = text(&parts, &[0, 9, 11]);
        let folded = fold(&text, &constants());
        let expected =
            [by(0, go()), by(1, call()), exit(), alu32_constant(MOV, Reg(0), 11), exit()];
        assert_eq!(folded.insns, expected);
        let starts: Vec<_> = folded.functions.iter().map(|function| function.start).collect();
        assert_eq!(starts, [0, 3]);
    }

    /// A number of a kind that goes wrong: small, negative, or at an end.
    fn constant(random: &mut SplitMix64) -> u32 {
        let any = random.draw() as u32;
        random.one(&[0, 1, 9, 31, 0x7fff_ffff, 0x8000_0000, u32::MAX, any])
    }

    /// An instruction that has at most so many behind it.
    fn insn(random: &mut SplitMix64, behind: usize) -> Insn {
        let (to, from) = (Reg(random.below(6) as u8), Reg(random.below(6) as u8));
        let constant = constant(random);
        let wide = random.one_in(2);
        match random.below(10) {
            0..=3 => {
                let (size, place) = random.one(&[(WORD, 0), (WORD, 4), (WORD, 8), (HALF, 12)]);
                load(size, to, Reg(6), place)
            }
            4..=6 => {
                let all = [ADD, SUB, MUL, OR, AND, XOR, LSH, RSH, ARSH, MOV];
                let operation = random.one(&all);
                let is_shift = [LSH, RSH, ARSH].contains(&operation);
                let constant = if is_shift { constant & 31 } else { constant };
                match (wide, random.one_in(2)) {
                    (true, true) => alu64(operation, to, from),
                    (true, false) => alu64_constant(operation, to, constant as i32),
                    (false, true) => alu32(operation, to, from),
                    (false, false) => alu32_constant(operation, to, constant),
                }
            }
            _ => {
                let all = [JEQ, JNE, JGT, JGE, JLT, JLE, JSET, JSGE];
                let condition = random.one(&all);
                let insn = match (wide, random.one_in(2)) {
                    (true, true) => jump64(condition, to, from),
                    (true, false) => jump64_constant(condition, to, constant as i32),
                    (false, true) => jump32(condition, to, from),
                    (false, false) => jump32_constant(condition, to, constant),
                };
                by(random.below(1 + behind as u64 % 7) as i32, insn)
            }
        }
    }

    /// Runs a program as the instruction set's description says. Returns r0 to r5.
    fn run(insns: &[Insn], first: [u64; 6]) -> [u64; 6] {
        let mut registers = [0u64; REGISTERS];
        registers[..6].copy_from_slice(&first);
        let bytes = constants().bytes;
        let mut at = 0;
        loop {
            let insn = insns[at];
            let value = |operand, registers: &[u64; REGISTERS]| match operand {
                Operand::Immediate(number) => number as u64,
                Operand::Register(register) => registers[usize::from(register.0)],
            };
            at += 1;
            match insn.effect() {
                Effect::LoadWide { .. } => at += 1,
                Effect::Load { to, bytes: len, .. } => {
                    let mut number = [0; 8];
                    number[..len].copy_from_slice(&bytes[insn.offset as usize..][..len]);
                    registers[usize::from(to.0)] = u64::from_le_bytes(number);
                }
                Effect::Alu { operation, to, by, wide } => {
                    let (a, b) = (registers[usize::from(to.0)], value(by, &registers));
                    let number = if wide {
                        match operation {
                            ADD => a.wrapping_add(b),
                            SUB => a.wrapping_sub(b),
                            MUL => a.wrapping_mul(b),
                            OR => a | b,
                            AND => a & b,
                            XOR => a ^ b,
                            LSH => a.wrapping_shl(b as u32),
                            RSH => a.wrapping_shr(b as u32),
                            ARSH => (a as i64).wrapping_shr(b as u32) as u64,
                            _ => b,
                        }
                    } else {
                        let (a, b) = (a as u32, b as u32);
                        u64::from(match operation {
                            ADD => a.wrapping_add(b),
                            SUB => a.wrapping_sub(b),
                            MUL => a.wrapping_mul(b),
                            OR => a | b,
                            AND => a & b,
                            XOR => a ^ b,
                            LSH => a.wrapping_shl(b),
                            RSH => a.wrapping_shr(b),
                            ARSH => (a as i32).wrapping_shr(b) as u32,
                            _ => b,
                        })
                    };
                    registers[usize::from(to.0)] = number;
                }
                Effect::Branch { condition, a, b, wide } => {
                    let (mut a, mut b) = (registers[usize::from(a.0)], value(b, &registers));
                    let is_at_least =
                        if wide { a as i64 >= b as i64 } else { a as i32 >= b as i32 };
                    if !wide {
                        (a, b) = (u64::from(a as u32), u64::from(b as u32));
                    }
                    let is_taken = match condition {
                        JEQ => a == b,
                        JNE => a != b,
                        JGT => a > b,
                        JGE => a >= b,
                        JLT => a < b,
                        JLE => a <= b,
                        JSET => a & b != 0,
                        _ => is_at_least,
                    };
                    if is_taken {
                        at = at.wrapping_add_signed(isize::from(insn.offset));
                    }
                }
                Effect::Go => at = at.wrapping_add_signed(isize::from(insn.offset)),
                // What is read at the end is what a call would be given.
                Effect::Other => {}
                Effect::Exit => return std::array::from_fn(|i| registers[i]),
            }
        }
    }

    #[test]
    fn programs_come_to_the_same_whatever_they_are() {
        const LEN: usize = 40;
        let mut random = SplitMix64(1);
        let mut left_out = 0;
        for _ in 0..20_000 {
            let mut insns = place(Reg(6), 0).to_vec();
            insns.extend((0..LEN).map(|at| insn(&mut random, LEN - 1 - at)));
            // A call reads r1 to r5, and r0 is moved to where it is not lost.
            insns.extend([alu64(MOV, Reg(7), Reg(0)), call_kernel(5), alu64(MOV, Reg(0), Reg(7))]);
            insns.push(exit());
            let folded = fold(&text(&[&insns], &[0]), &constants()).insns;
            left_out += insns.len() - folded.len();
            for _ in 0..4 {
                let first =
                    std::array::from_fn(|_| u64::from(constant(&mut random)) << random.below(33));
                assert_eq!(run(&folded, first), run(&insns, first), "{insns:?}");
            }
        }
        assert!(left_out > 20_000, "{left_out}");
    }
}
