//! Which packet is this, and is it as it was sent?
//!
//! All bytes of a generated packet follow from its stream, its number, its length, its send time
//! and, for TCP, its sequence number. So a frame is read at the places where the tag must be, the
//! packet of that number is made again, and the two are compared. Where they agree in every
//! captured byte there is nothing more to ask.
//!
//! Where they differ, the question is whether the *number* can be believed, because believing a
//! wrong number would make a packet that came look lost and another look repeated. A number is
//! believed when other bytes confirm it: the payload's checksum, or the filler, which differs from
//! number to number. A short tag does not name its stream; addresses and ports do, and the
//! transport's checksum has to confirm them. Otherwise the packet is damaged and unidentified, as
//! long as its addresses are the run's.
//!
//! Damage may have hit lengths and types as well, so a frame is read in every way in which it can
//! be one of this run: with its own length or the one in its IP header, with each transport's
//! header, with the VLAN tags or without. The reading with the best evidence counts.
//!
//! Whether a known number came before, or late, is not asked here (`order`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use tapdeck_packet::generate::{
    Flow, SEQUENCE_BITS, SHORT_TAG_BYTES, Sum, TAG_BYTES, Transport, Tunnel,
};
use tapdeck_packet::numbers::ip_protocol;

use super::order::Order;
use crate::frame::{Maker, Number};
use crate::workload::Workload;

/// A packet whose number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub stream: u32,
    pub sequence: u64,
    /// The send time; `None` where the packet has no room for one, or the time is not the run's.
    pub sent_ns: Option<u64>,
    /// Bytes of the frame as it was sent.
    pub len: usize,
    /// Whether VLAN tags are missing.
    pub untagged: bool,
    /// Whether the packet is what a router would have made of the one that was sent.
    pub routed: bool,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Foreign,
    OtherRun,
    /// A packet of the run, by its addresses, whose number was not captured.
    Cut {
        stream: u32,
        len: usize,
    },
    Intact(Numbered),
    Damaged(Numbered),
    Unidentified {
        stream: Option<u32>,
        len: usize,
    },
}

/// How good a reading of a frame is, the better the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    Nothing,
    /// The frame is the receiver's answer, which repeats the payload.
    Answer,
    OtherRun,
    /// Filler confirms the number, but the payload's checksum does not.
    Likely,
    Proven,
    Intact,
}

/// A way to read a frame.
#[derive(Clone, Copy)]
struct Reading<'a> {
    /// The frame as captured, with the VLAN tags that it has lost.
    bytes: &'a [u8],
    /// The frame's length on the wire, with these tags.
    on_wire: usize,
    /// The frame's length when it was sent.
    len: usize,
    /// Bytes of the transport's header.
    header_len: usize,
    untagged: bool,
}

/// Which packet a frame says that it is.
struct Claim {
    flow: Flow,
    number: Number,
    /// Whether a packet of this number was made in the run.
    is_made: bool,
    payload_at: usize,
    is_short: bool,
    /// The send time, where there is one and it was captured.
    sent_ns: Option<u64>,
}

/// How many flows that were lately made are kept: one for each remainder of the stream's number.
const FLOWS_KEPT: u32 = 4096;
/// Bytes of filler that must be there to confirm a number.
const FILLER_ENOUGH: usize = 4;
/// The longest IP packet that there can be, and more than the headers before one.
const MAX_LEN: usize = u16::MAX as usize;

pub(super) struct Recogniser {
    workload: Workload,
    maker: Maker,
    /// Send times that a packet of the run may have.
    run_ns: RangeInclusive<u64>,
    routed: bool,
    /// Lengths that the transport's header has in this run.
    header_lens: Vec<usize>,
    longest_stream: u64,
    flows: Vec<Option<Flow>>,
    /// The packet that the frame should be.
    expected: Vec<u8>,
    /// A frame with its VLAN tags put back.
    tagged: Vec<u8>,
    /// How many tags the last intact packet had lost.
    tags_lost: usize,
}

