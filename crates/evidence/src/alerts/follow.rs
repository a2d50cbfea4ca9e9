//! Reads the lines of a file that somebody else writes, as they come: over its rotation, and half
//! lines until they are whole.
//!
//! Who rotates gives the file another name, and the writer may go on in it for a while: so a file
//! that has lost its name is read on for a minute beside the new one. A file that was cut is read
//! from its beginning. What is known of the place outlives this process: where the next finds the
//! file under another name, it reads that to its end first.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Bytes of a line at most; longer ones are skipped and counted.
const LONGEST: usize = 1 << 20;
/// Bytes that are read in one go.
const PIECE: usize = 256 << 10;
/// Bytes that are read until the caller can do something else.
const TURN: usize = 4 << 20;
/// How long a file is read on that has lost its name.
const FAREWELL: Duration = Duration::from_secs(60);

/// How far a file was read: to the end of its last whole line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    pub device: u64,
    pub inode: u64,
    pub at: u64,
}

/// A file that is read as it grows.
struct Tail {
    file: File,
    position: Position,
    /// The beginning of a line that is not whole.
    half: Vec<u8>,
    /// The rest of the line belongs to one that is too long.
    is_skipping: bool,
}

impl Tail {
    fn open(path: &Path, at: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
        }
        let position = Position { device: meta.dev(), inode: meta.ino(), at };
        Ok(Self { file, position, half: Vec::new(), is_skipping: false })
    }

    fn is(&self, meta: &fs::Metadata) -> bool {
        (self.position.device, self.position.inode) == (meta.dev(), meta.ino())
    }

    /// Reads whole lines up to the end, or for a turn. Returns how many bytes were read, and how
    /// many lines were too long.
    fn read(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<(usize, u64)> {
        let (mut total, mut skipped) = (0, 0);
        let mut piece = vec![0; PIECE];
        if self.file.metadata()?.len() < self.position.at {
            // Somebody has cut it, to write it anew.
            (self.position.at, self.is_skipping) = (0, false);
            self.half.clear();
        }
        while total < TURN {
            let have = self.file.read_at(&mut piece, self.position.at + self.half.len() as u64)?;
            if have == 0 {
                break;
            }
            total += have;
            let mut rest = &piece[..have];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let (line, next) = (&rest[..end], &rest[end + 1..]);
                if !self.is_skipping {
                    self.half.extend_from_slice(line);
                    each(&self.half);
                }
                let taken = if self.is_skipping { line.len() } else { self.half.len() };
                self.position.at += taken as u64 + 1;
                self.half.clear();
                self.is_skipping = false;
                rest = next;
            }
            if self.is_skipping {
                self.position.at += rest.len() as u64;
            } else {
                self.half.extend_from_slice(rest);
                if self.half.len() > LONGEST {
                    self.position.at += self.half.len() as u64;
                    self.half.clear();
                    self.is_skipping = true;
                    skipped += 1;
                }
            }
        }
        Ok((total, skipped))
    }
}

/// A file that is followed by its name.
pub struct Follow {
    path: PathBuf,
    now: Option<Tail>,
    /// The file that had the name before, and until when it is read on.
    before: Option<(Tail, Instant)>,
    /// Lines that were too long.
    pub skipped: u64,
}

impl Follow {
    /// Begins to follow a file: at a position that was reached before, or at the file's end, or,
    /// with `from_start`, at its beginning. A file that is not there yet is read from its
    /// beginning.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new(path: &Path, reached: Option<Position>, from_start: bool) -> io::Result<Self> {
        let mut follow = Self { path: path.to_owned(), now: None, before: None, skipped: 0 };
        let mut now = match Tail::open(path, 0) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            tail => Some(tail?),
        };
        match (&mut now, reached) {
            (Some(tail), Some(reached))
                if tail.position.inode == reached.inode
                    && tail.position.device == reached.device =>
            {
                tail.position.at = reached.at;
            }
            (_, Some(reached)) => {
                let until = Instant::now() + FAREWELL;
                follow.before = renamed(path, reached).map(|tail| (tail, until));
            }
            (Some(tail), None) if !from_start => tail.position.at = tail.file.metadata()?.len(),
            _ => {}
        }
        follow.now = now;
        Ok(follow)
    }

    /// Returns how far the file was read; `None` while there is none.
    pub fn position(&self) -> Option<Position> {
        let before = self.before.as_ref().map(|(tail, _)| tail);
        // What is left of the earlier file would be missed by the next who goes on.
        let unread = before
            .filter(|tail| tail.file.metadata().is_ok_and(|meta| meta.len() > tail.position.at));
        unread.or(self.now.as_ref()).or(before).map(|tail| tail.position)
    }

    /// Hands whole lines to `each`, as many as there are, or for a turn. Returns whether there were
    /// any bytes.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut total = 0;
        for tail in self.before.as_mut().map(|(tail, _)| tail).into_iter().chain(&mut self.now) {
            let (bytes, skipped) = tail.read(&mut each)?;
            total += bytes;
            self.skipped += skipped;
            if bytes >= TURN {
                return Ok(true);
            }
        }
        if self.before.as_ref().is_some_and(|(_, until)| Instant::now() >= *until) {
            self.before = None;
        }
        match fs::metadata(&self.path) {
            Ok(meta) if self.now.as_ref().is_some_and(|tail| tail.is(&meta)) => {}
            Ok(_) => {
                let next = match Tail::open(&self.path, 0) {
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(total > 0),
                    next => next?,
                };
                if let Some(old) = self.now.replace(next) {
                    self.before = Some((old, Instant::now() + FAREWELL));
                }
                return Ok(true);
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        Ok(total > 0)
    }
}

/// Finds a file beside its old name.
fn renamed(path: &Path, reached: Position) -> Option<Tail> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::read_dir(dir).ok()?.filter_map(Result::ok).find_map(|entry| {
        let meta = entry.path().symlink_metadata().ok()?;
        let is_it = (meta.dev(), meta.ino()) == (reached.device, reached.inode);
        // Of another file that got its inode, the place is behind its end as a rule.
        let is_whole = meta.is_file() && meta.len() >= reached.at;
        (is_it && is_whole).then(|| Tail::open(&entry.path(), reached.at).ok()).flatten()
    })
}
