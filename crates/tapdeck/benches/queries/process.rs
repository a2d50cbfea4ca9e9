//! Processes under measurement: what one used in all, and how soon it answered.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::common;

/// What a process used from its start to its end, with the children it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub cpu_ms: f64,
    /// Read from disk.
    pub read_mib: f64,
    /// Whether it ended by itself and says that all went well.
    pub well: bool,
}

/// A process and those it started, which are ended with it.
pub struct Group(pub Child);

impl Group {
    pub fn start(command: &mut Command) -> Result<Self, String> {
        use std::os::unix::process::CommandExt;
        command.process_group(0).spawn().map(Self).map_err(|e| format!("{command:?}: {e}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Also where the first has ended: one that it started may still run.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// CPU time of a process so far, all its threads together, to the nanosecond; threads that have
/// ended are not in it.
pub fn cpu_so_far_ms(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
            schedstat.split_whitespace().next()?.parse::<f64>().ok()
        })
        .map(|ns| ns / 1e6)
        .sum()
}

/// What was read from disk by a process, by the children it waited for too, MiB.
pub fn read_so_far_mib(pid: u32) -> f64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let bytes = io.lines().find_map(|l| l.strip_prefix("read_bytes: ")?.parse::<f64>().ok());
    bytes.unwrap_or(f64::NAN) / f64::from(1 << 20)
}

/// Waits for the end of a process and tells what it used. No other child of this process may be
/// waited for meanwhile.
pub fn wait(child: &mut Child) -> Result<Used, String> {
    // Not waited for yet, its files in /proc are still there.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(child)), options).map_err(|e| e.to_string())?;
    let read_mib = read_so_far_mib(child.id());
    let before_ms = children_cpu_ms();
    let status = child.wait().map_err(|e| e.to_string())?;
    let cpu_ms = children_cpu_ms() - before_ms;
    Ok(Used { cpu_ms, read_mib, well: status.success() })
}

fn children_cpu_ms() -> f64 {
    let ms = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 * 1e3 + t.tv_usec() as f64 / 1e3;
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(f64::NAN, |usage| ms(usage.user_time()) + ms(usage.system_time()))
}

/// As [`wait`], and the most memory that was resident, MiB.
pub fn wait_and_watch_memory(child: &mut Child) -> Result<(Used, f64), String> {
    /// For what is left to do after the last packet: an index that lags behind, a disk that does.
    const LIMIT: Duration = Duration::from_secs(120);
    let begin = Instant::now();
    let mut resident_mib = f64::NAN;
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    loop {
        resident_mib = common::resident_mib(child.id()).unwrap_or(resident_mib);
        let id = WaitId::Pid(Pid::from_child(child));
        if waitid(id, ended).map_err(|e| e.to_string())?.is_some() {
            return Ok((wait(child)?, resident_mib));
        }
        if begin.elapsed() > LIMIT {
            return Err(format!("it did not end within {} s", LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// What a command wrote to its standard output, and when.
#[derive(Debug)]
pub struct Answer {
    /// When what comes after the header began to come; not a number if nothing did.
    pub first_s: f64,
    /// When everything had come.
    pub all_s: f64,
    pub bytes: u64,
    /// The first of it, up to [`Answer::KEPT`].
    pub kept: Vec<u8>,
    pub used: Used,
}

impl Answer {
    /// Bytes of an answer that are kept.
    const KEPT: usize = 64 << 20;

    /// Runs a command, whose answer has so many bytes of header.
    pub fn of(command: &mut Command, header_bytes: u64) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let begin = Instant::now();
        let mut group = Group::start(command)?;
        let mut out = group.0.stdout.take().ok_or("no standard output")?;
        let mut first_s = f64::NAN;
        let mut kept = Vec::new();
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = out.read(&mut buffer).map_err(|e| e.to_string())?;
            if n == 0 {
                break;
            }
            bytes += n as u64;
            if first_s.is_nan() && bytes > header_bytes {
                first_s = begin.elapsed().as_secs_f64();
            }
            let room = Self::KEPT.saturating_sub(kept.len());
            kept.extend_from_slice(&buffer[..n.min(room)]);
        }
        let all_s = begin.elapsed().as_secs_f64();
        let used = wait(&mut group.0)?;
        if !used.well {
            return Err(format!("{command:?} failed"));
        }
        Ok(Self { first_s, all_s, bytes, kept, used })
    }
}