impl Recogniser {
    /// Begins with a run that made so many packets of each stream.
    pub(super) fn new(
        workload: Workload,
        run_ns: RangeInclusive<u64>,
        made: &[u64],
        routed: bool,
    ) -> Self {
        let maker =
            Maker::new(workload.headers(), workload.payload_seed(), workload.filler(u16::MAX));
        let mut header_lens: Vec<usize> =
            workload.protocols.iter().map(|&p| Transport::from(p).header_len()).collect();
        header_lens.sort_unstable();
        header_lens.dedup();
        let flows = (made.len() as u32).clamp(1, FLOWS_KEPT);
        Self {
            maker,
            run_ns,
            routed,
            header_lens,
            longest_stream: made.iter().copied().max().unwrap_or(0),
            flows: vec![None; flows as usize],
            expected: vec![0; MAX_LEN],
            tagged: Vec::new(),
            tags_lost: 0,
            workload,
        }
    }

    pub(super) fn workload(&self) -> &Workload {
        &self.workload
    }

    pub(super) fn see(&mut self, order: &Order, original_len: u32, frame: &[u8]) -> Seen {
        let frame = &frame[..frame.len().min(original_len as usize)];
        if frame.len() < 12 {
            return Seen::Foreign;
        }
        let mut tagged = std::mem::take(&mut self.tagged);
        let seen = self.see_intact(order, original_len, frame, &mut tagged);
        let seen = seen.unwrap_or_else(|| self.examine(order, original_len, frame, &mut tagged));
        self.tagged = tagged;
        seen
    }

    /// Reads a frame in the way in which the last intact one was read, with its own length and the
    /// protocol that it says.
    fn see_intact(
        &mut self,
        order: &Order,
        original_len: u32,
        frame: &[u8],
        tagged: &mut Vec<u8>,
    ) -> Option<Seen> {
        let lost = self.tags_lost;
        let bytes = self.with_tags(frame, lost, tagged);
        let headers = self.maker.headers();
        let protocol = *bytes.get(headers.ip_at + if headers.ipv6 { 6 } else { 9 })?;
        let len = original_len as usize + 4 * lost;
        let is_tcp = protocol == ip_protocol::TCP;
        let header_len = if is_tcp { Transport::Tcp } else { Transport::Udp }.header_len();
        let reading = Reading { bytes, on_wire: len, len, header_len, untagged: lost > 0 };
        match self.read(order, &reading) {
            (Evidence::Intact, Some(packet)) => Some(Seen::Intact(packet)),
            _ => None,
        }
    }

    /// Reads a frame in every way.
    fn examine(
        &mut self,
        order: &Order,
        original_len: u32,
        frame: &[u8],
        tagged: &mut Vec<u8>,
    ) -> Seen {
        let mut best = (Evidence::Nothing, None);
        let mut otherwise = Seen::Foreign;
        for lost in 0..=self.workload.vlans.len() {
            let bytes = self.with_tags(frame, lost, tagged);
            let on_wire = original_len as usize + 4 * lost;
            for len in [Some(on_wire), self.len_said(bytes)].into_iter().flatten() {
                for i in 0..self.header_lens.len() {
                    let header_len = self.header_lens[i];
                    let reading = Reading { bytes, on_wire, len, header_len, untagged: lost > 0 };
                    let found = self.read(order, &reading);
                    if found.0 > best.0 {
                        best = found;
                    }
                }
            }
            if best.0 == Evidence::Intact {
                self.tags_lost = lost;
                break;
            }
            if otherwise == Seen::Foreign {
                otherwise = self.by_addresses(bytes, on_wire);
            }
        }
        match best {
            (Evidence::Intact, Some(packet)) => Seen::Intact(packet),
            (Evidence::Proven | Evidence::Likely, Some(packet)) => Seen::Damaged(packet),
            (Evidence::OtherRun, _) => Seen::OtherRun,
            (Evidence::Answer, _) => Seen::Foreign,
            _ => otherwise,
        }
    }

