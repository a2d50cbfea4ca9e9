//! In which order did the packets of each stream come, and which of them are still out?
//!
//! A stream needs the next number that is expected and how many before it are missing: 16 bytes,
//! and 8 for how many there should be. Numbers that were jumped over are holes, in one tree for all
//! streams; a hole takes 56 bytes and its share of the tree, whatever its length. So memory grows
//! with losses and not with packets, and yet late and repeated packets are told apart however late
//! they are.

use std::collections::BTreeMap;

/// Numbers that were jumped over.
#[derive(Clone, Copy)]
struct Hole {
    /// The first number behind the hole.
    end: u64,
    /// The arrival of the packet that jumped: the first packet with a greater number than the
    /// missing ones.
    jumper: u64,
    captured_ns: Option<i64>,
    bucket: u32,
}

#[derive(Clone, Copy, Default)]
struct StreamOrder {
    made: u64,
    next: u64,
    missing: u64,
}

/// How a packet came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    InOrder,
    /// The packet came after one with a greater number. The extent is that of RFC 4737, section
    /// 4.2.
    Reordered {
        extent: u64,
    },
    /// The packet's number had come already. RFC 4737 has only first copies take part in the order.
    Repeated,
}

/// The order of all streams.
pub(super) struct Order {
    streams: Vec<StreamOrder>,
    /// Holes, by stream and first missing number.
    holes: BTreeMap<(u32, u64), Hole>,
}

impl Order {
    /// Begins with streams of so many packets each.
    pub(super) fn new(made: &[u64]) -> Self {
        let stream = |&made: &u64| StreamOrder { made, ..StreamOrder::default() };
        Self { streams: made.iter().map(stream).collect(), holes: BTreeMap::new() }
    }

    /// Returns how many packets were made of a stream; `None` where there is no such stream.
    pub(super) fn made(&self, stream: u32) -> Option<u64> {
        self.streams.get(stream as usize).map(|s| s.made)
    }

    /// Returns the number whose lower `bits` are given: of several the nearest to the one expected.
    pub(super) fn whole_number(&self, stream: u32, low: u64, bits: u32) -> u64 {
        let turn = 1u64 << bits;
        let Some(stream) = self.streams.get(stream as usize).filter(|s| s.made > turn) else {
            return low;
        };
        let near = stream.next & !(turn - 1) | low;
        if near.abs_diff(stream.next) <= turn / 2 {
            near
        } else if near < stream.next {
            near + turn
        } else {
            near.checked_sub(turn).unwrap_or(near)
        }
    }

    /// Takes a packet. `bucket` is the place in time of the numbers that it jumps over.
    ///
    /// # Panics
    /// If there is no such stream.
    pub(super) fn arrive(
        &mut self,
        number: (u32, u64),
        captured_ns: Option<i64>,
        bucket: u32,
    ) -> Arrival {
        let (id, sequence) = number;
        let stream = &mut self.streams[id as usize];
        let arrival = stream.next - stream.missing;
        if sequence < stream.next {
            return self.late(id, sequence, arrival, captured_ns);
        }
        if sequence > stream.next {
            let hole = Hole { end: sequence, jumper: arrival, captured_ns, bucket };
            self.holes.insert((id, stream.next), hole);
            stream.missing += sequence - stream.next;
        }
        stream.next = sequence + 1;
        Arrival::InOrder
    }

    fn late(&mut self, id: u32, sequence: u64, arrival: u64, captured_ns: Option<i64>) -> Arrival {
        let before = self.holes.range_mut((id, 0)..=(id, sequence)).next_back();
        let Some((&(_, start), hole)) = before.filter(|(_, hole)| sequence < hole.end) else {
            return Arrival::Repeated;
        };
        let whole = *hole;
        if start < sequence {
            hole.end = sequence;
        } else {
            self.holes.remove(&(id, start));
        }
        if sequence + 1 < whole.end {
            self.holes.insert((id, sequence + 1), whole);
        }
        self.streams[id as usize].missing -= 1;
        // A recording of several queues holds a block of one queue, then one of another: a packet
        // may stand behind others and have come before them.
        match (captured_ns, whole.captured_ns) {
            (Some(own), Some(jumper)) if own < jumper => Arrival::InOrder,
            _ => Arrival::Reordered { extent: arrival - whole.jumper },
        }
    }

    /// Returns how many packets of a stream are missing, with those behind the last that came.
    pub(super) fn missing(&self, stream: u32) -> u64 {
        self.streams.get(stream as usize).map_or(0, |s| s.missing + s.made - s.next)
    }

    /// Returns how many packets are missing, by bucket; bucket `None` is the end of a stream.
    pub(super) fn missing_by_bucket(&self) -> impl Iterator<Item = (Option<u32>, u64)> {
        let holes = self.holes.iter().map(|(&(_, start), h)| (Some(h.bucket), h.end - start));
        let ends = self.streams.iter().map(|s| (None, s.made - s.next));
        holes.chain(ends.filter(|&(_, out)| out > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrival, Order};
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Computes RFC 4737, section 4.2, word for word: over the first copies of packets as they
    /// came.
    fn directly(numbers: &[u64]) -> Vec<Arrival> {
        let mut first = HashSet::new();
        let mut came: Vec<u64> = Vec::new();
        numbers
            .iter()
            .map(|&s| {
                if !first.insert(s) {
                    return Arrival::Repeated;
                }
                let i = came.len();
                let j = came.iter().position(|&earlier| earlier > s);
                came.push(s);
                j.map_or(Arrival::InOrder, |j| Arrival::Reordered { extent: (i - j) as u64 })
            })
            .collect()
    }

    proptest! {
        #[test]
        fn order_is_as_the_rfc_defines_it(numbers in prop::collection::vec(0..60u64, 0..120)) {
            let mut order = Order::new(&[7, 60]);
            let arrivals: Vec<_> =
                numbers.iter().map(|&n| order.arrive((1, n), None, 0)).collect();
            prop_assert_eq!(arrivals, directly(&numbers));
            let came = numbers.iter().collect::<HashSet<_>>().len() as u64;
            prop_assert_eq!((order.missing(0), order.missing(1)), (7, 60 - came));
            let placed: u64 = order.missing_by_bucket().map(|(_, n)| n).sum();
            prop_assert_eq!(placed, 7 + 60 - came);
        }

        #[test]
        fn numbers_unwrap_to_the_nearest(expected in 0..1u64 << 45, off in -0x7fff_fff0..0x7fff_fff0i64) {
            let number = expected.saturating_add_signed(off);
            let mut order = Order::new(&[u64::MAX]);
            if expected > 0 {
                order.arrive((0, expected - 1), None, 0);
            }
            prop_assert_eq!(order.whole_number(0, number & 0xffff_ffff, 32), number);
        }
    }

    #[test]
    fn what_was_captured_before_did_not_come_late() {
        let mut order = Order::new(&[10]);
        for (number, captured_ns, arrival) in [
            (0, 100, Arrival::InOrder),
            (5, 200, Arrival::InOrder),
            (3, 199, Arrival::InOrder),
            (2, 200, Arrival::Reordered { extent: 2 }),
            (3, 300, Arrival::Repeated),
            (4, 201, Arrival::Reordered { extent: 3 }),
        ] {
            assert_eq!(order.arrive((0, number), Some(captured_ns), 0), arrival, "{number}");
        }
        assert_eq!(order.missing(0), 10 - 5);
    }
}
