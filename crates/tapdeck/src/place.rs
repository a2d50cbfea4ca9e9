//! Where does a store lie that is read? In a directory, or elsewhere, on S3 or a web server.
//!
//! What lies elsewhere is read by another program, `tapdeck-remote`, so that this one links no HTTP
//! and no TLS. It gives objects and ranges ([`Relayed`]); what they mean is found out here, as in a
//! directory, so answers and what is said of them are the same.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use tapdeck_store::WithoutIndexes;
use tapdeck_store::io::{Access, Directory, Object, Relayed, Storage};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::usage::usage;

/// The program that asks others.
pub const PROGRAM: &str = "tapdeck-remote";

/// Finds the program that asks others, beside this one. `what` is the work that it is needed for.
pub fn program(what: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("cannot find the directory of tapdeck")?;
    let program = here.with_file_name(PROGRAM);
    let dir = here.parent().unwrap_or(&here).display();
    ensure!(
        program.exists(),
        "{what} is the work of the program {PROGRAM}, which is not in {dir}: install it there"
    );
    Ok(program)
}

/// Returns whether a path is the URL of a store elsewhere.
pub fn is_elsewhere(path: &Path) -> bool {
    let text = path.to_string_lossy();
    ["s3://", "https://", "http://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Returns a store that is to be read, wherever it lies. An interrupt ends the wait for one that
/// lies elsewhere.
///
/// # Errors
/// Where it lies elsewhere, and cannot be asked for.
pub fn open(
    path: &Path,
    shown: &flags::Shown,
    interrupt: Option<&Interrupt>,
) -> Result<Arc<dyn Storage>> {
    if is_elsewhere(path) {
        let stop = interrupt.map(Interrupt::flag).unwrap_or_default();
        return Ok(Arc::new(Elsewhere::open(path, shown, stop)?));
    }
    if let Some(flag) = shown.given() {
        return usage(format!(
            "{flag} is for stores that are URLs, and {} is none",
            path.display()
        ));
    }
    Ok(Arc::new(Directory::new(path)))
}

/// Returns a store as it is, or as if it had no indexes.
pub fn without_indexes(store: Arc<dyn Storage>, ignores_indexes: bool) -> Arc<dyn Storage> {
    if ignores_indexes { Arc::new(WithoutIndexes::new(store)) } else { store }
}

/// A store that another program reads, which ends with this value.
#[derive(Debug)]
struct Elsewhere {
    relayed: Relayed,
    _reader: Reader,
}

/// The program that reads.
#[derive(Debug)]
struct Reader(Mutex<Child>);

impl Drop for Reader {
    fn drop(&mut self) {
        if let Ok(child) = self.0.get_mut() {
            // Where it has ended there is nobody to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Elsewhere {
    fn open(path: &Path, shown: &flags::Shown, stop: Arc<AtomicBool>) -> Result<Self> {
        let name = path.display();
        let (here, there) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let mut command = Command::new(program(&format!("reading {name}"))?);
        command.arg("relay");
        shown.pass_to(&mut command);
        // Ctrl-C is for this program, which ends the other when it is done.
        command.arg("--").arg(path).stdin(Stdio::from(OwnedFd::from(there))).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot run {PROGRAM}"))?;
        let reader = Reader(Mutex::new(child));
        // The other end is the program's alone now, so that its end shows.
        drop(command);
        let relayed = match Relayed::begin(path.to_owned(), here, stop) {
            Err(e) if e.kind() == ErrorKind::InvalidInput => return usage(e.to_string()),
            begun => begun.with_context(|| format!("cannot read {name}"))?,
        };
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
