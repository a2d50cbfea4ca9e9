//! Which stretches of a segment are next to one another, and what lies between them? Arithmetic on
//! places; nothing is read.

use std::io;
use std::ops::Range;

use super::code::damaged;

/// Returns stretches in ascending order, with those that touch one another made one.
pub(super) fn joined(mut parts: Vec<Range<u64>>) -> Vec<Range<u64>> {
    parts.sort_by_key(|part| part.start);
    parts.dedup_by(|next, part| {
        let joins = part.end == next.start;
        if joins {
            part.end = next.end;
        }
        joins
    });
    parts
}

/// Returns what of `whole` is not in `parts`, which are ascending.
pub(super) fn missing(whole: Range<u64>, parts: &[Range<u64>]) -> io::Result<Vec<Range<u64>>> {
    let mut missing = Vec::new();
    let mut at = whole.start;
    for part in parts {
        if part.start < at || part.end > whole.end {
            return Err(damaged("it is of another segment"));
        }
        missing.push(at..part.start);
        at = part.end;
    }
    missing.push(at..whole.end);
    missing.retain(|stretch| !stretch.is_empty());
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_is_missing_lies_between_and_behind() {
        let of = |parts: &[(u64, u64)]| {
            let parts: Vec<_> = parts.iter().map(|(from, to)| *from..*to).collect();
            missing(5..90, &parts).map(|found| found.iter().map(|r| (r.start, r.end)).collect())
        };
        let found = |parts| -> Vec<(u64, u64)> { of(parts).unwrap() };
        assert_eq!(found(&[(5, 20), (30, 40)]), [(20, 30), (40, 90)]);
        assert_eq!(found(&[(7, 90)]), [(5, 7)]);
        assert_eq!(found(&[]), [(5, 90)]);
        let wrong = |parts| -> bool { of(parts).map(|_: Vec<_>| ()).is_err() };
        assert!(wrong(&[(5, 91)]) && wrong(&[(0, 7)]));
    }
}
