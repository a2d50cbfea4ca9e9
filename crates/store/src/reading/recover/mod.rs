//! What did a crash leave of a store, and how does it become sound again without losing a packet?
//!
//! A recorder that is killed leaves a live segment that ends with its last write. A power loss
//! leaves less: any sectors of what was not yet durable may be missing, and read as zeros. A copy
//! may have been cut anywhere. [`survey`] reads such a file once and finds all its whole packets,
//! also behind damage ([`resync`]); [`mend`] then makes it a segment that any reader reads to its
//! end: damage becomes fill, what is torn at the end is cut, statistics are written, and the
//! segment gets an index and then its final name. The steps are in such an order that a recovery
//! which is itself cut short is finished by the next one, and a sound store is not changed.
//!
//! A packet whose inner sectors are missing, while both its ends are there, counts as whole; only
//! the checksums of an index that was made before tell. [`verify`](super::verify) looks at those,
//! and where all segments are read so does recovery: it cannot mend what they tell, and says so.
//!
//! What the log of an index has is kept, and completed.
//!
//! Recovery has the store to itself, or, as [`Leftovers`], the segments that an earlier recorder
//! left while the next one records beside it.

mod fault;
mod mend;
mod part;
mod resync;
mod stop;
mod survey;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::format::index::{self, Index};
use crate::format::leftovers::Leftovers;
use crate::format::name::SegmentName;
use crate::format::segment::{is_ours, packets_told, segment_names};
use crate::format::store::Error;
use crate::format::store::Store;
use crate::io::{Access, Directory, Io, Storage};
use crate::reading::verify::{Flaw, verify_one};
pub use fault::Fault;
use stop::Stoppable;
use survey::{FileOrigin, Survey};

/// Which closed segments are looked at beside the live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedScope {
    None,
    /// The closed segments that do not end in statistics, as one that was cut does not.
    Unended,
    /// All closed segments; each is read from beginning to end.
    All,
}

/// What is done with a segment, or would be.
#[derive(Debug)]
pub enum Action {
    /// The segment is as it should be.
    None,
    /// The segment was mended and has its final name.
    Close,
    /// The file is renamed to `NAME.damaged`: not even its beginning was written, and there is no
    /// packet.
    SetAside,
    Fail(Fault),
}

/// What is done with a segment's index, or would be.
#[derive(Debug)]
pub enum IndexAction {
    /// The index is as it should be, or was not looked at.
    None,
    /// The index was made, of what its log had and of the segment.
    Make,
    /// The segment can be queried without.
    Fail(io::Error),
}

/// What was found of one segment.
#[derive(Debug)]
pub struct Finding {
    /// The file's name as it was found.
    pub name: SegmentName,
    pub action: Action,
    pub index: IndexAction,
    /// Packets that could be read before, up to the first damage.
    pub packets_before: u64,
    /// Packets that can be read now.
    pub packets: u64,
    /// Bytes in the middle that are damaged and became fill.
    pub bytes_replaced: u64,
    /// Bytes at the end that belong to no whole block. Zeros, which nobody wrote, do not count.
    pub bytes_cut: u64,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub closed: ClosedScope,
    /// Whether segments without a complete index get one.
    pub index: bool,
}

impl Store {
    /// Mends what a crash left. `each` is called with every segment that was looked at, oldest
    /// first, as soon as it is done; one that cannot be mended does not keep the others from being
    /// mended.
    pub fn recover<I: Io>(
        &mut self,
        io: &I,
        scope: Scope,
        mut each: impl FnMut(&Finding),
    ) -> Result<(), Error> {
        let dir = self.dir().to_owned();
        let storage = Directory::new(&dir);
        let hand = Mend { io, storage: &storage, stops: None };
        let done = segment_names(&storage).and_then(|names| {
            names
                .into_iter()
                .filter_map(|n| look(&storage, n, scope, &hand))
                .for_each(|f| each(&f));
            if scope.index && scope.closed != ClosedScope::None {
                let names = segment_names(&storage)?;
                let thorough = scope.closed == ClosedScope::All;
                index::make_missing(io, &storage, &names, thorough, &|| true, |_| {})?;
            }
            self.look_again()
        });
        done.map_err(|source| Error::Io { dir, source })
    }

    /// Says what [`Store::recover`] would do, and changes nothing. Fails where a recorder is at
    /// work.
    pub fn examine(dir: &Path, scope: Scope, mut each: impl FnMut(&Finding)) -> Result<(), Error> {
        Self::check_free(dir)?;
        let storage = Directory::new(dir);
        let names = segment_names(&storage);
        let names = names.map_err(|source| Error::Io { dir: dir.to_owned(), source })?;
        let hand = Examine { dir };
        names.into_iter().filter_map(|n| look(&storage, n, scope, &hand)).for_each(|f| each(&f));
        Ok(())
    }
}

