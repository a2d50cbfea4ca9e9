//! A recording that a command reads packet by packet: files, standard input, the segments of stores
//! and the capture files in directories, read one after the other as if they were one.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tapdeck_packet::trace;
use tapdeck_store::io::{Paths, Storage, inflate};
use tapdeck_store::{SegmentName, Store};

use crate::progress_line::say;
use crate::standard_input;

/// Enough to tell a capture file by.
const HEAD: u64 = 64;

/// One of the files that make up the recording.
pub enum Recorded {
    /// A file or standard input.
    File(PathBuf),
    Segment {
        dir: PathBuf,
        name: SegmentName,
    },
}

/// Returns the files of the recording that the command line names.
pub fn resolve<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Vec<Recorded>> {
    let mut inputs = Vec::new();
    for path in paths {
        if standard_input::is_named_by(path) || !path.is_dir() {
            inputs.push(Recorded::File(path.to_owned()));
            continue;
        }
        let name = path.display();
        let segments = Store::segments(path).with_context(|| format!("cannot read {name}"))?;
        if segments.is_empty() {
            let files = captures(path).with_context(|| format!("cannot read {name}"))?;
            if files.is_empty() {
                bail!(
                    "{name} has no segments and no pcap or pcapng files: name a store that `tapdeck record --dir` wrote, or capture files"
                );
            }
            inputs.extend(files.into_iter().map(Recorded::File));
        }
        let segment =
            |s: tapdeck_store::Stored| Recorded::Segment { dir: path.to_owned(), name: s.name };
        inputs.extend(segments.into_iter().map(segment));
    }
    Ok(inputs)
}

/// Returns the capture files in a directory, and in directories in it.
fn captures(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let left_out = |link: PathBuf| say(&format!("not read: {}, a link", link.display()));
    let mut files = Vec::new();
    for name in Paths::at(dir, left_out)?.list()? {
        let path = PathBuf::from(name);
        let mut head = Vec::new();
        let (input, _) = inflate(File::open(&path)?)?;
        // One that cannot be decompressed is told when it is read.
        if input.take(HEAD).read_to_end(&mut head).is_err() || trace::looks_like_trace(&head) {
            files.push(path);
        }
    }
    Ok(files)
}

impl Recorded {
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => standard_input::name(path),
            Self::Segment { dir, name } => name.path(dir).display().to_string(),
        }
    }

    /// Opens the file. Returns its length, too, where it has one.
    pub fn open(&self) -> io::Result<(Box<dyn Read>, Option<u64>)> {
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

    /// Returns where the file is; `None` is standard input.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) if standard_input::is_named_by(path) => None,
            Self::File(path) => Some(path.clone()),
            Self::Segment { dir, name } => Some(name.path(dir)),
        }
    }

    /// Returns whether the file may end anywhere, because it is being written.
    pub fn may_be_cut(&self) -> bool {
        matches!(self, Self::Segment { name, .. } if name.live)
    }
}
