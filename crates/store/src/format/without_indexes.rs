//! How is a place read whose indexes nobody is to believe? As if there were none.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::SUFFIX;
use super::name::SegmentName;
use crate::io::{Access, Object, Storage};

/// A place without its indexes.
#[derive(Debug)]
pub struct WithoutIndexes<S>(S);

impl<S: Storage> WithoutIndexes<S> {
    pub fn new(place: S) -> Self {
        Self(place)
    }
}

impl<S: Storage> Storage for WithoutIndexes<S> {
    fn place(&self) -> &Path {
        self.0.place()
    }

    fn list(&self) -> Result<Vec<OsString>> {
        let mut names = self.0.list()?;
        names.retain(|name| !is_index(name));
        Ok(names)
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        if is_index(name) {
            return Err(ErrorKind::NotFound.into());
        }
        self.0.open(name, access)
    }

    fn location(&self, name: &OsStr) -> PathBuf {
        self.0.location(name)
    }
}

/// Whether a name is that of an index, of a segment or of a capture file.
fn is_index(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().unwrap_or(name).to_string_lossy();
    name.ends_with(SUFFIX) || SegmentName::parse_index(&name).is_some()
}
