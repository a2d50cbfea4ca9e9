//! Filter expressions over recorded packets: pcap-filter(7), as `tcpdump -r` takes them.
//!
//! libpcap compiles the expression for each link type, on the handle of a capture file of that
//! type, so expressions are understood and refused exactly as tcpdump does with a file. libpcap
//! also decides each packet, but for three cases, in which its program is run here:
//!
//! - The program asks how long a packet was on the wire, and the packet was cut: the `pcap` crate
//!   hands libpcap the captured length alone.
//! - The program is of `protochain`. On some packets it runs in a circle for ever, because it looks
//!   for each extension header at a place that is counted from the first. Such packets do not
//!   match.
//! - The program is of `geneve`. It reads scratch memory that may never have been written, and
//!   which libpcap does not clear, so that two looks at a packet could differ. Here the memory is
//!   zero.
//!
//! An expression that libpcap refuses for one link type and takes for another matches nothing of
//! the first: a bare IP packet has no Ethernet address. It is refused where no link type takes it.
//!
//! Which keys the packets must have is read from the text, and believed only where libpcap makes
//! the same programs of the text and of what was understood of it ([`tapdeck_packet::filter`]).

use std::sync::Arc;

use pcap::BpfProgram;
use rustix::fd::AsRawFd;
use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcap::Unit;
use tapdeck_packet::{filter, header};

use crate::reading::query::{Described, Matcher, Packet};

/// Why an expression is no filter.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libpcap refuses it
    #[error("filter {expression:?}: {why}")]
    Refused { expression: String, why: String },
    /// libpcap makes a program of it that nobody here knows
    #[error("filter {0:?}: libpcap made an unknown instruction")]
    Unknown(String),
    /// libpcap cannot be asked
    #[error("libpcap cannot be asked about link type {link}: {why}")]
    Unasked { link: LinkType, why: String },
}

impl Error {
    /// Returns whether another expression is needed.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// A filter, which every packet matches where there is no expression. Each thread that matches
/// packets needs a clone of its own.
#[derive(Clone)]
pub struct Filter {
    /// A program for each link type, `None` where the expression matches nothing of it; empty where
    /// there is no expression.
    programs: Vec<(LinkType, Option<Program>)>,
    /// Programs for packets inside of packets, if those count, too.
    inner: Vec<(LinkType, Program)>,
    plan: Arc<Plan>,
    is_understood: bool,
}

struct Program {
    expression: Arc<str>,
    link: LinkType,
    /// libpcap's program; `None` where a clone could not be compiled to the same one.
    compiled: Option<BpfProgram>,
    instructions: Arc<[Instruction]>,
    /// Whether the program asks for a packet's length on the wire.
    asks_for_length: bool,
    /// Whether the program may never end, or may read memory that was not written.
    is_unsound: bool,
}

impl Filter {
    /// Compiles an expression for all interfaces and, if `inner` is true, also for the packets
    /// inside their packets.
    pub fn new(expression: &str, interfaces: &[Described], inner: bool) -> Result<Self, Error> {
        let mut links: Vec<LinkType> = interfaces.iter().map(|i| i.link).collect();
        // Nonsense is refused also where a store has no packets yet.
        if links.is_empty() {
            links.push(LinkType::ETHERNET);
        }
        Self::for_links(expression, links, inner)
    }

    /// Compiles an expression for these link types, as [`Filter::new`] does.
    pub fn for_links(
        expression: &str,
        links: impl IntoIterator<Item = LinkType>,
        inner: bool,
    ) -> Result<Self, Error> {
        let mut programs: Vec<(LinkType, Option<Program>)> = Vec::new();
        if expression.is_empty() {
            let plan = Arc::new(Plan::All);
            return Ok(Self { programs, inner: Vec::new(), plan, is_understood: true });
        }
        let text: Arc<str> = expression.into();
        let mut refusal = None;
        for link in links {
            if !programs.iter().any(|(known, _)| *known == link) {
                let program = Program::new(Arc::clone(&text), link);
                programs.push((link, program.map_err(|e| refusal.get_or_insert(e)).ok()));
            }
        }
        // An expression that means nothing without an Ethernet header matches no packet without
        // one.
        let of = |link| Some((link, Program::new(Arc::clone(&text), link).ok()?));
        let links = [LinkType::ETHERNET, LinkType::RAW];
        let inner: Vec<_> = links.into_iter().filter(|_| inner).filter_map(of).collect();
        if let Some(refusal) = refusal
            && inner.is_empty()
            && programs.iter().all(|(_, program)| program.is_none())
        {
            return Err(refusal);
        }
        let compiled = programs.iter().filter_map(|(_, program)| program.as_ref());
        let plan = believed_plan(expression, compiled.chain(inner.iter().map(|(_, p)| p)));
        let is_understood = plan.is_some();
        let plan = Arc::new(plan.unwrap_or(Plan::All));
        Ok(Self { programs, inner, plan, is_understood })
    }

