//! Where is a test alone with its network? In a network namespace of its own, with a name that no
//! other test has, so that tests run beside each other and beside whatever else the machine does.
//!
//! A namespace is quiet: IPv6 is off in it until a test asks for addresses, so no neighbour
//! discovery and no multicast report comes between the packets of a test. It goes, with all
//! interfaces in it, when its value is dropped; processes that were started in it live on in it.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{fmt, panic, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::kernel::need_root;

/// A network namespace, removed when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

/// Runs a program in the namespace where this thread is; it must succeed.
///
/// # Panics
/// If the program is not there or fails, with what it said.
pub fn run(line: &str) {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    succeed(command.args(words), line);
}

fn succeed(command: &mut Command, line: &str) {
    let out = command.stdin(Stdio::null()).output();
    let out = out.unwrap_or_else(|e| panic!("{line}: {e}: make setup installs it"));
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
}

impl Namespace {
    /// Makes one.
    ///
    /// # Panics
    /// Where the test does not run as root.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        need_root();
        let name = format!("tapdeck-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        run(&format!("ip netns add {name}"));
        // Made first, so that it goes if what follows fails.
        let namespace = Self { name };
        namespace.inside(|| {
            fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
                .expect("root may set it");
            run("ip link set lo up");
        });
        namespace
    }

    /// Returns the namespace's name, as ip-netns(8) has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command that runs a program inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a command line inside, without a shell; it must succeed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn run(&self, line: &str) {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().expect("a program"));
        succeed(command.args(words), line);
    }

    /// Runs a script inside, as a shell has it; it must succeed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn shell(&self, script: &str) {
        succeed(self.command("sh").args(["-c", script]), script);
    }

    /// Runs a function inside, on a thread of its own, and returns what it returns.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                f()
            });
            thread.join().unwrap_or_else(|reason| panic::resume_unwind(reason))
        })
    }

    /// Moves this thread inside, for good. Threads and processes that it starts are inside too.
    ///
    /// # Panics
    /// If the namespace cannot be entered.
    pub fn enter(&self) {
        enter(&self.name);
    }
}

/// Moves this thread into the namespace of a name, for good.
///
/// # Panics
/// If there is none.
pub fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}"));
    let file = file.unwrap_or_else(|e| panic!("namespace {name}: {e}"));
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter a namespace");
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}
