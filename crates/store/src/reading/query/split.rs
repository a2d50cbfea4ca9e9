//! How can several make an answer at once? Each takes a span of time. The spans lie one behind the
//! other and are such that about as much has to be read for each, as far as indexes tell. Nothing
//! but indexes is read here.

use std::io;

use tapdeck_packet::key::Plan;

use super::error::Error;
use super::expand::{expand, expand_capture};
use super::merge::begin_with;
use super::opened::Opened;
use super::order::Rank;
use super::overviews::expand_overview;
use super::request::Request;
use super::snapshot::{Contents, Snapshot};
use super::source::{Unread, Work};
use crate::span::Span;

/// Granules that lie one behind the other are weighed together, up to this part of a span.
const PARTS: u64 = 8;

/// Cuts a span where an answer to `plan` can be cut: into spans of which each packet of the answer
/// is in one, each with about `bytes` to be read. Of a segment that is not wholly indexed, and of
/// packets with the same time, there may be more. `watch` is called for each segment; where it
/// returns false, no more is looked at.
pub fn split(
    snapshot: Snapshot,
    span: Span,
    plan: Plan,
    bytes: u64,
    mut watch: impl FnMut() -> bool,
) -> Result<Vec<Span>, Error> {
    let parts = snapshot.parts();
    let mut unread: Vec<Work> = begin_with(&snapshot, &parts, &plan).into_iter().collect();
    let piece_bytes = (bytes / PARTS) as usize;
    let request = Request { snapshot, span, plan, piece_bytes, opened: Opened::default() };
    let mut weights = Vec::new();
    while let Some((rank, work)) = unread.pop() {
        let (at, number) = (rank.bound_ns, rank.segment);
        match work {
            Unread::Whole | Unread::Overview(_) => {
                if !watch() {
                    break;
                }
                match look(&request, rank, &work) {
                    // What is not indexed is read for each span that reaches into the segment.
                    Ok(Some(found)) if !found.iter().any(is_stretch) => unread.extend(found),
                    Ok(_) => weights.push((at, parts[number].0)),
                    // It is gone, and nobody has to read it.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(Error::new(request.snapshot.path(number), e)),
                }
            }
            Unread::Stretch { end, .. } => weights.push((at, end - rank.begin)),
            Unread::Quarters(_) | Unread::Again { .. } => weights.push((at, work.bytes(0) as u64)),
        }
    }
    Ok(cut(span, weights, bytes))
}

/// Returns what is to be read of a segment or capture file, or which segments an overview leaves;
/// `None` where nothing tells.
fn look(request: &Request, rank: Rank, work: &Unread) -> io::Result<Option<Vec<Work>>> {
    let number = rank.segment;
    let looked = match (&request.snapshot.contents, work) {
        (Contents::Segments(_), Unread::Overview(number)) => {
            Some(expand_overview(request, *number))
        }
        (Contents::Segments(segments), _) => Some(expand(request, &segments[number], number)?),
        (Contents::Captures(files), _) => expand_capture(request, &files[number], number),
    };
    Ok(looked.map(|looked| looked.unread))
}

fn is_stretch((_, unread): &Work) -> bool {
    matches!(unread, Unread::Stretch { .. })
}

/// Cuts a span so that each part weighs about `most`. Weights begin at a time.
fn cut(span: Span, mut weights: Vec<(i64, u64)>, most: u64) -> Vec<Span> {
    weights.sort_unstable();
    let mut spans = Vec::new();
    let (mut after_ns, mut sum) = (span.after_ns, 0);
    for (begin_ns, bytes) in weights {
        let is_within = after_ns < begin_ns && begin_ns < span.before_ns;
        if sum > 0 && sum + bytes > most && is_within {
            spans.push(Span { after_ns, before_ns: begin_ns });
            (after_ns, sum) = (begin_ns, 0);
        }
        sum += bytes;
    }
    spans.push(Span { after_ns, ..span });
    spans
}

#[cfg(test)]
mod tests {
    use super::{Span, cut};

    const SPAN: Span = Span { after_ns: 10, before_ns: 100 };

    fn cut_at(weights: &[(i64, u64)], most: u64) -> Vec<i64> {
        let spans = cut(SPAN, weights.to_vec(), most);
        assert_eq!((spans[0].after_ns, spans[spans.len() - 1].before_ns), (10, 100));
        assert!(spans.windows(2).all(|two| two[0].before_ns == two[1].after_ns), "{spans:?}");
        assert!(spans.iter().all(|span| span.after_ns < span.before_ns), "{spans:?}");
        spans[1..].iter().map(|span| span.after_ns).collect()
    }

    #[test]
    fn spans_lie_one_behind_the_other_and_weigh_about_as_much() {
        assert!(cut_at(&[], 10).is_empty());
        assert_eq!(cut_at(&[(20, 4), (30, 4), (40, 4), (50, 4)], 8), [40]);
        assert_eq!(cut_at(&[(50, 4), (20, 4), (40, 4), (30, 4)], 8), [40], "in whichever order");
        assert_eq!(cut_at(&[(20, 40), (30, 1), (40, 40)], 8), [30, 40], "what is too large");
    }

    #[test]
    fn packets_of_one_time_are_in_one_span() {
        assert_eq!(cut_at(&[(20, 8), (20, 8), (20, 8), (30, 8)], 8), [20, 30]);
    }

    #[test]
    fn what_begins_outside_of_the_span_does_not_cut_it() {
        assert_eq!(cut_at(&[(i64::MIN, 8), (3, 8), (10, 8), (20, 8), (100, 8)], 8), [20]);
    }
}
