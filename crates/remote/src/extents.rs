//! What came of objects, and what is on its way. Extents of an object do not overlap. Who needs one
//! that is on its way waits for it; who needs one that is not there asks for it. So nothing is
//! asked for twice, whoever needs it.
//!
//! Memory is bounded: where there is no room, what came first is forgotten. What was begun ahead of
//! need waits until there is room for it, or is not begun.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::server::Failed;

/// Bytes of extents that are kept, and of those on their way that were begun ahead of need.
pub const MEMORY: u64 = 64 << 20;

type Place = (Arc<str>, u64);

#[derive(Debug, Default)]
pub struct Extents {
    known: Mutex<Known>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    /// The extents, by the object's name and where they begin.
    extents: BTreeMap<Place, Extent>,
    /// Extents that came, in the order in which they did.
    came: VecDeque<Place>,
    bytes: u64,
}

#[derive(Debug)]
struct Extent {
    end: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Coming,
    Here(Bytes),
    Failed(io::ErrorKind, String),
}

/// What there is at a place of an object.
pub enum At {
    /// Bytes from there on.
    Here(Bytes),
    /// The place of the next that is there or is coming, if nothing is here.
    Nothing(u64),
}

impl Extents {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what there is at a place; what is on its way is waited for.
    ///
    /// # Errors
    /// Why it did not come. Who asks again begins anew.
    pub fn at(&self, name: &Arc<str>, at: u64) -> io::Result<At> {
        let mut known = self.known();
        loop {
            let Some((place, extent)) = known.around(name, at) else {
                return Ok(At::Nothing(known.next(name, at)));
            };
            match &extent.what {
                What::Here(bytes) => {
                    return Ok(At::Here(bytes.slice((at - place.1) as usize..)));
                }
                What::Failed(kind, why) => {
                    let error = io::Error::new(*kind, why.clone());
                    known.extents.remove(&place);
                    return Err(error);
                }
                What::Coming => {
                    known = self.changed.wait(known).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Says that a range is on its way, but for what is there or on its way already. Returns the
    /// ranges that remain. Ahead of need that is none where there is no room.
    pub fn begin(&self, name: &Arc<str>, range: Range<u64>, is_ahead: bool) -> Vec<Range<u64>> {
        let mut known = self.known();
        let mut begun = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if let Some((_, extent)) = known.around(name, at) {
                at = extent.end.max(at + 1);
                continue;
            }
            let end = range.end.min(known.next(name, at));
            known.make_room(end - at);
            if is_ahead && known.bytes + (end - at) > MEMORY {
                break;
            }
            known.bytes += end - at;
            known.extents.insert((name.clone(), at), Extent { end, what: What::Coming });
            begun.push(at..end);
            at = end;
        }
        begun
    }

    /// Takes in what came of a range that was begun. It may be less where the object ends.
    pub fn end(&self, name: &Arc<str>, range: &Range<u64>, outcome: Result<Bytes, Failed>) {
        let mut known = self.known();
        let place = (name.clone(), range.start);
        known.bytes -= range.end - range.start;
        match outcome {
            // Behind an object's end there is nothing to be known.
            Ok(bytes) if bytes.is_empty() => drop(known.extents.remove(&place)),
            Ok(bytes) => {
                known.bytes += bytes.len() as u64;
                let end = range.start + bytes.len() as u64;
                known.extents.insert(place.clone(), Extent { end, what: What::Here(bytes) });
                known.came.push_back(place);
                known.make_room(0);
            }
            Err(failed) => {
                let what = What::Failed(failed.kind, failed.why);
                known.extents.insert(place, Extent { end: range.end, what });
            }
        }
        drop(known);
        self.changed.notify_all();
    }

    /// Forgets an extent that was read up to its end and will not be read again.
    pub fn forget(&self, name: &Arc<str>, at: u64) {
        let mut known = self.known();
        if let Some((place, Extent { what: What::Here(_), .. })) = known.around(name, at) {
            known.came.retain(|other| *other != place);
            known.remove(&place);
        }
    }
}

impl Known {
    /// Returns the extent that a place lies in.
    fn around(&self, name: &Arc<str>, at: u64) -> Option<(Place, &Extent)> {
        let upto = (name.clone(), at);
        let ((other, start), extent) = self.extents.range(..=upto).next_back()?;
        (other == name && extent.end > at).then(|| ((other.clone(), *start), extent))
    }

    /// Returns where the next extent behind a place begins.
    fn next(&self, name: &Arc<str>, at: u64) -> u64 {
        let behind = self.extents.range((name.clone(), at)..).next();
        behind.filter(|((other, _), _)| other == name).map_or(u64::MAX, |((_, start), _)| *start)
    }

    /// Forgets what came first until there is room for more, if that is enough.
    fn make_room(&mut self, more: u64) {
        while self.bytes + more > MEMORY
            && let Some(place) = self.came.pop_front()
        {
            self.remove(&place);
        }
    }

    fn remove(&mut self, place: &Place) {
        if let Some(extent) = self.extents.remove(place) {
            self.bytes -= extent.end - place.1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "these are lists of ranges")]
mod tests {
    use std::io::ErrorKind;
    use std::sync::Arc;

    use bytes::Bytes;

    use super::{At, Extents, MEMORY};
    use crate::server::Failed;

    fn here(extents: &Extents, name: &Arc<str>, at: u64) -> Option<usize> {
        match extents.at(name, at).unwrap() {
            At::Here(bytes) => Some(bytes.len()),
            At::Nothing(_) => None,
        }
    }

    #[test]
    fn nothing_is_asked_for_twice() {
        let (extents, a, b) = (Extents::default(), Arc::from("a"), Arc::from("b"));
        assert_eq!(extents.begin(&a, 10..20, false), vec![10..20]);
        assert_eq!(extents.begin(&a, 0..40, true), [0..10, 20..40]);
        assert_eq!(extents.begin(&a, 5..30, false), []);
        assert_eq!(extents.begin(&b, 5..30, false), vec![5..30]);
        extents.end(&a, &(10..20), Ok(Bytes::from(vec![1; 10])));
        assert_eq!(here(&extents, &a, 13), Some(7));
        // The object ends in the middle, so what lies behind can be asked for again.
        extents.end(&a, &(20..40), Ok(Bytes::from(vec![1; 5])));
        assert_eq!((here(&extents, &a, 24), here(&extents, &a, 25)), (Some(1), None));
        extents.end(&a, &(0..10), Err(Failed::new(ErrorKind::TimedOut, "silent")));
        assert_eq!(extents.at(&a, 3).err().unwrap().kind(), ErrorKind::TimedOut);
        assert_eq!(extents.begin(&a, 0..20, false), vec![0..10], "it begins anew");
    }

    #[test]
    fn memory_is_bounded_and_what_came_first_goes_first() {
        let (extents, a) = (Extents::default(), Arc::from("a"));
        let part = MEMORY / 4;
        for n in 0..6 {
            let range = n * part..(n + 1) * part;
            assert_eq!(extents.begin(&a, range.clone(), true), std::slice::from_ref(&range));
            extents.end(&a, &range, Ok(Bytes::from(vec![1; part as usize])));
        }
        let there: Vec<bool> = (0..6).map(|n| here(&extents, &a, n * part).is_some()).collect();
        assert_eq!(there, [false, false, true, true, true, true]);
        assert_eq!(extents.known().bytes, MEMORY);
        // What is on its way is not forgotten, and keeps what is ahead of need from beginning.
        let b = Arc::from("b");
        assert_eq!(extents.begin(&b, 0..MEMORY, true), vec![0..MEMORY]);
        assert_eq!(extents.begin(&b, MEMORY..MEMORY + 1, true), []);
        assert_eq!(extents.begin(&b, MEMORY..MEMORY + 1, false), vec![MEMORY..MEMORY + 1]);
    }
}
