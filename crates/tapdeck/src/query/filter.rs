//! Filter expressions over recorded packets: pcap-filter(7), as `tcpdump -r` takes them.
//!
//! libpcap compiles the expression for each link type, on the handle of a capture file of that type: so
//! it understands and refuses just what tcpdump does with a file. libpcap also decides each packet, but for
//! one case. The `pcap` crate gives it the captured length only, so where a packet was cut and the
//! program asks how long it was on the wire, the program is run here.

use anyhow::{Context, Result};
use pcap::BpfProgram;
use rustix::fd::AsRawFd;
use tapdeck_packet::link::LinkType;
use tapdeck_store::query::{Described, Matcher, Packet};

use crate::flags::Usage;

/// An expression, or none: then every packet matches.
pub struct Filter(Vec<(LinkType, Program)>);

struct Program {
    compiled: BpfProgram,
    /// Where the program asks for the length on the wire.
    instructions: Option<Vec<Instruction>>,
}

impl Filter {
    /// Compiles it for all interfaces.
    pub fn new(expression: &str, interfaces: &[Described]) -> Result<Self> {
        let mut programs: Vec<(LinkType, Program)> = Vec::new();
        if expression.is_empty() {
            return Ok(Self(programs));
        }
        // A store without packets yet refuses nonsense all the same.
        let links = interfaces
            .iter()
            .map(|i| i.link)
            .chain(interfaces.is_empty().then_some(LinkType::ETHERNET));
        for link in links {
            if !programs.iter().any(|(known, _)| *known == link) {
                programs.push((link, Program::new(expression, link)?));
            }
        }
        Ok(Self(programs))
    }
}

impl Matcher for Filter {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        let program = self.0.iter().find(|(link, _)| *link == packet.link);
        program.is_none_or(|(_, program)| program.matches(packet.frame, packet.original_len))
    }
}

impl Program {
    fn new(expression: &str, link: LinkType) -> Result<Self> {
        let cannot = || format!("libpcap cannot be asked about link type {}", link.0);
        let file = rustix::fs::memfd_create("tapdeck", rustix::fs::MemfdFlags::CLOEXEC)
            .with_context(cannot)?;
        rustix::io::write(&file, &file_header(link)).with_context(cannot)?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).with_context(cannot)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let handle = pcap::Capture::from_file(path).with_context(cannot)?;
        let compiled = handle.compile(expression, true).map_err(|e| {
            let why = match e {
                pcap::Error::PcapError(text) => text,
                other => other.to_string(),
            };
            Usage(format!("filter '{expression}': {why}"))
        })?;
        let instructions: Option<Vec<_>> = compiled
            .get_instructions()
            .iter()
            .map(|i| Instruction::parse(&i.to_string()))
            .collect();
        let instructions = instructions.context("libpcap made an unknown instruction")?;
        let asks = instructions.iter().any(|i| matches!(i.code, LOAD_LENGTH | LOADX_LENGTH));
        Ok(Self { compiled, instructions: asks.then_some(instructions) })
    }

    fn matches(&self, frame: &[u8], original_len: u32) -> bool {
        match &self.instructions {
            Some(program) if original_len as usize != frame.len() => {
                run(program, frame, original_len).is_some_and(|n| n > 0)
            }
            _ => self.compiled.filter(frame),
        }
    }
}

/// A pcap file of a link type without packets.
fn file_header(link: LinkType) -> Vec<u8> {
    const MAGIC: u32 = 0xa1b2_c3d4;
    const VERSION: [u16; 2] = [2, 4];
    const SNAPLEN: u32 = 262_144;
    let mut header = MAGIC.to_ne_bytes().to_vec();
    header.extend(VERSION.iter().flat_map(|v| v.to_ne_bytes()));
    header.extend([0; 8]);
    header.extend(SNAPLEN.to_ne_bytes());
    header.extend(u32::from(link.0).to_ne_bytes());
    header
}

/// An instruction of the classic BPF machine (McCanne and Jacobson, USENIX Winter 1993).
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

