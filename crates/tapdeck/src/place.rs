//! Where does a store lie that is read? In a directory, or elsewhere, on S3 or a web server.
//!
//! What lies elsewhere is read by another program, `tapdeck-remote`, so that this one links no HTTP
//! and no TLS. It gives objects and ranges ([`Elsewhere`]); what they mean is found out here, as in
//! a directory, so answers and what is said of them are the same.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use tapdeck_store::WithoutIndexes;
use tapdeck_store::io::{Directory, Elsewhere, Reader, Storage};

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
        return Ok(Arc::new(elsewhere(path, shown, stop)?));
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

/// Runs the program that asks others, for a store that lies elsewhere.
fn elsewhere(path: &Path, shown: &flags::Shown, stop: Arc<AtomicBool>) -> Result<Elsewhere> {
    let name = path.display();
    let mut command = Command::new(program(&format!("reading {name}"))?);
    command.arg("relay");
    shown.pass_to(&mut command);
    command.arg("--").arg(path);
    let reader = Reader::run(command).with_context(|| format!("cannot run {PROGRAM}"))?;
    match Elsewhere::begin(path.to_owned(), reader, stop) {
        Err(e) if e.kind() == ErrorKind::InvalidInput => usage(e.to_string()),
        begun => begun.with_context(|| format!("cannot read {name}")),
    }
}
