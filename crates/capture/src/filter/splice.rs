//! Puts filters into a hook program.
//!
//! A hook program that is compiled with `bpf/filter.h` calls functions that stand in for its
//! filters and hold nothing but a mark: one for frames that are whole and, where a hook can have
//! them, one for frames whose VLAN tag was taken off. Before the program is loaded, this takes
//! those functions out and puts the translations in: a way to the filter whose number it is given,
//! and the direct translations of all of them, behind the whole program their calling translations.
//! The kernel allows a program 256 functions, and a jump reaches 32,767 instructions; so a function
//! holds as many filters as are within reach, and only where they are too many for one do more
//! functions follow.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::cbpf::ClassicProgram;
use super::ebpf::{self, Insn, Reg};
use super::translate::{self, Callee, CodeFragment, Frames, Pointers};

/// What the functions in `bpf/filter.h` that stand in for filters are known by: they move this
/// number, and that of the context added to it, to a register.
const MARK: i32 = 0x7adf_1170;
/// Is added to the number of those for frames whose tag was taken off (`TD_FILTER_STRIPPED`).
const STRIPPED: i32 = 8;
/// Functions of a program (`BPF_MAX_SUBPROGS`).
const MAX_FUNCTIONS: usize = 256;
/// Instructions of a function with several filters, so that a jump reaches all of them.
const REACH: usize = 28_000;

/// The kinds of context that hook programs are called with (`enum context` of `bpf/contexts.h`, and
/// `TD_FILTER_SOCKET` of `bpf/filter.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Xdp,
    Skb,
    Netfilter,
    /// The context of `Skb`, of a program that may read the frame by instructions alone.
    Socket,
}

/// How the filters of a context get at the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    InPlace(Pointers),
    ByCalls,
    ByInstructions,
}

impl Context {
    const ALL: [Self; 4] = [Self::Xdp, Self::Skb, Self::Netfilter, Self::Socket];

    /// `struct xdp_md` and `struct __sk_buff` tell where the frame lies, `struct bpf_nf_ctx` does
    /// not.
    fn access(self) -> Access {
        match self {
            Self::Xdp => Access::InPlace(Pointers { data: 0, data_end: 4 }),
            Self::Skb => Access::InPlace(Pointers { data: 76, data_end: 80 }),
            Self::Netfilter => Access::ByCalls,
            Self::Socket => Access::ByInstructions,
        }
    }
}

/// Filters of one hook program, by number. What is equal is there once.
#[derive(Clone, Debug, Default)]
pub struct Filters(Vec<ClassicProgram>);

impl Filters {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the one filter that there is, or none.
    pub fn of(program: Option<&ClassicProgram>) -> Self {
        Self(program.into_iter().cloned().collect())
    }

    /// Adds a filter. Returns its number, which the hook program passes to `td_filter_accepts`.
    pub fn add(&mut self, program: ClassicProgram) -> u32 {
        let known = self.0.iter().position(|other| *other == program);
        let number = known.unwrap_or_else(|| {
            self.0.push(program);
            self.0.len() - 1
        });
        number as u32
    }

    /// Returns whether there are filters, and each refuses every packet.
    pub fn refuse_all(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(ClassicProgram::refuses_all)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first filter, which is the only one of a recorder.
    pub fn first(&self) -> Option<&ClassicProgram> {
        self.0.first()
    }

    /// Returns how many instructions the verifier may add to the translations, beyond those it puts
    /// in the place of others.
    pub fn growth(&self) -> usize {
        // Each translation reads two fields of its hook's context, and the verifier guards a
        // division.
        self.0.iter().map(|program| 2 * (8 + 4 * program.divisions())).sum()
    }

    /// Returns the instructions of the longest filter, as libpcap wrote it and its loops written
    /// out.
    pub fn longest(&self) -> usize {
        self.0.iter().map(|program| program.instructions().len()).max().unwrap_or(0)
    }
}

/// Where a function of a program begins, and its type in the program's BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub start: usize,
    pub type_id: u32,
}