const LOAD_LENGTH: u16 = 0x80;
const LOADX_LENGTH: u16 = 0x81;

impl Instruction {
    /// From its fields, which the `pcap` crate keeps private but prints as `tcpdump -ddd` does.
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

/// How many bytes of the packet the program accepts; `None` where it reads past what was captured, divides by zero or
/// is no program, for which libpcap refuses a packet too.
fn run(program: &[Instruction], frame: &[u8], original_len: u32) -> Option<u32> {
    let bytes = |at: u32, n: usize| frame.get(at as usize..)?.get(..n);
    let word = |at| bytes(at, 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let half = |at| bytes(at, 2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]])));
    let byte = |at| bytes(at, 1).map(|b| u32::from(b[0]));
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    loop {
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
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
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
            0x05 => at = at.checked_add_signed(k as i32 as isize)?,
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
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::link::LinkType;

    use super::{Program, run};

    /// Frames of all kinds and none, from a seed: the first bytes are often those of real headers.
    fn frames() -> Vec<Vec<u8>> {
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        let types = [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x81, 0x00], [0x88, 0x47]];
        let mut frame = move |_| {
            let mut frame: Vec<u8> = (0..random() % 120).map(|_| random() as u8).collect();
            let mut put = |at: usize, bytes: &[u8]| {
                if let Some(place) = frame.get_mut(at..at + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
            };
            let kind = types[random() % types.len()];
            put(12, &kind);
            put(14, &[[0x45, 0x46, 0x60][random() % 3]]);
            // An IPv4 length, or the type behind a tag.
            put(16, &[[0, (random() % 120) as u8], [0x08, 0x00]][random() % 2]);
            put(20, &[0, 0]);
            put(23, &[[1, 6, 17][random() % 3]]);
            put(26, &[10, 0, 0, (random() % 3) as u8, 10, 0, 0, (random() % 3) as u8]);
            put(34, &[0, [53, 80, 9][random() % 3], 0, [53, 80, 9][random() % 3]]);
            frame
        };
        (0..3000).map(&mut frame).collect()
    }

    #[test]
    fn whole_packets_are_decided_as_libpcap_decides_them() {
        for expression in [
            "len >= 60 and udp",
            "less 40 or greater 90",
            "host 10.0.0.1 and len > 20",
            "tcp port 80 and ip[2:2] < len",
            "port 53 and len != 64",
            "vlan and len > 30 and ip",
            "portrange 9-60 and len & 1 = 0",
            "ip[6:2] & 0x1fff = 0 and len % 3 = 1",
            "len / 7 > 5 or ether[0] ^ 3 = len - 20",
            "not ip and len << 2 > 100 or len >> 1 < ether[5] * 2",
            "mpls or ip6 proto 17 and len | 1 > 50",
            "len > 10 and (tcp[13] & 7 != 0 or arp or icmp)",
        ] {
            let program = Program::new(expression, LinkType::ETHERNET).expect(expression);
            let instructions = program.instructions.as_ref().expect("it asks for the length");
            let mut matched = 0;
            for frame in frames().iter().filter(|f| !f.is_empty()) {
                let ours = run(instructions, frame, frame.len() as u32).is_some_and(|n| n > 0);
                assert_eq!(ours, program.compiled.filter(frame), "{expression}: {frame:02x?}");
                matched += u32::from(ours);
            }
            assert!(matched > 0, "{expression} matches nothing");
        }
    }

    #[test]
    fn the_length_of_a_cut_packet_is_that_on_the_wire() {
        let program = Program::new("greater 1000", LinkType::ETHERNET).expect("an expression");
        assert!(program.matches(&[0; 54], 1000));
        assert!(!program.matches(&[0; 54], 999));
        let udp = Program::new("ip[0] = 0x45 and len > 1000", LinkType::ETHERNET).expect("one too");
        assert!(!udp.matches(&[8; 14], 2000), "what was not captured cannot match");
    }
}
