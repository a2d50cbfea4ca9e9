//! What becomes of packets when a ring is nearly full? `bpf/shed.h` says when that is.

/// The fewest bytes that are kept of a packet which is shed (`TD_SHED_LEAST`).
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
    use crate::sys::arithmetic::shed_by_fill;

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
        assert_eq!(up, [[0; 12].as_slice(), &[96, 96, 64, 64]].concat());
        assert_eq!(down, [[64, 64].as_slice(), &[96; 6], &[0; 8]].concat());
    }

    #[test]
    fn the_last_block_of_the_smallest_ring_is_for_what_is_shed() {
        let (up, down) = kept(4, 96);
        assert_eq!((up, down), (vec![0, 0, 0, 64], vec![64, 96, 0, 0]));
    }

    #[test]
    fn a_block_number_that_is_out_of_date_sheds_nothing() {
        assert_eq!(shed_by_fill(0, 16, 96, 96), 0);
        assert_eq!(shed_by_fill(5u32.wrapping_neg(), 16, 96, 96), 0);
    }
}
