//! What does a test do with a program that runs beside it? It waits for the program's words, asks
//! for its counters, and ends it; and whatever happens to the test, the program does not outlive
//! it.
//!
//! Programs under test say on standard error, line by line, how far they have come, and write their
//! counters as lines of JSON, the last of them when they end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

use crate::wait::{LIMIT, wait_for};

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// # Panics
    /// If it has ended and was waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("the process is there");
    }

    /// Keeps it from doing anything until it is sent [`Signal::CONT`].
    ///
    /// # Panics
    /// If it has ended.
    pub fn hold(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.0);
        let held = waitpid(Some(pid), WaitOptions::UNTRACED).expect("it is a child");
        assert!(held.is_some_and(|(_, status)| status.stopped()), "it has ended");
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it has not ended after [`LIMIT`], or if somebody else has waited for it.
    pub fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_for("a process to end", || {
            ended = self.0.try_wait().expect("nobody else waits for it");
            ended.is_some()
        });
        ended.expect("it was waited for")
    }

    /// Ends it as Ctrl-C does, and waits for the end.
    pub fn interrupt(mut self) -> ExitStatus {
        self.signal(Signal::INT);
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// A process whose words are listened to.
#[derive(Debug)]
pub struct Talking {
    pub process: Running,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Talking {
    /// Starts a command, whose standard error is then read.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let child = command.stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stderr = child.stderr.take().expect("piped above");
        let (send, lines) = channel();
        // Also when nobody listens any more: what it says must not fill the pipe.
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { process: Running(child), lines, said: Vec::new() }
    }

    /// Waits for a line that contains something, and returns it.
    ///
    /// # Panics
    /// If it never says so, with what it has said.
    pub fn wait_to_say(&mut self, what: &str) -> String {
        loop {
            let line = match self.lines.recv_timeout(LIMIT) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no {what:?} yet, but: {:#?}", self.said),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended and never said {what:?}, but: {:#?}", self.said)
                }
            };
            self.said.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Waits until it has ended. Returns how, and all that it has said.
    pub fn end(&mut self) -> (ExitStatus, &[String]) {
        let status = self.process.wait();
        self.said.extend(self.lines.iter());
        (status, &self.said)
    }
}

/// The last whole line of a file of JSON lines; null where there is none yet.
pub fn last_json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null)
}

/// A counter in an object of JSON.
///
/// # Panics
/// If it has none of that name.
pub fn number(counters: &Value, key: &str) -> u64 {
    counters[key].as_u64().unwrap_or_else(|| panic!("{key} in {counters}"))
}

/// Copies a program to where another user can run it.
///
/// Another process does the copying. A program that is open for writing cannot be run, and what
/// this process has open is for a moment open in each process that a test beside this one starts.
///
/// # Panics
/// Where there is no such program or no room.
pub fn copy_program(from: &str, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp is there");
    assert!(copied.success(), "{from} cannot be copied to {}", to.display());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Talking, last_json};

    #[test]
    fn words_are_heard_in_their_order() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one >&2; echo two >&2; echo three >&2; exit 3"]);
        let mut talking = Talking::start(&mut shell);
        assert_eq!(talking.wait_to_say("w"), "two");
        let (status, said) = talking.end();
        assert_eq!(
            (status.code(), said),
            (Some(3), &["one", "two", "three"].map(String::from)[..])
        );
    }

    #[test]
    #[should_panic(expected = "never said")]
    fn who_ends_says_nothing_more() {
        Talking::start(Command::new("sh").args(["-c", "echo one >&2"])).wait_to_say("two");
    }

    #[test]
    fn a_line_that_is_being_written_does_not_count() {
        let file = std::env::temp_dir().join(format!("tapdeck-testkit-{}", std::process::id()));
        std::fs::write(&file, "{\"n\":1}\n{\"n\":2}\n{\"n\":").unwrap();
        let last = last_json(&file);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(last["n"], 2);
        assert!(last_json(&file).is_null());
    }
}
