//! What a recorder may ask of its helper, byte for byte.
//!
//! A request is one message of a `SOCK_SEQPACKET` socket: four words of 32 bits (what is asked, of
//! which interface by its place among those of the recorder, a value, how many instructions
//! follow), and so many words of 64 bits, each an instruction of a classic BPF program; before
//! those of an interface that is to be opened stand four words more ([`OpenAt`]). An answer is
//! three words (whether it was done, or which step failed; the number of the error; a value), then
//! the error's text. With it come descriptors, where some were asked for.

use std::io;
use std::os::fd::OwnedFd;

use crate::filter::cbpf::{ClassicProgram, MAX_INSTRUCTIONS};
use crate::{Hook, MAX_RINGS};

/// The longest message there is.
pub(super) const MOST_BYTES: usize = 16 + OPEN_AT + 8 * MAX_INSTRUCTIONS;
/// The bytes of an [`OpenAt`].
const OPEN_AT: usize = 16;
/// The bytes of an answer before its text.
const ANSWER: usize = 12;
const MOST_TEXT: usize = 400;

/// What takes privileges that a recorder has no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Attach the programs to the interface of this index, and bind the sockets that were opened.
    /// Is answered by how many sockets are bound; for programs alone, by [`Attached`].
    Attach {
        ifindex: u32,
    },
    /// Take the programs away, and wait until none of them runs.
    Detach,
    /// See that the programs stand. Is answered by whether they did not.
    Restore,
    /// Load the programs anew, for the interface of this index. Is answered for groups by [`Made`].
    Load {
        ifindex: u32,
    },
    /// Load the programs anew and exchange them for those that stand, so that the driver runs them
    /// on queues that were switched on, and bind the sockets that were opened for these. Is
    /// answered by how many sockets are bound.
    TakeQueues,
    /// Load the programs with another filter, or with none, and exchange them for those that stand.
    /// A socket is to keep so many bytes of each packet.
    SetFilter {
        program: Option<ClassicProgram>,
        snaplen: u32,
    },
    /// Load the programs with another number of bytes that each flow may have, 0: as many as come;
    /// and exchange them for those that stand.
    SetCutoff {
        bytes: u32,
    },
    /// Load the programs that look for rules. They stand when [`Request::Exchange`] was done.
    BeginRules,
    Exchange,
    /// Forget what [`Request::BeginRules`] loaded.
    PutBack,
    /// Make memory for a set of rules, of one of the sizes. Is answered by its map.
    MakeRules {
        size: u32,
    },
    /// Put that memory, of this size, in the place of the set that is there; or take that away.
    PutRules {
        size: Option<u32>,
    },
    /// Make the table of flows that rules cut off, where there is none.
    MakeFlows,
    /// Open the socket of this number, and hand it over, with the memory that it writes packets to
    /// if it has its own. Is answered by how many blocks or chunks it has room for.
    OpenSocket {
        number: u32,
    },
    /// Have a group's filter at an interface be this one in the programs that are loaded next.
    PutFilter {
        group: u32,
        program: Option<ClassicProgram>,
    },
    /// Load programs with those filters. They stand when [`Request::Exchange`] was done, and until
    /// [`Request::PutBack`] those before can be put back. Is answered by [`Made`].
    Prepare,
    /// Forget what [`Request::Exchange`] has replaced.
    Keep,
    /// Make the maps of a new member of a group, and hand them over.
    MakeMember,
    /// Hand over the counters of the packets that filters have kept from sockets, where there are
    /// such.
    TakeRefused,
    /// Open the interface of this index, which came later, with this filter and without rules: for
    /// the place of one that is gone, or behind all, and with rings as this says. What is asked of
    /// that place is asked of this interface from now on. Is answered by [`Opened`], and by the
    /// maps and the program of [`HandedOver`](crate::bpf::loaded::HandedOver) where programs
    /// fill rings.
    Open {
        ifindex: u32,
        at: OpenAt,
        program: Option<ClassicProgram>,
    },
    /// Give the interface that was opened its place, or give it up.
    Settle {
        stays: bool,
    },
    /// Remove what is pinned of an interface that is gone.
    GiveUp,
}