/// A program's instructions and functions; the first function begins at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub insns: Vec<Insn>,
    pub functions: Vec<Function>,
}

impl Text {
    /// Returns where the instructions of a function are.
    pub fn range(&self, index: usize) -> Range<usize> {
        let start = self.functions[index].start;
        let next = self.functions.iter().map(|f| f.start).filter(|other| *other > start).min();
        start..next.unwrap_or(self.insns.len())
    }

    /// Puts `count` instructions that do nothing in front. The verifier takes them out before it
    /// puts others in.
    pub fn make_room(&mut self, count: usize) {
        self.insns.splice(0..0, std::iter::repeat_n(ebpf::nop(), count));
        for function in &mut self.functions[1..] {
            function.start += count;
        }
    }
}

/// Why filters cannot be put into a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// more functions than a program may have
    #[error(
        "the filters are too many for one program: they take {0} functions, and the kernel allows {MAX_FUNCTIONS}"
    )]
    Functions(usize),
    /// a program that is not what this expects
    #[error("the hook program has no place for filters")]
    NoPlace,
}

/// Puts filters into a program that calls them. A program that does not is left as it is.
///
/// # Errors
/// [`Error::Functions`] where filters are so many and long that they do not fit.
pub fn splice(text: &Text, filters: &Filters) -> Result<Text, Error> {
    if filters.is_empty() {
        return Ok(text.clone());
    }
    let mut spliced = text.clone();
    // A function keeps its number: those that are put in come behind all others.
    for (index, stands_for) in marks(text) {
        let place = FilterSlot::of(&spliced, index)?;
        let layout = Layout::new(filters, stands_for);
        let count = spliced.functions.len() + layout.functions.len() - 1;
        if count > MAX_FUNCTIONS {
            return Err(Error::Functions(count));
        }
        spliced = place.put(&spliced, &layout);
    }
    // Those of one context share the function that reads what they cannot see.
    let loads: BTreeSet<usize> = marks(text)
        .iter()
        .map(|(index, _)| Ok(FilterSlot::of(text, *index)?.load))
        .collect::<Result<_, Error>>()?;
    for load in loads.iter().rev() {
        let index = text.functions.iter().position(|function| function.start == *load);
        spliced = without(spliced, index.ok_or(Error::NoPlace)?);
    }
    Ok(spliced)
}

/// What a function stands in for: the filters of a context, for whole frames or for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StandsFor {
    context: Context,
    frames: Frames,
}

/// Returns what a function stands in for, if this instruction of it says so.
fn marked(insn: Insn) -> Option<StandsFor> {
    let number = insn.immediate.wrapping_sub(MARK);
    let (frames, number) = if number >= STRIPPED {
        (Frames::Stripped, number - STRIPPED)
    } else {
        (Frames::Whole, number)
    };
    let is_it = |context: &Context| insn.moves_constant() && *context as i32 == number;
    let context = Context::ALL.into_iter().find(is_it)?;
    Some(StandsFor { context, frames })
}

/// Returns the functions that stand in for filters.
fn marks(text: &Text) -> Vec<(usize, StandsFor)> {
    let found = |index: usize| text.insns[text.range(index)].iter().copied().find_map(marked);
    (0..text.functions.len()).filter_map(|index| Some((index, found(index)?))).collect()
}

/// Returns the program without a function, if nothing calls that: the verifier wants none.
fn without(text: Text, index: usize) -> Text {
    let range = text.range(index);
    let names = |(at, insn): (usize, &Insn)| {
        let to = at as i64 + 1 + i64::from(insn.immediate);
        insn.names_function() && to == range.start as i64
    };
    if range.is_empty() || text.insns.iter().enumerate().any(names) {
        return text;
    }
    apply(&text, &[Change { start: range.start, end: range.end, insns: &[] }])
}

