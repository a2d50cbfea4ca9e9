//! What is sent in a test? Frames whose every byte the test knows, with headers that the kernel
//! accepts: netfilter sees no packet with a wrong IP checksum.
//!
//! The functions each put one header before a payload, so that they nest as the headers do;
//! [`UdpFrame`] is what most tests want, a datagram that carries its number. None of this is meant
//! to be awkward: the tests that need malformed or deeply nested frames draw them themselves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::SplitMix64;

/// EtherTypes.
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
/// IEEE 802's first for experiments.
pub const EXPERIMENT: u16 = 0x88b5;
/// IP protocols.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Puts an Ethernet header before a payload, with VLAN tags, the outer first.
pub fn ethernet(
    to: [u8; 6],
    from: [u8; 6],
    tags: &[[u8; 4]],
    kind: u16,
    payload: &[u8],
) -> Vec<u8> {
    [&to[..], &from, &tags.concat(), &kind.to_be_bytes(), payload].concat()
}

/// Puts a header of IPv4 without options before a payload.
///
/// # Panics
/// If it does not fit into 64 KiB.
pub fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).expect("a packet of IPv4");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    seal_ipv4(&mut packet);
    packet.extend(payload);
    packet
}

/// Puts the right checksum into a header of IPv4, for which it is taken as long as it says.
///
/// # Panics
/// If there is less than that.
pub fn seal_ipv4(packet: &mut [u8]) {
    let length = usize::from(packet[0] & 15) * 4;
    let header = &mut packet[..length];
    header[10..12].fill(0);
    let sum = checksum(&[header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Puts a header of IPv6 before a payload.
///
/// # Panics
/// If it does not fit into 64 KiB.
pub fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a packet of IPv6");
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(payload);
    packet
}

/// Puts a header of UDP before a payload, without a checksum.
///
/// # Panics
/// If it does not fit into 64 KiB.
pub fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("a datagram");
    let mut datagram = ports.map(u16::to_be_bytes).concat();
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// Puts a header of TCP without options before a payload, without a checksum: a segment that
/// acknowledges.
pub fn tcp(ports: [u16; 2], sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut segment = ports.map(u16::to_be_bytes).concat();
    segment.extend(sequence.to_be_bytes());
    segment.extend([0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    segment
}

/// Puts the right checksum into a segment of TCP or a datagram of UDP between two addresses.
///
/// # Panics
/// If it is shorter than its header.
pub fn seal_transport(source: IpAddr, destination: IpAddr, protocol: u8, segment: &mut [u8]) {
    let at = if protocol == TCP { 16 } else { 6 };
    segment[at..at + 2].fill(0);
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length = (segment.len() as u32).to_be_bytes();
    let pseudo =
        [&octets(source)[..], &octets(destination), &length, &[0, 0, 0, protocol]].concat();
    // Of UDP, no sum is sent as 0, which says that there is none.
    let sum = match checksum(&[&pseudo, segment]) {
        0 if protocol == UDP => u16::MAX,
        sum => sum,
    };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The checksum of the Internet (RFC 1071) over pieces, all but the last of an even length.
pub fn checksum(pieces: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for piece in pieces {
        for word in piece.chunks(2) {
            sum += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A frame of no protocol, of `len` bytes with its VLAN tags: its number and then noise, another
/// for every number.
pub fn experiment(number: u32, len: usize, tags: &[[u8; 4]]) -> Vec<u8> {
    let mut frame =
        ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], tags, EXPERIMENT, &number.to_be_bytes());
    let noise = len.saturating_sub(frame.len());
    frame.extend(SplitMix64(number.into()).bytes(noise));
    frame
}

/// A datagram of UDP over IPv4 in an Ethernet frame, that carries its number.
#[derive(Clone, Copy, Debug)]
pub struct UdpFrame {
    pub to: [u8; 6],
    pub from: [u8; 6],
    pub source: [u8; 4],
    pub destination: [u8; 4],
    pub ports: [u16; 2],
    /// Bytes of the frame, 46 at least.
    pub len: usize,
    pub number: u32,
}

impl Default for UdpFrame {
    fn default() -> Self {
        Self {
            to: [2, 0, 0, 0, 0, 2],
            from: [2, 0, 0, 0, 0, 1],
            source: [10, 213, 0, 1],
            destination: [10, 213, 0, 2],
            ports: [9, 9],
            len: 60,
            number: 0,
        }
    }
}

impl UdpFrame {
    /// Bytes before the number.
    pub const NUMBER_AT: usize = 42;

    /// Returns the frame's bytes, with a right IP checksum and no UDP checksum. Each number has
    /// another payload.
    ///
    /// # Panics
    /// If the number does not fit into its length.
    pub fn bytes(&self) -> Vec<u8> {
        let mut payload = self.number.to_be_bytes().to_vec();
        let fill = Self::NUMBER_AT + payload.len()..self.len;
        assert!(fill.start <= self.len, "a frame of {} bytes has no room for a number", self.len);
        payload.extend(fill.map(|at| (at as u32 * 31).wrapping_add(self.number) as u8));
        let datagram = udp(self.ports, &payload);
        let packet = ipv4(self.source.into(), self.destination.into(), UDP, &datagram);
        ethernet(self.to, self.from, &[], IPV4, &packet)
    }
}

/// The number in a [`UdpFrame`].
///
/// # Panics
/// If it was cut before it.
pub fn number_of(frame: &[u8]) -> u32 {
    let at = UdpFrame::NUMBER_AT;
    u32::from_be_bytes(frame[at..at + 4].try_into().expect("46 bytes"))
}

#[cfg(test)]
mod tests {
    use super::{
        IPV6, TCP, UDP, UdpFrame, checksum, ethernet, experiment, ipv4, ipv6, number_of,
        seal_transport, tcp, udp,
    };

    /// RFC 1071, section 3: its example adds up to 0xddf2.
    #[test]
    fn the_sum_is_the_rfcs() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&[&data]), !0xddf2);
        assert_eq!(checksum(&[&data[..2], &data[2..]]), !0xddf2);
        assert_eq!(checksum(&[&[0xab]]), !0xab00, "an odd byte is the upper one");
        assert_eq!(checksum(&[]), 0xffff);
    }

    /// The header that many texts compute by hand, whose sum is 0xb861.
    #[test]
    fn a_header_has_the_sum_that_others_compute() {
        let mut header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        super::seal_ipv4(&mut header);
        assert_eq!(header[10..12], [0xb8, 0x61]);
    }

    #[test]
    fn what_is_sealed_adds_up_to_nothing() {
        let (a, b) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let packet = ipv4(a, b, UDP, b"payload");
        assert_eq!(checksum(&[&packet[..20]]), 0);
        for (protocol, mut segment) in
            [(UDP, udp([53, 1000], b"odd")), (TCP, tcp([80, 9], 7, b"even"))]
        {
            seal_transport(a.into(), b.into(), protocol, &mut segment);
            let length = (segment.len() as u32).to_be_bytes();
            let pseudo = [&a.octets()[..], &b.octets(), &length, &[0, 0, 0, protocol]].concat();
            assert_eq!(checksum(&[&pseudo, &segment]), 0, "protocol {protocol}");
        }
    }

    #[test]
    fn headers_stand_where_they_belong() {
        let (a, b) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let packet = ipv6(a, b, UDP, &udp([1, 2], &[7; 9]));
        assert_eq!((packet[4..8].to_vec(), packet.len()), (vec![0, 17, UDP, 64], 40 + 17));
        let frame = ethernet([1; 6], [2; 6], &[[0x81, 0, 0, 7]], IPV6, &packet);
        assert_eq!(frame[10..20], [2, 2, 0x81, 0, 0, 7, 0x86, 0xdd, 0x60, 0]);
    }

    #[test]
    fn an_experiment_has_its_length_with_its_tags() {
        let [plain, tagged] = [&[][..], &[[0x81, 0, 0, 7]]].map(|tags| experiment(9, 100, tags));
        assert_eq!((plain.len(), tagged.len()), (100, 100));
        assert_eq!(
            (&plain[12..18], &tagged[16..22]),
            (&[0x88, 0xb5, 0, 0, 0, 9][..], &plain[12..18])
        );
        assert_ne!(plain[18..], experiment(10, 100, &[])[18..]);
    }

    #[test]
    fn a_numbered_frame_has_its_length_and_its_number() {
        for (number, len) in [(0, 60), (u32::MAX, 46), (77, 1514)] {
            let frame = UdpFrame { len, number, ..UdpFrame::default() }.bytes();
            assert_eq!((frame.len(), number_of(&frame)), (len, number));
            assert_eq!(checksum(&[&frame[14..34]]), 0);
        }
        let [one, other] = [1, 2].map(|number| UdpFrame { number, len: 100, ..Default::default() });
        assert_ne!(one.bytes()[46..], other.bytes()[46..]);
    }
}
