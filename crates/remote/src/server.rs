//! What is asked of a server, whatever it speaks: which objects there are, and ranges of them.

use std::io;
use std::ops::Range;

use bytes::Bytes;

use crate::exchange::{Broken, How};
use crate::s3::Bucket;
use crate::web::Site;

/// Objects that a listing may have.
pub const MOST_OBJECTS: usize = 1 << 20;
/// The longest object.
pub const LONGEST_OBJECT: u64 = 1 << 43;

#[derive(Debug)]
pub enum Server {
    S3(Bucket),
    Web(Site),
}

/// A range of an object, as it came.
#[derive(Debug)]
pub struct Part {
    /// The bytes from the range's beginning to its end, or to the object's.
    pub bytes: Bytes,
    /// The object's length.
    pub len: u64,
    /// What tells the object from another of its name, if the server says.
    pub tag: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub struct Failed {
    pub kind: io::ErrorKind,
    pub why: String,
    /// Whether asking again may help.
    pub may_pass: bool,
}

impl Failed {
    pub fn new(kind: io::ErrorKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into(), may_pass: false }
    }

    /// An answer that contradicts itself, what was asked, or what was said before.
    pub fn lie(why: impl Into<String>) -> Self {
        Self::new(io::ErrorKind::InvalidData, why)
    }

    pub fn error(&self) -> io::Error {
        io::Error::new(self.kind, self.why.clone())
    }
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Self {
        let may_pass = matches!(broken.how, How::Connect | How::Silent | How::Cut);
        let kind = match broken.how {
            How::Connect => io::ErrorKind::Other,
            How::Silent | How::Slow => io::ErrorKind::TimedOut,
            How::Cut => io::ErrorKind::UnexpectedEof,
            How::Unfit => io::ErrorKind::InvalidData,
        };
        Self { kind, why: broken.why, may_pass }
    }
}

impl Server {
    /// Returns the names of all objects.
    pub async fn list(&self) -> Result<Vec<String>, Failed> {
        match self {
            Self::S3(bucket) => bucket.list().await,
            Self::Web(site) => site.list().await,
        }
    }

    /// Returns a range of an object. What is behind the object's end is left out.
    pub async fn get(&self, name: &str, range: Range<u64>) -> Result<Part, Failed> {
        let part = match self {
            Self::S3(bucket) => bucket.get(name, range.clone()).await,
            Self::Web(site) => site.get(name, range.clone()).await,
        }?;
        if part.len > LONGEST_OBJECT {
            let tib = LONGEST_OBJECT >> 40;
            return Err(Failed::lie(format!("it says that an object is longer than {tib} TiB")));
        }
        let there = range.end.min(part.len).saturating_sub(range.start);
        if part.bytes.len() as u64 != there {
            return Err(Failed::lie(format!(
                "it sent {} bytes for a range that has {there}",
                part.bytes.len()
            )));
        }
        Ok(part)
    }

    /// Returns up to how many bytes between two ranges are read rather than two questions asked.
    pub fn gap(&self) -> u64 {
        match self {
            Self::S3(_) => 1 << 20,
            Self::Web(_) => 128 << 10,
        }
    }
}