    /// Returns the frame with the outermost `lost` tags put back.
    fn with_tags<'a>(&self, frame: &'a [u8], lost: usize, tagged: &'a mut Vec<u8>) -> &'a [u8] {
        if lost == 0 {
            return frame;
        }
        tagged.clear();
        tagged.extend(&frame[..12]);
        tagged.extend(&self.maker.headers().bytes[12..12 + 4 * lost]);
        tagged.extend(&frame[12..]);
        tagged
    }

    /// Returns how long the frame is by what its outermost IP header says.
    fn len_said(&self, bytes: &[u8]) -> Option<usize> {
        let (ip_at, ipv6) = self.outermost();
        let (at, header) = if ipv6 { (ip_at + 4, 40) } else { (ip_at + 2, 0) };
        let said = u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
        Some(ip_at + header + usize::from(said))
    }

    /// Returns where the outermost IP header begins, and whether it is IPv6.
    fn outermost(&self) -> (usize, bool) {
        let headers = self.maker.headers();
        match headers.tunnel {
            Tunnel::None => (headers.ip_at, headers.ipv6),
            Tunnel::Vxlan | Tunnel::Gre => (headers.outer_ip_at, false),
        }
    }

    /// Makes the packet again that a frame seems to be, and compares.
    fn read(&mut self, order: &Order, reading: &Reading) -> (Evidence, Option<Numbered>) {
        let Some(claim) = self.claim(order, reading) else { return (Evidence::Nothing, None) };
        let bytes = &reading.bytes[..reading.bytes.len().min(reading.len)];
        self.maker.make(&claim.flow, &claim.number, &mut self.expected[..reading.len]);
        let (evidence, routed) = self.compare(bytes, reading, &claim);
        let in_time = claim.sent_ns.is_none_or(|ns| self.run_ns.contains(&ns));
        // Where filler alone confirms the number, the damage may be in the time.
        let in_run = claim.is_made && (in_time || evidence == Evidence::Likely);
        let packet = Numbered {
            stream: claim.flow.stream,
            sequence: claim.number.sequence,
            sent_ns: claim.sent_ns.filter(|_| in_time),
            len: reading.len,
            untagged: reading.untagged,
            routed,
        };
        match evidence {
            Evidence::Nothing => (self.perhaps_other_run(bytes, reading, &claim, in_time), None),
            _ if !in_run => (Evidence::OtherRun, None),
            _ => (evidence, Some(packet)),
        }
    }

    /// Returns which packet a frame says that it is; `None` where no run like this one has such a
    /// packet.
    fn claim(&mut self, order: &Order, reading: &Reading) -> Option<Claim> {
        let payload_at = self.maker.headers().transport_at() + reading.header_len;
        if reading.len > MAX_LEN || reading.len < payload_at + SHORT_TAG_BYTES {
            return None;
        }
        let bytes = &reading.bytes[..reading.bytes.len().min(reading.len)];
        let payload = bytes.get(payload_at..)?;
        let is_short = reading.len - payload_at < TAG_BYTES;
        let (stream, low, bits) = self.number(bytes, payload, is_short)?;
        let flow = self.flow(stream).filter(|f| f.transport.header_len() == reading.header_len)?;
        let sequence = order.whole_number(stream, low, bits);
        let time_ns = if is_short { 0 } else { send_time(payload) };
        // A time that was captured in part can be compared, but says nothing.
        let sent_ns = (!is_short && payload.len() >= 16).then_some(time_ns);
        if sent_ns == Some(0) {
            // Zeros have a right checksum, but no run was in 1970.
            return None;
        }
        Some(Claim {
            is_made: sequence < order.made(stream)?,
            number: Number { sequence, tcp_sequence: tcp_sequence(bytes, payload_at), time_ns },
            flow,
            payload_at,
            is_short,
            sent_ns,
        })
    }

