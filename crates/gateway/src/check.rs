//! May a filter be compiled? libpcap can take for ever over an expression, or all memory there is,
//! and names in it are looked up; so a process of its own tries first, with little time and memory.
//!
//! The gateway runs itself for that, as `tapdeck-gateway check-filter`.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use tapdeck_store::filter::Filter;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// Bytes that a filter may have.
const MOST: usize = 16 << 10;
/// Seconds of CPU that compiling may take.
const CPU_S: u64 = 1;
/// Bytes of memory that compiling may take.
const MEMORY: u64 = 256 << 20;
/// How long compiling may take, with names that are looked up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Filters that are remembered as harmless.
const REMEMBERED: usize = 256;

/// Filters that were tried.
#[derive(Debug, Default)]
pub struct Checked(Mutex<BTreeSet<String>>);

impl Checked {
    /// Tries a filter. The error is the text for whoever asked.
    pub async fn check(&self, filter: &str) -> Result<(), String> {
        if filter.is_empty() || self.known().contains(filter) {
            return Ok(());
        }
        if filter.len() > MOST {
            return Err(format!("a filter has {MOST} bytes at most"));
        }
        run(filter).await?;
        let mut known = self.known();
        if known.len() == REMEMBERED {
            known.clear();
        }
        known.insert(filter.to_owned());
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(filter: &str) -> Result<(), String> {
    let failed = |e: io::Error| format!("the filter cannot be tried: {e}");
    let mut child = Command::new("/proc/self/exe")
        .arg("check-filter")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let stdin = child.stdin.take();
    let done = async move {
        if let Some(mut stdin) = stdin {
            stdin.write_all(filter.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    match timeout(PATIENCE, done).await {
        Err(_) => Err(format!("the filter takes more than {PATIENCE:?} to compile")),
        Ok(Err(e)) => Err(failed(e)),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) if output.stdout.is_empty() => {
            Err(format!("the filter takes more than {CPU_S} s or {} MiB to compile", MEMORY >> 20))
        }
        Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
    }
}

/// Compiles the filter on standard input, and says what is wrong with it.
pub fn main() -> ExitCode {
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    let is_limited = setrlimit(Resource::Cpu, limit(CPU_S)).is_ok()
        && setrlimit(Resource::As, limit(MEMORY)).is_ok();
    let mut text = String::new();
    if !is_limited || io::stdin().take(MOST as u64 + 1).read_to_string(&mut text).is_err() {
        return ExitCode::FAILURE;
    }
    match Filter::new(&text, &[], false) {
        Ok(_) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}
