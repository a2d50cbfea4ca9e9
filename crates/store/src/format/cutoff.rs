//! How does a recording tell of packets that were left out of flows? In the statistics of the
//! interface: these packets were received and not accepted, and a comment has their number and
//! bytes.

use tapdeck_packet::pcapng::{Statistics, StatisticsBlock};
use tapdeck_packet::ring::Cut;

/// The parts of the comment: packets and bytes stand between.
const COMMENT: [&str; 3] = ["cutoff: ", " packets of ", " bytes"];
/// The longest such comment.
pub(crate) const LONGEST: usize = 68;

/// Returns the statistics with what was left out from `before` to `now`.
pub(crate) fn tell_cut(block: StatisticsBlock, now: Cut, before: Cut) -> StatisticsBlock {
    let packets = now.packets - before.packets;
    if packets == 0 {
        return block;
    }
    let [begin, between, end] = COMMENT;
    let told = format!("{begin}{packets}{between}{}{end}", now.bytes - before.bytes);
    let comment = match &block.comment {
        Some(comment) => format!("{told}; {comment}"),
        None => told,
    };
    StatisticsBlock { received: block.received + packets, comment: Some(comment), ..block }
}

/// Returns what statistics tell that was left out.
pub(crate) fn cut_told(statistics: &Statistics) -> Option<Cut> {
    let [begin, between, end] = COMMENT;
    let (packets, rest) =
        statistics.comment.as_deref()?.strip_prefix(begin)?.split_once(between)?;
    let (bytes, _) = rest.split_once(end)?;
    Some(Cut { packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
}

/// Returns whether what an interface's statistics tell makes a sum: what was received was
/// delivered, dropped, or left out.
pub(crate) fn adds_up(told: &Statistics) -> bool {
    let left_out = cut_told(told).map_or(0, |cut| cut.packets);
    let sum = |(delivered, dropped): (u64, u64)| {
        delivered.checked_add(dropped).and_then(|sum| sum.checked_add(left_out))
    };
    told.received.is_some() && told.received == told.delivered.zip(told.dropped).and_then(sum)
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::pcapng::{self, StatisticsBlock};
    use tapdeck_packet::ring::Cut;

    use super::{LONGEST, cut_told, tell_cut};
    use crate::format::segment::statistics_of;

    #[test]
    fn what_was_left_out_is_read_as_it_was_written() {
        let most = Cut { packets: u64::MAX - 1, bytes: u64::MAX };
        for (now, before) in [
            (most, Cut::default()),
            (Cut { packets: 12, bytes: 3400 }, Cut { packets: 2, bytes: 400 }),
        ] {
            for comment in [None, Some("the clock was stepped".to_owned())] {
                let own = comment.as_ref().map_or(0, |comment| comment.len() + 2);
                let block = StatisticsBlock { comment, delivered: 7, ..StatisticsBlock::default() };
                let block = tell_cut(block, now, before);
                assert!(block.comment.as_ref().is_some_and(|c| c.len() <= LONGEST + own));
                assert_eq!(block.received, now.packets - before.packets);
                let mut bytes = Vec::new();
                pcapng::statistics(&mut bytes, &block);
                let cut = cut_told(&statistics_of(&bytes).expect("statistics"));
                let packets = now.packets - before.packets;
                assert_eq!(cut, Some(Cut { packets, bytes: now.bytes - before.bytes }));
            }
        }
        let block = tell_cut(StatisticsBlock::default(), most, most);
        assert_eq!((block.received, block.comment), (0, None));
    }
}