/// Where the rings of an interface that is opened later are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenAt {
    /// The number of the first one, and the most that there may be.
    pub(crate) first: u32,
    pub(crate) most: u32,
    /// The place in a lasting recording where they are pinned, if they are.
    pub(crate) pin: Option<u32>,
}

impl OpenAt {
    fn write(self) -> [u32; 4] {
        let Self { first, most, pin } = self;
        [first, most, u32::from(pin.is_some()), pin.unwrap_or(0)]
    }

    fn read(words: [u32; 4]) -> Option<Self> {
        let [first, most, is_pinned, pin] = words;
        let pin = match (is_pinned, pin) {
            (0, 0) => None,
            (1, pin) => Some(pin),
            _ => return None,
        };
        Some(Self { first, most, pin })
    }
}

impl Request {
    fn kind(&self) -> u32 {
        match self {
            Self::Attach { .. } => 1,
            Self::Detach => 2,
            Self::Restore => 3,
            Self::Load { .. } => 4,
            Self::TakeQueues => 5,
            Self::SetFilter { .. } => 6,
            Self::BeginRules => 7,
            Self::Exchange => 8,
            Self::PutBack => 9,
            Self::MakeRules { .. } => 10,
            Self::PutRules { .. } => 11,
            Self::OpenSocket { .. } => 12,
            Self::TakeRefused => 13,
            Self::PutFilter { .. } => 14,
            Self::Prepare => 15,
            Self::MakeMember => 16,
            Self::Keep => 17,
            Self::MakeFlows => 18,
            Self::SetCutoff { .. } => 19,
            Self::Open { .. } => 20,
            Self::Settle { .. } => 21,
            Self::GiveUp => 22,
        }
    }

    /// Writes the request about an interface.
    pub(super) fn write(&self, interface: u32) -> Vec<u8> {
        let value = match self {
            Self::Attach { ifindex } | Self::Load { ifindex } | Self::Open { ifindex, .. } => {
                *ifindex
            }
            Self::MakeRules { size } => *size,
            Self::SetCutoff { bytes } => *bytes,
            Self::PutRules { size } => size.map_or(0, |size| size + 1),
            Self::SetFilter { snaplen, .. } => *snaplen,
            Self::OpenSocket { number } => *number,
            Self::PutFilter { group, .. } => *group,
            Self::Settle { stays } => u32::from(*stays),
            _ => 0,
        };
        let words = match self {
            Self::SetFilter { program: Some(program), .. }
            | Self::PutFilter { program: Some(program), .. }
            | Self::Open { program: Some(program), .. } => program.words(),
            _ => &[],
        };
        let mut head = vec![self.kind(), interface, value, words.len() as u32];
        if let Self::Open { at, .. } = self {
            head.extend(at.write());
        }
        let head = head.iter().flat_map(|word| word.to_ne_bytes());
        head.chain(words.iter().flat_map(|word| word.to_ne_bytes())).collect()
    }

