//! Standard input, as `-` on the command line names it where a file is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Result;
use tapdeck_store::io::inflate;

use crate::usage::usage;

/// Standard input's name in messages.
pub const NAME: &str = "standard input";

/// Returns whether a path of the command line means standard input.
pub fn is_named_by(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns what messages call an input: its path, or [`NAME`].
pub fn name(path: &Path) -> String {
    if is_named_by(path) { NAME.into() } else { path.display().to_string() }
}

/// Opens a file or standard input, decompressed where gzip, Zstandard or LZ4 compressed it. Returns
/// its length, too, where it has one.
pub fn open(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    let (input, bytes) = open_as_it_is(path)?;
    let (input, is_compressed) = inflate(input)?;
    Ok((input, bytes.filter(|_| !is_compressed)))
}

fn open_as_it_is(path: &Path) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if is_named_by(path) {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path)?;
    let about = file.metadata()?;
    Ok((Box::new(file), about.is_file().then_some(about.len())))
}

/// Refuses a command line on which several inputs are standard input.
pub fn refuse_twice<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    if paths.into_iter().filter(|path| is_named_by(path)).count() > 1 {
        return usage("- is named twice: standard input can be read once");
    }
    Ok(())
}
