//! A testbed: two network namespaces joined by a veth pair, under names of their own, removed when
//! they are dropped.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unused_self, reason = "what runs in a namespace needs the namespaces to be there")]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tapdeck_testkit::cable::wait_until_up;
pub use tapdeck_testkit::wait_for;

pub mod daemon;
pub mod recorder;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two namespaces, `a` with interface `va` and `b` with `vb`.
pub struct Net {
    pub a: String,
    pub b: String,
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split_whitespace()).status();
    let status = status.expect("ip(8) is installed: make setup");
    assert!(status.success(), "ip {args}");
}

/// Fails with the reason where a test cannot run.
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes network namespaces: run it as root"
    );
}

impl Net {
    /// One receive queue, no addresses, offloads off: frames arrive as they were sent.
    pub fn new() -> Self {
        Self::with("numtxqueues 1 numrxqueues 1", 1500)
    }

    pub fn with(queues: &str, mtu: u32) -> Self {
        need_root();
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let net = Self { a: format!("tdk-{id}-a"), b: format!("tdk-{id}-b") };
        ip(&format!("netns add {}", net.a));
        ip(&format!("netns add {}", net.b));
        net.link(queues, mtu);
        net
    }

    /// Makes the veth pair.
    pub fn link(&self, queues: &str, mtu: u32) {
        let Self { a, b } = self;
        ip(&format!(
            "link add va netns {a} mtu {mtu} {queues} type veth peer name vb netns {b} mtu {mtu} {queues}"
        ));
        for (ns, dev) in [(a, "va"), (b, "vb")] {
            // No neighbour discovery or multicast reports between the packets of a test.
            self.run(ns, &format!("sysctl -qw net.ipv6.conf.{dev}.disable_ipv6=1"));
            self.run(ns, &format!("ethtool -K {dev} tx off tso off gso off gro off"));
            ip(&format!("-n {ns} link set lo up"));
            ip(&format!("-n {ns} link set {dev} up"));
        }
        wait_until_up(a, "va");
        wait_until_up(b, "vb");
    }

    /// Gives both ends IPv4 addresses, 10.213.0.1 and .2, and IPv6 ones, fd13::1 and ::2.
    pub fn addresses(&self) {
        for (ns, dev, n) in [(&self.a, "va", 1), (&self.b, "vb", 2)] {
            self.run(ns, &format!("sysctl -qw net.ipv6.conf.{dev}.disable_ipv6=0"));
            ip(&format!("-n {ns} addr add 10.213.0.{n}/24 dev {dev}"));
            ip(&format!("-n {ns} addr add fd13::{n}/64 dev {dev} nodad"));
        }
    }

    /// A command inside a namespace.
    pub fn command(&self, ns: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, program]);
        command
    }

    /// Runs a command line inside a namespace; it must succeed.
    pub fn run(&self, ns: &str, line: &str) {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a command line");
        let status = self.command(ns, program).args(words).stdout(Stdio::null()).status();
        assert!(status.expect("ip(8) is installed").success(), "{line}");
    }

    /// Runs a function on a thread inside a namespace.
    pub fn inside<T: Send>(&self, ns: &str, f: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{ns}")).expect("the namespace is there");
        thread::scope(|s| {
            let thread = s.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may enter a namespace");
                f()
            });
            thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for ns in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "del", ns]).status();
        }
    }
}

/// A process that is ended when it is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }

    /// Ends it as Ctrl-C does.
    pub fn interrupt(mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::INT);
        self.0.wait().expect("the process is there")
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