    /// Returns which keys the packets that match have. Others can have them, too.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether the form of the expression is known. If not, nothing is planned.
    pub fn is_understood(&self) -> bool {
        self.is_understood
    }
}

impl Matcher for Filter {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        let program = self.programs.iter().find(|(link, _)| *link == packet.link);
        program.is_none_or(|(_, program)| {
            program.as_ref().is_some_and(|p| p.matches(packet.frame, packet.original_len))
        }) || !self.inner.is_empty() && self.matches_inside(packet)
    }
}

impl Filter {
    fn matches_inside(&self, packet: &Packet<'_>) -> bool {
        let mut found = false;
        header::inner_packets(packet.link, packet.frame, &mut |link, frame| {
            let program = self.inner.iter().find(|(known, _)| *known == link);
            // How long an inner packet was before it was cut stands in no header that all of them
            // have.
            let matches = |program: &Program| program.matches(frame, frame.len() as u32);
            found = found || program.is_some_and(|(_, program)| matches(program));
        });
        found
    }
}

/// Returns what the expression says of keys, if libpcap agrees.
fn believed_plan<'a>(
    expression: &str,
    mut programs: impl Iterator<Item = &'a Program>,
) -> Option<Plan> {
    let parsed = filter::parse(expression).ok()?;
    let plan = parsed.plan();
    // A plan that takes everything needs no agreement, and no name is looked up again.
    if plan == Plan::All {
        return Some(plan);
    }
    let printed: Arc<str> = parsed.to_string().into();
    let is_same = |program: &Program| {
        Program::new(Arc::clone(&printed), program.link)
            .is_ok_and(|again| again.instructions == program.instructions)
    };
    programs.all(is_same).then_some(plan)
}

impl Program {
    fn new(expression: Arc<str>, link: LinkType) -> Result<Self, Error> {
        let compiled = compile(&expression, link)?;
        let instructions =
            instructions(&compiled).ok_or_else(|| Error::Unknown(expression.to_string()))?;
        let asks_for_length =
            instructions.iter().any(|i| matches!(i.code, LOAD_LENGTH | LOADX_LENGTH));
        let is_unsound = instructions.iter().any(|i| match i.code {
            JUMP_ALWAYS => (i.k as i32) < 0,
            code => matches!(code, LOAD_MEMORY | LOADX_MEMORY),
        });
        let compiled = Some(compiled);
        Ok(Self { expression, link, compiled, instructions, asks_for_length, is_unsound })
    }

    fn matches(&self, frame: &[u8], original_len: u32) -> bool {
        let is_cut = original_len as usize != frame.len();
        let is_run_here = self.is_unsound || (is_cut && self.asks_for_length);
        match &self.compiled {
            Some(compiled) if !is_run_here => compiled.filter(frame),
            _ => run(&self.instructions, frame, original_len).is_some_and(|n| n > 0),
        }
    }
}

/// Compiles again, because one thread alone may use libpcap's program. If a name has other
/// addresses now, the clone runs the first program in this process: the threads of a query must not
/// differ.
impl Clone for Program {
    fn clone(&self) -> Self {
        let again = compile(&self.expression, self.link).ok();
        let compiled =
            again.filter(|again| instructions(again).as_ref() == Some(&self.instructions));
        Self {
            expression: Arc::clone(&self.expression),
            link: self.link,
            compiled,
            instructions: Arc::clone(&self.instructions),
            asks_for_length: self.asks_for_length,
            is_unsound: self.is_unsound,
        }
    }
}

