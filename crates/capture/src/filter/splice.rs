//! Puts filters into a hook program.
//!
//! A hook program that is compiled with `bpf/filter.h` calls a function that stands in for its
//! filters and holds nothing but a mark. Before the program is loaded, this takes that function out
//! and puts the translations in: a way to the filter whose number it is given, and the direct
//! pieces of all of them, behind the whole program their calling pieces. The kernel allows a
//! program 256 functions, and a jump reaches 32,767 instructions; so a function holds as many
//! filters as are within reach, and only where they are too many for one do more functions follow.

use std::collections::HashMap;

use super::cbpf::Program;
use super::ebpf::{self, Insn, Reg};
use super::translate::{self, Callee, CodeFragment, Pointers};

/// What the functions in `bpf/filter.h` that stand in for filters are known by: they move this
/// number, and that of the hook added to it, to a register.
const MARK: i32 = 0x7adf_1170;
/// Functions of a program (`BPF_MAX_SUBPROGS`).
const MAX_FUNCTIONS: usize = 256;
/// Instructions of a function with several filters, so that a jump reaches all of them.
const REACH: usize = 28_000;

/// The kinds of context that hook programs are called with (`enum hook` of `bpf/contexts.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Xdp,
    Skb,
    Netfilter,
}

impl Context {
    const ALL: [Self; 3] = [Self::Xdp, Self::Skb, Self::Netfilter];

    /// Returns where a context of the kind tells where the frame lies: `struct xdp_md`, `struct
    /// __sk_buff`, and no such place in `struct bpf_nf_ctx`.
    fn pointers(self) -> Option<Pointers> {
        match self {
            Self::Xdp => Some(Pointers { data: 0, data_end: 4 }),
            Self::Skb => Some(Pointers { data: 76, data_end: 80 }),
            Self::Netfilter => None,
        }
    }
}

/// Filters of one hook program, by number. What is equal is there once.
#[derive(Clone, Debug, Default)]
pub struct Filters(Vec<Program>);

impl Filters {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a filter. Returns its number, which the hook program passes to `td_filter_accepts`.
    pub fn add(&mut self, program: Program) -> u32 {
        let known = self.0.iter().position(|other| *other == program);
        let number = known.unwrap_or_else(|| {
            self.0.push(program);
            self.0.len() - 1
        });
        number as u32
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many instructions the verifier may add to the translations, beyond those it puts
    /// in the place of others.
    pub fn growth(&self) -> usize {
        // Each reads two fields of its hook's context, and the verifier guards a division.
        self.0.iter().map(|program| 8 + 4 * program.divisions()).sum()
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
    let Some(place) = Place::find(text)? else { return Ok(text.clone()) };
    let layout = Layout::new(filters, place.pointers);
    let count = text.functions.len() + layout.functions.len() - 1;
    if count > MAX_FUNCTIONS {
        return Err(Error::Functions(count));
    }
    Ok(place.put(text, &layout))
}

/// Returns the kind of context whose filters a function stands in for, if this instruction of it
/// says so.
fn marked(insn: Insn) -> Option<Context> {
    let number = insn.immediate.wrapping_sub(MARK);
    let is_it = |context: &Context| insn.moves_constant() && *context as i32 == number;
    Context::ALL.into_iter().find(is_it)
}

/// The function that stands in for filters.
struct Place {
    /// Which of the program's functions it is.
    index: usize,
    start: usize,
    end: usize,
    /// Where the function begins that reads what the filters cannot see.
    load: usize,
    pointers: Option<Pointers>,
}

impl Place {
    fn find(text: &Text) -> Result<Option<Self>, Error> {
        let ends = text.functions.iter().skip(1).map(|f| f.start).chain([text.insns.len()]);
        for (index, (function, end)) in text.functions.iter().zip(ends).enumerate() {
            let start = function.start;
            let body = &text.insns[start..end];
            let Some(context) = body.iter().copied().find_map(marked) else { continue };
            let (at, call) = (start..end)
                .map(|at| (at, text.insns[at]))
                .find(|(_, i)| i.calls_function())
                .ok_or(Error::NoPlace)?;
            let load = usize::try_from(at as i64 + 1 + i64::from(call.immediate))
                .map_err(|_| Error::NoPlace)?;
            return Ok(Some(Self { index, start, end, load, pointers: context.pointers() }));
        }
        Ok(None)
    }

    /// Returns the program with the filters in this place.
    fn put(&self, text: &Text, layout: &Layout) -> Text {
        let first = &layout.functions[0].insns;
        let mut changes = vec![Change { start: self.start, end: self.end, insns: first }];
        // The verifier wants no function that is not called.
        let loads = layout.functions.iter().flat_map(|f| &f.calls).any(|(_, to)| *to == To::Load);
        if !loads {
            let end = text.functions.iter().map(|f| f.start).find(|start| *start > self.load);
            let end = end.unwrap_or(text.insns.len());
            changes.push(Change { start: self.load, end, insns: &[] });
            changes.sort_by_key(|change| change.start);
        }
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
    fn new(filters: &Filters, pointers: Option<Pointers>) -> Self {
        let numbered = || (0u32..).zip(&filters.0);
        let Some(pointers) = pointers else {
            let calling = numbered().map(|(n, p)| (n, translate::calling(p))).collect();
            return Self { functions: with_router(&pack(calling), &Homes::new()) };
        };
        let direct: Vec<_> =
            numbered().map(|(n, p)| (n, translate::direct(p, n, pointers))).collect();
        let needs = |n: u32| direct[n as usize].1.calls.iter().any(|(_, c)| *c == Callee::Calling);
        let calling = numbered()
            .filter(|(n, _)| needs(*n))
            .map(|(n, p)| (n, translate::calling(p)))
            .collect();
        let (direct, calling) = (pack(direct), pack(calling));
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
/// For each filter that has a calling piece, the function with it.
type Homes = HashMap<u32, usize>;

/// Divides filters among functions.
fn pack(pieces: Vec<Numbered>) -> Vec<Vec<Numbered>> {
    let mut groups: Vec<Vec<Numbered>> = Vec::new();
    let mut size = 0;
    for piece in pieces {
        // The way to it takes an instruction or two.
        let len = piece.1.insns.len() + 2;
        match groups.last_mut() {
            Some(group) if size + len <= REACH => group.push(piece),
            _ => {
                groups.push(vec![piece]);
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
        [(number, piece)] => {
            let start = body.insns.len();
            body.insns.extend(&piece.insns);
            body.calls.extend(piece.calls.iter().map(|(at, callee)| {
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
