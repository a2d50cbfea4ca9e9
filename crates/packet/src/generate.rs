//! What is a generator to send?
//!
//! Plain tables say it. `traffic` fills them from a workload, and two makers make packets of them:
//! `traffic` itself, frame by frame in user space, and a BPF program in the kernel. Both must agree
//! on every byte. `docs/FORMAT.md`, "Generated packets", has the meaning of each table.
//!
//! Nothing here makes or sends a packet.

use std::sync::Arc;

use crate::numbers::ip_protocol;

/// Bytes of a frame that a maker may write as headers, before the payload.
pub const MAX_HEADERS: usize = 160;
/// Bytes of random filler from which payloads are cut, a power of two.
pub const FILLER_BYTES: usize = 1 << 20;
/// Bytes of the tag with which a payload begins: identity, send time and checksum.
pub const TAG_BYTES: usize = 18;
/// Bytes of the tag of payloads that are shorter than [`TAG_BYTES`]: the lower half of the sequence
/// number and a checksum.
pub const SHORT_TAG_BYTES: usize = 6;
/// Bits of the sequence number in a packet's identity. The other bits are the stream's.
pub const SEQUENCE_BITS: u32 = 40;
/// Number of streams of a run at most.
pub const MAX_STREAMS: u32 = 1 << (64 - SEQUENCE_BITS);

/// A column of an alias table: two outcomes, and the threshold of 2³² below which it is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Column {
    pub threshold: u32,
    pub own: u32,
    pub other: u32,
}

impl Column {
    /// Returns the outcome for a random number, whose lower half chooses the column and whose upper
    /// half one of the column's two outcomes.
    pub fn pick(columns: &[Self], random: u64) -> u32 {
        let low = random & 0xffff_ffff;
        let column = &columns[((low * columns.len() as u64) >> 32) as usize];
        if ((random >> 32) as u32) < column.threshold { column.own } else { column.other }
    }
}

/// What stands between the outer Ethernet header and the packet of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    None,
    /// RFC 7348, over IPv4.
    Vxlan,
    /// RFC 2784, over IPv4.
    Gre,
}

/// Transport of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
    /// Echo requests.
    Icmp,
}

impl Transport {
    /// Length of the transport's header in bytes, without options.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Tcp => 20,
            Self::Udp | Self::Icmp => 8,
        }
    }

    /// Returns the transport's number in the IP header.
    pub const fn number(self, ipv6: bool) -> u8 {
        match self {
            Self::Udp => ip_protocol::UDP,
            Self::Tcp => ip_protocol::TCP,
            Self::Icmp if ipv6 => ip_protocol::ICMPV6,
            Self::Icmp => ip_protocol::ICMP,
        }
    }
}

/// One flow, and the part of its checksums that does not change from packet to packet. Addresses
/// are in network byte order; an IPv4 address takes the first four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The flow's number in the whole run.
    pub stream: u32,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    /// Source port, or for ICMP the identifier.
    pub source_port: u16,
    pub destination_port: u16,
    pub transport: Transport,
    /// Source port of the tunnel's UDP header (RFC 7348, section 5: entropy for load balancing).
    pub tunnel_port: u16,
    /// Sequence number of the first packet, for TCP.
    pub tcp_sequence: u32,
    /// Acknowledgement number of all packets, for TCP.
    pub tcp_acknowledgement: u32,
    /// [`Sum`] of the IPv4 header with zeros for length, identification and checksum.
    pub header_sum: u16,
    /// [`Sum`] of the pseudo header without its length and of the transport header without
    /// length, sequence number and checksum.
    pub transport_sum: u16,
}

/// The headers that all packets of a run share, up to the transport header, with zeros in place of
/// the values that each packet has of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    pub bytes: Vec<u8>,
    /// Where the outer IPv4 header begins, if there is a tunnel.
    pub outer_ip_at: usize,
    /// Where the IP header of the flow begins.
    pub ip_at: usize,
    pub tunnel: Tunnel,
    pub ipv6: bool,
}

impl Headers {
    /// Where the transport header begins.
    pub fn transport_at(&self) -> usize {
        self.bytes.len()
    }
}

