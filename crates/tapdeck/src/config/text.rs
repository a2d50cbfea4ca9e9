//! Reading files while packets come: whatever lies at a path by then, reading neither waits for
//! somebody nor takes all memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::OFlags;

use crate::units::show_bytes;

/// The most bytes of a configuration.
const MOST: u64 = 1 << 20;

/// Reads a configuration.
pub fn read(path: &Path) -> Result<String> {
    let read = || {
        let bytes = at_most(open(path)?, MOST)?;
        String::from_utf8(bytes).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Opens a regular file, and nothing that would be waited for.
pub fn open(path: &Path) -> io::Result<File> {
    let wait_for_nobody = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(wait_for_nobody).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "this is no regular file"))
}

/// Reads an input to its end, and refuses one that is longer.
pub fn at_most(input: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {}", show_bytes(most));
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{MOST, read};

    #[test]
    fn a_configuration_is_a_regular_file_of_bounded_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        std::fs::write(&path, vec![b'#'; MOST as usize]).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MOST);
        std::fs::write(&path, vec![b'#'; MOST as usize + 1]).unwrap();
        let too_long = format!("{:#}", read(&path).unwrap_err());
        assert!(too_long.contains("it is longer than 1.0 MiB"), "{too_long}");
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read(&path).is_err());
        let pipe = dir.path().join("pipe");
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&pipe, mode).unwrap();
        for other in [pipe.as_path(), dir.path()] {
            let refused = format!("{:#}", read(other).unwrap_err());
            assert!(refused.contains("this is no regular file"), "{refused}");
        }
    }
}