/// The function that stands in for filters.
struct FilterSlot {
    /// Which of the program's functions it is.
    index: usize,
    start: usize,
    end: usize,
    /// Where the function begins that reads what the filters cannot see.
    load: usize,
}

impl FilterSlot {
    fn of(text: &Text, index: usize) -> Result<Self, Error> {
        let Range { start, end } = text.range(index);
        let (at, call) = (start..end)
            .map(|at| (at, text.insns[at]))
            .find(|(_, i)| i.calls_function())
            .ok_or(Error::NoPlace)?;
        let load = usize::try_from(at as i64 + 1 + i64::from(call.immediate))
            .map_err(|_| Error::NoPlace)?;
        Ok(Self { index, start, end, load })
    }

    /// Returns the program with the filters in this place.
    fn put(&self, text: &Text, layout: &Layout) -> Text {
        let first = &layout.functions[0].insns;
        let changes = [Change { start: self.start, end: self.end, insns: first }];
        let mut new = apply(text, &changes);
        let moved = |at| moved(&changes, at);
        let mut starts = vec![moved(self.start)];
        let type_id = text.functions[self.index].type_id;
        for function in &layout.functions[1..] {
            starts.push(new.insns.len());
            new.functions.push(Function { start: new.insns.len(), type_id });
            new.insns.extend(&function.insns);
        }
        for (function, start) in layout.functions.iter().zip(&starts) {
            for (at, to) in &function.calls {
                let to = match to {
                    To::Load => moved(self.load),
                    To::Function(index) => starts[*index],
                };
                new.insns[start + at].immediate = (to as i64 - (start + at) as i64 - 1) as i32;
            }
        }
        new
    }
}

/// A function with other instructions, or without any.
struct Change<'a> {
    start: usize,
    end: usize,
    insns: &'a [Insn],
}