    /// Reads a request, and which interface it is about. `None` for what no recorder writes.
    pub(super) fn read(bytes: &[u8]) -> Option<(usize, Self)> {
        let (head, mut rest) = bytes.split_first_chunk::<16>()?;
        let [kind, interface, value, count] = four_words(head);
        let mut at = None;
        if kind == 20 {
            let (its, behind) = rest.split_first_chunk::<OPEN_AT>()?;
            (at, rest) = (OpenAt::read(four_words(its)), behind);
        }
        if rest.len() != 8 * count as usize {
            return None;
        }
        let is_filter = matches!(kind, 6 | 14 | 20);
        if count > 0 && !is_filter {
            return None;
        }
        let filter = if count == 0 { None } else { Some(program(rest)?) };
        let request = match kind {
            1 => Self::Attach { ifindex: value },
            2 => Self::Detach,
            3 => Self::Restore,
            4 => Self::Load { ifindex: value },
            5 => Self::TakeQueues,
            6 => Self::SetFilter { program: filter, snaplen: value },
            7 => Self::BeginRules,
            8 => Self::Exchange,
            9 => Self::PutBack,
            10 => Self::MakeRules { size: value },
            11 => Self::PutRules { size: value.checked_sub(1) },
            12 => Self::OpenSocket { number: value },
            13 => Self::TakeRefused,
            14 => Self::PutFilter { group: value, program: filter },
            15 => Self::Prepare,
            16 => Self::MakeMember,
            17 => Self::Keep,
            18 => Self::MakeFlows,
            19 => Self::SetCutoff { bytes: value },
            20 => Self::Open { ifindex: value, at: at?, program: filter },
            21 => Self::Settle { stays: value != 0 },
            22 => Self::GiveUp,
            _ => return None,
        };
        Some((interface as usize, request))
    }
}

fn program(bytes: &[u8]) -> Option<ClassicProgram> {
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    ClassicProgram::from_words(&words).ok()
}

fn four_words(bytes: &[u8; 16]) -> [u32; 4] {
    let mut words = bytes.chunks_exact(4).map(word);
    std::array::from_fn(|_| words.next().unwrap_or(0))
}

fn word(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

/// What a request that was done is answered by.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) value: u32,
    pub(crate) fds: Vec<OwnedFd>,
}

impl From<u32> for Answer {
    fn from(value: u32) -> Self {
        Self { value, fds: Vec::new() }
    }
}

impl From<bool> for Answer {
    fn from(value: bool) -> Self {
        u32::from(value).into()
    }
}

/// How programs were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attached {
    /// Whether clsact filters do the work of tcx.
    pub(crate) by_clsact: bool,
    /// Whether a program was not found where an owner before had put it.
    pub(crate) renewed: bool,
}

impl Attached {
    pub(crate) fn word(self) -> u32 {
        let Self { by_clsact, renewed } = self;
        u32::from(by_clsact) | u32::from(renewed) << 1
    }

    pub(crate) fn of(word: u32) -> Self {
        let is = |bit: u32| word & 1 << bit != 0;
        Self { by_clsact: is(0), renewed: is(1) }
    }
}

/// What programs of groups that were loaded are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// Whether they are bound to their device.
    pub(crate) bound: bool,
    /// Whether they ask its driver for the time, and for the VLAN tag.
    pub(crate) hardware_time: bool,
    pub(crate) hardware_vlan: bool,
    /// Whether packets of one poll share a reading of the clock.
    pub(crate) clock_by_poll: bool,
    /// Whether they find tags where a veth has them.
    pub(crate) veth: bool,
}

impl Made {
    pub(crate) fn word(self) -> u32 {
        let Self { bound, hardware_time, hardware_vlan, clock_by_poll, veth } = self;
        let flags = [bound, hardware_time, hardware_vlan, clock_by_poll, veth];
        (0..).zip(flags).map(|(bit, is)| u32::from(is) << bit).sum()
    }

    pub(crate) fn of(word: u32) -> Self {
        let is = |bit: u32| word & 1 << bit != 0;
        Self {
            bound: is(0),
            hardware_time: is(1),
            hardware_vlan: is(2),
            clock_by_poll: is(3),
            veth: is(4),
        }
    }
}

/// An interface that was opened later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) hook: Hook,
    pub(crate) rings: u32,
    /// What its programs are like, where it has such.
    pub(crate) made: Made,
}

impl Opened {
    pub(crate) fn word(self) -> u32 {
        let Self { hook, rings, made } = self;
        made.word() | (hook as u32) << 8 | rings << 16
    }