impl Leftovers {
    /// Mends the leftovers while their store is recorded into and read. `each` is called with every
    /// segment as soon as it is done. Once it `stops`, what is begun is left to the next recovery,
    /// soon: after the call to the file system that is under way.
    pub fn recover<I: Io>(
        mut self,
        io: &I,
        index: bool,
        stops: &Arc<AtomicBool>,
        mut each: impl FnMut(&Finding),
    ) {
        let directory = Directory::new(&self.dir);
        let storage = Stoppable { directory, stops: stops.clone() };
        let scope = Scope { closed: ClosedScope::None, index };
        while let Some(name) = self.names.first() {
            let hand = Mend { io, storage: &storage, stops: Some(stops) };
            let finding = look(&storage, name.clone(), scope, &hand);
            let is_undone = |f: &Finding| matches!(f.action, Action::Fail(_));
            if stops.load(Relaxed) && finding.as_ref().is_some_and(is_undone) {
                return;
            }
            self.give_back_first();
            if let Some(finding) = finding {
                each(&finding);
            }
        }
    }
}

/// Does what a segment needs, or only says whether it can be done.
trait Hand {
    /// Makes a segment sound under its live name.
    fn mend(&self, name: &SegmentName, survey: &Survey) -> Result<(), Fault>;
    /// Gives a segment that is sound its final name.
    fn close(&self, name: &SegmentName) -> Result<(), Fault>;
    fn set_aside(&self, name: &SegmentName) -> Result<(), Fault>;
    /// Makes the index of a segment that is sound, under whichever name.
    fn index(&self, name: &SegmentName) -> io::Result<()>;
}

struct Mend<'a, I> {
    io: &'a I,
    storage: &'a dyn Storage,
    /// What tells that no more shall be done.
    stops: Option<&'a AtomicBool>,
}

impl<I: Io> Hand for Mend<'_, I> {
    fn mend(&self, name: &SegmentName, survey: &Survey) -> Result<(), Fault> {
        mend::mend(self.io, self.storage, name, survey)
    }

    fn close(&self, name: &SegmentName) -> Result<(), Fault> {
        if self.stops.is_some_and(|stops| stops.load(Relaxed)) {
            return Err(stop::stopped().into());
        }
        mend::close(self.io, self.storage.place(), name)
    }

    fn set_aside(&self, name: &SegmentName) -> Result<(), Fault> {
        mend::set_aside(self.io, self.storage.place(), name)
    }

    fn index(&self, name: &SegmentName) -> io::Result<()> {
        index::complete(self.io, self.storage, name).map(|_| ())
    }
}

struct Examine<'a> {
    dir: &'a Path,
}

impl Hand for Examine<'_> {
    fn mend(&self, name: &SegmentName, _: &Survey) -> Result<(), Fault> {
        mend::check_names(self.dir, name)
    }

    fn close(&self, _: &SegmentName) -> Result<(), Fault> {
        Ok(())
    }

    fn set_aside(&self, name: &SegmentName) -> Result<(), Fault> {
        mend::check_name(self.dir, &mend::aside(name))
    }

    fn index(&self, _: &SegmentName) -> io::Result<()> {
        Ok(())
    }
}

/// Looks at a segment, and has done what it needs. Returns nothing of one that need not be looked
/// at.
fn look(
    storage: &dyn Storage,
    name: SegmentName,
    scope: Scope,
    hand: &impl Hand,
) -> Option<Finding> {
    let is_closed = !name.live;
    let read = name.live
        || match scope.closed {
            ClosedScope::None => false,
            ClosedScope::Unended => {
                let opened = storage.open(name.to_string().as_ref(), Access::Ranges);
                opened.ok().and_then(|segment| packets_told(&*segment)).is_none()
            }
            ClosedScope::All => true,
        };
    // Closed segments get an index only if they were asked for.
    let index = scope.index && !(is_closed && scope.closed == ClosedScope::None);
    let mut finding = Finding::new(name);
    let thorough = scope.closed == ClosedScope::All;
    if read {
        match finding.look(storage, hand) {
            Ok(Some(action)) => finding.action = action,
            Ok(None) => return None,
            Err(fault) => finding.action = Action::Fail(fault),
        }
    }
    let mut index_is_wrong = false;
    if thorough && matches!(finding.action, Action::None) {
        match finding.hold_against_index(storage) {
            Ok(is_wrong) => index_is_wrong = is_wrong,
            Err(fault) => finding.action = Action::Fail(fault),
        }
    }
    let can_be_indexed = match finding.action {
        Action::None => is_closed && (read || is_ours(storage, &finding.name)),
        Action::Close => true,
        Action::SetAside | Action::Fail(_) => false,
    };
    if index && can_be_indexed {
        finding.look_at_index(storage, (thorough, index_is_wrong), hand);
    }
    // The name comes last, so that a recovery which was cut short before is seen by the next.
    if matches!(finding.action, Action::Close)
        && let Err(fault) = hand.close(&finding.name)
    {
        finding.action = Action::Fail(fault);
    }
    (read || !matches!(finding.index, IndexAction::None)).then_some(finding)
}

