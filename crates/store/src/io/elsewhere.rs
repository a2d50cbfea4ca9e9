//! A storage that another program reads, which is run for it and ends with it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::read::{Access, Object, Storage};
use super::relay::Relayed;

/// A program that reads a storage, and the socket over which it is asked.
#[derive(Debug)]
pub struct Reader {
    child: Mutex<Child>,
    socket: UnixStream,
}

impl Reader {
    /// Runs a program, which is asked over a socket at its standard input. Ctrl-C is for this one.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn run(mut command: Command) -> io::Result<Self> {
        let (socket, there) = UnixStream::pair()?;
        command.stdin(Stdio::from(OwnedFd::from(there))).process_group(0);
        // With the command goes this end's copy of the other one, so that the program's end shows.
        Ok(Self { child: Mutex::new(command.spawn()?), socket })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Ok(child) = self.child.get_mut() {
            // Where it has ended there is nobody to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A storage that another program reads.
#[derive(Debug)]
pub struct Elsewhere {
    relayed: Relayed,
    _reader: Reader,
}

impl Elsewhere {
    /// Begins to ask a program for a storage. Waiting for it ends where `stop` is set.
    ///
    /// # Errors
    /// Where the program says that it cannot serve; [`io::ErrorKind::InvalidInput`] where the user
    /// has to name the place in another way.
    pub fn begin(place: PathBuf, reader: Reader, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let relayed = Relayed::begin(place, reader.socket.try_clone()?, stop)?;
        Ok(Self { relayed, _reader: reader })
    }
}

impl Storage for Elsewhere {
    fn place(&self) -> &Path {
        self.relayed.place()
    }

    fn list(&self) -> io::Result<Vec<OsString>> {
        self.relayed.list()
    }

    fn open(&self, name: &OsStr, access: Access) -> io::Result<Arc<dyn Object>> {
        self.relayed.open(name, access)
    }

    fn expect(&self, name: &OsStr, parts: &[Range<u64>]) {
        self.relayed.expect(name, parts);
    }
}
