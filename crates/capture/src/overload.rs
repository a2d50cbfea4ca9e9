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
    use crate::sys::arithmetic::{headers_len, shed_by_fill, shed_saves};

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
        let mut frame = [0_u8; 128];
        let mut with = |bytes: &[(usize, u8)]| {
            frame.fill(0);
            for (at, byte) in bytes {
                frame[*at] = *byte;
            }
            headers_len(&frame).expect("it is long enough")
        };
        let ipv4 = |protocol| [(12, 8), (14, 0x45), (23, protocol)];
        assert_eq!(with(&ipv4(17)), 42);
        let tcp = |words: u8| [ipv4(6).as_slice(), &[(46, words << 4)]].concat();
        assert_eq!([5, 6, 7].map(|words| with(&tcp(words))), [54, 58, 62]);
        assert_eq!([0, 4, 8, 15].map(|words| with(&tcp(words))), [64; 4], "wrong, or long");
        let udp_and = |at, byte| [ipv4(17).as_slice(), &[(at, byte)]].concat();
        assert_eq!(with(&udp_and(14, 0x46)), 64, "options of IP");
        assert_eq!(with(&udp_and(20, 0x20)), 64, "the first fragment");
        assert_eq!(with(&udp_and(21, 1)), 64, "another fragment");
        assert_eq!(with(&udp_and(20, 0x40)), 42, "not to be fragmented");
        let to_port = |port: u16| {
            let [high, low] = port.to_be_bytes();
            [ipv4(17).as_slice(), &[(36, high), (37, low)]].concat()
        };
        assert_eq!([2152, 4789, 6081, 8472].map(|port| with(&to_port(port))), [64; 4], "tunnels");
        assert_eq!(with(&to_port(4790)), 42);
        assert_eq!(with(&[(12, 0x86), (13, 0xdd), (14, 0x60), (20, 17)]), 64, "IPv6");
        assert_eq!(with(&ipv4(1)), 64, "ICMP");
        assert_eq!(headers_len(&frame[..47]), None);
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
