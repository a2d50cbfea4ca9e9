//! What the four questions share: recorders and what they leave, traffic for them, and processes
//! under measurement.

pub mod asking;
pub mod disturbance;
pub mod freshness;
pub mod indexed;
mod process;
mod recorder;
mod stenographer;
mod tape;
mod traffic;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

/// A directory beside the build, so that recordings land on the disk that is measured and not on a
/// tmpfs.
fn scratch() -> Result<TempDir, String> {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    tempfile::Builder::new().prefix("bench-").tempdir_in(target).map_err(|e| e.to_string())
}

/// The disk is done with what came before.
fn settle() {
    let _ = Command::new("sync").status();
}

/// What is on its way through the kernel arrives.
fn in_flight() {
    std::thread::sleep(Duration::from_millis(300));
}

/// A command line of words without spaces in them.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A command as it is printed: by the program's name.
fn show(line: &str) -> String {
    line.replace(env!("CARGO_BIN_EXE_tapdeck"), "tapdeck").trim_end().to_owned()
}
