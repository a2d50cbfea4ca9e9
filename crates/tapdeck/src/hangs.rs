//! A thread that hangs ends the whole process, with one line that names it, so that a service
//! manager starts it again: as one that fails does ([`crate::panics`]).
//!
//! A disk that stalls is no hang: packets wait, then they are counted as dropped, and it goes on
//! when there is room. What hangs is a thread that does nothing and waits for nothing
//! (`tapdeck_packet::watch`).

use std::time::Duration;

use anyhow::{Context, Result};
use tapdeck_packet::watch::Watcher;

use crate::panics::end_with;

/// How often threads are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How many looks, one after the other, find a thread that hangs the same.
const LOOKS: u32 = 60;

/// Ends the process, with exit code 1, when a watched thread has hung for a minute.
pub fn watch_threads() -> Result<()> {
    watch_every(EVERY)
}

fn watch_every(time: Duration) -> Result<()> {
    let work = move || {
        let mut watcher = Watcher::default();
        loop {
            std::thread::sleep(time);
            if let Some(thread) = watcher.look(LOOKS).first() {
                end_with(&format!(
                    "the thread {thread} hangs, it did nothing for {:?}: this is a fault of tapdeck, please report it",
                    time * LOOKS
                ));
            }
        }
    };
    std::thread::Builder::new()
        .name("tapdeck-watch".into())
        .spawn(work)
        .map(drop)
        .context("cannot start a thread")
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tapdeck_packet::watch;

    /// Set for the process in which threads hang, which is this test once more.
    const HANGS: &str = "TAPDECK_TEST_HANGS";

    #[test]
    fn a_thread_that_hangs_ends_the_process_and_is_named() {
        if std::env::var_os(HANGS).is_some() {
            super::watch_every(Duration::from_millis(5)).expect("a thread can be had");
            let (_hold, held) = channel::<()>();
            let keeper = || {
                watch::watch("tapdeck-keeper");
                watch::waiting(|| std::thread::sleep(Duration::from_secs(600)));
            };
            let index = move || {
                watch::watch("tapdeck-index");
                // Nobody ever sends, and the thread does not say that it waits.
                let _ = held.recv();
            };
            let waits = std::thread::spawn(keeper);
            let hangs = std::thread::spawn(index);
            // The process ends while this waits.
            let _ = (hangs.join(), waits.join());
            std::process::exit(0);
        }
        let this = std::env::current_exe().expect("a test is a program");
        let name = "hangs::tests::a_thread_that_hangs_ends_the_process_and_is_named";
        let mut command = Command::new(this);
        command.args([name, "--exact", "--nocapture"]).env(HANGS, "1");
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let line = said.lines().find(|l| l.starts_with("tapdeck: ")).unwrap_or_default();
        assert!(line.starts_with("tapdeck: the thread tapdeck-index hangs, "), "{said}");
    }
}
