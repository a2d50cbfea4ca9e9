//! What becomes of packets when a ring is nearly full? `bpf/shed.h` says when that is.

/// The fewest bytes that are kept of a packet which is shed (`TD_SHED_LEAST`), but for one whose
/// headers are known to be shorter.
pub const LEAST: u32 = 64;

/// What goes first when packets come faster than the rings are emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// Packets for which a full ring has no room.
    Drop,
    /// Payload, once a ring is nearly full: so many bytes of each packet are kept, and the fewest
    /// where that is not enough. Packets are dropped only behind that.
    Shed {
        /// Bytes, [`LEAST`] or more.
        to: u32,
    },
}

impl Overload {
    /// Returns the value of `td_params.shed_to`.
    pub(crate) fn shed_to(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Shed { to } => to.max(LEAST),
        }
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_testkit::frame::{IPV4, IPV6, TCP, UDP, ethernet, ipv4, ipv6, tcp, udp};

    use crate::sys::arithmetic::{shed_by_fill, shed_saves};
    use crate::sys::headers::plain_headers_len;

    /// `TD_SHED_HEADERS`.
    const HEADERS: u32 = 1;

    /// Fills and empties a ring block by block, and returns what is kept at each fill.
    fn kept(nblocks: u32, most: u32) -> (Vec<u32>, Vec<u32>) {
        let mut now = 0;
        let mut look = |used: u32| {
            now = shed_by_fill(used, nblocks, most, now);
            now
        };
        let up = (1..=nblocks).map(&mut look).collect();
        let down = (1..=nblocks).rev().map(&mut look).collect();
        (up, down)
    }

    #[test]
    fn packets_are_shed_from_three_quarters_on_and_whole_again_from_half_on() {
        let (up, down) = kept(16, 96);
        assert_eq!(up, [[0; 12].as_slice(), &[96, 96, HEADERS, HEADERS]].concat());
        assert_eq!(down, [[HEADERS, HEADERS].as_slice(), &[96; 6], &[0; 8]].concat());
    }

    #[test]
    fn the_last_block_of_the_smallest_ring_is_for_what_is_shed() {
        let (up, down) = kept(4, 96);
        assert_eq!((up, down), (vec![0, 0, 0, HEADERS], vec![HEADERS, 96, 0, 0]));
    }

    #[test]
    fn a_block_number_that_is_out_of_date_sheds_nothing() {
        assert_eq!(shed_by_fill(0, 16, 96, 96), 0);
        assert_eq!(shed_by_fill(5u32.wrapping_neg(), 16, 96, 96), 0);
    }

    #[test]
    fn headers_of_udp_and_tcp_are_known_to_be_short() {
        let framed = |tags: &[[u8; 4]], kind, packet: &[u8]| {
            ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], tags, kind, packet)
        };
        let four = |protocol, payload: &[u8]| {
            ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol, payload)
        };
        let of_packet = |packet: &[u8]| plain_headers_len(&framed(&[], IPV4, packet), true);
        let datagram = udp([5000, 9], &[0; 100]);
        let packet = four(UDP, &datagram);
        assert_eq!(of_packet(&packet), Some(42));
        assert_eq!(plain_headers_len(&packet, false), Some(28), "without Ethernet");
        assert_eq!(plain_headers_len(&framed(&[[0x81, 0, 0, 7]], IPV4, &packet), true), Some(46));
        let six = ipv6([0; 16].into(), [1; 16].into(), UDP, &datagram);
        assert_eq!(plain_headers_len(&framed(&[], IPV6, &six), true), Some(62));
        let words = |words: u8| {
            let mut segment = tcp([5000, 9], 0, &[0; 100]);
            segment[12] = words << 4;
            of_packet(&four(TCP, &segment))
        };
        assert_eq!([5, 6, 7, 15].map(words), [54, 58, 62, 94].map(Some));
        assert_eq!([0, 4].map(words), [None; 2], "shorter than any");
        let with = |at: usize, byte| {
            let mut packet = packet.clone();
            packet[at] = byte;
            of_packet(&packet)
        };
        assert_eq!(with(0, 0x46), None, "options of IP");
        assert_eq!(with(6, 0x20), None, "the first fragment");
        assert_eq!(with(7, 1), None, "another fragment");
        assert_eq!(with(6, 0x40), Some(42), "not to be fragmented");
        assert_eq!(with(9, 1), None, "ICMP");
        let to_port = |port| of_packet(&four(UDP, &udp([5000, port], &[0; 100])));
        assert_eq!([2152, 4789, 6081, 8472].map(to_port), [None; 4], "tunnels");
        let frame = framed(&[], IPV4, &four(TCP, &tcp([5000, 9], 0, &[])));
        assert_eq!(plain_headers_len(&frame[..46], true), None, "cut before TCP has its length");
        assert_eq!(plain_headers_len(&[], true), None);
    }

    #[test]
    fn what_saves_no_room_stays() {
        assert!(!shed_saves(60, 54, 4), "56 + 8 are more than 60");
        assert!(shed_saves(60, 42, 4), "44 + 8 are less");
        assert!(!shed_saves(104, 96, 4) && shed_saves(105, 96, 4));
        assert!(!shed_saves(108, 96, 8) && shed_saves(109, 96, 8));
        assert!(!shed_saves(60, 64, 4), "as long as what is kept, or shorter");
    }
}
