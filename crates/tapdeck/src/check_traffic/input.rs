//! The recording that is checked: files, standard input and the segments of stores, read one after
//! the other as if they were one.

use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tapdeck_packet::link::LinkType;
use tapdeck_store::query::{Note, Snapshot, Span};
use tapdeck_store::{SegmentName, Store};
use tapdeck_traffic::check::Check;

use crate::capture_file::{self, OnDamage};
use crate::progress_line::say;
use crate::query::describe_missing;
use crate::standard_input;

/// One of the files that make up the recording.
pub enum Recorded {
    /// A file or standard input.
    File(PathBuf),
    Segment {
        dir: PathBuf,
        name: SegmentName,
    },
}

/// What the recording says beside its packets, for the report.
#[derive(Default)]
pub struct RecordingNotes {
    /// Packets that the recording says it dropped, of whatever traffic.
    pub dropped: u64,
    /// Where files were damaged that were used up to the damage.
    pub damage: Vec<String>,
}

/// Tells on standard error what the stores among `paths` say that they do not hold. Returns whether
/// segments are missing.
pub fn tell_missing(paths: &[PathBuf]) -> Result<bool> {
    let mut has_hole = false;
    for path in paths.iter().filter(|path| !standard_input::is_named_by(path) && path.is_dir()) {
        let snapshot = Snapshot::open(path, Span::ALL)?;
        for hole in snapshot.notes().iter().filter(|note| matches!(note, Note::Hole { .. })) {
            say(&hole.to_string());
            has_hole = true;
        }
        for missing in snapshot.unseen() {
            say(&describe_missing(missing));
        }
    }
    Ok(has_hole)
}

/// Returns the files of the recording that the command line names.
pub fn resolve(paths: &[PathBuf]) -> Result<Vec<Recorded>> {
    let mut inputs = Vec::new();
    for path in paths {
        if !standard_input::is_named_by(path) && path.is_dir() {
            let name = path.display();
            let segments = Store::segments(path).with_context(|| format!("cannot read {name}"))?;
            if segments.is_empty() {
                bail!(
                    "{name} has no segments: name a store that `tapdeck record --dir` wrote, or files"
                );
            }
            let segment =
                |s: tapdeck_store::Stored| Recorded::Segment { dir: path.clone(), name: s.name };
            inputs.extend(segments.into_iter().map(segment));
        } else {
            inputs.push(Recorded::File(path.clone()));
        }
    }
    Ok(inputs)
}

impl Recorded {
    fn name(&self) -> String {
        match self {
            Self::File(path) => standard_input::name(path),
            Self::Segment { dir, name } => name.path(dir).display().to_string(),
        }
    }

    /// Opens the file. Returns its length, too, where it has one.
    fn open(&self) -> io::Result<(Box<dyn Read>, Option<u64>)> {
        match self {
            Self::File(path) => standard_input::open(path),
            Self::Segment { dir, name } => {
                standard_input::open(&name.path(dir)).or_else(|e| match e.kind() {
                    // The segment was live when it was listed, and may have been closed meanwhile.
                    ErrorKind::NotFound if name.live => {
                        standard_input::open(&name.closed().path(dir))
                    }
                    _ => Err(e),
                })
            }
        }
    }

    /// Returns whether the file may end anywhere, because it is being written.
    fn may_be_cut(&self) -> bool {
        matches!(self, Self::Segment { name, .. } if name.live)
    }

    /// Checks all packets of the file.
    pub fn read(
        &self,
        check: &mut Check,
        notes: &mut RecordingNotes,
        up_to_damage: bool,
    ) -> Result<()> {
        let name = self.name();
        let input = self.open().with_context(|| format!("cannot open {name}"))?;
        let on_damage = OnDamage::of(up_to_damage);
        let damage = capture_file::read(input, &name, on_damage, self.may_be_cut(), |packet| {
            if packet.link != LinkType::ETHERNET {
                bail!(
                    "{name} holds packets of link type {}: generated ones are Ethernet frames (link type {})",
                    packet.link,
                    LinkType::ETHERNET.0
                );
            }
            notes.dropped += packet.dropped;
            check.packet(packet.time_ns, packet.original_len, packet.frame);
            Ok(())
        })?;
        notes.damage.extend(damage);
        Ok(())
    }
}