    /// Reads the word; `None` for one that no helper writes.
    pub(crate) fn of(word: u32) -> Option<Self> {
        let hook = *Hook::ALL.get((word >> 8 & 0xff) as usize)?;
        let rings = Some(word >> 16).filter(|rings| (1..=MAX_RINGS).contains(rings))?;
        Some(Self { hook, rings, made: Made::of(word & 0xff) })
    }
}

/// Which step of a request failed, and why.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The kernel did not take the programs.
    Load(io::Error),
    /// No socket could have the receive queue of this number.
    Queue(u32, io::Error),
    /// Anything behind that.
    Place(io::Error),
}

impl Fault {
    pub(crate) fn into_error(self) -> io::Error {
        match self {
            Self::Load(e) | Self::Queue(_, e) | Self::Place(e) => e,
        }
    }
}

/// Writes an answer.
pub(super) fn write_answer(done: &Result<Answer, Fault>) -> Vec<u8> {
    let (status, value, error) = match done {
        Ok(answer) => (0u32, answer.value, None),
        Err(Fault::Load(e)) => (1, 0, Some(e)),
        Err(Fault::Place(e)) => (2, 0, Some(e)),
        Err(Fault::Queue(queue, e)) => (3, *queue, Some(e)),
    };
    let number = error.and_then(io::Error::raw_os_error).unwrap_or(0);
    let head = [status, number.cast_unsigned(), value];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(error.map(ToString::to_string).unwrap_or_default().bytes().take(MOST_TEXT));
    bytes
}