    /// Returns how far a frame agrees with the expected one, and whether it is as a router would
    /// leave it.
    fn compare(&mut self, bytes: &[u8], reading: &Reading, claim: &Claim) -> (Evidence, bool) {
        let is_same =
            |expected: &[u8]| reading.len == reading.on_wire && bytes == &expected[..bytes.len()];
        if is_same(&self.expected) {
            return (Evidence::Intact, true);
        }
        self.allow_routing(bytes);
        let routed = is_same(&self.expected);
        if routed && self.routed {
            return (Evidence::Intact, true);
        }
        (self.confirm(bytes, reading, claim), routed)
    }

    /// Returns the stream, the number as far as the tag holds it, and how many bits that is.
    fn number(&self, bytes: &[u8], payload: &[u8], is_short: bool) -> Option<(u32, u64, u32)> {
        if is_short {
            let low = u32::from_be_bytes(*payload.first_chunk()?);
            return Some((self.stream_of(bytes)?, low.into(), 32));
        }
        let identity = u64::from_be_bytes(*payload.first_chunk()?);
        let low = identity & ((1 << SEQUENCE_BITS) - 1);
        Some(((identity >> SEQUENCE_BITS) as u32, low, SEQUENCE_BITS))
    }

    fn flow(&mut self, stream: u32) -> Option<Flow> {
        let kept = stream as usize % self.flows.len();
        let kept = &mut self.flows[kept];
        if kept.as_ref().is_none_or(|flow| flow.stream != stream) {
            *kept = Some(self.workload.flow(stream)?);
        }
        kept.clone()
    }

    /// Takes over from the frame what a router changes. The checksum must still be right.
    fn allow_routing(&mut self, bytes: &[u8]) {
        let (ip_at, ipv6) = self.outermost();
        self.expected[..12].copy_from_slice(&bytes[..12]);
        if ipv6 {
            self.expected[ip_at + 7] = bytes[ip_at + 7];
            return;
        }
        let ip = &mut self.expected[ip_at..ip_at + 20];
        ip[8] = bytes[ip_at + 8];
        ip[10..12].fill(0);
        let checksum = Sum::default().bytes(ip).checksum();
        ip[10..12].copy_from_slice(&checksum);
    }

    /// Returns what confirms the number of a frame that differs from the expected one.
    fn confirm(&self, bytes: &[u8], reading: &Reading, claim: &Claim) -> Evidence {
        let &Claim { ref flow, payload_at, is_short, .. } = claim;
        if is_short && !self.are_addresses_proven(bytes, claim) {
            return Evidence::Nothing;
        }
        let (payload, expected) = (&bytes[payload_at..], &self.expected[payload_at..bytes.len()]);
        let tag = if is_short { SHORT_TAG_BYTES } else { TAG_BYTES };
        if payload.len() < tag {
            // The checksum was not captured. A frame is believed whose addresses are those of the
            // stream that it names.
            let believed = is_short || self.stream_of(bytes) == Some(flow.stream);
            return if believed { Evidence::Likely } else { Evidence::Nothing };
        }
        let is_whole = bytes.len() == reading.len;
        let holds = is_whole && Sum::default().bytes(payload).fold() == 0xffff;
        let evidence = match (agreement(&payload[tag..], &expected[tag..]), holds) {
            // Everything is right with the packet, but not in this run.
            (Some(false), true) => return Evidence::OtherRun,
            (_, true) => Evidence::Proven,
            _ if payload == expected => Evidence::Proven,
            (Some(true), false) => Evidence::Likely,
            (Some(false) | None, false) => return Evidence::Nothing,
        };
        if self.is_answer(bytes) { Evidence::Answer } else { evidence }
    }