/// How long the frames are, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Lengths are drawn: the outcomes of the columns are lengths.
    Drawn(Vec<Column>),
    /// Lengths come in this order, from the index `first` on in steps of `step`, over and over.
    Sequence { sizes: Arc<[u16]>, first: u64, step: u64 },
}

/// All that decides the bytes of one sender's packets, but for the send time.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of this sender, for flows and lengths that are drawn.
    pub seed: u64,
    /// Seed of the run, for the places in the filler where payloads begin.
    pub payload_seed: u64,
    pub headers: Headers,
    pub flows: Vec<Flow>,
    /// How flows are drawn: outcomes are indexes into `flows`. `None` to draw each as often as any
    /// other.
    pub shares: Option<Vec<Column>>,
    pub sizes: Sizes,
    /// Bytes of the longest frame that `sizes` has.
    pub longest: u16,
    /// The flow that comes at intervals of its own beside the other flows.
    pub mark: Option<Flow>,
    /// The filler: [`FILLER_BYTES`] bytes, and as many more as the longest frame has.
    pub filler: Vec<u8>,
}

/// Binary logarithm of the parts of a nanosecond in which gaps are counted.
pub const GAP_PARTS: u32 = 20;

/// A constant rate of packets or of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from one packet to the next, in 2⁻²⁰ ns.
    pub gap: u64,
    /// Time that is added to the gap for each byte of the packet, in 2⁻²⁰ ns.
    pub gap_per_byte: u64,
    /// Time from the start to the first packet, so that several senders take turns.
    pub lead_ns: u64,
}

/// When a sender stops. A limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub packets: u64,
    pub duration_ns: u64,
}

/// How long after its end a run of limited time may still send packets that were due before.
pub const LATE_NS: u64 = 10_000_000;

impl Limits {
    /// Returns whether a sender that has made `made` packets stops before the next, which is due at
    /// `due_ns`. Times count from the start.
    pub fn are_reached(&self, made: u64, now_ns: u64, due_ns: u64) -> bool {
        let late = self.duration_ns.saturating_add(LATE_NS);
        (self.packets > 0 && made >= self.packets)
            || (self.duration_ns > 0 && (due_ns >= self.duration_ns || now_ns >= late))
    }
}

/// A ones' complement sum (RFC 1071) of 16-bit words in this machine's byte order. The result is in
/// the same order (section 2 (B)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u32);

impl Sum {
    /// Adds a word, by its value.
    pub fn word(self, value: u16) -> Self {
        self.native(value.to_be())
    }

    /// Adds a word as it lies in memory, or a folded sum.
    pub fn native(self, value: u16) -> Self {
        // There is room for 65,536 words.
        Self(self.0 + u32::from(value))
    }

    /// Adds bytes, which begin at an even offset. A last odd byte is padded with zero.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, odd) = bytes.as_chunks::<2>();
        let last = odd.first().map_or(0, |&b| u16::from_ne_bytes([b, 0]));
        words.iter().fold(self.native(last), |sum, &w| {
            Self(sum.fold().into()).native(u16::from_ne_bytes(w))
        })
    }

    pub fn fold(self) -> u16 {
        let once = (self.0 & 0xffff) + (self.0 >> 16);
        ((once & 0xffff) + (once >> 16)) as u16
    }

    /// Returns the checksum that stands in a header, as it lies in memory.
    pub fn checksum(self) -> [u8; 2] {
        (!self.fold()).to_ne_bytes()
    }
}

/// Returns the sums of the filler up to every second byte, modulo 65,535. The sum of any piece of
/// the filler is the difference of two of them.
pub fn filler_sums(filler: &[u8]) -> Vec<u16> {
    let (words, _) = filler.as_chunks::<2>();
    let mut sum = 0u32;
    let mut sums = Vec::with_capacity(words.len() + 1);
    sums.push(0);
    for &word in words {
        sum = (sum + u32::from(u16::from_ne_bytes(word))) % 0xffff;
        sums.push(sum as u16);
    }
    sums
}