impl Finding {
    fn new(name: SegmentName) -> Self {
        Self {
            name,
            action: Action::None,
            index: IndexAction::None,
            packets_before: 0,
            packets: 0,
            bytes_replaced: 0,
            bytes_cut: 0,
        }
    }

    /// Takes in how a segment is, and has done what it needs; `None` where another program wrote
    /// it.
    fn look(&mut self, storage: &dyn Storage, hand: &impl Hand) -> Result<Option<Action>, Fault> {
        let segment = storage.open(self.name.to_string().as_ref(), Access::Ranges)?;
        match FileOrigin::read(&*segment)? {
            FileOrigin::Strangers => return Ok(None),
            // Only a live segment is tapdeck's by its name alone.
            FileOrigin::Damaged if !self.name.live => return Ok(None),
            FileOrigin::OtherByteOrder => return Err(Fault::ByteOrder),
            FileOrigin::Damaged if survey::holds_packets(&*segment)? => return Err(Fault::Head),
            FileOrigin::Damaged => {
                hand.set_aside(&self.name)?;
                return Ok(Some(Action::SetAside));
            }
            FileOrigin::Ours => {}
        }
        let survey = Survey::of(&*segment)?;
        self.packets_before = survey.packets_before();
        self.packets = survey.packets();
        self.bytes_replaced = survey.bytes_replaced();
        self.bytes_cut = survey.bytes_cut;
        if !self.name.live && survey.is_sound() && survey.is_ended() {
            return Ok(Some(Action::None));
        }
        hand.mend(&self.name, &survey)?;
        Ok(Some(Action::Close))
    }

    /// Fails where the index of a segment tells that the segment was changed since. Returns whether
    /// it is the index alone that is wrong, which another one mends.
    fn hold_against_index(&self, storage: &dyn Storage) -> Result<bool, Fault> {
        let Some(verdict) = verify_one(storage, &self.name)? else { return Ok(false) };
        let segment = self.name.to_string();
        match verdict.flaws.iter().find(|flaw| flaw.file == segment) {
            Some(Flaw { at, what, .. }) => {
                Err(Fault::Changed { at: *at, what: what.clone(), more: verdict.count - 1 })
            }
            None => Ok(verdict.count > 0),
        }
    }

    /// Has the index of a segment made, if the segment has none or none that can be used. With
    /// `thorough` all of the index is read to know that, unless it is known to be wrong.
    fn look_at_index(
        &mut self,
        storage: &dyn Storage,
        (thorough, is_wrong): (bool, bool),
        hand: &impl Hand,
    ) {
        // The index of a segment that is mended is removed, since it points to what was changed.
        let is_mended = matches!(self.action, Action::Close);
        let name = SegmentName { live: is_mended, ..self.name.clone() };
        let is_complete = || -> io::Result<bool> {
            let len = storage.open(name.to_string().as_ref(), Access::Ranges)?.length()?;
            let Some(mut index) = Index::open(storage, &name, len)? else { return Ok(false) };
            if thorough {
                index.read_all()?;
            }
            Ok(index.summary().complete)
        };
        if !is_mended && !is_wrong && is_complete().unwrap_or(false) {
            return;
        }
        self.index = match hand.index(&name) {
            Ok(()) => IndexAction::Make,
            Err(e) => IndexAction::Fail(e),
        };
    }
}

/// Looks in bytes for where blocks go on behind a place that the first of them name; for fuzzing.
///
/// # Panics
/// If what is found is not behind that place, or not there.
#[doc(hidden)]
pub fn resync_anything(bytes: &[u8]) -> io::Result<()> {
    let Some((head, bytes)) = bytes.split_first_chunk::<3>() else { return Ok(()) };
    let len = bytes.len() as u64;
    let at = u64::from(u16::from_le_bytes([head[0], head[1]])).min(len) / 4 * 4;
    let behind = resync::resync(&bytes.to_vec(), len, at, u32::from(head[2]))?;
    assert!(behind.next.is_none_or(|next| next > at && next < len && next.is_multiple_of(4)));
    assert!((at..=len).contains(&behind.written));
    Ok(())
}