/// Reads an answer. `None` for what no helper writes.
pub(super) fn read_answer(bytes: &[u8], fds: Vec<OwnedFd>) -> Option<Result<Answer, Fault>> {
    let (head, text) = bytes.split_first_chunk::<ANSWER>()?;
    let mut words = head.chunks_exact(4).map(word);
    let [status, number, value] = std::array::from_fn(|_| words.next().unwrap_or(0));
    let error = || match number {
        0 => io::Error::other(String::from_utf8_lossy(text).into_owned()),
        number => io::Error::from_raw_os_error(number.cast_signed()),
    };
    Some(match status {
        0 => Ok(Answer { value, fds }),
        1 => Err(Fault::Load(error())),
        2 => Err(Fault::Place(error())),
        3 => Err(Fault::Queue(value, error())),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use libc::sock_filter;

    use super::{
        Answer, Attached, Fault, MOST_BYTES, Made, OpenAt, Opened, Request, read_answer,
        write_answer,
    };
    use crate::filter::cbpf::ClassicProgram;
    use crate::{Hook, MAX_RINGS};

    fn returning(k: u32, instructions: usize) -> ClassicProgram {
        let code = vec![sock_filter { code: 6, jt: 0, jf: 0, k }; instructions];
        ClassicProgram::new(&code).expect("a program")
    }

    #[test]
    fn every_request_is_read_as_it_was_written() {
        let at = OpenAt { first: 7, most: 128, pin: None };
        for request in [
            Request::Attach { ifindex: 7 },
            Request::Detach,
            Request::Restore,
            Request::Load { ifindex: u32::MAX },
            Request::TakeQueues,
            Request::SetFilter { program: None, snaplen: 96 },
            Request::SetFilter { program: Some(returning(262_144, 3)), snaplen: 0 },
            Request::SetFilter { program: Some(returning(0, 4096)), snaplen: u32::MAX },
            Request::BeginRules,
            Request::Exchange,
            Request::PutBack,
            Request::MakeRules { size: 3 },
            Request::PutRules { size: None },
            Request::PutRules { size: Some(0) },
            Request::OpenSocket { number: 2 },
            Request::TakeRefused,
            Request::PutFilter { group: 3, program: None },
            Request::PutFilter { group: 0, program: Some(returning(64, 2)) },
            Request::Prepare,
            Request::Keep,
            Request::MakeFlows,
            Request::SetCutoff { bytes: 1 << 31 },
            Request::MakeMember,
            Request::Open { ifindex: 9, at, program: None },
            Request::Open { ifindex: 9, at: OpenAt { pin: Some(0), ..at }, program: None },
            Request::Open { ifindex: u32::MAX, at, program: Some(returning(96, 4096)) },
            Request::Settle { stays: false },
            Request::Settle { stays: true },
            Request::GiveUp,
        ] {
            let bytes = request.write(5);
            assert!(bytes.len() <= MOST_BYTES);
            assert_eq!(Request::read(&bytes), Some((5, request)));
        }
    }

    /// Whoever has taken a recorder over may send anything.
    #[test]
    fn nothing_else_is_a_request() {
        let filter = Request::SetFilter { program: Some(returning(1, 3)), snaplen: 64 };
        let good = filter.write(0);
        for len in 0..good.len() {
            assert_eq!(Request::read(&good[..len]), None, "{len} bytes of it");
        }
        assert_eq!(Request::read(&[&good[..], &[0]].concat()), None, "a byte more");
        for kind in [0u32, 23, u32::MAX] {
            let bytes = [&kind.to_ne_bytes()[..], &[0; 12]].concat();
            assert_eq!(Request::read(&bytes), None, "{kind}");
        }
        let at = OpenAt { first: 0, most: 1, pin: Some(3) };
        let mut unpinned = Request::Open { ifindex: 1, at, program: None }.write(0);
        assert_eq!(Request::read(&unpinned[..16]), None, "a place is missing");
        unpinned[24] = 0;
        assert_eq!(Request::read(&unpinned), None, "a place where nothing is pinned");
        let mut other = good.clone();
        other[0] = 2;
        assert_eq!(Request::read(&other), None, "a program without a filter");
        let mut jump = good.clone();
        // `ja` far beyond the end.
        jump[16..24].copy_from_slice(&(0x05u64 | 99 << 32).to_ne_bytes());
        assert_eq!(Request::read(&jump), None);
        let mut count = good;
        count[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Request::read(&count), None);
    }

    #[test]
    fn how_programs_were_attached_is_one_word() {
        for word in 0..4 {
            assert_eq!(Attached::of(word).word(), word);
        }
    }

    #[test]
    fn what_programs_are_like_is_one_word() {
        for word in 0..16 {
            assert_eq!(Made::of(word).word(), word);
        }
    }

    #[test]
    fn what_was_opened_later_is_one_word() {
        for hook in Hook::ALL {
            for (rings, made) in [(1, 0), (MAX_RINGS, 15)] {
                let opened = Opened { hook, rings, made: Made::of(made) };
                assert_eq!(Opened::of(opened.word()), Some(opened));
            }
        }
        assert_eq!(Opened::of(0), None, "no rings");
        assert_eq!(Opened::of(u32::MAX), None, "no hook");
    }

    #[test]
    fn every_answer_is_read_as_it_was_written() {
        let read = |bytes: &[u8]| read_answer(bytes, Vec::new());
        for value in [0, 1, u32::MAX] {
            let answer = read(&write_answer(&Ok(value.into())));
            assert!(matches!(answer, Some(Ok(Answer { value: v, .. })) if v == value));
        }
        let e = io::Error::from_raw_os_error(libc::E2BIG);
        let Some(Err(Fault::Load(e))) = read(&write_answer(&Err(Fault::Load(e)))) else {
            panic!("a fault")
        };
        assert_eq!(e.raw_os_error(), Some(libc::E2BIG));
        let e = io::Error::other("it outgrew its pages");
        let Some(Err(Fault::Place(e))) = read(&write_answer(&Err(Fault::Place(e)))) else {
            panic!("a fault")
        };
        assert_eq!(e.to_string(), "it outgrew its pages");
        let e = io::Error::from_raw_os_error(libc::EBUSY);
        let Some(Err(Fault::Queue(7, e))) = read(&write_answer(&Err(Fault::Queue(7, e)))) else {
            panic!("a fault")
        };
        assert_eq!(e.raw_os_error(), Some(libc::EBUSY));
        assert!(read(&[]).is_none() && read(&[9; 12]).is_none());
    }
}
