//! What reading a store asks of the place where the store lies, as two traits: objects are listed,
//! opened, measured and read in ranges. The file system is one such place ([`Directory`],
//! [`Paths`]); tests put faults in between. Whatever lists names and returns ranges of bytes can be
//! another.
//!
//! Nothing here writes ([`Io`](super::Io) does), and nobody above asks what an object really is: a
//! path is only what messages call it.
//!
//! [`Directory`]: super::Directory
//! [`Paths`]: super::Paths

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A place where objects lie that can be read: the segments and indexes of a store, or capture
/// files. Others may write, rename and delete there meanwhile.
pub trait Storage: Debug + Send + Sync {
    /// Returns what messages call the whole.
    fn place(&self) -> &Path;

    /// Returns the names of all objects, in any order.
    ///
    /// # Errors
    /// `NotFound` where there is no such place, `NotADirectory` where nothing can lie in it.
    fn list(&self) -> Result<Vec<OsString>>;

    /// Opens an object. What was opened stays readable when its name goes.
    ///
    /// # Errors
    /// `NotFound` where there is no object of that name, or none any more.
    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>>;

    /// Returns what an object is at the moment.
    ///
    /// # Errors
    /// As [`Storage::open`].
    fn state(&self, name: &OsStr) -> Result<State> {
        self.open(name, Access::Ranges)?.state()
    }

    /// Says that ranges of an object will be read soon. A place that is far away begins to read
    /// them, all at once.
    fn expect(&self, name: &OsStr, parts: &[Range<u64>]) {
        let _ = (name, parts);
    }

    /// Returns what messages call an object.
    fn location(&self, name: &OsStr) -> PathBuf {
        self.place().join(name)
    }
}

impl<S: Storage + ?Sized> Storage for Arc<S> {
    fn place(&self) -> &Path {
        (**self).place()
    }

    fn list(&self) -> Result<Vec<OsString>> {
        (**self).list()
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        (**self).open(name, access)
    }

    fn state(&self, name: &OsStr) -> Result<State> {
        (**self).state(name)
    }

    fn expect(&self, name: &OsStr, parts: &[Range<u64>]) {
        (**self).expect(name, parts);
    }

    fn location(&self, name: &OsStr) -> PathBuf {
        (**self).location(name)
    }
}

/// How an object will be read, so that reading is fast and in nobody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A few ranges, or ranges that are not known yet.
    Ranges,
    /// All of the object, or all from some place on, forwards.
    Sequential,
    /// Small ranges, far from one another.
    Scattered,
    /// Large ranges, each once, of an object that nobody writes any more: past caches, where that
    /// can be. Fast are only ranges that begin and end at multiples of [`PAGE`](super::PAGE), read
    /// into memory that does.
    Once,
}

/// What an object is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The object's length, in bytes.
    pub len: u64,
    /// When the object was last changed, UTC nanoseconds since 1970.
    pub changed_ns: i64,
    /// What tells the object from others that have its name before or after it. On a file system:
    /// device and inode.
    pub id: (u64, u64),
    /// The users that may write the object; `None` where a place does not tell.
    pub owner: Option<Owner>,
}

/// The users that may write an object of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: u32,
    pub group: u32,
    /// The permission bits.
    pub mode: u32,
}

/// An open object: a row of bytes that may grow or shrink while it is read.
pub trait Object: Debug + Send + Sync {
    fn state(&self) -> Result<State>;

    /// Reads a range into a buffer, or the beginning of the range. Returns how many bytes that are;
    /// 0 only behind the object's end, or where the buffer is empty.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize>;

    /// Says that a range was read and will not be needed again soon.
    fn forget(&self, part: Range<u64>) {
        let _ = part;
    }

    /// Says that all of the object will be read soon.
    fn prefetch(&self) {}

    /// Returns whether [`Object::length`] is that of the bytes that can be read. If not, their end
    /// is known when they end.
    fn is_measured(&self) -> bool {
        true
    }

    /// Returns why the object ends before its end, if it was read up to there.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Returns the object's length in bytes.
    fn length(&self) -> Result<u64> {
        Ok(self.state()?.len)
    }

    /// Fills a buffer as far as the object goes. Returns how many bytes that are.
    fn read_up_to(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let mut have = 0;
        while have < buffer.len() {
            match self.read_at(&mut buffer[have..], at + have as u64) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(have)
    }

    /// Fills a buffer.
    ///
    /// # Errors
    /// `UnexpectedEof` where the object ends before.
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> Result<()> {
        match self.read_up_to(buffer, at)? {
            have if have == buffer.len() => Ok(()),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Bytes in memory are an object too.
impl Object for Vec<u8> {
    fn state(&self) -> Result<State> {
        Ok(State { len: self.len() as u64, changed_ns: 0, id: (0, 0), owner: None })
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let have = rest.len().min(buffer.len());
        buffer[..have].copy_from_slice(&rest[..have]);
        Ok(have)
    }
}
