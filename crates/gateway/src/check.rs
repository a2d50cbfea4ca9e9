//! May a filter be compiled? libpcap can take for ever over an expression, or all memory there is;
//! so a process of its own tries first, with little time and memory. What could make libpcap ask
//! for the address of a name is refused: the answer may take as long as it likes, and be another
//! one each time, also when the gateway itself compiles the filter.
//!
//! The gateway runs itself for that, as `tapdeck-gateway check-filter`.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use tapdeck_packet::filter::asks_for_names;
use tapdeck_store::filter::{self, Filter};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// Bytes that the filters of a question may have.
const MOST: usize = 16 << 10;
/// Seconds of CPU that compiling may take.
const CPU_S: u64 = 1;
/// Bytes of memory that compiling may take.
const MEMORY: u64 = 256 << 20;
/// How long compiling may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Filters that are remembered as harmless.
const REMEMBERED: usize = 256;

/// What is said of a filter with the name of a host in it.
pub const NO_NAMES: &str =
    "it is not understood, or names a host: write addresses and numbers in place of names";

/// Filters that were tried.
#[derive(Debug, Default)]
pub struct Checked(Mutex<BTreeSet<String>>);

impl Checked {
    /// Tries the filters of a question, all of them in one process. The error is the text for
    /// whoever asked.
    pub async fn check(&self, filters: &BTreeSet<&str>) -> Result<(), String> {
        let new: Vec<&str> = {
            let known = self.known();
            let is_new = |filter: &&str| !filter.is_empty() && !known.contains(*filter);
            filters.iter().copied().filter(is_new).collect()
        };
        if new.is_empty() {
            return Ok(());
        }
        if new.iter().any(|filter| filter.contains('\0')) {
            return Err("a filter is text".into());
        }
        let text = new.join("\0");
        if text.len() > MOST {
            return Err(format!("the filters of a question have {MOST} bytes at most"));
        }
        run(&text).await?;
        let mut known = self.known();
        if known.len() + new.len() > REMEMBERED {
            known.clear();
        }
        known.extend(new.into_iter().map(str::to_owned));
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(filters: &str) -> Result<(), String> {
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
            stdin.write_all(filters.as_bytes()).await?;
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

/// Compiles the filters on standard input, and says what is wrong with them.
pub fn main() -> ExitCode {
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    let is_limited = setrlimit(Resource::Cpu, limit(CPU_S)).is_ok()
        && setrlimit(Resource::As, limit(MEMORY)).is_ok();
    let mut text = String::new();
    if !is_limited || io::stdin().take(MOST as u64 + 1).read_to_string(&mut text).is_err() {
        return ExitCode::FAILURE;
    }
    for filter in text.split('\0') {
        if asks_for_names(filter) {
            println!("filter {filter:?}: {NO_NAMES}");
            return ExitCode::FAILURE;
        }
        match Filter::new(filter, &[], false) {
            Ok(_) => {}
            // What libpcap says where it gets no more memory: whoever waits names the limits.
            Err(filter::Error::Refused { why, .. }) if why == "malloc" => return ExitCode::FAILURE,
            Err(e) => {
                println!("{e}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