/// Returns where an instruction comes to stand that is not changed itself, or the beginning of a
/// change.
fn moved(changes: &[Change<'_>], at: usize) -> usize {
    changes
        .iter()
        .take_while(|change| change.end <= at)
        .fold(at, |to, change| to + change.insns.len() - (change.end - change.start))
}

/// Makes changes, which are in order, and lets calls between functions follow.
fn apply(text: &Text, changes: &[Change<'_>]) -> Text {
    let mut new = Text { insns: Vec::new(), functions: Vec::new() };
    let mut from = 0;
    for change in changes {
        new.insns.extend(&text.insns[from..change.start]);
        new.insns.extend(change.insns);
        from = change.end;
    }
    new.insns.extend(&text.insns[from..]);
    let goes = |at: usize| changes.iter().any(|c| (c.start..c.end).contains(&at));
    for (at, insn) in text.insns.iter().enumerate() {
        if insn.names_function() && !goes(at) {
            let to = (at as i64 + 1 + i64::from(insn.immediate)) as usize;
            let (at, to) = (moved(changes, at), moved(changes, to));
            new.insns[at].immediate = (to as i64 - at as i64 - 1) as i32;
        }
    }
    let gone = |at: usize| changes.iter().any(|c| c.start == at && c.insns.is_empty());
    new.functions = text
        .functions
        .iter()
        .filter(|function| !gone(function.start))
        .map(|function| Function { start: moved(changes, function.start), ..*function })
        .collect();
    new
}

/// What a call in a function leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Load,
    /// One of the functions of the layout.
    Function(usize),
}

#[derive(Debug, Default)]
struct Body {
    insns: Vec<Insn>,
    calls: Vec<(usize, To)>,
}

/// Filters as functions. The first one takes the place.
struct Layout {
    functions: Vec<Body>,
}

impl Layout {
    fn new(filters: &Filters, stands_for: StandsFor) -> Self {
        let StandsFor { context, frames } = stands_for;
        let numbered = || (0u32..).zip(&filters.0);
        // Which comes first, and which takes over from it.
        let access = context.access();
        let first = |number: u32, program: &ClassicProgram| match access {
            Access::InPlace(pointers) => translate::direct(program, number, pointers, frames),
            Access::ByCalls => translate::calling(program, frames),
            Access::ByInstructions => translate::copying(program, number, frames),
        };
        let second: fn(&ClassicProgram, Frames) -> CodeFragment = match access {
            Access::InPlace(_) | Access::ByCalls => translate::calling,
            Access::ByInstructions => translate::of_socket,
        };
        let direct: Vec<_> = numbered().map(|(n, p)| (n, first(n, p))).collect();
        let needs = |n: u32| direct[n as usize].1.calls.iter().any(|(_, c)| *c == Callee::Calling);
        let calling = numbered().filter(|(n, _)| needs(*n)).map(|(n, p)| (n, second(p, frames)));
        let calling = pack(calling.collect());
        let direct = pack(direct);
        let first = direct.len() + usize::from(direct.len() > 1);
        let homes: Homes = (first..)
            .zip(&calling)
            .flat_map(|(at, group)| group.iter().map(move |(number, _)| (*number, at)))
            .collect();
        let mut functions = with_router(&direct, &homes);
        functions.extend(calling.iter().map(|group| function(group, &homes)));
        Self { functions }
    }
}

type Numbered = (u32, CodeFragment);
/// For each filter that has a calling translation, the function with it.
type Homes = HashMap<u32, usize>;

/// Divides filters among functions.
fn pack(fragments: Vec<Numbered>) -> Vec<Vec<Numbered>> {
    let mut groups: Vec<Vec<Numbered>> = Vec::new();
    let mut size = 0;
    for fragment in fragments {
        // The way to it takes an instruction or two.
        let len = fragment.1.insns.len() + 2;
        match groups.last_mut() {
            Some(group) if size + len <= REACH => group.push(fragment),
            _ => {
                groups.push(vec![fragment]);
                size = 0;
            }
        }
        size += len;
    }
    groups
}

/// The functions of groups of filters and, where they are several, one before them that finds the
/// right one.
fn with_router(groups: &[Vec<Numbered>], homes: &Homes) -> Vec<Body> {
    let mut functions = Vec::new();
    if groups.len() != 1 {
        let mut router = Body::default();
        for (at, group) in groups.iter().enumerate() {
            let last = group.last().map_or(0, |(number, _)| *number);
            let mut other = ebpf::jump32_constant(ebpf::JGT, Reg(2), last);
            other.offset = 2;
            router.insns.push(other);
            router.calls.push((router.insns.len(), To::Function(1 + at)));
            router.insns.extend([ebpf::call(), ebpf::exit()]);
        }
        // There is no such filter.
        router.insns.push(ebpf::alu32_constant(ebpf::MOV, Reg(0), 0));
        router.insns.push(ebpf::exit());
        functions.push(router);
    }
    functions.extend(groups.iter().map(|group| function(group, homes)));
    functions
}

/// A function that runs the filter whose number it is given.
fn function(group: &[Numbered], homes: &Homes) -> Body {
    let mut body = Body::default();
    choose(group, homes, &mut body);
    body
}

/// Halves the filters until one is left.
fn choose(group: &[Numbered], homes: &Homes, body: &mut Body) {
    let (low, high) = match group {
        [] => return,
        [(number, fragment)] => {
            let start = body.insns.len();
            body.insns.extend(&fragment.insns);
            body.calls.extend(fragment.calls.iter().map(|(at, callee)| {
                let to = match callee {
                    Callee::Load => To::Load,
                    Callee::Calling => To::Function(homes[number]),
                };
                (start + at, to)
            }));
            return;
        }
        _ => group.split_at(group.len() / 2),
    };
    let at = body.insns.len();
    body.insns.push(ebpf::jump32_constant(ebpf::JGE, Reg(2), high[0].0));
    choose(low, homes, body);
    body.insns[at].offset =
        i16::try_from(body.insns.len() - at - 1).expect("a group is within reach");
    choose(high, homes, body);
}
