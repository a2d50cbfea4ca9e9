//! What did a crash leave of a store, and how does it become sound again without losing a packet?
//!
//! A recorder that is killed leaves a live segment that ends with its last write. A power loss leaves
//! less: any sectors of what was not yet durable may be missing, and read as zeros. A copy may
//! have been cut anywhere. [`survey`] reads such a file once and finds all its whole packets, also
//! behind damage ([`resync`]); [`mend`] then makes it a segment that any reader reads to its end:
//! damage becomes fill, what is torn at the end is cut, statistics are written, and the segment
//! gets its final name. The steps are in such an order that a recovery which is itself cut short
//! is finished by the next one, and a sound store is not changed.
//!
//! There are no checksums yet: a packet whose inner sectors are missing, while both its ends are
//! there, counts as whole.

mod mend;
mod resync;
mod survey;

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::io::Io;
use crate::store::Error;
use crate::{SegmentName, Store, segment};
use survey::{Head, Survey};

/// Which closed segments are looked at beside the live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    None,
    /// Those that do not end in statistics, as one that was cut does not.
    Unended,
    /// All; each is read from beginning to end.
    All,
}

/// Why a segment cannot be mended. It is then left as it was, or as a further attempt can use it.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// packets mean nothing without it
    #[error(
        "its header is damaged, and there are packets behind it, which mean nothing without; it is left as it is"
    )]
    Head,
    /// blocks of this machine's byte order do not go there
    #[error("a machine of the other byte order wrote it: recover it on such a one")]
    ByteOrder,
    /// it is not one segment
    #[error("it has more than one section, which no recorder writes")]
    Sections,
    /// two files would have one name
    #[error("there is {0} already: move one of the two away")]
    Exists(String),
    /// the file system says no
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What is done with a segment, or would be.
#[derive(Debug)]
pub enum Action {
    /// It is as it should be.
    None,
    /// It was mended and has its final name.
    Close,
    /// Not even the beginning was written, and there is no packet: it is renamed to `NAME.damaged`.
    SetAside,
    Fail(Fault),
}

/// What was found of one segment.
#[derive(Debug)]
pub struct Finding {
    /// The file's name as it was found.
    pub name: SegmentName,
    pub action: Action,
    /// Packets that could be read before, up to the first damage.
    pub packets_before: u64,
    /// Packets that can be read now.
    pub packets: u64,
    /// Bytes in the middle that are damaged and became fill.
    pub bytes_replaced: u64,
    /// Bytes at the end that belong to no whole block. Zeros, which nobody wrote, do not count.
    pub bytes_cut: u64,
}

impl Store {
    /// Mends what a crash left. `each` hears of every segment that was looked at, oldest first, as soon
    /// as it is done; one that cannot be mended does not keep the others from it.
    pub fn recover<I: Io>(
        &mut self,
        io: &I,
        closed: Closed,
        each: impl FnMut(&Finding),
    ) -> Result<(), Error> {
        let dir = self.dir().to_owned();
        let mend = |name: &SegmentName, survey: Option<&Survey>| match survey {
            Some(survey) => mend::close(io, &dir, name, survey),
            None => mend::set_aside(io, &dir, name),
        };
        let done = look(&dir, closed, mend, each).and_then(|()| self.look_again());
        done.map_err(|source| Error::Io { dir, source })
    }

    /// Says what [`Store::recover`] would do, and changes nothing. Fails where a recorder is at work.
    pub fn examine(dir: &Path, closed: Closed, each: impl FnMut(&Finding)) -> Result<(), Error> {
        Self::check_free(dir)?;
        let mend = |name: &SegmentName, survey: Option<&Survey>| match survey {
            Some(_) => mend::check_names(dir, name),
            None => mend::check_name(dir, &mend::aside(name)),
        };
        look(dir, closed, mend, each).map_err(|source| Error::Io { dir: dir.to_owned(), source })
    }
}

/// Looks at the segments of a directory. `mend` does what one needs: with a survey to close it,
/// without to set it aside.
fn look(
    dir: &Path,
    closed: Closed,
    mend: impl Fn(&SegmentName, Option<&Survey>) -> Result<(), Fault>,
    mut each: impl FnMut(&Finding),
) -> io::Result<()> {
    for name in names(dir)? {
        let wanted = name.live
            || match closed {
                Closed::None => false,
                Closed::Unended => segment::packets_told(&name.path(dir)).is_none(),
                Closed::All => true,
            };
        if !wanted {
            continue;
        }
        let mut finding = Finding::new(name);
        match finding.look(dir, &mend) {
            Ok(Some(action)) => finding.action = action,
            Ok(None) => continue,
            Err(fault) => finding.action = Action::Fail(fault),
        }
        each(&finding);
    }
    Ok(())
}

impl Finding {
    fn new(name: SegmentName) -> Self {
        let action = Action::None;
        Self { name, action, packets_before: 0, packets: 0, bytes_replaced: 0, bytes_cut: 0 }
    }

    /// Takes in how a segment is and has done what it needs; `None` where it is nobody's business.
    fn look(
        &mut self,
        dir: &Path,
        mend: impl Fn(&SegmentName, Option<&Survey>) -> Result<(), Fault>,
    ) -> Result<Option<Action>, Fault> {
        let file = fs::File::open(self.name.path(dir))?;
        match Head::read(&file)? {
            Head::Strangers => return Ok(None),
            // Only a live segment is known by its name alone.
            Head::Damaged if !self.name.live => return Ok(None),
            Head::OtherByteOrder => return Err(Fault::ByteOrder),
            Head::Damaged if survey::holds_packets(&file)? => return Err(Fault::Head),
            Head::Damaged => {
                mend(&self.name, None)?;
                return Ok(Some(Action::SetAside));
            }
            Head::Ours => {}
        }
        let survey = Survey::of(&file)?;
        self.packets_before = survey.packets_before();
        self.packets = survey.packets();
        self.bytes_replaced = survey.bytes_replaced();
        self.bytes_cut = survey.bytes_cut;
        if !self.name.live && survey.is_sound() {
            return Ok(Some(Action::None));
        }
        mend(&self.name, Some(&survey))?;
        Ok(Some(Action::Close))
    }
}

/// All files with a segment's name, oldest first, whatever is in them.
fn names(dir: &Path) -> io::Result<Vec<SegmentName>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Not what a link points to.
        if entry.file_type()?.is_file()
            && let Some(name) = entry.file_name().to_str().and_then(SegmentName::parse)
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Reads `size` bytes of a file of `len` bytes, or up to its end.
fn read_at(file: &fs::File, offset: u64, len: u64, size: usize) -> io::Result<Vec<u8>> {
    let left = usize::try_from(len.saturating_sub(offset)).unwrap_or(size);
    let mut bytes = vec![0; size.min(left)];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