    /// Returns whether the frame goes from the expected destination to the expected source, as an
    /// echo reply does.
    fn is_answer(&self, bytes: &[u8]) -> bool {
        let headers = self.maker.headers();
        let (at, len) =
            if headers.ipv6 { (headers.ip_at + 8, 16) } else { (headers.ip_at + 12, 4) };
        let ends = |frame: &[u8]| {
            let (source, rest) = frame[at..].split_at(len);
            (source.to_vec(), rest[..len].to_vec())
        };
        let ((source, destination), expected) = (ends(bytes), ends(&self.expected));
        source != destination && (destination, source) == expected
    }

    /// Returns whether the transport's checksum is the one that the flow's headers have. That
    /// checksum covers the addresses, too, but for ICMP over IPv4, where the IP header's is looked
    /// at.
    fn are_addresses_proven(&self, bytes: &[u8], claim: &Claim) -> bool {
        let same = |at: usize| bytes[at..at + 2] == self.expected[at..at + 2];
        let headers = self.maker.headers();
        let transport_at = headers.transport_at();
        match claim.flow.transport {
            Transport::Udp => same(transport_at + 6),
            Transport::Tcp => same(transport_at + 16),
            Transport::Icmp => same(transport_at + 2) && (headers.ipv6 || same(headers.ip_at + 10)),
        }
    }

    /// Returns whether this may be a packet with the run's addresses, but the time and filler of
    /// another run. In a frame that was captured whole the payload's checksum would have told.
    fn perhaps_other_run(
        &self,
        bytes: &[u8],
        reading: &Reading,
        claim: &Claim,
        in_time: bool,
    ) -> Evidence {
        let filler_at = claim.payload_at + TAG_BYTES;
        let is_cut = bytes.len() < reading.len && bytes.len() > filler_at;
        let is_other = is_cut
            && !in_time
            && agreement(&bytes[filler_at..], &self.expected[filler_at..bytes.len()])
                == Some(false)
            && self.stream_of(bytes).is_some();
        if is_other { Evidence::OtherRun } else { Evidence::Nothing }
    }

    /// Returns what a frame is whose number nothing confirms.
    fn by_addresses(&self, bytes: &[u8], on_wire: usize) -> Seen {
        let Some(ends) = self.ends(bytes) else { return Seen::Foreign };
        let len = on_wire.min(MAX_LEN);
        let transport_at = self.maker.headers().transport_at();
        if let Some(stream) = self.stream_of(bytes) {
            let payload_at = transport_at + ends.transport.map_or(8, Transport::header_len);
            let Some(room) = on_wire.checked_sub(payload_at).filter(|&r| r >= SHORT_TAG_BYTES)
            else {
                return Seen::Foreign;
            };
            let number = if room < TAG_BYTES { 4 } else { 8 };
            if bytes.len() < payload_at + number {
                return Seen::Cut { stream, len };
            }
            return Seen::Unidentified { stream: Some(stream), len };
        }
        // The frame has a short tag that is right, and at most one end that is not.
        let has_tag = self.header_lens.iter().any(|header_len| {
            let payload = bytes.get(transport_at + header_len..).unwrap_or_default();
            let is_short = (SHORT_TAG_BYTES..TAG_BYTES).contains(&payload.len());
            let sequence = payload.first_chunk().map_or(0, |&low| u32::from_be_bytes(low));
            bytes.len() == on_wire
                && is_short
                && matches!(Sum::default().bytes(payload).fold(), 0 | 0xffff)
                && u64::from(sequence) < self.longest_stream
        });
        let right_way = self.routed || bytes[..12] == self.maker.headers().bytes[..12];
        if has_tag && right_way && self.ends_off(&ends) <= 1 {
            Seen::Unidentified { stream: None, len }
        } else {
            Seen::Foreign
        }
    }

    fn stream_of(&self, bytes: &[u8]) -> Option<u32> {
        let ends = self.ends(bytes)?;
        let transport = ends.transport?;
        let ports = self.ports(&ends, transport);
        self.workload.stream_of(ends.source, ends.destination, ports, transport)
    }

