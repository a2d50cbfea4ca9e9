//! Where does a store lie? At a path of this machine; or at a URL, on S3 or on a web server.
//!
//! What lies elsewhere is read by the program `tapdeck-remote`, as for `tapdeck query`: so this
//! module links no HTTP and no TLS, and what it is told of certificates is the same. Each answer
//! has a program of its own, which ends with it.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tapdeck_store::SegmentName;
use tapdeck_store::io::{Directory, Elsewhere, Reader, Storage};
use tapdeck_store::query::{Error, Search, Snapshot, Span};

use crate::answer::Failure;
use crate::worker::Left;

/// The program that reads what lies elsewhere.
const PROGRAM: &str = "tapdeck-remote";

/// Returns whether a path is the URL of a store elsewhere.
pub fn is_elsewhere(path: &Path) -> bool {
    path.to_string_lossy().contains("://")
}

/// Opens the store at a URL. Nobody waits for it any longer than somebody wants the answer.
pub fn elsewhere(url: &Path, left: &Left) -> Result<Arc<dyn Storage>, Failure> {
    let failed = |source| Failure::Store(Error::Io { path: url.to_owned(), source });
    let mut command = Command::new(PROGRAM);
    command.args(["relay", "--"]).arg(url);
    let reader = Reader::run(command).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Failure::NoReader(url.to_owned()),
        _ => failed(e),
    })?;
    let begun = Elsewhere::begin(url.to_owned(), reader, left.flag());
    let storage = begun.map_err(|e| match e.kind() {
        // That says which URL, and what to write.
        ErrorKind::InvalidInput => Failure::Place(e.to_string()),
        _ => failed(e),
    })?;
    Ok(Arc::new(storage))
}

/// Returns the stems of a store's segments, oldest first; of capture files there are none.
pub fn segments(path: &Path, left: &Left) -> Result<Vec<String>, Failure> {
    let store =
        if is_elsewhere(path) { elsewhere(path, left)? } else { Arc::new(Directory::new(path)) };
    let failed = |source| Failure::Store(Error::Io { path: path.to_owned(), source });
    let names = match store.list() {
        Err(e) if e.kind() == ErrorKind::NotADirectory => Vec::new(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(Error::NotFound(path.to_owned()).into());
        }
        names => names.map_err(failed)?,
    };
    let mut found: Vec<SegmentName> =
        names.iter().filter_map(|name| SegmentName::parse(name.to_str()?)).collect();
    found.sort_unstable();
    let mut stems: Vec<String> = found.iter().map(SegmentName::stem).collect();
    // One that is closed meanwhile may have both of its names.
    stems.dedup();
    Ok(stems)
}

/// Looks at the store at a path or a URL, or at capture files at a path.
pub fn look_at(
    path: &Path,
    span: Span,
    search: Search<'_>,
    left: &Left,
) -> Result<Snapshot, Failure> {
    if is_elsewhere(path) {
        return Ok(Snapshot::open_in(&elsewhere(path, left)?, span)?);
    }
    Ok(Snapshot::open_any(path, span, search)?)
}