fn compile(expression: &str, link: LinkType) -> Result<BpfProgram, Error> {
    handle(link)?.compile(expression, true).map_err(|e| {
        let why = match e {
            pcap::Error::PcapError(text) => text,
            other => other.to_string(),
        };
        Error::Refused { expression: expression.to_owned(), why }
    })
}

/// Opens a capture file of a link type, which is in memory and holds no packets.
fn handle(link: LinkType) -> Result<pcap::Capture<pcap::Offline>, Error> {
    let unasked = |e: &dyn std::fmt::Display| Error::Unasked { link, why: e.to_string() };
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("tapdeck", flags).map_err(|e| unasked(&e))?;
    rustix::io::write(&file, &tapdeck_packet::pcap::header(link, Unit::Microseconds))
        .map_err(|e| unasked(&e))?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(|e| unasked(&e))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    pcap::Capture::from_file(path).map_err(|e| unasked(&e))
}

fn instructions(program: &BpfProgram) -> Option<Arc<[Instruction]>> {
    program.get_instructions().iter().map(|i| Instruction::parse(&i.to_string())).collect()
}

/// An instruction of the classic BPF machine (McCanne and Jacobson, USENIX Winter 1993).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

const LOAD_LENGTH: u16 = 0x80;
const LOADX_LENGTH: u16 = 0x81;
const LOAD_MEMORY: u16 = 0x60;
const LOADX_MEMORY: u16 = 0x61;
const JUMP_ALWAYS: u16 = 0x05;
/// Steps after which a program is taken to run in a circle. After each round of some thirty steps,
/// `protochain` is at one of 257 places, and soon where it has been before.
const CIRCLES: usize = 1 << 14;

impl Instruction {
    /// Reads an instruction as the `pcap` crate prints it, which keeps its fields private. The form
    /// is that of `tcpdump -ddd`.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let mut field = || fields.next()?.parse::<u32>().ok();
        Some(Self {
            code: u16::try_from(field()?).ok()?,
            jt: u8::try_from(field()?).ok()?,
            jf: u8::try_from(field()?).ok()?,
            k: field()?,
        })
    }
}

/// Returns how many bytes of the packet the program accepts; `None` where the program does not end,
/// or where libpcap refuses a packet, too: the program reads past what was captured, divides by
/// zero or is no program.
fn run(program: &[Instruction], frame: &[u8], original_len: u32) -> Option<u32> {
    let bytes = |at: u32, n: usize| frame.get(at as usize..)?.get(..n);
    let word = |at| bytes(at, 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let half = |at| bytes(at, 2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]])));
    let byte = |at| bytes(at, 1).map(|b| u32::from(b[0]));
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    for _ in 0..program.len() + CIRCLES {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at += 1;
        // Arithmetic and jumps: the other operand is the constant or the index register.
        let operand = if code & 0x08 == 0 { k } else { x };
        match code {
            0x00 => a = k,
            0x01 => x = k,
            0x20 => a = word(k)?,
            0x28 => a = half(k)?,
            0x30 => a = byte(k)?,
            0x40 => a = word(x.checked_add(k)?)?,
            0x48 => a = half(x.checked_add(k)?)?,
            0x50 => a = byte(x.checked_add(k)?)?,
            LOAD_MEMORY => a = *memory.get(k as usize)?,
            LOADX_MEMORY => x = *memory.get(k as usize)?,
            LOAD_LENGTH => a = original_len,
            LOADX_LENGTH => x = original_len,
            0xb1 => x = (byte(k)? & 0x0f) << 2,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.checked_shl(operand).unwrap_or(0),
            0x74 | 0x7c => a = a.checked_shr(operand).unwrap_or(0),
            0x84 => a = a.wrapping_neg(),
            0x94 | 0x9c => a = a.checked_rem(operand)?,
            0xa4 | 0xac => a ^= operand,
            JUMP_ALWAYS => at = at.checked_add_signed(k as i32 as isize)?,
            0x15 | 0x1d => at += usize::from(if a == operand { jt } else { jf }),
            0x25 | 0x2d => at += usize::from(if a > operand { jt } else { jf }),
            0x35 | 0x3d => at += usize::from(if a >= operand { jt } else { jf }),
            0x45 | 0x4d => at += usize::from(if a & operand != 0 { jt } else { jf }),
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests;