    /// Returns what tells the flow of a packet, read where it must be; `None` where that was not
    /// captured.
    fn ends(&self, bytes: &[u8]) -> Option<Ends> {
        let headers = self.maker.headers();
        let ip = bytes.get(headers.ip_at..)?;
        let transport = bytes.get(headers.transport_at()..).filter(|t| t.len() >= 8)?;
        let protocol = if headers.ipv6 { ip[6] } else { ip[9] };
        let all = [Transport::Udp, Transport::Tcp, Transport::Icmp];
        let kind = all.into_iter().find(|t| t.number(headers.ipv6) == protocol);
        let (source, destination): (IpAddr, IpAddr) = if headers.ipv6 {
            let at = |at: usize| Ipv6Addr::from(*ip[at..].first_chunk::<16>().unwrap_or(&[0; 16]));
            (at(8).into(), at(24).into())
        } else {
            let at = |at: usize| Ipv4Addr::from(*ip[at..].first_chunk::<4>().unwrap_or(&[0; 4]));
            (at(12).into(), at(16).into())
        };
        let half = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let ports = (half(0), half(2));
        Some(Ends { source, destination, transport: kind, ports, identifier: half(4) })
    }

    /// Returns how many of addresses, ports and protocol are not the run's, with the protocol that
    /// fits best.
    fn ends_off(&self, ends: &Ends) -> usize {
        let w = &self.workload;
        let mark = |end: IpAddr| w.mark.is_some_and(|m| m.source == end || m.destination == end);
        let off = |fits: [bool; 2]| fits.into_iter().filter(|fits| !fits).count();
        let addresses = off([
            w.source.contains(&ends.source) || mark(ends.source),
            w.destination.contains(&ends.destination) || mark(ends.destination),
        ]);
        let best = w.protocols.iter().map(|&p| {
            let transport = Transport::from(p);
            let ports = self.ports(ends, transport);
            let ports = off([
                (w.source_ports.0..=w.source_ports.1).contains(&ports.0),
                (w.destination_ports.0..=w.destination_ports.1).contains(&ports.1),
            ]);
            ports + usize::from(Some(transport) != ends.transport)
        });
        addresses + best.min().unwrap_or(0)
    }

    /// Returns the ports of a packet of such a transport.
    fn ports(&self, ends: &Ends, transport: Transport) -> (u16, u16) {
        match transport {
            Transport::Icmp => (ends.identifier, self.workload.destination_ports.0),
            Transport::Udp | Transport::Tcp => ends.ports,
        }
    }
}

struct Ends {
    source: IpAddr,
    destination: IpAddr,
    /// The transport; `None` where it is none of the run's kinds.
    transport: Option<Transport>,
    /// The ports, if the transport is UDP or TCP.
    ports: (u16, u16),
    /// The echo identifier, if the transport is ICMP.
    identifier: u16,
}

/// Returns whether filler is the expected one for the most part; `None` where there is not enough
/// that could differ, because zeros are the same for all numbers.
fn agreement(filler: &[u8], expected: &[u8]) -> Option<bool> {
    let telling = filler.iter().zip(expected).filter(|&(_, &e)| e != 0);
    let (same, all) =
        telling.fold((0, 0), |(same, all), (f, e)| (same + usize::from(f == e), all + 1));
    (all >= FILLER_ENOUGH).then_some(2 * same > all)
}

/// Returns the send time of a long tag, in which bytes that were not captured are zero.
fn send_time(payload: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let captured = payload.get(8..payload.len().min(16)).unwrap_or_default();
    bytes[..captured.len()].copy_from_slice(captured);
    u64::from_be_bytes(bytes)
}

/// Reads the sequence number of a TCP header, if the transport's header is one.
fn tcp_sequence(bytes: &[u8], payload_at: usize) -> u32 {
    let at = payload_at.saturating_sub(Transport::Tcp.header_len()) + 4;
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |&b| u32::from_be_bytes(b))
}
