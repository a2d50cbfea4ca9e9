//! Making packets: headers, numbers, filler and checksums, in user space.
//!
//! What is a generated packet, byte for byte? This module is the reference: the BPF program that
//! makes packets in the kernel must agree with it on every byte, and the check of what came back
//! makes each packet again and compares. No sum over a payload is ever taken: filler is cut from a
//! table whose partial sums are known, and the payload's own checksum makes the whole payload sum
//! to zero, so that the transport's checksum depends on headers alone.

use std::sync::Arc;

use tapdeck_packet::generate::{
    Column, FILLER_BYTES, Flow, Headers, Plan, SEQUENCE_BITS, SHORT_TAG_BYTES, Sizes, Sum,
    TAG_BYTES, Transport, Tunnel, filler_sums,
};
use tapdeck_packet::numbers::{icmp_type, icmpv6_type};

use crate::sampling::{SplitMix64, mix};

/// The numbers that one packet of a flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// The packet's number in its stream.
    pub sequence: u64,
    /// TCP's sequence number, which other transports do not use.
    pub tcp_sequence: u32,
    /// When the packet is sent, UTC nanoseconds.
    pub time_ns: u64,
}

/// Returns a packet's identity: stream and sequence number.
pub fn identity(stream: u32, sequence: u64) -> u64 {
    (u64::from(stream) << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// Bytes from which payloads are cut, and their partial sums.
#[derive(Debug)]
struct Filler {
    bytes: Vec<u8>,
    sums: Vec<u16>,
}

impl Filler {
    fn cut(&self, at: usize, len: usize) -> (&[u8], Sum) {
        let filler = &self.bytes[at..at + len];
        let (from, to) = (self.sums[at / 2], self.sums[at / 2 + len / 2]);
        let mut sum = Sum::default().native(to).native(0xffff - from);
        if len % 2 == 1 {
            sum = sum.native(u16::from_ne_bytes([filler[len - 1], 0]));
        }
        (filler, sum)
    }
}

/// A maker of packets, of whatever flow it is given.
#[derive(Clone, Debug)]
pub struct Maker {
    headers: Headers,
    outer_sum: Sum,
    payload_seed: u64,
    filler: Arc<Filler>,
}

impl Maker {
    pub fn new(headers: Headers, payload_seed: u64, filler: Vec<u8>) -> Self {
        let outer = &headers.bytes[headers.outer_ip_at..];
        let outer_sum = match headers.tunnel {
            Tunnel::None => Sum::default(),
            Tunnel::Vxlan | Tunnel::Gre => Sum::default().bytes(&outer[..20]),
        };
        let sums = filler_sums(&filler);
        Self { headers, outer_sum, payload_seed, filler: Arc::new(Filler { bytes: filler, sums }) }
    }

    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns where the payload of a transport begins, bytes into the frame.
    pub fn payload_at(&self, transport: Transport) -> usize {
        self.headers.transport_at() + transport.header_len()
    }

    /// Fills `frame` with a packet of just that length.
    ///
    /// # Panics
    /// If the frame is too short for headers and sequence number.
    pub fn make(&self, flow: &Flow, number: &Number, frame: &mut [u8]) {
        let at = self.headers.transport_at();
        frame[..at].copy_from_slice(&self.headers.bytes);
        self.tunnel(flow, number, frame);
        self.network(flow, number, frame);
        let payload_at = at + flow.transport.header_len();
        self.payload(flow, number, &mut frame[payload_at..]);
        self.transport(flow, number, &mut frame[at..]);
    }

    fn tunnel(&self, flow: &Flow, number: &Number, frame: &mut [u8]) {
        if self.headers.tunnel == Tunnel::None {
            return;
        }
        let ip = &mut frame[self.headers.outer_ip_at..];
        ipv4(ip, self.outer_sum, number);
        if self.headers.tunnel == Tunnel::Vxlan {
            let udp = &mut ip[20..];
            let len = udp.len() as u16;
            udp[..2].copy_from_slice(&flow.tunnel_port.to_be_bytes());
            udp[4..6].copy_from_slice(&len.to_be_bytes());
        }
    }

    fn network(&self, flow: &Flow, number: &Number, frame: &mut [u8]) {
        let ip = &mut frame[self.headers.ip_at..];
        if self.headers.ipv6 {
            let len = (ip.len() - 40) as u16;
            ip[4..6].copy_from_slice(&len.to_be_bytes());
            ip[6] = flow.transport.number(true);
            ip[8..24].copy_from_slice(&flow.source);
            ip[24..40].copy_from_slice(&flow.destination);
        } else {
            ip[9] = flow.transport.number(false);
            ip[12..16].copy_from_slice(&flow.source[..4]);
            ip[16..20].copy_from_slice(&flow.destination[..4]);
            ipv4(ip, Sum::default().native(flow.header_sum), number);
        }
    }

    /// Fills in the transport's header. The payload is there, and its sum is zero.
    fn transport(&self, flow: &Flow, number: &Number, segment: &mut [u8]) {
        let len = segment.len() as u16;
        let sum = Sum::default().native(flow.transport_sum);
        match flow.transport {
            Transport::Udp => {
                segment[..2].copy_from_slice(&flow.source_port.to_be_bytes());
                segment[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
                segment[4..6].copy_from_slice(&len.to_be_bytes());
                let checksum = sum.word(len).word(len).checksum();
                // RFC 768: a zero would say that there is no checksum.
                let checksum = if checksum == [0, 0] { [0xff, 0xff] } else { checksum };
                segment[6..8].copy_from_slice(&checksum);
            }
            Transport::Tcp => {
                segment[..2].copy_from_slice(&flow.source_port.to_be_bytes());
                segment[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
                let sequence = number.tcp_sequence.to_be_bytes();
                segment[4..8].copy_from_slice(&sequence);
                segment[8..12].copy_from_slice(&flow.tcp_acknowledgement.to_be_bytes());
                segment[12..16].copy_from_slice(&TCP_FLAGS_AND_WINDOW);
                segment[16..18].copy_from_slice(&sum.word(len).bytes(&sequence).checksum());
                segment[18..20].fill(0);
            }
            Transport::Icmp => {
                let sequence = number.sequence as u16;
                segment[..2].copy_from_slice(&echo_request(self.headers.ipv6));
                segment[4..6].copy_from_slice(&flow.source_port.to_be_bytes());
                segment[6..8].copy_from_slice(&sequence.to_be_bytes());
                // ICMP has no pseudo header (RFC 792); ICMPv6 has one (RFC 4443, section 2.3).
                let sum = if self.headers.ipv6 { sum.word(len) } else { sum };
                segment[2..4].copy_from_slice(&sum.word(sequence).checksum());
            }
        }
    }

    fn payload(&self, flow: &Flow, number: &Number, payload: &mut [u8]) {
        let identity = identity(flow.stream, number.sequence);
        let numbered = if payload.len() < TAG_BYTES {
            payload[..4].copy_from_slice(&(number.sequence as u32).to_be_bytes());
            SHORT_TAG_BYTES - 2
        } else {
            payload[..8].copy_from_slice(&identity.to_be_bytes());
            payload[8..16].copy_from_slice(&number.time_ns.to_be_bytes());
            TAG_BYTES - 2
        };
        let (tag, rest) = payload.split_at_mut(numbered + 2);
        let at = mix(self.payload_seed ^ identity) as usize & (FILLER_BYTES - 1) & !7;
        let (filler, sum) = self.filler.cut(at, rest.len());
        rest.copy_from_slice(filler);
        let sum = Sum::default().bytes(&tag[..numbered]).native(sum.fold());
        tag[numbered..].copy_from_slice(&sum.checksum());
    }
}

/// TCP's data offset 5, flags ACK and PSH, window 65,535: data of an established connection.
pub(crate) const TCP_FLAGS_AND_WINDOW: [u8; 4] = [0x50, 0x18, 0xff, 0xff];

/// Returns type and code of an echo request, of ICMP or ICMPv6.
pub(crate) const fn echo_request(ipv6: bool) -> [u8; 2] {
    [if ipv6 { icmpv6_type::ECHO_REQUEST } else { icmp_type::ECHO_REQUEST }, 0]
}

/// Fills in length, identification and checksum of an IPv4 header. `sum` is of the rest.
fn ipv4(packet: &mut [u8], sum: Sum, number: &Number) {
    let len = packet.len() as u16;
    let identification = number.sequence as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[4..6].copy_from_slice(&identification.to_be_bytes());
    packet[10..12].copy_from_slice(&sum.word(len).word(identification).checksum());
}

/// A packet that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Bytes of the frame.
    pub len: usize,
    /// The index of the packet's flow; the mark's is one behind the last flow.
    pub flow: usize,
}

/// One sender's packets, one after the other.
#[derive(Debug)]
pub struct Frames {
    plan: Plan,
    maker: Maker,
    random: SplitMix64,
    drawn: u64,
    /// The next packet's numbers of each flow, and last of the mark.
    next: Vec<Number>,
}

impl Frames {
    pub fn new(mut plan: Plan) -> Self {
        let filler = std::mem::take(&mut plan.filler);
        let maker = Maker::new(plan.headers.clone(), plan.payload_seed, filler);
        let first =
            |flow: &Flow| Number { sequence: 0, tcp_sequence: flow.tcp_sequence, time_ns: 0 };
        let next = plan.flows.iter().chain(&plan.mark).map(first).collect();
        Self { random: SplitMix64::new(plan.seed), plan, maker, drawn: 0, next }
    }

    /// Makes the next packet at the beginning of `buffer`, or with `mark` the next mark, which
    /// takes no part in the order of the other packets.
    ///
    /// # Panics
    /// If the buffer is shorter than the plan's longest frame, or the plan has no mark.
    pub fn make(&mut self, buffer: &mut [u8], time_ns: u64, mark: bool) -> Made {
        let (len, index) = if mark { self.draw_mark() } else { self.draw() };
        let flow = self.plan.flows.get(index).or(self.plan.mark.as_ref()).expect("of this plan");
        let number = &mut self.next[index];
        number.time_ns = time_ns;
        self.maker.make(flow, number, &mut buffer[..len]);
        number.sequence += 1;
        let payload = len - self.maker.payload_at(flow.transport);
        number.tcp_sequence = number.tcp_sequence.wrapping_add(payload as u32);
        Made { len, flow: index }
    }

    fn draw(&mut self) -> (usize, usize) {
        let (for_flow, for_size) = (self.random.next_u64(), self.random.next_u64());
        let flows = self.plan.flows.len() as u64;
        let flow = match &self.plan.shares {
            None => ((for_flow & 0xffff_ffff) * flows) >> 32,
            Some(columns) => Column::pick(columns, for_flow).into(),
        };
        let len = self.size(for_size, self.drawn);
        self.drawn += 1;
        (len, flow as usize)
    }

    fn draw_mark(&mut self) -> (usize, usize) {
        let index = self.plan.flows.len();
        let sequence = self.next[index].sequence;
        let stream = self.plan.mark.as_ref().expect("the plan has a mark").stream;
        let random = mix(self.plan.payload_seed ^ !identity(stream, sequence));
        (self.size(random, sequence), index)
    }

    fn size(&self, random: u64, turn: u64) -> usize {
        let size = match &self.plan.sizes {
            Sizes::Drawn(columns) => Column::pick(columns, random),
            Sizes::Sequence { sizes, first, step } => {
                sizes[((first + turn * step) % sizes.len() as u64) as usize].into()
            }
        };
        size as usize
    }

    /// Returns how many packets of each flow were made so far, the mark's last.
    pub fn sequences(&self) -> impl Iterator<Item = u64> {
        self.next.iter().map(|n| n.sequence)
    }

    /// Returns whether the plan has marks.
    pub fn has_mark(&self) -> bool {
        self.plan.mark.is_some()
    }
}
